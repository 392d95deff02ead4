"""Outputs of a task model for many examples: batched by length, returned in order."""

from collections.abc import Sequence
from dataclasses import replace

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


@torch.inference_mode()
def row_outputs(
    model: TaskModel,
    examples: Sequence[Example],
    *,
    budget_tokens: int = 4096,
    dtype: torch.dtype = torch.float32,
) -> list[Outputs]:
    """For each example the outputs of each of its rows.

    ``dtype``: what matrix products compute in. The model is left in the mode (training or not) it was in.
    CheckpointError for a model whose outputs are no finite numbers.
    """
    device = next(model.parameters()).device
    # What goes through the model together: whole examples where their rows need one another.
    parts = [
        replace(example, rows=rows, candidates=(len(rows),), targets={})
        for example in examples
        for rows in ([example.rows] if model.joins_rows else [(row,) for row in example.rows])
    ]
    found: list[list[dict[str, np.ndarray]]] = [[]] * len(parts)
    was_training = model.training
    if was_training:  # to walk through all modules is a good part of the time that one short text takes
        model.eval()
    for numbers in in_batches([sum(len(row.ids) for row in part.rows) for part in parts], budget_tokens):
        tokens = collate([parts[i] for i in numbers]).tokens
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            outputs = model.outputs(tokens.to(device))
        arrays = {name: values.cpu().numpy() for name, values in outputs.items()}
        if not all(np.isfinite(values).all() for values in arrays.values()):
            raise CheckpointError(NOT_FINITE)
        units = iter(split_rows(unit_counts(tokens, model.unit)))
        for i in numbers:
            found[i] = [_part(arrays, unit) for _, unit in zip(parts[i].rows, units, strict=False)]
    if was_training:
        model.train()
    by_row = [row for rows in found for row in rows]
    return [by_row[part] for part in split_rows([len(example.rows) for example in examples])]


def _part(arrays: dict[str, np.ndarray], units: slice) -> dict[str, np.ndarray]:
    return {name: values[units] for name, values in arrays.items()}


def unit_counts(tokens: Tokens, unit: Unit) -> list[int]:
    """How many units each row has."""
    if unit == "row":
        return [1] * tokens.rows.n_rows
    if unit == "token":
        return tokens.rows.lengths.tolist()
    assert tokens.words is not None
    return tokens.words.asked_rows.lengths.tolist()
