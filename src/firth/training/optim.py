"""Optimisers and the grouping of parameters for weight decay."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firth.training.config import OptimConfig

# A count of steps after which Adam's bias corrections are 1 in any precision.
_BEYOND_CORRECTION = 1e9
_UPDATES = "updates"
_AVERAGE = "average"


class BertAdam(torch.optim.AdamW):
    """Adam without bias correction, with decoupled decay: ``p -= rate · (m / (√v + ε) + decay · p)``.

    Source: google-research/bert optimization.py, AdamWeightDecayOptimizer. It is AdamW long after its first step:
    so PyTorch's one-pass kernel serves it, which goes over the parameters once instead of nine times.
    """

    def __init__(self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], eps: float):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and "step" not in self.state[p]:
                    step = torch.tensor(_BEYOND_CORRECTION, device=p.device)
                    self.state[p] |= {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        super().step(closure)


class GptAdam(BertAdam):
    """Adam whose bias correction scales the whole step: ``p -= rate · √(1-β2ᵗ)/(1-β1ᵗ) · (m / (√v + ε) + decay · p)``.

    Source: openai/finetune-transformer-lm opt.py: ε is not corrected, and the decay is.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            n = self._count(group["params"])
            group["lr"] *= math.sqrt(1 - beta2**n) / (1 - beta1**n)
        super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate

    def _count(self, params: list[nn.Parameter]) -> int:
        """The number of this update, from 1; it is part of the state, and on the host, where it is read."""
        updates = [self.state[p] for p in params if p.grad is not None]
        for state in updates:
            state[_UPDATES] = state.get(_UPDATES, torch.zeros((), dtype=torch.int64)) + 1
        return max((int(state[_UPDATES]) for state in updates), default=1)


class AveragedSgd(torch.optim.SGD):
    """SGD whose weights can be averaged from some update on.

    Source: Merity et al. 2017, §3. The average is of the weights after each update since; the released code's begins
    one update later. What is no parameter, such as the statistics of batch norm, is not averaged.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        super().step(closure)
        for p, state in self._averages():
            state[_UPDATES] += 1
            state[_AVERAGE].lerp_(p, 1 / int(state[_UPDATES]))

    def begin_averaging(self) -> bool:
        """From the next update on. False if it has begun before: then nothing changes."""
        if self._averages():
            return False
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] |= {_AVERAGE: p.detach().clone(), _UPDATES: torch.zeros((), dtype=torch.int64)}
        return True

    def _averages(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        return [(p, state) for p, state in self.state.items() if _AVERAGE in state]

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """While it lasts, the parameters are their averages, if they are averaged."""
        averages = self._averages()
        _swap(averages)
        try:
            yield
        finally:
            _swap(averages)


@torch.no_grad()
def _swap(averages: list[tuple[nn.Parameter, dict[str, Any]]]) -> None:
    for p, state in averages:
        now = p.clone()
        p.copy_(state[_AVERAGE])
        state[_AVERAGE].copy_(now)


_OURS = {"bert_adam": BertAdam, "gpt_adam": GptAdam}


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
    if config.kind in _OURS:
        optimizer: torch.optim.Optimizer = _OURS[config.kind](
            groups, lr=config.learning_rate, betas=betas, eps=config.epsilon
        )
        return optimizer
    if config.kind == "adagrad":
        return torch.optim.Adagrad(
            groups, lr=config.learning_rate, initial_accumulator_value=config.accumulated, eps=config.epsilon
        )
    if config.kind == "sgd":
        return AveragedSgd(groups, lr=config.learning_rate)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True)


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
        # The count of steps too: a fused optimiser wants it where the parameter is. Ours is of the host.
        place = torch.device("cpu") if entry == _UPDATES else params[name].device
        optimizer.state[params[name]][entry] = tensor.to(place)
