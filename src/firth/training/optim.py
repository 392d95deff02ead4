"""Optimisers and the grouping of parameters for weight decay."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firth.training.config import OptimConfig


class BertAdam(torch.optim.Optimizer):
    """Adam without bias correction, with decoupled decay: ``p -= rate · (m / (√v + ε) + decay · p)``.

    Source: google-research/bert optimization.py, AdamWeightDecayOptimizer.
    """

    def __init__(self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], eps: float):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            grads = [p.grad for p in params]
            means = [self.state[p]["exp_avg"] for p in params]
            squares = [self.state[p]["exp_avg_sq"] for p in params]
            beta1, beta2 = group["betas"]
            torch._foreach_lerp_(means, grads, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, group["eps"])
            updates = torch._foreach_div(means, roots)
            if group["weight_decay"]:
                torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            torch._foreach_add_(params, updates, alpha=-group["lr"])


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices and embeddings, never to biases and norms.

    Source: google-research/bert optimization.py excludes names with LayerNorm, layer_norm and bias. In
    this package those are exactly the parameters of one dimension.
    """
    return parameter.dim() > 1


def make_optimizer(
    model: nn.Module, config: OptimConfig, scales: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """An optimiser over the trainable parameters, grouped by whether they decay and by the scale of their rate.

    ``scales``: of the rate, by parameter name; 1 where none is given. Each group has its ``scale``.
    """
    members: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            members.setdefault((decays(name, p), (scales or {}).get(name, 1.0)), []).append(p)
    groups = [
        {"params": params, "weight_decay": config.decay if decay else 0.0, "scale": scale}
        for (decay, scale), params in sorted(members.items(), key=lambda item: (-item[0][1], not item[0][0]))
    ]
    betas = (config.beta1, config.beta2)
    if config.kind == "bert_adam":
        optimizer: torch.optim.Optimizer = BertAdam(groups, lr=config.peak_rate, betas=betas, eps=config.epsilon)
        return optimizer
    return torch.optim.AdamW(groups, lr=config.peak_rate, betas=betas, eps=config.epsilon, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: ``<parameter>/<entry>``."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(p)]}/{entry}": torch.as_tensor(value)
        for p, state in optimizer.state.items()
        for entry, value in state.items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` gave; a tensor without its parameter is our own mistake."""
    params = dict(model.named_parameters())
    for key, tensor in tensors.items():
        name, entry = key.rsplit("/", 1)
        # The count of steps too: a fused optimiser wants it where the parameter is.
        optimizer.state[params[name]][entry] = tensor.to(params[name].device)
