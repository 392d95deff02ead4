"""Outputs of many examples: one per sequence, in order, however sequences were batched."""

from typing import Any

import numpy as np
import pytest
import torch

from firth.inference.outputs import row_outputs, unit_counts
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.answer import Answerer
from firth.tasks.choose import Chooser
from firth.tasks.config import AnswerConfig, ChooseConfig, TagConfig
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowWords, collate, make_row, target
from firth.tasks.tag import Tagger

SIZES = BertConfig(vocab_size=20, width=8, n_layers=1, n_heads=2, feed_forward_width=12, max_positions=24)


def model(kind: type[TaskModel], config: Any) -> Any:
    torch.manual_seed(0)
    made = kind(Bert(SIZES), config)
    torch.nn.init.normal_(made.head.weight)
    return made.eval()


def row(n: int) -> Any:
    """Ids that distinguish sequences by length; every second token is a word, and all words but one are targets."""
    places = np.arange(0, n, 2)
    words = RowWords(np.stack((places, places), 1), np.arange(max(len(places) - 1, 1)))
    return make_row([(7 * n + i) % 20 for i in range(n)], words=words)


EXAMPLES = [
    Example((row(5), row(24), row(3)), (2, 1), {}),
    Example((row(1),), (1,), {}),
    Example((row(9), row(5)), (1, 1), {}),
]
KINDS = [
    (Chooser, ChooseConfig()),
    (Answerer, AnswerConfig()),
    (Tagger, TagConfig(labels=("O", "B-X", "I-X"), crf=True)),
]


@pytest.mark.parametrize(("kind", "config"), KINDS)
@pytest.mark.parametrize("budget", [1, 15, 4096])
def test_each_row_has_its_own_outputs(kind: type[TaskModel], config: Any, budget: int) -> None:
    made = model(kind, config)
    found = row_outputs(made, EXAMPLES, budget_tokens=budget)
    assert [len(rows) for rows in found] == [3, 1, 2]
    for example, outputs in zip(EXAMPLES, found, strict=True):
        for one, given in zip(example.rows, outputs, strict=True):
            with torch.inference_mode():
                alone = made.outputs(collate([Example((one,), (1,), {})]).tokens)
            assert set(given) == set(alone)
            for name, values in alone.items():
                assert given[name].shape == tuple(values.shape)
                np.testing.assert_allclose(given[name], values.numpy(), rtol=0, atol=1e-5)


def test_targets_and_their_absence_change_nothing() -> None:
    made = model(Answerer, AnswerConfig())
    with_targets = Example(EXAMPLES[2].rows, (1, 1), {"start": target([0, 1], [0, 0]), "end": target([0, 1], [0, 0])})
    plain, given = row_outputs(made, [EXAMPLES[2]]), row_outputs(made, [with_targets])
    assert all(np.array_equal(a["start"], b["start"]) for a, b in zip(plain[0], given[0], strict=True))


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_is_left_as_it_was(training: bool) -> None:
    made = model(Chooser, ChooseConfig()).train(training)
    one, other = row_outputs(made, EXAMPLES), row_outputs(made, EXAMPLES)
    assert made.training is training and made.encoder.training is training
    assert all(
        np.array_equal(a["logits"], b["logits"])
        for x, y in zip(one, other, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def test_no_examples_have_no_outputs() -> None:
    assert row_outputs(model(Chooser, ChooseConfig()), []) == []


def test_outputs_are_float32_whatever_products_compute_in() -> None:
    made = model(Answerer, AnswerConfig())
    (coarse,), (fine,) = row_outputs(made, EXAMPLES[1:2], dtype=torch.bfloat16), row_outputs(made, EXAMPLES[1:2])
    assert coarse[0]["start"].dtype == np.float32
    np.testing.assert_allclose(coarse[0]["start"], fine[0]["start"], atol=0.1)
    assert not np.array_equal(coarse[0]["start"], fine[0]["start"])


def test_units_of_rows() -> None:
    tokens = collate(EXAMPLES).tokens
    assert unit_counts(tokens, "row") == [1] * 6
    assert unit_counts(tokens, "token") == [5, 24, 3, 1, 9, 5]
    assert unit_counts(tokens, "word") == [2, 11, 1, 1, 4, 2]
