"""Optimizers, and parameter groups for weight decay and learning-rate scales."""

import contextlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.packed import JOINT_PROJECTIONS, Encoder
from firth.training.config import OptimConfig

# A step count at which Adam's bias corrections are 1 in any precision.
_BEYOND_CORRECTION = 1e9
_UPDATES = "updates"
_AVERAGE = "average"
_MOMENTUM = "momentum"


class _Uncompiled(torch.optim.Optimizer):
    """PyTorch's first optimizer calls without importing its compiler, which costs 75 MB and seconds of a short run.

    PyTorch wraps these methods to keep its compiler out of them, and loads it to do so. No update is compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(_Uncompiled, torch.optim.AdamW):
    """PyTorch's AdamW, fused."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

    def __init__(self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], eps: float):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=0.0, fused=True)


class Adagrad(_Uncompiled, torch.optim.Adagrad):
    """PyTorch's Adagrad."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adagrad.step))


class _Sgd(_Uncompiled, torch.optim.SGD):
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class BertAdam(AdamW):
    """Adam without bias correction, with decoupled decay: ``p -= rate · (m / (√v + ε) + decay · p)``.

    Source: google-research/bert optimization.py, AdamWeightDecayOptimizer. It equals AdamW at a very large step count,
    so PyTorch's fused kernel applies, which reads the parameters once instead of nine times.
    """

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

    Source: openai/finetune-transformer-lm opt.py: ε is not corrected, but the decay is. t counts the updates of the
    parameter itself, which may have been frozen before.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        whole = self.param_groups
        self.param_groups = [part for group in whole for part in self._corrected(group)]
        super().step(closure)
        self.param_groups = whole

    def _corrected(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Split a group by its parameters' update number (from 1), each part with its corrected learning rate."""
        by_number: dict[int, list[nn.Parameter]] = {}
        for p in group["params"]:
            if p.grad is not None:
                # Part of the state, and on the host, where it is read.
                number = self.state[p].get(_UPDATES, torch.zeros((), dtype=torch.int64)) + 1
                self.state[p][_UPDATES] = number
                by_number.setdefault(int(number), []).append(p)
        beta1, beta2 = group["betas"]
        return [
            group | {"params": params, "lr": group["lr"] * math.sqrt(1 - beta2**n) / (1 - beta1**n)}
            for n, params in by_number.items()
        ]


class Muon(AdamW):
    """Momentum with orthogonalized updates for matrices; AdamW for all other parameters.

    ``p -= rate · (0.2 · √max(rows, columns) · O(m) + decay · p)``, where O(m) has the singular vectors of the Nesterov
    momentum m and singular values near 1. The factor gives updates the root mean square of AdamW's, so one learning
    rate serves both. Groups with ``projections`` hold matrices, each made of that many projections, which are
    orthogonalized separately.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the factor is that of Liu et
    al. 2025 (arXiv 2502.16982), §2.2.
    """

    def __init__(self, params: Iterable[Any], *, lr: float, betas: tuple[float, float], eps: float, momentum: float):
        super().__init__(params, lr=lr, betas=betas, eps=eps)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        matrices = [group for group in self.param_groups if group["projections"]]
        updates: list[tuple[nn.Parameter, dict[str, Any], Tensor]] = []
        for group in matrices:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if _MOMENTUM not in state:
                        state[_MOMENTUM] = torch.zeros_like(p)
                    mean = state[_MOMENTUM].lerp_(p.grad, 1 - self.momentum)
                    updates.append((p, group, p.grad.lerp(mean, self.momentum)))
        pieces = [piece for _, group, update in updates for piece in update.chunk(group["projections"])]
        directions = iter(orthogonalized(pieces))
        for p, group, _ in updates:
            parts = [next(directions) for _ in range(group["projections"])]
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(torch.cat(parts) if len(parts) > 1 else parts[0], alpha=-0.2 * group["lr"])
            # The matrices are updated; AdamW skips parameters without a gradient.
            p.grad = None
        super().step(closure)


