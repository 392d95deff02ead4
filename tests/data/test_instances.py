"""Instance plans: pairs match the published recipe run sentence by sentence; windows cover every token once."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firth.data.hashing import below, draw, seed_of, uniform
from firth.data.instances import (
    Instances,
    _another,
    _heads,
    _targets,
    _truncate,
    mixed_rooms,
    plan_copies,
    plan_documents,
    plan_pairs,
    plan_windows,
)

# Sentence lengths by document.
DOCUMENTS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=5)
SEED, EPOCH = 5, 2


def offsets(documents: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The offset arrays of a shard: sentences in tokens, documents in sentences."""
    sentences = np.cumsum([0, *(n for document in documents for n in document)])
    return sentences, np.cumsum([0, *map(len, documents)])


def cut_one_by_one(a: list[int], b: list[int], room: int, bits_a: int, bits_b: int) -> None:
    """The published truncation: the longer side (B on ties) loses its first or last token by coin flip."""
    while len(a) + len(b) > room:
        side, from_a = (a, True) if len(a) > len(b) else (b, False)
        bits = bits_a if from_a else bits_b
        if bits & 1:
            del side[0]
        else:
            side.pop()
        if from_a:
            bits_a >>= 1
        else:
            bits_b >>= 1


def pairs_one_by_one(
    documents: list[list[int]], room: int, short_share: float
) -> list[tuple[list[int], list[int], int]]:
    """Specification §4, steps 3 to 5, on lists of tokens; each choice draws from the same hash."""
    tokens = iter(range(10**6))
    texts = [[[next(tokens) for _ in range(n)] for n in document] for document in documents]
    starts = offsets(documents)[1].tolist()

    def bits(purpose: str, key: int) -> np.ndarray:
        return draw(seed_of(SEED, EPOCH, purpose), key)

    rows = []
    for number, text in enumerate(texts):
        target = room
        if uniform(bits("short", number))[0] < short_share:
            target = 2 + int(below(bits("target", number), room - 1)[0])
        chunk: list[list[int]] = []
        i = 0
        while i < len(text):
            chunk.append(text[i])
            if i == len(text) - 1 or sum(map(len, chunk)) >= target:
                key = starts[number] + i - len(chunk) + 1
                a_end = 1
                if len(chunk) >= 2:
                    a_end = 1 + int(uniform(bits("split", key))[0] * (len(chunk) - 1))
                a = [t for sentence in chunk[:a_end] for t in sentence]
                b: list[int] = []
                if len(chunk) == 1 or uniform(bits("next", key))[0] < 0.5:
                    label = 1
                    other = int(below(bits("document", key), len(texts))[0])
                    if other == number and len(texts) > 1:
                        for again in below(draw(seed_of(SEED, EPOCH, "again", key), np.arange(9)), len(texts)).tolist():
                            other = again
                            if other != number:
                                break
                    first = int(uniform(bits("start", key))[0] * len(texts[other]))
                    for sentence in texts[other][first:]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    i -= len(chunk) - a_end
                else:
                    label = 0
                    b = [t for sentence in chunk[a_end:] for t in sentence]
                cut_one_by_one(a, b, room, int(bits("cut a", key)[0]), int(bits("cut b", key)[0]))
                rows.append((a, b, label))
                chunk = []
            i += 1
    return rows


def spans(plan: Instances) -> list[tuple[list[int], list[int], int]]:
    assert plan.random_next is not None
    return [
        (list(range(*a)), list(range(*b)), int(label))
        for a, b, label in zip(plan.a.tolist(), plan.b.tolist(), plan.random_next, strict=True)
    ]


@settings(max_examples=300)
@given(DOCUMENTS, st.integers(2, 25), st.sampled_from([0.0, 0.3, 1.0]))
@example([[1]], 2, 0.0)
@example([[12]], 5, 1.0)
@example([[3, 4], [1]], 6, 0.0)
def test_pairs_are_those_of_the_recipe(documents: list[list[int]], room: int, short_share: float) -> None:
    plan = plan_pairs(*offsets(documents), room, short_share, SEED, EPOCH)
    assert spans(plan) == pairs_one_by_one(documents, room, short_share)
    assert len(set(plan.key.tolist())) == len(plan.key)
    assert int(plan.lengths.max()) <= room
    assert bool(((plan.a[:, 1] > plan.a[:, 0]) & (plan.b[:, 1] > plan.b[:, 0])).all())


def many(n_documents: int = 400, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 15, rng.integers(1, 20)).tolist() for _ in range(n_documents)]


