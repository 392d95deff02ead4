"""Convert foreign tensor names by table: total, reversible, and strict in both directions.

A row is ``(theirs, ours)``; ``{i}`` stands for a layer number. If ``theirs`` is a tuple, our
tensor is theirs concatenated along the first axis. A row with ours None names a tensor
that is left out when reading, because it is a copy of another one. ``Turned`` names are of transposed matrices.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.errors import CheckpointError

Rename = tuple[str | tuple[str, ...], str | None]
# A key of a configuration, and the tensor (with two axes) and the axis that have its size.
Size = tuple[str, str, int]


class Turned(str):
    """Their name for a matrix that is (in, out) there and (out, in) here."""

    __slots__ = ()


def weight_and_bias(theirs: str, ours: str) -> tuple[Rename, Rename]:
    """Rows for a layer whose two tensors have the same names and layout on both sides."""
    return (f"{theirs}.weight", f"{ours}.weight"), (f"{theirs}.bias", f"{ours}.bias")


def check_sizes(
    config: Any,
    state: Mapping[str, Tensor] | Mapping[str, np.ndarray],
    where: str,
    *,
    keys: Mapping[str, str],
    sizes: Sequence[Size],
    numbered: re.Pattern[str],
    layers: str,
) -> None:
    """Raise CheckpointError, with the keys of their configuration, if its sizes differ from those of the weights.

    ``keys``: their keys and our fields; ``layers``: their key for the number of layers, whose tensors ``numbered``
    matches.
    """
    for key, name, axis in sizes:
        said, shape = getattr(config, keys[key]), tuple(state[name].shape) if name in state else ()
        if len(shape) == 2 and shape[axis] != said:
            raise CheckpointError(f"{where} says {key} {said}, but {name} has shape {shape}: not of one make")
    found, said = {match[1] for name in state if (match := numbered.match(name))}, getattr(config, keys[layers])
    if len(found) != said:
        raise CheckpointError(f"{where} says {layers} {said}, the weights have {len(found)}")


def expand(table: Sequence[Rename], n_layers: int) -> list[Rename]:
    """Replace each row of a table that contains ``{i}`` by one row per layer."""
    rows: list[Rename] = []
    for theirs, ours in table:
        parts = (theirs,) if isinstance(theirs, str) else theirs
        numbers = range(n_layers) if "{i}" in parts[0] else range(1)
        for i in numbers:
            names = tuple(type(part)(part.replace("{i}", str(i))) for part in parts)
            rows.append((names, None if ours is None else ours.replace("{i}", str(i))))
    return rows


def to_theirs(state: Mapping[str, Tensor], rows: Sequence[Rename]) -> dict[str, Tensor]:
    """Convert our state to their names. Every tensor of ours must have a row; a missing one is a bug."""
    by_ours = {ours: theirs for theirs, ours in rows if ours is not None}
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        theirs = by_ours[name]
        for part, value in zip(theirs, _chunks(tensor, len(theirs)), strict=True):
            result[part] = _turned(part, value).contiguous()
    return result


def to_ours(
    state: Mapping[str, Tensor], rows: Sequence[Rename], expected: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """Convert their state to our names, shaped as ``expected``; CheckpointError names what does not fit."""
    by_ours = {ours: theirs for theirs, ours in rows if ours is not None}
    known = {part for theirs, ours in rows if ours is None or ours in expected for part in theirs}
    missing = [part for ours in expected for part in by_ours[ours] if part not in state]
    unknown = [name for name in state if name not in known]
    if missing or unknown:
        problems = [f"lacks {', '.join(missing[:5])}"] * bool(missing) + [
            f"has unknown {', '.join(unknown[:5])}"
        ] * bool(unknown)
        raise CheckpointError(
            f"{where} {' and '.join(problems)} ({len(missing)} missing, {len(unknown)} unknown tensors)"
        )
    result = {}
    for ours, like in expected.items():
        theirs = by_ours[ours]
        for part, one in zip(theirs, _chunks(like, len(theirs)), strict=True):
            if state[part].shape != (shape := _turned(part, one).shape):
                found = tuple(state[part].shape)
                raise CheckpointError(f"{where}: {part} has shape {found}, expected {tuple(shape)}")
        parts = [_turned(part, state[part]) for part in theirs]
        result[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
    return result


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.T if isinstance(name, Turned) else tensor


def _chunks(tensor: Tensor, n: int) -> tuple[Tensor, ...]:
    # A scalar (the scale of a mix of layers) has no axis to split.
    return tensor.chunk(n) if n > 1 else (tensor,)
