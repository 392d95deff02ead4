"""Run an exported model in onnxruntime (extra ``onnx``) on padded batches."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firth.inference.batching import in_batches
from firth.metrics.calibration import softmax
from firth.tasks.config import reads_apart
from firth.tasks.rows import Example, Outputs, Row, split_rows


def import_onnxruntime() -> Any:
    """Import ``onnxruntime`` with its telemetry disabled.

    From version 1.31 on, merely importing it contacts its vendor and writes to the user's cache folder.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def open_session(path: Path) -> Any:
    """Open the graph on the CPU, with PyTorch's number of threads."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def padded_inputs(rows: Sequence[Row], pad_id: int) -> dict[str, np.ndarray]:
    """Pad sequences on the right to rectangles (B, S)."""
    shape = len(rows), max(len(row.ids) for row in rows)
    ids, mask, segments = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for number, row in enumerate(rows):
        n = len(row.ids)
        ids[number, :n], mask[number, :n], segments[number, :n] = row.ids, 1, row.segments
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def padded_pairs(rows: Sequence[Row], pad_id: int) -> dict[str, np.ndarray]:
    """Pad pairs of sequences, first and second text in turn, to two rectangles (B, S) for a graph of two towers."""
    first, second = padded_inputs(rows[::2], pad_id), padded_inputs(rows[1::2], pad_id)
    used = ("input_ids", "attention_mask")
    return {name: first[name] for name in used} | {f"second_{name}": second[name] for name in used}


def session_outputs(
    session: Any, config: Any, examples: Sequence[Example], pad_id: int, *, budget_tokens: int = 4096
) -> list[Outputs]:
    """Compute the outputs of each example's sequences, as ``firth.inference.outputs.row_outputs`` does.

    ``config``: the options of the task. Sequences of similar length share a batch.
    """
    names = [output.name for output in session.get_outputs()]
    if reads_apart(config.network):
        return _pair_outputs(session, names, examples, pad_id, budget_tokens)
    rows = [row for example in examples for row in example.rows]
    found: list[dict[str, np.ndarray]] = [{}] * len(rows)
    for numbers in in_batches([len(row.ids) for row in rows], budget_tokens):
        arrays = session.run(names, padded_inputs([rows[i] for i in numbers], pad_id))
        for i, *values in zip(numbers, *arrays, strict=True):
            found[i] = _row_outputs(dict(zip(names, map(np.asarray, values), strict=True)), rows[i], config)
    return [found[part] for part in split_rows([len(example.rows) for example in examples])]


def _pair_outputs(
    session: Any, names: Sequence[str], examples: Sequence[Example], pad_id: int, budget_tokens: int
) -> list[Outputs]:
    """Outputs of pairs whose texts are encoded separately: the first sequence has the pair's, the second zeros."""
    found: list[Outputs] = [[]] * len(examples)
    for numbers in in_batches([sum(len(row.ids) for row in example.rows) for example in examples], budget_tokens):
        rows = [row for i in numbers for row in examples[i].rows]
        (logits,) = session.run(names, padded_pairs(rows, pad_id))
        for i, values in zip(numbers, np.asarray(logits), strict=True):
            found[i] = [{"logits": values.reshape(1, -1)}, {"logits": np.zeros_like(values).reshape(1, -1)}]
    return found


def _row_outputs(values: Mapping[str, np.ndarray], row: Row, config: Any) -> dict[str, np.ndarray]:
    """The graph's outputs of one sequence, under the names of its task."""
    if "start_logits" in values:
        n = len(row.ids)
        return {"start": values["start_logits"][:n], "end": values["end_logits"][:n]}
    logits = values["logits"]
    if row.words is None:
        return {"logits": logits.reshape(1, -1)}
    pieces = row.words.pieces[row.words.asked]
    # The head is linear, so a word's tokens may be averaged after it.
    ranges = {"first": pieces[:, [0, 0]], "last": pieces[:, [1, 1]], "mean": pieces}[config.network.words]
    words = np.stack([logits[a : b + 1].mean(0) for a, b in ranges])
    return {"tag": words.argmax(1), "probability": softmax(words)}
