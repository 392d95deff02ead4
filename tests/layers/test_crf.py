"""The CRF against an exhaustive sum and search over all tag sequences."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from firth.layers.crf import Crf
from firth.packed import Rows

# O, B, I: I follows only B or I, and never starts a sequence.
BIO = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1]]).bool()
BIO_STARTS = torch.tensor([1, 1, 0]).bool()


def yes(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def free_crf(n_tags: int, seed: int = 0) -> Crf:
    return with_random_scores(Crf(n_tags, yes(n_tags, n_tags), yes(n_tags), yes(n_tags)), seed)


def bio_crf(seed: int = 0) -> Crf:
    return with_random_scores(Crf(3, BIO, BIO_STARTS, yes(3)), seed)


def with_random_scores(crf: Crf, seed: int) -> Crf:
    generator = torch.Generator().manual_seed(seed)
    for parameter in crf.double().parameters():
        parameter.data.normal_(generator=generator)
    return crf


def word_scores(rows: Rows, n_tags: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows.n_tokens, n_tags, dtype=torch.float64, generator=generator).mul_(2)


def all_paths(crf: Crf, scores: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """Every allowed tag path of one sequence, and its score by the formula."""
    for tags in itertools.product(range(scores.shape[1]), repeat=len(scores)):
        pairs = list(itertools.pairwise(tags))
        if crf.starts[tags[0]] and crf.ends[tags[-1]] and all(crf.allowed[pair] for pair in pairs):
            score = crf.start_scores[tags[0]] + crf.end_scores[tags[-1]]
            score = score + sum(scores[k, tag] for k, tag in enumerate(tags))
            yield tags, score + sum(crf.transition_scores[pair] for pair in pairs)


def brute(crf: Crf, scores: Tensor, rows: Rows) -> tuple[Tensor, list[int], Tensor]:
    """log Z of each sequence, best tags, and marginals, by enumeration."""
    partitions, best, marginals = [], [], []
    for part in scores.split(rows.lengths.tolist()):
        paths, values = zip(*all_paths(crf, part), strict=True)
        stacked = torch.stack(values)
        partitions.append(stacked.logsumexp(0))
        best += paths[int(stacked.argmax())]
        one_hot = torch.nn.functional.one_hot(torch.tensor(paths), part.shape[1]).double()
        marginals.append(torch.einsum("p,pwk->wk", stacked.softmax(0), one_hot))
    return torch.stack(partitions), best, torch.cat(marginals)


def gold_score(crf: Crf, scores: Tensor, tags: list[int], rows: Rows) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    sizes = rows.lengths.tolist()
    for part, row in zip(scores.split(sizes), torch.tensor(tags).split(sizes), strict=True):
        total = total + dict(all_paths(crf, part))[tuple(row.tolist())]
    return total


def log_of(values: list[int] | list[list[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).log()


def test_loss_by_hand() -> None:
    """Two tags, one sequence of two words; each score is the log of an integer, so path weights are integers."""
    crf = Crf(2, yes(2, 2), yes(2), yes(2)).double()
    with torch.no_grad():
        crf.start_scores.copy_(log_of([1, 2]))
        crf.transition_scores.copy_(log_of([[1, 3], [1, 1]]))
        crf.end_scores.copy_(log_of([1, 5]))
    scores = log_of([[1, 1], [2, 1]])
    rows = Rows.from_lengths([2])
    # 00: 1·1·1·2·1 = 2; 01: 1·1·3·1·5 = 15; 10: 2·1·1·2·1 = 4; 11: 2·1·1·1·5 = 10; sum 31.
    for tags, weight in [([0, 0], 2), ([0, 1], 15), ([1, 0], 4), ([1, 1], 10)]:
        loss = crf.loss(scores, torch.tensor(tags), rows)
        assert loss.item() == pytest.approx(math.log(31 / weight), abs=1e-12)
    assert crf.decode(scores, rows).tolist() == [0, 1]
    expected = torch.tensor([[17.0, 14.0], [6.0, 25.0]], dtype=torch.float64) / 31
    torch.testing.assert_close(crf.marginals(scores, rows), expected, rtol=0, atol=1e-12)


LENGTHS = [[1], [4], [1, 1, 1], [1, 3, 2], [4, 1, 4, 2]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("make", [bio_crf, lambda: free_crf(3), lambda: free_crf(1)], ids=["bio", "free", "one tag"])
def test_equals_the_sum_over_all_tags(make: object, lengths: list[int]) -> None:
    assert callable(make)
    crf, rows = make(), Rows.from_lengths(lengths)
    scores = word_scores(rows, len(crf.starts))
    partitions, best, marginals = brute(crf, scores, rows)
    for tags in (best, [0] * rows.n_tokens):
        expected = partitions.sum() - gold_score(crf, scores, tags, rows)
        loss = crf.loss(scores, torch.tensor(tags), rows)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    assert crf.decode(scores, rows).tolist() == best
    torch.testing.assert_close(crf.marginals(scores, rows), marginals, rtol=0, atol=1e-10)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=9, max_size=9),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 99),
)
def test_any_constraints(
    lengths: list[int], allowed: list[bool], starts: list[bool], ends: list[bool], seed: int
) -> None:
    try:
        crf = Crf(3, torch.tensor(allowed).view(3, 3), torch.tensor(starts), torch.tensor(ends))
    except ValueError:
        assume(False)
    with_random_scores(crf, seed)
    rows = Rows.from_lengths(lengths)
    scores = word_scores(rows, 3, seed + 1)
    partitions, best, marginals = brute(crf, scores, rows)
    assert crf.decode(scores, rows).tolist() == best
    torch.testing.assert_close(crf.marginals(scores, rows), marginals, rtol=0, atol=1e-10)
    expected = partitions.sum() - gold_score(crf, scores, best, rows)
    torch.testing.assert_close(crf.loss(scores, torch.tensor(best), rows), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lengths", [[1], [3, 1, 2]])
def test_gradients(lengths: list[int]) -> None:
    crf, rows = bio_crf(), Rows.from_lengths(lengths)
    scores = word_scores(rows, 3).requires_grad_()
    tags = torch.tensor([1, 2, 0, 0, 1, 2][: rows.n_tokens])

    def loss(scores: Tensor, *_: Tensor) -> Tensor:
        return crf.loss(scores, tags, rows)

    assert torch.autograd.gradcheck(loss, (scores, *crf.parameters()))


def test_gradient_is_posterior_less_gold_and_nothing_where_forbidden() -> None:
    crf, rows = bio_crf(), Rows.from_lengths([3, 1, 2])
    scores = word_scores(rows, 3).requires_grad_()
    tags = torch.tensor([1, 2, 0, 0, 1, 2])
    crf.loss(scores, tags, rows).backward()
    assert scores.grad is not None and crf.transition_scores.grad is not None and crf.start_scores.grad is not None
    expected = crf.marginals(scores, rows) - torch.nn.functional.one_hot(tags, 3)
    torch.testing.assert_close(scores.grad, expected, rtol=0, atol=1e-12)
    assert crf.transition_scores.grad[0, 2] == 0 and crf.start_scores.grad[2] == 0


def test_a_tag_that_no_path_reaches_has_no_gradient_and_no_nan() -> None:
    """Tag 2 can neither start a sequence nor follow any tag."""
    allowed = yes(3, 3)
    allowed[:, 2] = False
    crf = with_random_scores(Crf(3, allowed, torch.tensor([True, True, False]), yes(3)), 0)
    rows = Rows.from_lengths([4, 2])
    scores = word_scores(rows, 3).requires_grad_()
    crf.loss(scores, torch.tensor([0, 1, 0, 1, 1, 1]), rows).backward()
    assert scores.grad is not None
    assert all(bool(p.grad.isfinite().all()) for p in crf.parameters() if p.grad is not None)
    assert scores.grad[:, 2].abs().max() < 1e-12  # rounding of the initial log-softmax
    assert crf.transition_scores.grad is not None and crf.transition_scores.grad[2].abs().max() == 0
    assert crf.marginals(scores, rows)[:, 2].max() == 0


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_constraints_hold_against_any_scores(scale: float) -> None:
    """Decoded tags are allowed even where scores strongly favour I."""
    crf, rows = bio_crf().float(), Rows.from_lengths([1, 20, 3, 300])
    scores = word_scores(rows, 3).float() * scale
    scores[:, 2] += 10 * scale
    scores[:, 1] -= 100 * scale
    tags = crf.decode(scores, rows)
    assert 2 in tags
    for row in tags.split(rows.lengths.tolist()):
        assert bool(BIO_STARTS[row[0]])
        assert bool(BIO[row[:-1], row[1:]].all())
    assert crf.marginals(scores, rows)[rows.first.long(), 2].max() == 0


def test_the_order_of_rows_does_not_matter() -> None:
    crf, lengths = bio_crf(), [3, 1, 7, 7, 2]
    rows = Rows.from_lengths(lengths)
    scores = word_scores(rows, 3)
    tags = crf.decode(scores, rows)
    turned = Rows.from_lengths(lengths[::-1])

    def turn(x: Tensor) -> Tensor:
        return torch.cat(x.split(lengths)[::-1])

    assert torch.equal(crf.decode(turn(scores), turned), turn(tags))
    torch.testing.assert_close(crf.marginals(turn(scores), turned), turn(crf.marginals(scores, rows)))
    torch.testing.assert_close(crf.loss(turn(scores), turn(tags), turned), crf.loss(scores, tags, rows))
    apart = [
        crf.loss(s, t, Rows.from_lengths([len(t)]))
        for s, t in zip(scores.split(lengths), tags.split(lengths), strict=True)
    ]
    torch.testing.assert_close(crf.loss(scores, tags, rows), torch.stack(apart).sum(), rtol=0, atol=1e-10)


def test_a_long_row_of_float32_is_close_to_float64() -> None:
    """Holds also with a constant added to all scores of a word, which changes no probability."""
    crf, rows = bio_crf().float(), Rows.from_lengths([512, 3])
    scores = (word_scores(rows, 3) + 20).float()
    tags = crf.decode(scores, rows)
    loss, marginals = crf.loss(scores, tags, rows), crf.marginals(scores, rows)
    crf.double()
    exact = crf.loss(scores.double(), tags, rows)
    torch.testing.assert_close(loss.double(), exact, rtol=0, atol=1e-3)
    torch.testing.assert_close(marginals.double(), crf.marginals(scores.double(), rows), rtol=0, atol=1e-5)
    torch.testing.assert_close(marginals.sum(1), torch.ones(rows.n_tokens), rtol=0, atol=1e-6)


def test_a_long_row_of_huge_scores_is_finite() -> None:
    crf, rows = bio_crf().float(), Rows.from_lengths([512, 3])
    scores = word_scores(rows, 3).float().mul(1e4).requires_grad_()
    loss = crf.loss(scores, crf.decode(-scores, rows), rows)
    loss.backward()
    assert scores.grad is not None
    assert bool(loss.isfinite()) and bool(scores.grad.isfinite().all())
    assert bool(crf.marginals(scores, rows).isfinite().all())


def test_sums_are_float32_under_autocast() -> None:
    crf, rows = bio_crf().float(), Rows.from_lengths([40, 7])
    scores = word_scores(rows, 3).bfloat16()
    tags = crf.decode(scores, rows)
    with torch.autocast("cpu", torch.bfloat16):
        loss, marginals, again = crf.loss(scores, tags, rows), crf.marginals(scores, rows), crf.decode(scores, rows)
    assert loss.dtype == marginals.dtype == torch.float32
    assert torch.equal(loss, crf.loss(scores.float(), tags, rows))
    assert torch.equal(marginals, crf.marginals(scores.float(), rows))
    assert torch.equal(again, tags)


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ([0, 0, 1, 0, 2, 0], "row 1, word 2 (both from 0): tag 2: may not follow the tag before it"),
        ([0, 0, 2, 2, 2, 0], "row 1, word 0 (both from 0): tag 2: may not begin a row"),
        ([1, 2, 1, 2, 2, 1], "row 2, word 0 (both from 0): tag 1: may not end a row"),
        ([0, 0, 1, 3, 0, 0], "row 1, word 1 (both from 0): tag 3: expected 0 to 2"),
        ([0, 0, 1, 0, -1, 0], "row 1, word 2 (both from 0): tag -1: expected 0 to 2"),
    ],
)
def test_gold_tags_that_break_the_constraints(tags: list[int], says: str) -> None:
    crf = Crf(3, BIO, BIO_STARTS, torch.tensor([True, False, True]))
    with pytest.raises(ValueError) as caught:
        crf.loss(torch.zeros(6, 3), torch.tensor(tags), Rows.from_lengths([2, 3, 1]))
    assert str(caught.value) == says


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_kinds_of_tags(dtype: torch.dtype) -> None:
    crf, rows = bio_crf(), Rows.from_lengths([2, 3])
    tags = torch.tensor([1, 2, 0, 1, 2])
    scores = word_scores(rows, 3)
    assert torch.equal(crf.loss(scores, tags.to(dtype), rows), crf.loss(scores, tags, rows))


def test_constraints_that_leave_rows_without_tags() -> None:
    with pytest.raises(ValueError, match="the constraints allow no tags for a row of 1 words"):
        Crf(2, yes(2, 2), torch.tensor([True, False]), torch.tensor([False, True]))
    turns = ~torch.eye(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="the constraints allow no tags for a row of 2 words"):
        Crf(2, turns, torch.tensor([True, False]), torch.tensor([True, False]))
    with pytest.raises(ValueError, match="do not fit 4 tags"):
        Crf(4, BIO, BIO_STARTS, yes(3))


def test_scores_that_are_not_those_of_the_rows() -> None:
    with pytest.raises(ValueError, match="scores of 4 words for rows of 3"):
        free_crf(2).decode(torch.zeros(4, 2), Rows.from_lengths([3]))


def test_saved_are_the_learned_scores_only_and_they_begin_at_zero() -> None:
    state = Crf(3, BIO, BIO_STARTS, yes(3)).state_dict()
    assert set(state) == {"transition_scores", "start_scores", "end_scores"}
    assert all(value.abs().max() == 0 for value in state.values())


def test_it_learns_what_only_the_tags_beside_can_tell() -> None:
    """The second word's scores carry no information; its tag repeats the first word's."""
    crf, rows = Crf(2, yes(2, 2), yes(2), yes(2)), Rows.from_lengths([2, 2])
    scores = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    tags = torch.tensor([0, 0, 1, 1])
    for _ in range(20):
        gradients = torch.autograd.grad(crf.loss(scores, tags, rows), list(crf.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(crf.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
    assert torch.equal(crf.decode(scores, rows), tags)
    assert crf.loss(scores, tags, rows).item() < 0.5
