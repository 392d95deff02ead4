"""Compute a task model's outputs for many examples: batched by length, returned in order."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from firth.errors import CheckpointError
from firth.inference.batching import in_batches
from firth.packed import Tokens
from firth.tasks.features import Unit
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, Outputs, collate, split_rows

NOT_FINITE = (
    "the model's outputs are not finite numbers: its weights are damaged, or training went wrong; use another "
    "checkpoint, or train again with a lower optim.learning_rate"
)


def check_finite(arrays: Iterable[Any]) -> None:
    """Raise CheckpointError for outputs that are not finite: arrays, or numbers."""
    if not all(np.isfinite(values).all() for values in arrays):
        raise CheckpointError(NOT_FINITE)


def row_outputs(
    model: TaskModel,
    examples: Sequence[Example],
    *,
    budget_tokens: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> list[Outputs]:
    """Compute the outputs of each example's sequences.

    ``dtype``: of the matrix products. The model keeps its mode (training or evaluation).
    CheckpointError if outputs are not finite.
    """
    parts = parts_of(model, examples)
    found: list[Outputs] = [[]] * len(parts)
    was_training = model.training
    if was_training:  # visiting all modules takes much of the time of a single short text
        model.eval()
    for numbers in in_batches([n_tokens(part) for part in parts], budget_tokens):
        for i, rows in zip(numbers, part_outputs(model, [parts[i] for i in numbers], dtype), strict=True):
            found[i] = rows
    if was_training:
        model.train()
    return join_parts(examples, found)


def parts_of(model: TaskModel, examples: Sequence[Example]) -> list[Example]:
    """Split examples into parts that may run in different batches: sequences, or whole examples if joined."""
    return [
        replace(example, rows=rows, candidates=(len(rows),), targets={})
        for example in examples
        for rows in ([example.rows] if model.joins_rows else [(row,) for row in example.rows])
    ]


def n_tokens(part: Example) -> int:
    """Number of tokens in a part."""
    return sum(len(row.ids) for row in part.rows)


@torch.inference_mode()
def part_outputs(
    model: TaskModel, parts: Sequence[Example], dtype: torch.dtype = torch.float32
) -> list[list[dict[str, np.ndarray]]]:
    """Compute the outputs of each part, all in one batch, in evaluation mode."""
    device = next(model.parameters()).device
    tokens = collate(parts).tokens
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        outputs = model.outputs(tokens.to(device))
    arrays = {name: values.cpu().numpy() for name, values in outputs.items()}
    check_finite(arrays.values())
    units = iter(split_rows(unit_counts(tokens, model.unit)))
    return [[_part(arrays, unit) for _, unit in zip(part.rows, units, strict=False)] for part in parts]


def join_parts(examples: Sequence[Example], found: Sequence[Outputs]) -> list[Outputs]:
    """Regroup the outputs of ``parts_of(model, examples)`` by example."""
    by_row = [row for rows in found for row in rows]
    return [by_row[part] for part in split_rows([len(example.rows) for example in examples])]


def _part(arrays: dict[str, np.ndarray], units: slice) -> dict[str, np.ndarray]:
    return {name: values[units] for name, values in arrays.items()}


def unit_counts(tokens: Tokens, unit: Unit) -> list[int]:
    """The number of units in each sequence."""
    if unit == "row":
        return [1] * tokens.rows.n_rows
    if unit == "token":
        return tokens.rows.lengths.tolist()
    assert tokens.words is not None
    return tokens.words.asked_rows.lengths.tolist()
