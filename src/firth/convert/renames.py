"""Foreign tensor names by table: total, reversible, and strict in both directions.

A row is ``(theirs, ours)``; ``{i}`` stands for a layer number. Where ``theirs`` is a tuple, our
tensor is theirs laid one below the other along the first axis. A row with ours None names a tensor
that is left out on the way in, because it repeats another one. ``Turned`` names are of matrices that lie
the other way round.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from firth.errors import CheckpointError

Rename = tuple[str | tuple[str, ...], str | None]


class Turned(str):
    """Their name of a matrix that is (in, out) there and (out, in) here."""

    __slots__ = ()


def expand(table: Sequence[Rename], n_layers: int) -> list[Rename]:
    """The table with a row for each layer in the place of rows with ``{i}``."""
    rows: list[Rename] = []
    for theirs, ours in table:
        parts = (theirs,) if isinstance(theirs, str) else theirs
        numbers = range(n_layers) if "{i}" in parts[0] else range(1)
        for i in numbers:
            names = tuple(type(part)(part.replace("{i}", str(i))) for part in parts)
            rows.append((names, None if ours is None else ours.replace("{i}", str(i))))
    return rows


def to_theirs(state: Mapping[str, Tensor], rows: Sequence[Rename]) -> dict[str, Tensor]:
    """Our state under their names. Every tensor of ours must have a row (else it is our own mistake)."""
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
    """Their state under our names, shaped as ``expected``; CheckpointError names what does not fit."""
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
    # A number by itself (the scale of a mix of layers) has no axis to cut.
    return tensor.chunk(n) if n > 1 else (tensor,)
