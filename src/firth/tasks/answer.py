"""Extractive question answering: predict the start and end of the answer in a context.

Source: Devlin et al. 2018, §4.2 and §4.3; google-research/bert run_squad.py (specification of tasks §4).
Differs: there is no padding, so the softmax runs over the tokens of the sequence alone; theirs includes pad
positions, to which a trained model gives almost no probability.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.batch import Batch, Step
from firth.layers.mixing import log_totals
from firth.metrics.calibration import softmax
from firth.packed import Carry, Encoder, Rows, Tokens
from firth.tasks.config import AnswerConfig
from firth.tasks.model import TaskModel
from firth.tasks.predictions import Answered, Span
from firth.tasks.rows import Example, Outputs, PairText, RowMaker, marked_texts, spans, target
from firth.text.open_words import in_blocks
from firth.text.records import Question
from firth.text.tokenizer import Encoded

_Text = tuple[str, int, int, float]  # text, begin, end, score


class Answerer(TaskModel):
    """Predicts the start and end token of the answer in each sequence: terms ``start`` and ``end``.

    The target of a sequence without the answer is its first token, twice.
    """

    unit = "token"

    def __init__(self, encoder: Encoder, config: AnswerConfig):
        super().__init__()
        # The published loss is the mean of the two.
        self.build(encoder, config, 2, {"start": 0.5, "end": 0.5})

    def forward(self, batch: Batch, carry: Carry | None = None) -> Step:
        logits, rows = self.logits(self.read(batch.tokens), batch.tokens), batch.tokens.rows
        losses, correct = {}, {}
        for column, term in enumerate(("start", "end")):
            target = batch.targets[term]
            losses[term], correct[term] = pointer_loss(logits[:, column], rows, target.index, target.label)
        return Step(losses, correct)

    def outputs(self, tokens: Tokens) -> dict[str, Tensor]:
        """``start`` and ``end`` (T,): a score for each token."""
        logits = self.logits(self.read(tokens), tokens)
        return {"start": logits[:, 0], "end": logits[:, 1]}


def pointer_loss(
    scores: Float[Tensor, " T"], rows: Rows, chosen_rows: Int[Tensor, " R"], places: Int[Tensor, " R"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Summed cross-entropy of a softmax over each sequence's own tokens, and how many sequences point to the right one.

    ``places``: for each of ``chosen_rows`` the index of the right token in its sequence.
    """
    log_total, highest = log_totals(scores, rows.row_of_token(), rows.n_rows)
    right = scores.index_select(0, rows.first.index_select(0, chosen_rows) + places)
    loss = (log_total.index_select(0, chosen_rows) - right).sum()
    return loss, (right >= highest.index_select(0, chosen_rows)).sum()


@dataclass(frozen=True, slots=True)
class Passage:
    """Maps the sequences of a question to spans of its context.

    ``offsets`` (n, 2): character span of each context token. ``windows``: token span of each sequence.
    ``begin``: index in a sequence at which the context starts.
    """

    offsets: np.ndarray
    windows: tuple[tuple[int, int], ...]
    begin: int


def answer_examples(questions: Sequence[Question], maker: RowMaker, config: AnswerConfig) -> list[Example]:
    """Build the sequences of each question: its first tokens and a window of the context."""
    found = []
    for block in in_blocks(questions, lambda q: len(q.question) + len(q.context)):
        asked = maker.tokenizer.encode_many([q.question for q in block])
        # Neighbouring questions mostly share a context: tokenise each context once.
        known = list(dict.fromkeys(q.context for q in block))
        contexts = dict(zip(known, maker.tokenizer.encode_many(known), strict=True))
        found += [
            _example(question, tokens, contexts[question.context], maker, config)
            for question, tokens in zip(block, asked, strict=True)
        ]
    return found