# Coefficients of the quintic iteration. Source: Jordan et al. 2024.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalized(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Bring each matrix's (R, C) singular values near 1 and scale it by √max(R, C); one batched product per shape.

    Products are in autocast's dtype: in bfloat16, as published, if the run computes in it. Elsewhere a processor may
    have to emulate it, which would take ten times a step.
    """
    a, b, c = _QUINTIC
    found: list[Tensor] = [torch.empty(0)] * len(matrices)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, matrix in enumerate(matrices):
        shapes.setdefault((min(matrix.shape), max(matrix.shape)), []).append(number)
    for (_, longest), numbers in shapes.items():
        wide = [m if m.shape[0] <= m.shape[1] else m.T for m in (matrices[i] for i in numbers)]
        x = torch.stack(wide).float()
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(_ITERATIONS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for number, direction in zip(numbers, x.float() * math.sqrt(longest), strict=True):
            tall = matrices[number].shape[0] > matrices[number].shape[1]
            found[number] = (direction.T if tall else direction).to(matrices[number].dtype)
    return found


class AveragedSgd(_Sgd):
    """SGD that can average its weights from a given update on.

    Source: Merity et al. 2017, §3. Averages the weights after each update from then on; the released code starts
    one update later. Buffers, such as batch norm statistics, are not averaged.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # no loss to return
        super().step(closure)
        for p, state in self._averages():
            state[_UPDATES] += 1
            state[_AVERAGE].lerp_(p, 1 / int(state[_UPDATES]))

    def begin_averaging(self) -> bool:
        """Average from the next update on. Returns False, and changes nothing, if averaging has already begun."""
        if self._averages():
            return False
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] |= {_AVERAGE: p.detach().clone(), _UPDATES: torch.zeros((), dtype=torch.int64)}
        return True

    def _averages(self) -> list[tuple[nn.Parameter, dict[str, Any]]]:
        return [(p, state) for p, state in self.state.items() if _AVERAGE in state]

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the parameters have their averaged values, if there are any."""
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


_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
# State entries of each updated parameter by optimizer; AveragedSgd has none before it averages.
_ENTRIES: Mapping[type, frozenset[str]] = {
    BertAdam: _ADAM,
    GptAdam: _ADAM | {_UPDATES},
    AdamW: _ADAM,
    Adagrad: frozenset({"step", "sum"}),
}
_COUNTS = ("step", _UPDATES)
_OURS = {"bert_adam": BertAdam, "gpt_adam": GptAdam}


def decays(parameter: Tensor) -> bool:
    """Whether weight decay applies to a parameter: to matrices and embeddings, not to biases and norms.

    Source: google-research/bert optimization.py excludes names with LayerNorm, layer_norm and bias. In
    this package those are exactly the one-dimensional parameters.
    """
    return parameter.dim() > 1


def make_optimizer(
    model: nn.Module,
    config: OptimConfig,
    scales: Mapping[str, float] | None = None,
    parts: Mapping[str, nn.Parameter] | None = None,
) -> torch.optim.Optimizer:
    """Build an optimizer over the trainable parameters, grouped by weight decay and learning-rate scale.

    ``scales``: of the learning rate, by parameter name; default 1. Each group has its ``scale``. ``parts``: the slice
    of each parameter to update, by name; others are not updated. None: all parameters.
    """
    projections = _hidden_matrices(model) if config.kind == "muon" else {}
    members: dict[tuple[bool, float, int], list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad and (parts is None or name in parts):
            key = (decays(p), (scales or {}).get(name, 1.0), projections.get(id(p), 0))
            members.setdefault(key, []).append(p if parts is None else parts[name])
    groups = [
        {
            "params": params,
            "weight_decay": config.decay if decay else 0.0,
            "decays": decay,
            "projections": count,
            "scale": scale * (config.matrix_scale if count else 1.0),
        }
        for (decay, scale, count), params in sorted(members.items(), key=lambda item: (-item[0][1], not item[0][0]))
    ]
    betas = (config.beta1, config.beta2)
    if config.kind in _OURS:
        optimizer: torch.optim.Optimizer = _OURS[config.kind](
            groups, lr=config.learning_rate, betas=betas, eps=config.epsilon
        )
        return optimizer
    if config.kind == "adagrad":
        return Adagrad(
            groups, lr=config.learning_rate, initial_accumulator_value=config.accumulated, eps=config.epsilon
        )
    if config.kind == "muon":
        return Muon(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, momentum=config.momentum)
    if config.kind == "sgd":
        return AveragedSgd(groups, lr=config.learning_rate)
    return AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon)


def _hidden_matrices(model: nn.Module) -> dict[int, int]:
    """The number of projections in each weight of the linear layers of an encoder's blocks, by id."""
    encoder = getattr(model, "encoder", None)
    blocks = encoder.regions() if isinstance(encoder, Encoder) else []
    if not blocks:
        raise ConfigError("optim.kind=muon requires Transformer blocks, and this model has none: use adamw")
    return {
        id(part.weight): JOINT_PROJECTIONS.get(name.rpartition(".")[2], 1)
        for block in blocks
        for name, part in block.named_modules()
        if isinstance(part, nn.Linear)
    }


