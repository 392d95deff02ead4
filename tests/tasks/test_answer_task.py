"""Question answering: rows and positions, the loss, the published search against an exhaustive one, raw text."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import ConfigError
from firth.models.bert import Bert
from firth.models.config import BertConfig, GptConfig
from firth.models.gpt import Gpt
from firth.packed import Rows
from firth.tasks.answer import (
    Answerer,
    Passage,
    _texts,
    answer_answers,
    answer_examples,
    best_window,
    pointer_loss,
    window_spans,
)
from firth.tasks.config import AnswerConfig, WindowConfig
from firth.tasks.predictions import Answered
from firth.tasks.rows import Example, RowMaker, collate, make_row, spans
from firth.text.layouts import bert_layout
from firth.text.records import Answer, Question
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,()-'%년부터🙂", "\u0323"]
PIECES = [*SPECIALS, *_LETTERS, *(f"##{c}" for c in _LETTERS), "steve", "smith", "cafe", "1895", "1394년", "##부터"]
TOKENIZER = Tokenizer.from_vocab(PIECES, lowercase=True)
CONFIG = AnswerConfig()


def maker(length: int = 40, stride: int = 0) -> RowMaker:
    return RowMaker(TOKENIZER, bert_layout(TOKENIZER), WindowConfig(length=length, stride=stride), None)


def asked(context: str, answer: str | None = None, question: str = "q", config: AnswerConfig = CONFIG) -> Example:
    answers = None if answer is None else (Answer(answer, context.index(answer)),) if answer else ()
    (example,) = answer_examples([Question(question, context, answers, "f:1")], maker(), config)
    return example


# --- rows and places ------------------------------------------------------------------------------


def test_windows_of_a_context_by_hand() -> None:
    made = maker(11, stride=2)  # room for six tokens beside a question of two
    (example,) = answer_examples([Question("q r", "a b c d e f g h", (Answer("d e", 6),))], made, CONFIG)
    rows = [" ".join(TOKENIZER.pieces[i] for i in row.ids) for row in example.rows]
    assert rows == ["[CLS] q r [SEP] a b c d e f [SEP]", "[CLS] q r [SEP] c d e f g h [SEP]"]
    assert example.rows[0].segments.tolist() == [0] * 4 + [1] * 7
    assert example.candidates == (2,)
    assert (example.about.windows, example.about.begin) == (((0, 6), (2, 8)), 4)
    index, start = example.targets["start"]
    assert (index.tolist(), start.tolist(), example.targets["end"][1].tolist()) == ([0, 1], [7, 5], [8, 6])
    assert made.noted == {"read in windows": 1}


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        ("a", [(4, 4), (0, 0)]),
        ("h", [(0, 0), (9, 9)]),
        ("b c", [(5, 6), (0, 0)]),
        ("c d", [(6, 7), (4, 5)]),
        ("", [(0, 0), (0, 0)]),
    ],
)
def test_a_window_without_the_whole_answer_points_to_its_first_token(
    answer: str, places: list[tuple[int, int]]
) -> None:
    context = "a b c d e f g h"
    answers = (Answer(answer, context.index(answer)),) if answer else ()
    (example,) = answer_examples([Question("q r", context, answers)], maker(11, stride=2), CONFIG)
    assert list(zip(example.targets["start"][1].tolist(), example.targets["end"][1].tolist(), strict=True)) == places


def test_a_long_question_loses_its_end_and_is_counted() -> None:
    made = maker(100)
    (example,) = answer_examples([Question("q " * 65, "a b")], made, CONFIG)
    assert (example.rows[0].ids == TOKENIZER.ids_many(["q"])[0][0]).sum() == 64
    assert example.about.begin == 66
    assert made.noted == {"question cut to 64 tokens": 1}
    (whole,) = answer_examples([Question("q " * 64, "a b")], made, CONFIG)
    assert made.noted.total() == 1
    assert (example.cut, whole.cut) == (True, False)


def test_an_answer_says_how_its_question_was_read() -> None:
    rows = (make_row([1], cut=True), make_row([1], cut=True))
    example = Example(rows, (2,), {}, Passage(np.zeros((2, 2), np.int64), ((0, 1), (1, 2)), 0))
    flat = {"start": np.zeros(1, np.float32), "end": np.zeros(1, np.float32)}
    (found,) = answer_answers([Question("q", "a b")], [example], [[flat, flat]], CONFIG)
    assert (found.windows, found.cut) == (2, True)


def test_a_question_as_long_as_a_sequence_leaves_half_of_it_to_a_long_context() -> None:
    made = maker(20)
    (short,) = answer_examples([Question("q " * 17, "a")], made, CONFIG)
    assert (short.about.begin, len(short.rows[0].ids), short.cut) == (18, 20, True)
    assert made.noted == {"question cut to 16 tokens": 1}
    (long,) = answer_examples([Question("q " * 17, "a " * 30)], made, CONFIG)
    assert (long.about.begin, len(long.rows[0].ids)) == (10, 20) and made.noted["question cut to 8 tokens"] == 1


def test_an_answer_ends_with_its_last_letter() -> None:
    """Also where a token is nothing but the space after it."""
    offsets = np.array([[0, 3], [3, 4], [4, 7]])
    found = _texts("the dog", offsets, [(2.0, 0, 1), (1.0, 0, 0), (0.5, 0, 2), (0.1, 1, 1)], 10)
    assert found == [("the", 0, 3, 2.0), ("the dog", 0, 7, 0.5)]


def test_an_answer_that_has_no_piece_is_counted_and_points_to_the_first_token() -> None:
    made = maker()
    (example,) = answer_examples([Question("q", "a \u200b b", (Answer("\u200b", 2),))], made, CONFIG)
    assert example.targets["start"][1].tolist() == example.targets["end"][1].tolist() == [0]
    assert made.noted == {"answer without a token": 1}


def test_shared_words_are_in_segments_of_their_own() -> None:
    config = AnswerConfig(mark_shared_words=True)
    made = maker(11, stride=2)
    (example,) = answer_examples([Question("q G", "a b g d e f g h", (Answer("d e", 6),))], made, config)
    (plain,) = answer_examples([Question("q G", "a b g d e f g h", (Answer("d e", 6),))], made, CONFIG)
    assert [row.segments.tolist() for row in example.rows] == [
        [0, 0, 2, 0, 1, 1, 3, 1, 1, 1, 1],
        [0, 0, 2, 0, 3, 1, 1, 1, 3, 1, 1],
    ]
    for row, other in zip(example.rows, plain.rows, strict=True):
        assert row.ids.tolist() == other.ids.tolist() and (row.segments % 2).tolist() == other.segments.tolist()


def test_a_cut_question_is_marked_where_it_was_kept() -> None:
    config = AnswerConfig(mark_shared_words=True, max_question=2)
    (example,) = answer_examples([Question("q a g", "g a")], maker(20), config)
    assert example.rows[0].segments.tolist() == [0, 0, 2, 0, 3, 3, 1]


def test_marks_change_the_scores_and_are_learnt() -> None:
    config = AnswerConfig(mark_shared_words=True)
    torch.manual_seed(0)
    sizes = {"vocab_size": TOKENIZER.size, "width": 8, "n_layers": 1, "n_heads": 2, "feed_forward_width": 8}
    encoder = Bert(BertConfig(**sizes, max_positions=40, dropout=0.0, attention_dropout=0.0))
    questions = [Question("q g", "a b g d", (Answer("d", 6),))]
    (marked,), (plain,) = (answer_examples(questions, maker(), c) for c in (config, CONFIG))
    torch.manual_seed(0)
    before = Answerer(encoder, CONFIG).outputs(collate([plain]).tokens)
    torch.manual_seed(0)
    model = Answerer(encoder, config)
    after = model.outputs(collate([marked]).tokens)
    assert encoder.config.n_segments == 4
    assert all(not torch.allclose(after[term], scores) for term, scores in before.items())
    losses = model(collate([marked])).losses
    (losses["start"] + losses["end"]).backward()
    gradient = encoder.embeddings.segments.weight.grad
    assert gradient is not None and all(bool(row.any()) for row in gradient)


def test_only_segments_can_mark_words() -> None:
    gpt = Gpt(GptConfig(vocab_size=9, width=8, n_layers=1, n_heads=2, max_positions=8))
    with pytest.raises(ConfigError, match="^head.mark_shared_words=true: .* which only BERT has: leave it out$"):
        Answerer(gpt, AnswerConfig(mark_shared_words=True))


@pytest.mark.parametrize("context", ["", " \u00a0\n", "a"])
def test_contexts_of_no_word_and_one(context: str) -> None:
    example = asked(context)
    assert len(example.rows) == 1
    ids = example.rows[0].ids.tolist()
    flat = np.zeros(len(ids), np.float32)
    (found,) = answer_answers([Question("q", context)], [example], [[{"start": flat, "end": flat}]], CONFIG)
    assert (found.text, len(found.n_best)) == (context.strip(), 1)
    assert found.no_answer_score is None


def test_questions_about_one_context_have_the_same_pieces() -> None:
    one, other = answer_examples([Question("q", "a b"), Question("r s", "a b")], maker(), CONFIG)
    assert one.about.begin + 1 == other.about.begin
    assert (one.about.offsets == other.about.offsets).all()
    assert one.targets == {}


# --- the loss -------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1 << 30))
def test_the_loss_is_that_of_padded_rows(lengths: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = (20 * torch.randn(sum(lengths), generator=draw, dtype=torch.float64)).requires_grad_()
    rows = Rows.from_lengths(lengths)
    chosen = torch.tensor([i for i in range(len(lengths)) if i % 3 != 1])
    places = torch.tensor([int(torch.randint(lengths[i], (1,), generator=draw)) for i in chosen])
    loss, correct = pointer_loss(scores, rows, chosen, places)
    padded = torch.stack([F.pad(part, (0, 9 - len(part)), value=-torch.inf) for part in scores.split(lengths)])
    expected = F.cross_entropy(padded[chosen], places, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    assert correct == (padded[chosen].argmax(1) == places).sum()
    (ours,), (theirs,) = torch.autograd.grad(loss, scores, retain_graph=True), torch.autograd.grad(expected, scores)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_huge_scores_do_not_break_the_loss() -> None:
    scores = torch.tensor([1e30, -1e30, 3.0, 1e4], requires_grad=True)
    loss, _ = pointer_loss(scores, Rows.from_lengths([2, 2]), torch.tensor([0, 1]), torch.tensor([0, 1]))
    loss.backward()
    assert loss == 0 and scores.grad is not None and torch.isfinite(scores.grad).all()


# --- the search -----------------------------------------------------------------------------------


def test_the_window_with_most_context() -> None:
    windows = [(0, 6), (2, 8), (4, 9)]
    assert [best_window(piece, windows) for piece in range(9)] == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    # On a tie, the first.
    assert best_window(2, [(0, 4), (1, 5)]) == 0
    # Of two with equal context around it, the longer.
    assert best_window(0, [(0, 1), (0, 2)]) == 1


def test_the_window_of_a_long_context_is_searched_among_its_neighbours() -> None:
    seen = list[int]()

    class Windows(list[tuple[int, int]]):
        def __getitem__(self, number: Any) -> Any:
            seen.append(number)
            return super().__getitem__(number)

    windows = Windows((start, start + 100) for start in range(0, 100_000, 50))
    assert best_window(70_020, windows) == 1399 and len(seen) < 100


@settings(max_examples=100)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))
def test_most_context_is_the_published_rule(n: int, room: int, stride: int) -> None:
    """_check_is_max_context, applied to every window and token as in run_squad.py."""
    windows = spans(n, room, stride)

    def is_max_context(current: int, position: int) -> bool:
        best_score, best_index = None, None
        for index, (start, stop) in enumerate(windows):
            length = stop - start
            end = start + length - 1
            if position < start or position > end:
                continue
            score = min(position - start, end - position) + 0.01 * length
            if best_score is None or score > best_score:
                best_score, best_index = score, index
        return best_index == current

    for number, (a, b) in enumerate(windows):
        for piece in range(a, b):
            assert is_max_context(number, piece) == (best_window(piece, windows) == number)


def letters(n: int) -> tuple[str, np.ndarray]:
    """A context of n one-letter words, and the character spans of these."""
    return " ".join(chr(ord("a") + i) for i in range(n)), np.array([(2 * i, 2 * i + 1) for i in range(n)])


def search_everything(passage: Passage, outputs: Sequence[dict[str, np.ndarray]], most: int) -> tuple[float, int, int]:
    """The best score of all spans of all windows, and that span, without a shortlist or vectorisation."""
    found = []
    for number, ((a, b), row) in enumerate(zip(passage.windows, outputs, strict=True)):
        for first in range(a, b):
            others = [
                (min(first - x, y - 1 - first) + 0.01 * (y - x), -i)
                for i, (x, y) in enumerate(passage.windows)
                if x <= first < y
            ]
            if max(others)[1] != -number:
                continue
            for last in range(first, min(b, first + most)):
                at = [passage.begin + piece - a for piece in (first, last)]
                found.append((float(row["start"][at[0]]) + float(row["end"][at[1]]), first, last))
    return max(found, key=lambda span: span[0])


@settings(max_examples=150)
@given(
    st.integers(1, 18), st.integers(2, 9), st.integers(1, 9), st.integers(1, 5), st.booleans(), st.integers(0, 1 << 30)
)
def test_the_best_answer_is_that_of_all_spans(
    n: int, room: int, stride: int, most: int, can_refuse: bool, seed: int
) -> None:
    context, offsets = letters(n)
    passage = Passage(offsets, tuple(spans(n, room, stride)), 3)
    draw = np.random.default_rng(seed)
    rows = [
        {name: draw.normal(size=3 + b - a + 1).astype(np.float32) for name in ("start", "end")}
        for a, b in passage.windows
    ]
    # With every start and end on the shortlist, nothing may be missed.
    config = AnswerConfig(max_answer=most, n_best=room + 4, can_refuse=can_refuse, threshold=1e9 * can_refuse)
    (found,) = answers_of(context, passage, rows, config)
    score, first, last = search_everything(passage, rows, most)
    assert (found.start, found.end) == (offsets[first, 0], offsets[last, 1])
    assert found.text == context[found.start : found.end]
    kept = next(span for span in found.n_best if span.text)
    assert kept.score == pytest.approx(score, abs=1e-6)
    if can_refuse:
        refusal = min(float(row["start"][0]) + float(row["end"][0]) for row in rows)
        assert found.no_answer_score == pytest.approx(refusal - score, abs=1e-6)


def answers_of(context: str, passage: Passage, rows: Any, config: AnswerConfig) -> list[Answered]:
    example = Example((make_row([1]),) * len(rows), (len(rows),), {}, passage)
    return answer_answers([Question("q", context)], [example], [rows], config)


def one_window(n: int) -> tuple[str, Passage, dict[str, np.ndarray]]:
    """A context of n letters in one row after two tokens, all scores zero."""
    context, offsets = letters(n)
    return context, Passage(offsets, ((0, n),), 2), {k: np.zeros(n + 3, np.float32) for k in ("start", "end")}


def test_only_the_best_starts_and_ends_are_looked_at() -> None:
    _, passage, row = one_window(4)
    row["start"][:] = [9, 0, 1, 4, 3, 2, 0]
    row["end"][:] = [9, 0, 0, 1, 2, 3, 4]
    # One of the best three starts is the first token, as is one of the best three ends; another end is the last [SEP].
    assert window_spans(row["start"], row["end"], passage, 0, replace(CONFIG, n_best=3)) == [(7, 1, 3), (6, 2, 3)]
    # Starts by rank, then ends by rank.
    found = window_spans(row["start"], row["end"], passage, 0, replace(CONFIG, n_best=5))
    assert found == [(7, 1, 3), (6, 1, 2), (5, 1, 1), (6, 2, 3), (5, 2, 2), (5, 3, 3), (4, 0, 3), (3, 0, 2), (2, 0, 1)]


def test_an_answer_is_no_longer_than_it_may_be() -> None:
    context, passage, row = one_window(5)
    row["start"][2] = row["end"][6] = 5
    (found,) = answers_of(context, passage, [row], replace(CONFIG, max_answer=5))
    assert found.text == "a b c d e"
    (found,) = answers_of(context, passage, [row], replace(CONFIG, max_answer=4))
    assert found.text != "a b c d e" and found.end - found.start <= 2 * 4 - 1


def test_a_text_that_comes_again_is_kept_once() -> None:
    context = "x y x"
    passage = Passage(np.array([(0, 1), (2, 3), (4, 5)]), ((0, 3),), 1)
    row = {"start": np.float32([0, 1, 2, 3, 0]), "end": np.float32([0, 1, 2, 3, 0])}
    (found,) = answers_of(context, passage, [row], replace(CONFIG, max_answer=1))
    assert [(span.text, span.start, span.score) for span in found.n_best] == [("x", 4, 6), ("y", 2, 4)]
    shares = np.exp([6, 4]) / np.exp([6, 4]).sum()
    assert [span.probability for span in found.n_best] == pytest.approx(shares)
    assert found.probability == pytest.approx(shares[0])
    (found,) = answers_of(context, passage, [row], replace(CONFIG, max_answer=1, n_best=1))
    assert len(found.n_best) == 1


def refusing(threshold: float = 0.0) -> AnswerConfig:
    return AnswerConfig(can_refuse=True, threshold=threshold)


def two_windows() -> tuple[str, Passage, list[dict[str, np.ndarray]]]:
    """No-answer scores 5 and 3 (so 3); the best answer is "c" with 2."""
    context, offsets = letters(3)
    passage = Passage(offsets, ((0, 2), (1, 3)), 1)
    rows = [
        {"start": np.float32([4, 0, 0, 0]), "end": np.float32([1, 0, 0, 0])},
        {"start": np.float32([2, 0, 1, 0]), "end": np.float32([1, 0, 1, 0])},
    ]
    return context, passage, rows


def test_the_no_answer_score_is_the_lowest_of_the_windows() -> None:
    (found,) = answers_of(*two_windows(), refusing())
    assert found.no_answer_score == 1
    assert found.text == "" and (found.start, found.end) == (0, 0)
    assert [(span.text, span.score) for span in found.n_best[:2]] == [("", 3), ("c", 2)]


@pytest.mark.parametrize(
    ("threshold", "text"),
    [(0.99, ""), (1.0, "c"), (math.inf, "c"), (-math.inf, ""), (-5.0, "")],
)
def test_no_answer_is_given_above_the_threshold_only(threshold: float, text: str) -> None:
    (found,) = answers_of(*two_windows(), refusing(threshold))
    assert found.text == text
    chosen = next(span for span in found.n_best if span.text == text)
    assert (found.start, found.end, found.probability) == (chosen.start, chosen.end, chosen.probability)


@pytest.mark.parametrize(("refusal", "n_found", "place"), [(9.0, 20, 0), (-1.0, 21, 20)])
def test_no_answer_is_one_of_the_n_best_or_comes_behind_them(refusal: float, n_found: int, place: int) -> None:
    """As in the published search: no answer takes one of the 20 places if it scores well enough, else a 21st."""
    context, passage, row = one_window(30)
    row["start"][0] = refusal
    row["start"][2:] = row["end"][2:] = 0.1 * np.arange(31)
    (found,) = answers_of(context, passage, [row], refusing())
    assert len(found.n_best) == n_found
    assert [span.text == "" for span in found.n_best].index(True) == place
    assert sum(span.probability for span in found.n_best) == pytest.approx(1)


@pytest.mark.parametrize("threshold", [0.0, math.inf, -math.inf])
def test_without_any_span_there_is_no_answer(threshold: float) -> None:
    passage = Passage(np.zeros((0, 2), np.int64), ((0, 0),), 2)
    row = {name: np.float32([1, 0, 0]) for name in ("start", "end")}
    (found,) = answers_of("", passage, [row], refusing(threshold))
    assert (found.text, found.no_answer_score, found.probability) == ("", math.inf, 1)
    (found,) = answers_of("", passage, [row], CONFIG)
    assert (found.text, found.no_answer_score) == ("", None)


# --- raw text -------------------------------------------------------------------------------------


def learnt(context: str, answer: str, start: int | None = None) -> str:
    """The answer given if every position has the score that training aims at."""
    begin = context.index(answer) if start is None else start
    question = Question("q", context, (Answer(answer, begin),))
    (example,) = answer_examples([question], maker(), CONFIG)
    outputs = [
        {k: np.eye(len(row.ids), dtype=np.float32)[example.targets[k][1][i]] for k in ("start", "end")}
        for i, row in enumerate(example.rows)
    ]
    (found,) = answer_answers([question], [example], [outputs], CONFIG)
    assert context[found.start : found.end] == found.text
    return found.text


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("it was Steve Smith's idea", "Steve Smith"),
        ("a café, there", "café"),
        (unicodedata.normalize("NFD", "a café, there"), unicodedata.normalize("NFD", "café")),
        ("in Zürich, in may", "Zürich"),
        ("of 12% more", "12%"),
        ("of 12 % more", "12 %"),
        ("그는 1394년부터 a", "1394년"),
        ("he (1895-1943). then", "1895"),
        ("he (1895-1943). then", "1943"),
        ("a\u202fb c", "b"),
        ("a\u00a0b c", "b"),
        ("a\u00a0b c", "a\u00a0b"),
        ("x 🙂 y", "🙂"),
        ("🙂 🙂 after", "after"),
        ("x a\u0323 y", "a\u0323"),
        ("first and last", "first"),
        ("first and last", "last"),
    ],
)
def test_the_raw_text_of_an_answer_comes_back(context: str, answer: str) -> None:
    assert learnt(context, answer) == answer


@pytest.mark.parametrize(
    ("context", "answer", "found"),
    [
        ("x (🙂) y", "(🙂", "(🙂"),
        ("a🙂b c", "🙂", "🙂"),
        # Part of a token selects the whole token.
        ("in 1394년 then", "1394", "1394년"),
        # White space around an answer has no tokens.
        ("a b c", " b ", "b"),
    ],
)
def test_an_answer_is_whole_pieces(context: str, answer: str, found: str) -> None:
    assert learnt(context, answer) == found


def test_the_first_answer_is_learnt_where_it_stands() -> None:
    assert asked("a b a").targets == {}
    question = Question("q", "a b a", (Answer("a", 4), Answer("b", 2)))
    (example,) = answer_examples([question], maker(), CONFIG)
    assert example.targets["start"][1].tolist() == [3 + 2]


def test_micro_batches_count_rows() -> None:
    made = maker(11, stride=2)
    questions = [Question("q r", "a b c d e f g h", (Answer("g", 12),)), Question("q", "a", (Answer("a", 0),))]
    batch = collate(answer_examples(questions, made, CONFIG))
    assert batch.targets["start"].index.tolist() == [0, 1, 2]
    assert batch.targets["start"].label.tolist() == [0, 8, 3]


@pytest.mark.parametrize("option", ["max_question", "max_answer", "n_best"])
def test_impossible_options_of_answers_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*at least 1"):
        AnswerConfig(**{option: 0})
