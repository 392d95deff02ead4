"""Search over table models, against a brute force over all sequences and a written-out reference."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from firth.errors import CheckpointError, ConfigError
from firth.inference.decoding import beam_search, filtered, greedy, penalty_of, sample

END = 0


@dataclass(frozen=True)
class History:
    """All tokens that each sequence has read."""

    rows: tuple[tuple[int, ...], ...]

    def select(self, chosen: Tensor) -> "History":
        return History(tuple(self.rows[i] for i in chosen.tolist()))


class Table:
    """A model whose next token depends on all tokens before it: log-probabilities are sampled once per prefix."""

    def __init__(self, n_pieces: int, seed: int, sharpness: float = 2.0):
        self.n_pieces, self.seed, self.sharpness = n_pieces, seed, sharpness
        self.known: dict[tuple[int, ...], Tensor] = {}
        self.n_rows_read = 0

    def log_probs(self, ids: tuple[int, ...]) -> Tensor:
        if ids not in self.known:
            generator = torch.Generator().manual_seed(hash((self.seed, ids)) % 2**31)
            scores = torch.randn(self.n_pieces, generator=generator, dtype=torch.float64)
            self.known[ids] = (self.sharpness * scores).log_softmax(0)
        return self.known[ids]

    def advance(self, ids: Tensor, state: History) -> tuple[Tensor, History]:
        rows = tuple((*row, piece) for row, piece in zip(state.rows, ids.tolist(), strict=True))
        self.n_rows_read += len(rows)
        return torch.stack([self.log_probs(row) for row in rows]), History(rows)

    def log_prob(self, first: int, ids: Sequence[int], ended: bool) -> float:
        row, total = (first,), 0.0
        for piece in (*ids, END) if ended else ids:
            total += float(self.log_probs(row)[piece])
            row = (*row, piece)
        return total


class Fixed(Table):
    """The same probabilities after every prefix of a given length."""

    def __init__(self, *steps: Sequence[float]):
        super().__init__(len(steps[0]), 0)
        self.steps = [torch.tensor(step, dtype=torch.float64).log() for step in steps]

    def log_probs(self, ids: tuple[int, ...]) -> Tensor:
        return self.steps[min(len(ids), len(self.steps)) - 1]


def nothing(n_rows: int) -> History:
    return History(((),) * n_rows)


def best_of_all(table: Table, first: int, most: int, alpha: float) -> tuple[list[int], float]:
    """The finished sequence of at most ``most`` tokens with the best score, by exhaustive search."""
    scored = []
    for length in range(most):
        for ids in itertools.product(range(1, table.n_pieces), repeat=length):
            score = table.log_prob(first, ids, ended=True) / ((5 + length + 1) / 6) ** alpha
            scored.append((score, list(ids)))
    score, ids = max(scored)
    return ids, score


def reference_beam(table: Table, first: int, beam: int, alpha: float, most: int) -> list[tuple[float, list[int]]]:
    """The specification implemented literally for one sentence, with arrays and flags as in the released code."""
    alive = [(0.0, [first])] + [(-math.inf, [first])] * (beam - 1)
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, most + 1):
        extensions = [
            (log_prob + float(table.log_probs(tuple(ids))[piece]), [*ids, piece])
            for log_prob, ids in alive
            for piece in range(table.n_pieces)
        ]
        top = sorted(extensions, key=lambda e: -e[0])[: 2 * beam]
        alive = [e for e in top if e[1][-1] != END][:beam]
        penalty = ((5 + length) / 6) ** alpha
        finished += [(lp / penalty, ids) for lp, ids in top if ids[-1] == END and lp > -math.inf]
        finished = sorted(finished, key=lambda e: -e[0])[:beam]
        if finished and finished[-1][0] >= alive[0][0] / ((5 + most) / 6) ** alpha:
            break
    if finished:
        return [(score, ids[1:-1]) for score, ids in finished]
    return [(lp / ((5 + most) / 6) ** alpha, ids[1:]) for lp, ids in alive if lp > -math.inf]


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6, 1.0]), most=st.integers(1, 4))
def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all_sequences(seed: int, alpha: float, most: int) -> None:
    table = Table(4, seed)
    ids, score = best_of_all(table, 1, most, alpha)
    (found,) = beam_search(
        table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=4**most, length_penalty=alpha, most=[most]
    )
    assert found[0].ids == ids and found[0].ended
    assert found[0].score == pytest.approx(score, abs=1e-12)
    assert found[0].log_prob == pytest.approx(table.log_prob(1, ids, ended=True), abs=1e-12)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([0.0, 0.6, 1.3]),
    most=st.integers(1, 7),
    beam=st.integers(2, 5),
    n_pieces=st.integers(2, 6),
)
def test_the_procedure_is_the_specification_s(seed: int, alpha: float, most: int, beam: int, n_pieces: int) -> None:
    table = Table(n_pieces, seed, sharpness=1.0)
    (found,) = beam_search(
        table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=beam, length_penalty=alpha, most=[most]
    )
    expected = reference_beam(table, 1, beam, alpha, most)
    assert [h.ids for h in found] == [ids for _, ids in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-12)
    for hypothesis in found:
        log_prob = table.log_prob(1, hypothesis.ids, hypothesis.ended)
        assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-12)
        length = len(hypothesis.ids) + hypothesis.ended
        assert hypothesis.score == pytest.approx(log_prob / ((5 + length) / 6) ** alpha, abs=1e-12)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6]), beam=st.integers(1, 4))
def test_several_rows_at_once_are_what_each_is_alone(seed: int, alpha: float, beam: int) -> None:
    table, firsts, most = Table(5, seed), [1, 2, 3, 1], [6, 1, 4, 2]
    together = beam_search(
        table.advance, nothing(4), torch.tensor(firsts), end_id=END, beam=beam, length_penalty=alpha, most=most
    )
    for first, length, found in zip(firsts, most, together, strict=True):
        (alone,) = beam_search(
            table.advance, nothing(1), torch.tensor([first]), end_id=END, beam=beam, length_penalty=alpha, most=[length]
        )
        assert found == alone


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), alpha=st.sampled_from([0.0, 0.6, 2.0]))
def test_beam_1_is_greedy(seed: int, alpha: float) -> None:
    table, firsts, most = Table(5, seed), torch.tensor([1, 2, 3]), [8, 5, 1]
    by_beam = beam_search(table.advance, nothing(3), firsts, end_id=END, beam=1, length_penalty=alpha, most=most)
    by_step = greedy(table.advance, nothing(3), firsts, end_id=END, most=most)
    assert [(h.ids, h.log_prob, h.ended) for (h,) in by_beam] == [(h.ids, h.log_prob, h.ended) for h in by_step]
    for (hypothesis,) in by_beam:
        length = len(hypothesis.ids) + hypothesis.ended
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / penalty_of(length, alpha))


def test_greedy_takes_the_likeliest_piece_and_stops_at_the_end() -> None:
    table = Fixed([0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.8, 0.1, 0.1])
    (found,) = greedy(table.advance, nothing(1), torch.tensor([1]), end_id=END, most=[9])
    assert found.ids == [1, 2] and found.ended
    assert found.log_prob == found.score == pytest.approx(math.log(0.6 * 0.5 * 0.8))
    assert table.n_rows_read == 3


def test_greedy_without_an_end_runs_to_the_greatest_length() -> None:
    table = Fixed([0.8, 0.1, 0.1])
    (found,) = greedy(table.advance, nothing(1), torch.tensor([1]), end_id=None, most=[4])
    assert found.ids == [0] * 4 and not found.ended


def test_a_row_that_ended_is_read_no_more() -> None:
    table = Table(6, seed=3)
    found = greedy(table.advance, nothing(3), torch.tensor([1, 2, 3]), end_id=END, most=[1, 3, 2])
    assert table.n_rows_read == sum(len(h.ids) + h.ended for h in found)


def test_the_end_piece_at_the_first_step() -> None:
    table = Fixed([0.9, 0.06, 0.04])
    (found,) = beam_search(
        table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=2, length_penalty=0.6, most=[9]
    )
    assert found[0].ids == [] and found[0].ended
    assert found[0].score == pytest.approx(math.log(0.9))
    (one,) = greedy(table.advance, nothing(1), torch.tensor([1]), end_id=END, most=[9])
    assert one.ids == [] and one.ended


def test_where_nothing_finishes_the_best_alive_is_the_answer() -> None:
    table = Fixed([1e-9, 0.7, 0.2, 0.07, 0.03 - 1e-9])
    (found,) = beam_search(
        table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=2, length_penalty=0.6, most=[3]
    )
    assert found[0].ids == [1, 1, 1] and not found[0].ended
    assert found[0].score == pytest.approx(3 * math.log(0.7) / (8 / 6) ** 0.6)
    assert len(found) == 2 and found[1].log_prob < found[0].log_prob


def test_without_a_penalty_the_score_is_the_log_probability() -> None:
    table = Table(5, seed=1)
    (found,) = beam_search(
        table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=3, length_penalty=0.0, most=[6]
    )
    assert [h.score for h in found] == [h.log_prob for h in found]


def test_a_greater_penalty_prefers_the_longer_one() -> None:
    table = Fixed([0.45, 0.55], [0.5, 0.5], [0.9, 0.1])
    results = {
        alpha: beam_search(
            table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=4, length_penalty=alpha, most=[3]
        )[0][0].ids
        for alpha in (0.0, 4.0)
    }
    assert results[0.0] == [] and results[4.0] == [1, 1]


def test_an_impossible_piece_is_never_taken() -> None:
    table = Fixed([0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    (found,) = beam_search(
        table.advance, nothing(1), torch.tensor([1]), end_id=END, beam=3, length_penalty=0.6, most=[5]
    )
    assert [h.ids for h in found] == [[2]]


def test_the_same_seed_gives_the_same_text_whatever_was_drawn_before() -> None:
    table, firsts = Table(20, seed=2, sharpness=0.5), torch.tensor([1, 1, 2])
    torch.manual_seed(1)
    one = sample(table.advance, nothing(3), firsts, end_id=END, most=[12] * 3, seed=4)
    torch.manual_seed(2)
    assert sample(table.advance, nothing(3), firsts, end_id=END, most=[12] * 3, seed=4) == one
    assert sample(table.advance, nothing(3), firsts, end_id=END, most=[12] * 3, seed=5) != one
    assert one[0] != one[1], "rows draw for themselves"
    for first, found in zip(firsts.tolist(), one, strict=True):
        assert found.log_prob == pytest.approx(table.log_prob(first, found.ids, found.ended))


def test_pieces_are_drawn_as_often_as_they_are_likely() -> None:
    shares = [0.1, 0.2, 0.3, 0.4]
    n = 4000
    found = sample(Fixed(shares).advance, nothing(n), torch.ones(n, dtype=torch.int64), end_id=None, most=[1] * n)
    counts = torch.bincount(torch.tensor([h.ids[0] for h in found]), minlength=4)
    for count, share in zip(counts.tolist(), shares, strict=True):
        assert abs(count - n * share) < 5 * math.sqrt(n * share * (1 - share))


def test_what_filters_leave() -> None:
    log_probs = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]]).log()
    torch.testing.assert_close(filtered(log_probs, 1.0, 0, 1.0), log_probs.exp())
    kept = filtered(log_probs, 1.0, 2, 1.0)
    torch.testing.assert_close(kept, torch.tensor([[2 / 3, 1 / 3, 0, 0], [0, 0, 3 / 7, 4 / 7]]))
    # The fewest tokens whose probabilities reach 0.6: the one that crosses it stays.
    kept = filtered(log_probs, 1.0, 0, 0.6)
    torch.testing.assert_close(kept, torch.tensor([[2 / 3, 1 / 3, 0, 0], [0, 0, 3 / 7, 4 / 7]]))
    assert filtered(log_probs, 1.0, 0, 1e-6).count_nonzero() == 2
    assert filtered(log_probs, 1.0, 0, 1e-46).count_nonzero() == 2, "it is 0 in float32"
    squares = torch.tensor([0.25, 0.0625, 0.0225, 0.01])
    torch.testing.assert_close(filtered(log_probs[:1], 0.5, 0, 1.0)[0], squares / squares.sum())
    assert filtered(log_probs, 1.0, 99, 1.0).shape == (2, 4)


@pytest.mark.parametrize("temperature", [1e-39, 1e-310])
def test_the_lowest_temperatures_leave_the_likeliest_piece(temperature: float) -> None:
    log_probs = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4]]).log()
    assert filtered(log_probs, temperature, 0, 0.9).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


def test_top_k_1_and_a_low_temperature_are_greedy() -> None:
    table, firsts = Table(9, seed=5), torch.tensor([1, 2])
    expected = greedy(table.advance, nothing(2), firsts, end_id=END, most=[6, 6])
    assert sample(table.advance, nothing(2), firsts, end_id=END, most=[6, 6], top_k=1, seed=1) == expected
    assert sample(table.advance, nothing(2), firsts, end_id=END, most=[6, 6], temperature=1e-4, seed=1) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature=0.0: expected above 0"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
    ],
)
def test_options_that_make_no_probabilities(options: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sample(Table(3, 0).advance, nothing(1), torch.tensor([1]), end_id=END, most=[2], **options)


@pytest.mark.parametrize(
    ("beam", "alpha", "words"),
    [(0, 0.6, "beam=0"), (2, -0.1, "length_penalty=-0.1"), (2, math.nan, "length_penalty=nan")],
)
def test_beams_that_cannot_be(beam: int, alpha: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        beam_search(
            Table(3, 0).advance, nothing(1), torch.tensor([1]), end_id=END, beam=beam, length_penalty=alpha, most=[2]
        )


@pytest.mark.parametrize("most", [[], [0], [1, 1]])
def test_lengths_are_one_for_each_row(most: list[int]) -> None:
    with pytest.raises(ValueError, match="expected at least 1 for each of 1 sequences"):
        greedy(Table(3, 0).advance, nothing(1), torch.tensor([1]), end_id=END, most=most)
    with pytest.raises(ValueError, match="expected at least 1 for each of 1 sequences"):
        beam_search(
            Table(3, 0).advance, nothing(1), torch.tensor([1]), end_id=END, beam=2, length_penalty=0.0, most=most
        )


@pytest.mark.parametrize("place", [0, 2])
def test_a_model_whose_numbers_are_none_says_so(place: int) -> None:
    """From the first step on, or from a later one; a single NaN suffices."""

    class Damaged(Table):
        def log_probs(self, ids: tuple[int, ...]) -> Tensor:
            found = super().log_probs(ids).clone()
            if len(ids) > place:
                found[3] = math.nan
            return found

    model, first = Damaged(5, seed=1), torch.tensor([1, 2])
    start, most = History(((), ())), [4, 4]
    with pytest.raises(CheckpointError, match="not finite numbers: its weights are damaged"):
        greedy(model.advance, start, first, end_id=None, most=most)
    for beam in (1, 3):
        with pytest.raises(CheckpointError, match="not finite numbers"):
            beam_search(model.advance, start, first, end_id=None, beam=beam, length_penalty=0.6, most=most)
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}):
        with pytest.raises(CheckpointError, match="not finite numbers"):
            sample(model.advance, start, first, end_id=None, most=most, **options)