def whole_costs(model: nn.Module, config: OptimConfig) -> dict[str, float]:
    """The parameters that must be updated whole, with their update cost per element relative to other parameters."""
    projections = _hidden_matrices(model) if config.kind == "muon" else {}
    return {
        # About 30 times the shorter side's length in operations; AdamW's update of an element costs as much as a few
        # thousand.
        name: 1 + min(p.shape[0] // projections[id(p)], p.shape[1]) / 100
        for name, p in model.named_parameters()
        if id(p) in projections
    }


def state_tensors(params: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of the given parameters, or slices of them, by name: ``<parameter>/<entry>``."""
    names = {id(p): name for name, p in params.items()}
    return {
        f"{names[id(p)]}/{entry}": torch.as_tensor(value)
        for p, state in optimizer.state.items()
        for entry, value in state.items()
    }


def keeps_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer keeps state tensors after each update."""
    return type(optimizer) in _ENTRIES


def check_state(
    params: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Raise ValueError for a state tensor that fits no parameter or optimizer, or has values that no update produces.

    An example is zeros, which a disk returns for data it has lost; a checksum computed from them matches.
    """
    entries: dict[str, set[str]] = {}
    averages = list[bool]()
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        shape = torch.Size(()) if entry in _COUNTS else params[name].shape if name in params else None
        if name not in params or tensor.shape != shape or tensor.is_floating_point() != (entry != _UPDATES):
            raise ValueError(f"{key[:60]!r} of shape {tuple(tensor.shape)} belongs to no parameter of the model")
        if _is_impossible(optimizer, entry, tensor):
            raise ValueError(f"{key} has values that no update leaves, such as zeros: it is damaged")
        if entry == _AVERAGE:
            averages.append(bool(tensor.any()))
        entries.setdefault(name, set()).add(entry)
    if averages and not any(averages):
        raise ValueError("all averages of the weights are zeros: they are damaged")
    needed = _ENTRIES.get(type(optimizer), frozenset())
    for name, found in entries.items():
        if needed - found:
            raise ValueError(f"{name} lacks {', '.join(sorted(needed - found))}")


def _is_impossible(optimizer: torch.optim.Optimizer, entry: str, tensor: Tensor) -> bool:
    """Whether a state entry has a value that no update produces.

    Adam's state of a parameter begins with its first update, Adagrad's before it, and Adagrad's sums only grow.
    Moments and momentum are no evidence: they are zeros for a parameter whose gradients are zeros.
    """
    if isinstance(optimizer, Adagrad):
        least = torch.full_like(tensor, optimizer.defaults["initial_accumulator_value"])
        return entry == "sum" and not bool((tensor >= least).all())
    if entry == "step" or (entry == _UPDATES and isinstance(optimizer, GptAdam)):
        return not tensor.item() >= 1
    return False


def load_state(
    params: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Restore the state from ``state_tensors``."""
    for key, tensor in tensors.items():
        name, _, entry = key.rpartition("/")
        # A fused optimizer needs its step count on the parameter's device; our update count is on the host.
        place = torch.device("cpu") if entry == _UPDATES else params[name].device
        optimizer.state[params[name]][entry] = tensor.to(place)