def documents_of(places: np.ndarray, sentences: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """The document that each token belongs to."""
    return np.searchsorted(sentences[documents], places, side="right") - 1


def test_labels_say_where_the_second_text_is_from() -> None:
    """B follows A: the same document, right after A. Random B: always another document."""
    sentences, documents = offsets(many())
    # Truncation removes little: only a chunk's last sentence exceeds the target.
    plan = plan_pairs(sentences, documents, 60, 0.1, 1, 0)
    assert plan.random_next is not None
    of_a, of_b = (documents_of(x[:, 0], sentences, documents) for x in (plan.a, plan.b))
    is_random = plan.random_next == 1
    assert bool((of_a[is_random] != of_b[is_random]).all())
    assert bool((of_a[~is_random] == of_b[~is_random]).all())
    untouched = ~is_random & (plan.lengths < 60)
    assert untouched.any()
    assert bool((plan.a[untouched, 1] == plan.b[untouched, 0]).all())
    for x in (plan.a, plan.b):
        assert bool(
            (documents_of(x[:, 0], sentences, documents) == documents_of(x[:, 1] - 1, sentences, documents)).all()
        )


def test_shares_are_those_of_the_recipe() -> None:
    """Half of the chunks that can be split, and all that cannot, get a random B."""
    documents = many(2000)
    plan = plan_pairs(*offsets(documents), 60, 0.1, 1, 0)
    assert plan.random_next is not None
    assert 0.5 < plan.random_next.mean() < 0.75
    long_ones = [[4] * 40 for _ in range(1000)]
    balanced = plan_pairs(*offsets(long_ones), 60, 0.0, 1, 0)
    assert balanced.random_next is not None
    # Only the last chunk of a document can have a single sentence; the others flip a fair coin.
    share, n = balanced.random_next.mean(), len(balanced.random_next)
    assert 0.5 < share < 0.56 and n > 3000
    targets = _targets(20_000, 60, 0.1, 3, 0)
    short = targets < 60
    assert abs(short.mean() - 0.1 * 58 / 59) < 0.01
    assert set(targets[short].tolist()) == set(range(2, 60))


def test_random_texts_come_from_everywhere() -> None:
    documents = [[5] * 10 for _ in range(20)]
    sentences, bounds = offsets(documents)
    begins: list[int] = []
    for epoch in range(60):
        plan = plan_pairs(sentences, bounds, 20, 0.0, 1, epoch)
        assert plan.random_next is not None
        begins += (plan.b[plan.random_next == 1, 0] // 5).tolist()
    # Every sentence of every document starts some random B (truncation may shift a start).
    assert set(begins) == set(range(200))


def test_unused_sentences_are_put_back() -> None:
    """After a random B the next chunk starts where A ended, so all text is in some A or in a B that follows A."""
    documents = [[4] * 30 for _ in range(30)]
    plan = plan_pairs(*offsets(documents), 1000, 0.0, 1, 0)
    assert plan.random_next is not None
    used = np.zeros(30 * 120, int)
    for a, b, label in zip(plan.a, plan.b, plan.random_next, strict=True):
        used[slice(*a)] += 1
        if not label:
            used[slice(*b)] += 1
    # With this much room nothing is cut, so each token occurs exactly once as its document's own text.
    assert bool((used == 1).all())


def test_a_single_document_must_follow_itself() -> None:
    plan = plan_pairs(*offsets([[3] * 40]), 12, 0.0, 1, 0)
    assert plan.random_next is not None
    assert set(plan.random_next.tolist()) == {0, 1}
    assert int(plan.b.min()) >= 0 and int(plan.b.max()) <= 120


def test_documents_of_one_sentence_are_never_followed_by_their_own_text() -> None:
    plan = plan_pairs(*offsets([[6]] * 50), 12, 0.0, 1, 0)
    assert plan.random_next is not None
    assert plan.random_next.tolist() == [1] * 50
    assert plan.a.tolist() == [[6 * i, 6 * i + 6] for i in range(50)]
    assert bool((plan.a[:, 0] != plan.b[:, 0]).all())


def test_plans_change_with_epoch_and_seed_and_with_nothing_else() -> None:
    arrays = offsets(many(50))
    plans = [plan_pairs(*arrays, 40, 0.1, seed, epoch) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))]
    assert spans(plans[0]) == spans(plans[1])
    assert spans(plans[0]) != spans(plans[2])
    assert spans(plans[0]) != spans(plans[3])
    windows = [plan_documents(arrays[0][arrays[1]], 20, 1, epoch).a.tolist() for epoch in (0, 0, 1)]
    assert windows[0] == windows[1] != windows[2]


@pytest.mark.parametrize("room", range(2, 12))
def test_truncation_equals_one_token_at_a_time(room: int) -> None:
    rng = np.random.default_rng(room)
    for size_a in range(1, 16):
        for size_b in range(1, 16):
            bits_a, bits_b = rng.integers(2**63, size=2).tolist()
            a, b = list(range(size_a)), list(range(100, 100 + size_b))
            found = _truncate(0, size_a, 100, 100 + size_b, room, bits_a, bits_b)
            cut_one_by_one(a, b, room, bits_a, bits_b)
            assert found == (a[0], a[-1] + 1, b[0], b[-1] + 1), (size_a, size_b)


def test_more_than_64_coins_are_fair_too() -> None:
    bits = draw(1, np.arange(4000)).tolist()
    for n in (1, 64, 65, 200):
        heads = np.array([_heads(n, b) for b in bits])
        assert heads.min() >= 0 and heads.max() <= n
        assert abs(heads.mean() - n / 2) < 5 * (n / 4 / len(bits)) ** 0.5
        assert abs(heads.var() / (n / 4) - 1) < 0.15
    assert _heads(0, bits[0]) == 0