def _example(question: Question, asked: Encoded, context: Encoded, maker: RowMaker, config: AnswerConfig) -> Example:
    if config.mark_shared_words:
        first, second = marked_texts((question.question, asked), (question.context, context))
    else:
        first, second = PairText(asked.ids), PairText(context.ids)
    room = maker.length - maker.layout.n_special_pair
    # As in other pairs, it may take half of a sequence, or all that the context leaves.
    most = min(config.max_question, max(room // 2, room - len(second)))
    cut = len(first) > most
    if cut:
        maker.noted[f"question cut to {most} tokens"] += 1
        first = first.part(0, most)
    room -= len(first)
    windows = spans(len(second), room, maker.stride(room))
    if len(windows) > 1:
        maker.noted["read in windows"] += 1
    rows = [maker.pair_row(first, second.part(a, b), cut=cut) for a, b in windows]
    offsets = np.array(context.offsets, np.int64).reshape(-1, 2)
    passage = Passage(offsets, tuple(windows), maker.layout.begin_of_second(len(first)))
    return Example(tuple(rows), (len(rows),), _targets(question, passage, maker), passage)


def _targets(question: Question, passage: Passage, maker: RowMaker) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Token span of the first answer in each window; 0 and 0 where the window does not hold all of it."""
    if question.answers is None:
        return {}
    places = np.zeros((len(passage.windows), 2), np.int64)
    if question.answers:
        answer = question.answers[0]
        inside = (passage.offsets[:, 1] > answer.start) & (passage.offsets[:, 0] < answer.start + len(answer.text))
        pieces = np.flatnonzero(inside)
        if not len(pieces):
            maker.noted["answer without a token"] += 1
        for number, (a, b) in enumerate(passage.windows):
            if len(pieces) and a <= pieces[0] and pieces[-1] < b:
                places[number] = passage.begin + pieces[[0, -1]] - a
    rows = range(len(passage.windows))
    return {"start": target(rows, places[:, 0]), "end": target(rows, places[:, 1])}


def answer_answers(
    questions: Sequence[Question], examples: Sequence[Example], outputs: Sequence[Outputs], config: AnswerConfig
) -> list[Answered]:
    """Find the best answer to each question over all windows of its context, by the published search."""
    return [_answer(q, e, rows, config) for q, e, rows in zip(questions, examples, outputs, strict=True)]


def _answer(question: Question, example: Example, outputs: Outputs, config: AnswerConfig) -> Answered:
    passage: Passage = example.about
    found: list[tuple[float, int, int]] = []
    for number, row in enumerate(outputs):
        found += window_spans(row["start"], row["end"], passage, number, config)
    # A stable sort keeps equal scores in the order of windows and ranks.
    found.sort(key=lambda span: -span[0])
    refusal = min(float(row["start"][0]) + float(row["end"][0]) for row in outputs)
    spans_found = _texts(question.context, passage.offsets, found, config.n_best)
    best = spans_found[0] if spans_found else None
    if config.can_refuse:
        spans_found = _with_refusal(spans_found, ("", 0, 0, refusal), config.n_best)
    if not spans_found:
        spans_found = [("", 0, 0, 0.0)]
    shares = softmax(np.array([[score for *_, score in spans_found]]))[0].tolist()
    n_best = tuple(Span(*span, probability=p) for span, p in zip(spans_found, shares, strict=True))
    difference = None
    if config.can_refuse:
        difference = refusal - best[3] if best else float("inf")
    refused = difference is not None and difference > config.threshold
    chosen = next((s for s in n_best if bool(s.text) != refused), n_best[0])
    return Answered(
        chosen.text, chosen.start, chosen.end, chosen.probability, difference, n_best, example.windows, example.cut
    )


def _with_refusal(found: list[_Text], refusal: _Text, n_best: int) -> list[_Text]:
    """The ``n_best`` best texts and "no answer", with "no answer" (or an empty text) appended if it is not among them.

    Source: google-research/bert run_squad.py, write_predictions.
    """
    ranked = sorted([*found, refusal], key=lambda span: -span[3])
    kept = ranked[:n_best]
    return kept + [span for span in (*found[:1], refusal) if span not in kept]


def window_spans(
    start: Float[np.ndarray, " T"], end: Float[np.ndarray, " T"], passage: Passage, number: int, config: AnswerConfig
) -> list[tuple[float, int, int]]:
    """(score, first token, last token) of a window's valid spans among its best starts and ends.

    A start counts only in the window that gives it the most context. Order, as published: starts by rank, then ends.
    """
    a, b = passage.windows[number]
    starts, ends = _best(start, config.n_best), _best(end, config.n_best)
    s, e = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    score = start[s].astype(np.float64) + end[e]
    first, last = s - passage.begin + a, e - passage.begin + a
    good = (s >= passage.begin) & (e >= s) & (first < b) & (last < b) & (e - s < config.max_answer)
    rows = zip(score[good].tolist(), first[good].tolist(), last[good].tolist(), strict=True)
    return [row for row in rows if best_window(row[1], passage.windows) == number]


def _best(scores: np.ndarray, n: int) -> np.ndarray:
    """Indices of the n highest scores, highest first; ties keep their order."""
    return np.argsort(-scores, kind="stable")[:n]


def best_window(piece: int, windows: Sequence[tuple[int, int]]) -> int:
    """The first of the windows in which a token has the most context; ``windows`` in order.

    Source: google-research/bert run_squad.py, _check_is_max_context: the smaller number of tokens to its left
    or right, plus a hundredth of the window's length.
    """
    # Windows that hold the token are neighbours: a long context has thousands of others.
    holding = range(bisect_right(windows, piece, key=itemgetter(1)), bisect_right(windows, piece, key=itemgetter(0)))

    def context(number: int) -> float:
        a, b = windows[number]
        return min(piece - a, b - 1 - piece) + 0.01 * (b - a)

    return max(holding, key=context)


def _texts(context: str, offsets: np.ndarray, found: Sequence[tuple[float, int, int]], n_best: int) -> list[_Text]:
    """(text, start, end, score) of the best spans in the raw context, each text once."""
    kept: dict[str, _Text] = {}
    for score, first, last in found:
        begin, end = int(offsets[first, 0]), int(offsets[last, 1])
        text = context[begin:end].rstrip()  # a token may be nothing but a space
        end = begin + len(text)
        if text and text not in kept:
            kept[text] = (text, begin, end, score)
            if len(kept) == n_best:
                break
    return list(kept.values())
