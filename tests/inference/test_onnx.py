"""Sequences in padded batches, and a graph's outputs mapped to the task's sequences; the graph is a stand-in."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from network_options import network_of

from firth.inference.onnx import padded_inputs, session_outputs
from firth.tasks.config import AnswerConfig, ClassifyConfig, TagConfig
from firth.tasks.rows import Example, Row, RowWords, make_row

PROGRAM = """
import sys
from pathlib import Path
from firth.inference.onnx import open_session
try:
    open_session(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__module__)
"""


def test_onnxruntime_writes_nothing_into_the_folders_of_its_user(tmp_path: Path) -> None:
    """Its import prepares telemetry there."""
    pytest.importorskip("onnxruntime")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ORT_")}
    environment |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "none.onnx")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("onnxruntime")
    assert [str(path) for path in tmp_path.rglob("*")] == []


Inputs = Mapping[str, np.ndarray]


class Graph:
    """Outputs by name, each a function of the inputs; ``seen`` records the inputs."""

    def __init__(self, **outputs: Callable[[Inputs], np.ndarray]):
        self.outputs, self.seen = outputs, list[Inputs]()

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.outputs]

    def run(self, names: Sequence[str], given: Inputs) -> list[np.ndarray]:
        self.seen.append(given)
        return [self.outputs[name](given) for name in names]


def alone(*rows: Row) -> list[Example]:
    return [Example((row,), (1,), {}) for row in rows]


def test_pads_come_last() -> None:
    given = padded_inputs([make_row([5, 6, 7], [0, 1, 1]), make_row([8])], pad_id=3)
    assert {name: values.tolist() for name, values in given.items()} == {
        "input_ids": [[5, 6, 7], [8, 3, 3]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "token_type_ids": [[0, 1, 1], [0, 0, 0]],
    }
    assert {values.dtype for values in given.values()} == {np.dtype(np.int64)}


def test_rows_of_similar_length_go_together_and_results_keep_their_order() -> None:
    graph = Graph(logits=lambda given: given["input_ids"][:, :1].astype(np.float32))
    long = Example((make_row([3] * 5), make_row([4] * 4)), (2,), {})
    short = alone(make_row([1] * 3), make_row([2] * 4))
    found = session_outputs(graph, ClassifyConfig(labels=("a", "b")), [*short, long], 0, budget_tokens=9)
    assert [[row["logits"].tolist() for row in rows] for rows in found] == [[[[1.0]]], [[[2.0]]], [[[3.0]], [[4.0]]]]
    assert [given["input_ids"].shape for given in graph.seen] == [(2, 5), (2, 4)]


def test_a_choice_has_one_score() -> None:
    graph = Graph(logits=lambda given: given["input_ids"].sum(1).astype(np.float32))
    ((row,),) = session_outputs(graph, ClassifyConfig(labels=("a", "b")), alone(make_row([1, 2])), 0)
    assert row["logits"].tolist() == [[3.0]]


def test_answers_lie_on_real_tokens() -> None:
    graph = Graph(
        start_logits=lambda given: given["input_ids"] * 1.0, end_logits=lambda given: given["input_ids"] * 2.0
    )
    (_, (row,)) = session_outputs(graph, AnswerConfig(), alone(make_row([1] * 4), make_row([5, 6])), 0)
    assert (row["start"].tolist(), row["end"].tolist()) == ([5.0, 6.0], [10.0, 12.0])


@pytest.mark.parametrize(("how", "expected"), [("first", 1.0), ("last", 3.0), ("mean", 2.0)])
def test_words_are_read_from_their_pieces(how: Any, expected: float) -> None:
    # Of two tags, the second one's logit is the token id; the target word has the tokens 1, 2 and 3.
    graph = Graph(logits=lambda given: np.stack((np.full(given["input_ids"].shape, 1.5), given["input_ids"]), -1))
    words = RowWords(np.array([[0, 0], [1, 3]]), np.array([1]))
    config = TagConfig(labels=("O", "B-X"), network=network_of(words=how))
    ((row,),) = session_outputs(graph, config, alone(make_row([0, 1, 2, 3], words=words)), 0)
    share = 1 / (1 + np.exp(1.5 - expected))
    assert row["tag"].tolist() == [int(expected > 1.5)]
    np.testing.assert_allclose(row["probability"], [[1 - share, share]])