def test_another_document_is_another_one_if_there_is() -> None:
    chosen = [_another(3, 10, seed) for seed in range(2000)]
    counts = np.bincount(chosen, minlength=10)
    assert counts[3] == 0  # nine equal draws: a chance of one in a billion
    assert counts.sum() - counts.min() == 2000 and counts[counts > 0].min() > 150
    # With two documents all nine draws sometimes give the same document, which is then kept.
    assert {_another(0, 2, seed) for seed in range(5000)} == {0, 1}


@settings(max_examples=200)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 20), st.integers(0, 3))
def test_windows_hold_every_token_once_and_cross_no_border(sizes: list[int], room: int, epoch: int) -> None:
    bounds = np.cumsum([0, *sizes])
    plan = plan_documents(bounds, room, 7, epoch)
    assert plan.random_next is None
    assert [t for begin, end in plan.a.tolist() for t in range(begin, end)] == list(range(sum(sizes)))
    assert int(plan.lengths.min()) >= 1 and int(plan.lengths.max()) <= room
    of_begin, of_end = (np.searchsorted(bounds, x, side="right") - 1 for x in (plan.a[:, 0], plan.a[:, 1] - 1))
    assert bool((of_begin == of_end).all())
    for size, begin in zip(sizes, bounds[:-1].tolist(), strict=True):
        if size <= room:
            assert [begin, begin + size] in plan.a.tolist()
    assert len(set(plan.key.tolist())) == len(plan.a)


def test_first_windows_are_of_every_length() -> None:
    bounds = np.arange(0, 3000 * 50, 50)
    plan = plan_documents(bounds, 20, 7, 0)
    starts = np.flatnonzero(plan.a[:, 0] % 50 == 0)
    lengths = np.bincount(plan.lengths[starts], minlength=21)
    assert lengths[0] == 0 and lengths[1:].min() > 90 and len(lengths) == 21


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20), room=st.integers(2, 41), epoch=st.integers(0, 3))
def test_copies_are_windows_twice(sizes: list[int], room: int, epoch: int) -> None:
    bounds = np.cumsum([0, *sizes])
    plan, windows = plan_copies(bounds, room, 7, epoch), plan_documents(bounds, room // 2, 7, epoch)
    assert plan.a.tolist() == plan.b.tolist() == windows.a.tolist() and plan.key.tolist() == windows.key.tolist()
    assert plan.random_next is not None and not plan.random_next.any()
    assert int(plan.lengths.max()) <= room


@given(n=st.integers(0, 400), length=st.integers(8, 90), seed=st.none() | st.integers(0, 5))
def test_windows_of_a_stream_hold_it_once(n: int, length: int, seed: int | None) -> None:
    bounds = plan_windows(n, length, seed)
    sizes = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == n and bool((sizes > 0).all())
    if seed is None:
        assert bool((sizes[:-1] == length).all())
    else:
        assert bool((sizes[:-1] >= 5).all())


def test_varied_windows_are_those_of_the_recipe() -> None:
    """Windows of 70 ± 5 words (mean ± standard deviation), one in 20 of 35 ± 5, none below 5."""
    sizes = np.diff(plan_windows(2_000_000, 70, seed=1))[:-1]
    halves = sizes < 52
    assert abs(halves.mean() - 0.05) < 0.005
    # int() truncates: half a word less on average.
    assert abs(sizes[~halves].mean() - 69.5) < 0.2 and abs(sizes[~halves].std() - 5) < 0.1
    assert abs(sizes[halves].mean() - 34.5) < 0.6 and abs(sizes[halves].std() - 5) < 0.5
    short = np.diff(plan_windows(200_000, 8, seed=1))[:-1]
    assert short.min() == 5 and (short == 5).mean() > 0.2


def test_documents_may_have_rooms_of_their_own() -> None:
    bounds = np.array([0, 30, 31, 80, 80, 200])
    rooms = mixed_rooms(5, 8, 16, 0.5, seed=3, epoch=0)
    assert set(rooms.tolist()) == {8, 16}
    plan = plan_documents(bounds, rooms, 3, 0)
    seen = np.concatenate([np.arange(a, b) for a, b in plan.a])
    assert sorted(seen) == list(range(200))
    document = np.searchsorted(bounds, plan.a[:, 0], side="right") - 1
    assert (plan.lengths <= rooms[document]).all()
    for number in (0, 4):
        assert plan.lengths[document == number].max() == rooms[number]


def test_one_room_for_all_is_as_before() -> None:
    bounds = np.array([0, 30, 31, 200])
    one, each = plan_documents(bounds, 8, 3, 1), plan_documents(bounds, np.full(3, 8), 3, 1)
    assert (one.a == each.a).all()
    assert set(mixed_rooms(100, 8, 16, 0.0, 1, 1).tolist()) == {8}
    assert set(mixed_rooms(100, 8, 16, 1.0, 1, 1).tolist()) == {16}
