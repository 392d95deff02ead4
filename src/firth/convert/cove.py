"""The released encoder of CoVe: a flat table of a PyTorch LSTM's weights, as salesforce/cove reads it.

weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0      layer 0 from left to right: (4 × hidden, width) …
…_reverse                                               from right to left
…_l1, …_l1_reverse                                      the layer above, which reads both: (4 × hidden, 2 × hidden)

Source: specification of checkpoint formats §5. Gates are ordered as in PyTorch. The file has no words and no decoder.
"""

import re
from pathlib import Path

from torch import Tensor

from firth.convert.weights import read_pickle
from firth.errors import CheckpointError
from firth.models.config import MtLstmConfig

_SUFFIXES = (".pth", ".pt")
_NAME = re.compile(r"(?:weight|bias)_[ih]h_l(\d+)(?:_reverse)?")


def is_mtlstm(path: Path) -> bool:
    """Whether a file holds an LSTM under PyTorch's names; CheckpointError for a file that is not a table."""
    if not path.is_file() or path.suffix not in _SUFFIXES:
        return False
    return any(_NAME.fullmatch(name) for name in read_pickle(path))


def read_mtlstm(path: Path, vocab_size: int) -> tuple[MtLstmConfig, dict[str, Tensor]]:
    """Read the sizes, and the layers' tensors under our names; CheckpointError names what does not fit."""
    found = read_pickle(path)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if not isinstance(found.get(name), Tensor) or found[name].dim() != 2:
            raise CheckpointError(f"{path}: {name} is no matrix, or is not there: expected an LSTM of PyTorch")
    numbers = [int(match[1]) for name in found if (match := _NAME.fullmatch(name))]
    config = MtLstmConfig(
        vocab_size=vocab_size,
        width=found["weight_ih_l0"].shape[1],
        hidden_width=found["weight_hh_l0"].shape[1],
        n_layers=max(numbers) + 1,
    )
    shapes = _shapes(config)
    missing, unknown = [n for n in shapes if n not in found], [n for n in found if n not in shapes]
    if missing or unknown:
        problems = [f"lacks {', '.join(missing[:5])}"] * bool(missing)
        problems += [f"has unknown {', '.join(unknown[:5])}"] * bool(unknown)
        raise CheckpointError(f"{path} {' and '.join(problems)}: expected a bidirectional LSTM of PyTorch alone")
    for name, shape in shapes.items():
        tensor = found[name]
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {name} is no tensor of real numbers")
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
    return config, {_ours(name): found[name].float() for name in shapes}


def _shapes(config: MtLstmConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in the file."""
    gates, hidden = 4 * config.hidden_width, config.hidden_width
    found: dict[str, tuple[int, ...]] = {}
    for number in range(config.n_layers):
        below = 2 * hidden if number else config.width
        for suffix in (f"_l{number}", f"_l{number}_reverse"):
            found |= {f"weight_ih{suffix}": (gates, below), f"weight_hh{suffix}": (gates, hidden)}
            found |= {f"bias_ih{suffix}": (gates,), f"bias_hh{suffix}": (gates,)}
    return found


def _ours(name: str) -> str:
    """``weight_ih_l1_reverse`` -> ``encoder.layers.1.weight_ih_l0_reverse``: each layer is a one-layer module."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return f"encoder.layers.{match[1]}.{name.replace(f'_l{match[1]}', '_l0')}"
