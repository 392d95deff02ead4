"""Multiple choice: a softmax over each question's own choices, whose number varies between questions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from network_options import network_of

from firth.errors import InputError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.choose import Chooser, choice_loss, choose_answers, choose_examples, choose_scores
from firth.tasks.config import ChooseConfig, WindowConfig
from firth.tasks.rows import Example, RowMaker, collate, make_row
from firth.text.layouts import bert_layout
from firth.text.records import Choice
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcdefghijklmnop"
TOKENIZER = Tokenizer.from_vocab([*SPECIALS, *LETTERS], lowercase=True)
SIZES = BertConfig(
    vocab_size=TOKENIZER.size,
    width=8,
    n_layers=1,
    n_heads=2,
    feed_forward_width=12,
    max_positions=16,
    dropout=0.0,
    attention_dropout=0.0,
)
LONG = " ".join(LETTERS)
# Two, three and four choices; the second question's text is longer than a row.
RECORDS = [
    Choice("a b", "c", ("d", "e f"), 1, "f:1"),
    Choice(LONG, "", ("a", "b", "c d"), 0, "f:2"),
    Choice("", "a b", ("c", "d", "e", "f"), 3, "f:3"),
]


def maker() -> RowMaker:
    return RowMaker(TOKENIZER, bert_layout(TOKENIZER), WindowConfig(), SIZES.max_positions)


def words(example: Example) -> list[str]:
    """The rows of an example as text."""
    return [" ".join(TOKENIZER.pieces[i] for i in row.ids) for row in example.rows]


@settings(max_examples=100)
@given(st.lists(st.integers(2, 5), min_size=1, max_size=6), st.integers(0, 1 << 30))
def test_the_loss_is_torchs_for_each_question(counts: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = (100 * torch.randn(sum(counts), generator=draw, dtype=torch.float64)).requires_grad_()
    right = torch.tensor([int(torch.randint(n, (1,), generator=draw)) for n in counts])
    begins = torch.tensor([sum(counts[:i]) for i in range(len(counts))])
    loss, correct = choice_loss(scores.float(), begins, right)
    parts = scores.split(counts)
    expected = sum(F.cross_entropy(part[None], label[None]) for part, label in zip(parts, right, strict=True))
    torch.testing.assert_close(loss, expected.float())
    assert correct == sum(int(part.argmax()) == label for part, label in zip(parts, right.tolist(), strict=True))
    (gradient,) = torch.autograd.grad(expected, scores, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, scores)[0], gradient, rtol=1e-5, atol=1e-6)


def test_rows_of_choices() -> None:
    first, second, third = choose_examples(RECORDS, maker(), ChooseConfig())
    assert words(first) == ["[CLS] a b [SEP] c d [SEP]", "[CLS] a b [SEP] c e f [SEP]"]
    assert first.candidates == (1, 1)
    # Without a text, the question takes its place.
    assert words(third) == [f"[CLS] a b [SEP] {c} [SEP]" for c in "cdef"]
    assert second.candidates == (2, 2, 2) and len(second.rows) == 6
    assert words(second)[4:] == [
        "[CLS] a b c d e f g h i j k [SEP] c d [SEP]",
        "[CLS] f g h i j k l m n o p [SEP] c d [SEP]",
    ]
    assert [e.targets["choice"][1].tolist() for e in (first, second, third)] == [[1], [0], [3]]


@pytest.mark.parametrize("long", ["window", "cut"])
def test_a_long_question_keeps_its_end_and_the_choices(long: str) -> None:
    made = RowMaker(TOKENIZER, bert_layout(TOKENIZER), WindowConfig(long=long), SIZES.max_positions)
    (example,) = choose_examples([Choice(LONG, "a " * 20 + "b", ("c", "d e"), 0)], made, ChooseConfig())
    assert words(example)[0] == "[CLS] a b c d e f g [SEP] a a a a b c [SEP]"
    assert words(example)[-1].endswith(" [SEP] a a a b d e [SEP]")
    assert example.cut and made.noted["one text of a pair cut"] == 2


def test_words_that_a_choice_shares_are_marked() -> None:
    (example,) = choose_examples([Choice("a b", "c", ("d b", "e"), 1)], maker(), ChooseConfig(mark_shared_words=True))
    assert [row.segments.tolist() for row in example.rows] == [[0, 0, 2, 0, 1, 1, 3, 1], [0, 0, 0, 0, 1, 1, 1]]
    assert Chooser(Bert(SIZES), ChooseConfig(mark_shared_words=True)).encoder.config.n_segments == 4


def test_a_choice_with_nothing_before_it_is_a_text() -> None:
    (example,) = choose_examples([Choice("", "", ("a", "b"), 0)], maker(), ChooseConfig())
    assert words(example) == ["[CLS] a [SEP]", "[CLS] b [SEP]"]


@pytest.mark.parametrize("merge", ["mean", "max"])
def test_the_step_is_that_of_each_question_alone(merge: str) -> None:
    config = ChooseConfig(windows=WindowConfig(merge=merge))  # type: ignore[arg-type]  # one of its Literal
    torch.manual_seed(0)
    model = Chooser(Bert(SIZES), config).eval()
    torch.nn.init.normal_(model.head.weight)
    examples = choose_examples(RECORDS, maker(), config)
    batch = collate(examples)
    step = model(batch)
    assert batch.counts() == {"choice": 3}
    expected, right = torch.zeros(()), 0
    for example, record in zip(examples, RECORDS, strict=True):
        tokens = collate([example]).tokens
        rows = model.logits(model.read(tokens), tokens)[:, 0].split(example.candidates)
        scores = torch.stack([part.mean() if merge == "mean" else part.max() for part in rows])
        expected = expected + F.cross_entropy(scores[None], torch.tensor([record.label]))
        right += int(scores.argmax()) == record.label
    torch.testing.assert_close(step.losses["choice"], expected)
    assert step.correct["choice"] == right


def outputs_of(*scores: float) -> list[dict[str, np.ndarray]]:
    return [{"logits": np.array([[score]], np.float32)} for score in scores]


def test_answers_merge_the_windows_of_each_choice() -> None:
    record, row = Choice("t", "q", ("one", "two", "three")), make_row([1])
    example = Example((row,) * 5, (2, 1, 2), {})
    outputs = outputs_of(1, 3, 2.5, 4, -1)
    assert choose_scores(example, outputs, "mean").tolist() == [2, 2.5, 1.5]
    assert choose_scores(example, outputs, "max").tolist() == [3, 2.5, 4]
    (mean,) = choose_answers([record], [example], [outputs], ChooseConfig())
    assert (mean.choice, mean.text) == (1, "two")
    assert mean.probabilities == pytest.approx(np.exp([2, 2.5, 1.5]) / np.exp([2, 2.5, 1.5]).sum())
    (most,) = choose_answers([record], [example], [outputs], ChooseConfig(windows=WindowConfig(merge="max")))
    assert (most.choice, most.text) == (2, "three")
    # The longest choice was read in two windows.
    assert (mean.windows, mean.cut) == (2, False)


def test_a_temperature_divides_the_scores() -> None:
    record, row = Choice("t", "q", ("one", "two")), make_row([1])
    (answer,) = choose_answers(
        [record], [Example((row,) * 2, (1, 1), {})], [outputs_of(0, 4)], ChooseConfig(temperature=4.0)
    )
    assert answer.probabilities[1] == pytest.approx(1 / (1 + np.exp(-1)))


@pytest.mark.parametrize(
    ("choices", "label", "message"),
    [
        (("a",), 0, "expected at least two choices, found 1"),
        (("a", "b"), 2, "label 2: expected 0 to 1"),
        (("a", "b"), -1, "label -1: expected 0 to 1"),
    ],
)
def test_impossible_questions_are_named(choices: tuple[str, ...], label: int, message: str) -> None:
    with pytest.raises(InputError, match=f"^f:9: {message}"):
        choose_examples([Choice("a", "b", choices, label, "f:9")], maker(), ChooseConfig())


def test_a_question_without_label_has_no_target() -> None:
    (example,) = choose_examples([Choice("a", "b", ("c", "d"))], maker(), ChooseConfig())
    assert example.targets == {}


def test_dropout_can_fall_on_all_choices_of_a_question_alike() -> None:
    """The head passes on one component of the summary, which is kept or dropped for all rows of a question."""
    config = ChooseConfig(shared_dropout=True, network=network_of(dropout=0.4))
    torch.manual_seed(0)
    model = Chooser(Bert(SIZES), config)
    torch.nn.init.zeros_(model.head.weight)
    model.head.weight.data[0, 3] = 1.0
    batch = collate(choose_examples(RECORDS * 300, maker(), config))
    hidden = model.read(batch.tokens)
    assert hidden.summary is not None
    kept = model.train().logits_of_one_mask(hidden, batch)[:, 0] / hidden.summary[:, 3]
    rows_of_questions = [2, 6, 4] * 300
    shares = kept.detach().split(rows_of_questions)
    assert all(bool((part == 0).all()) or part.numpy() == pytest.approx(1 / 0.6, rel=1e-3) for part in shares)
    assert np.mean([float(part[0]) == 0 for part in shares]) == pytest.approx(0.4, abs=0.06)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_sharing_a_mask_changes_nothing_where_nothing_is_dropped(dropout: float) -> None:
    config = ChooseConfig(network=network_of(dropout=dropout))
    torch.manual_seed(0)
    made = [Chooser(Bert(SIZES), replace(config, shared_dropout=shared)) for shared in (False, True)]
    made[1].load_state_dict(made[0].state_dict())
    batch = collate(choose_examples(RECORDS, maker(), config))
    # In evaluation mode, or in training mode without dropout.
    losses = [model.train(not dropout)(batch).losses["choice"] for model in made]
    assert torch.equal(*losses)
