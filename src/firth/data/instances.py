"""Instance plans: which spans of a shard become sequences, per shard and epoch.

A plan is a few integer arrays. Every random choice in it is a hash of the seed, the epoch and
the sentence or document it concerns.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

import numpy as np

from firth.data.hashing import below, draw, seed_of, uniform

_SHORTEST_WINDOW = 5


@dataclass(frozen=True, slots=True)
class Instances:
    """n sequences as token offsets into a shard: ``a`` and ``b`` are (n, 2) starts and ends.

    ``b`` is empty (0, 0) for single texts. ``random_next``: 1 where B comes from another document, or None
    in a plan without pairs. ``key`` identifies a sequence within its shard.
    """

    a: np.ndarray
    b: np.ndarray
    random_next: np.ndarray | None
    key: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each sequence, without special tokens."""
        return self.a[:, 1] - self.a[:, 0] + self.b[:, 1] - self.b[:, 0]

    def of_side(self, side: Literal["a", "b"]) -> "Instances":
        """One side of each pair as single sequences."""
        spans = self.a if side == "a" else self.b
        return Instances(spans, np.zeros_like(spans), None, self.key)


def plan_documents(document_tokens: np.ndarray, room: int | np.ndarray, seed: int, epoch: int) -> Instances:
    """Plan windows of at most ``room`` tokens within documents; every token occurs once.

    ``room`` is one number, or one for each document. A document longer than its room starts with a window of random
    length, so that the cuts differ in each epoch.
    """
    starts, sizes = document_tokens[:-1], np.diff(document_tokens)
    rooms = np.broadcast_to(np.asarray(room, np.int64), sizes.shape)
    bits = draw(seed_of(seed, epoch, "window"), np.arange(len(starts)))
    first = np.where(sizes > rooms, 1 + below(bits, rooms), sizes)
    n_windows = 1 + -(-(sizes - first) // rooms)
    document = np.repeat(np.arange(len(starts)), n_windows)
    number = np.arange(len(document)) - np.repeat(np.cumsum(n_windows) - n_windows, n_windows)
    begin = np.where(number == 0, 0, first[document] + (number - 1) * rooms[document])
    end = np.minimum(first[document] + number * rooms[document], sizes[document])
    a = starts[document, None] + np.stack((begin, end), 1)
    return Instances(a, np.zeros_like(a), None, np.arange(len(a)))


def mixed_rooms(n_documents: int, short: int, long: int, long_share: float, seed: int, epoch: int) -> np.ndarray:
    """Assign a maximum length to each document: ``long`` for a random ``long_share``, ``short`` for the others."""
    chance = uniform(draw(seed_of(seed, epoch, "room"), np.arange(n_documents)))
    return np.where(chance < long_share, long, short)


def plan_copies(document_tokens: np.ndarray, room: int, seed: int, epoch: int) -> Instances:
    """Plan windows as ``plan_documents`` does, each paired with itself; ``room`` is for both together.

    Source: Dai & Le 2015, §2 (sequence autoencoder). Differs: a long document is read in windows.
    """
    windows = plan_documents(document_tokens, room // 2, seed, epoch)
    return Instances(windows.a, windows.a, np.zeros(len(windows.a), np.int64), windows.key)


def plan_crops(document_tokens: np.ndarray, room: int, seed: int, epoch: int) -> Instances:
    """Plan two crops of each window of at most ``2 * room`` tokens of a document: ``a`` and ``b``.

    A crop has between a quarter and three quarters of its window, at most ``room`` tokens, and starts anywhere in it,
    so that two crops may overlap. Windows of fewer than ``2 * _SHORTEST_WINDOW`` tokens are skipped: their crops would
    carry no information.
    """
    windows = plan_documents(document_tokens, 2 * room, seed, epoch)
    kept = np.flatnonzero(windows.lengths >= 2 * _SHORTEST_WINDOW)
    begin, size = windows.a[kept, 0], windows.lengths[kept]

    def crop(name: str) -> np.ndarray:
        share = 0.25 + 0.5 * uniform(draw(seed_of(seed, epoch, name, "size"), windows.key[kept]))
        n = np.minimum(np.maximum((share * size).astype(np.int64), 1), room)
        start = begin + below(draw(seed_of(seed, epoch, name, "start"), windows.key[kept]), size - n + 1)
        return np.stack((start, start + n), 1)

    return Instances(crop("first crop"), crop("second crop"), None, windows.key[kept])


def plan_translations(sentences: np.ndarray, room_a: int, room_b: int) -> Instances:
    """Plan the pairs of parallel text, sentence 2i and its translation 2i + 1; pairs that do not fit are skipped.

    Nothing is cut: a part of a sentence is not a translation of the other sentence.
    """
    a = np.stack((sentences[:-1:2], sentences[1::2]), 1)
    b = np.stack((sentences[1::2], sentences[2::2]), 1)
    fits = np.flatnonzero((a[:, 1] - a[:, 0] <= room_a) & (b[:, 1] - b[:, 0] <= room_b))
    return Instances(a[fits], b[fits], None, fits)


def plan_windows(n: int, length: int, seed: int | None = None) -> np.ndarray:
    """Plan the windows of a stream of ``n`` tokens: the start of each, and the end of the last.

    All have ``length`` tokens; with a seed, about as many: max(5, int(N(base, 5))), where the base is the length, or
    one time in twenty half of it. Source: salesforce/awd-lstm-lm main.py (Merity et al. 2017, §4.1). Differs: random
    numbers are hashes of the window's index.
    """
    if seed is None:
        return np.append(np.arange(0, n, length), n)
    numbers = np.arange(-(-n // _SHORTEST_WINDOW))
    base = np.where(uniform(draw(seed, numbers, 0)) < 0.95, length, length / 2)
    radius = np.sqrt(-2 * np.log(1 - uniform(draw(seed, numbers, 1))))
    normal = radius * np.cos(2 * np.pi * uniform(draw(seed, numbers, 2)))
    ends = np.cumsum(np.maximum(_SHORTEST_WINDOW, (base + 5 * normal).astype(np.int64)))
    begins = np.concatenate(([0], ends))
    return np.append(begins[begins < n], n)


def plan_pairs(
    sentences: np.ndarray, documents: np.ndarray, room: int, short_share: float, seed: int, epoch: int
) -> Instances:
    """Plan sentence pairs for next-sentence prediction, by the published recipe.

    Source: google-research/bert create_pretraining_data.py (specification §4, steps 3-5). Differs: the
    random document is sampled from the same shard; and random numbers are hashes. Each chunk
    starts at a different sentence (it uses at least one), so a chunk's random numbers are keyed by that sentence.
    """
    n_documents, n_sentences = len(documents) - 1, len(sentences) - 1
    targets = _targets(n_documents, room, short_share, seed, epoch).tolist()
    split, not_next, other, where, cut_a, cut_b = (
        draw(seed_of(seed, epoch, purpose), np.arange(n_sentences))
        for purpose in ("split", "next", "document", "start", "cut a", "cut b")
    )
    split_at, is_random = uniform(split).tolist(), (uniform(not_next) < 0.5).tolist()
    starts, bits_a, bits_b = uniform(where).tolist(), cut_a.tolist(), cut_b.tolist()
    offsets, firsts = sentences.tolist(), documents.tolist()
    spans: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    keys: list[int] = []
    others = below(other, n_documents).tolist()
    for document in range(n_documents):
        target, end, i = targets[document], firsts[document + 1], firsts[document]
        while i < end:
            j = bisect_left(offsets, offsets[i] + target, i + 1, end)
            middle = i + 1 + int(split_at[i] * (j - i - 1)) if j - i >= 2 else i + 1
            a_begin, a_end = offsets[i], offsets[middle]
            if j - i == 1 or is_random[i]:
                chosen = others[i]
                if chosen == document and n_documents > 1:
                    chosen = _another(document, n_documents, seed_of(seed, epoch, "again", i))
                first, last = firsts[chosen], firsts[chosen + 1]
                s = first + int(starts[i] * (last - first))
                needed = max(target - (a_end - a_begin), 1)
                stop = bisect_left(offsets, offsets[s] + needed, s + 1, last)
                b_begin, b_end, label, following = offsets[s], offsets[stop], 1, middle
            else:
                b_begin, b_end, label, following = a_end, offsets[j], 0, j
            spans.append(_truncate(a_begin, a_end, b_begin, b_end, room, bits_a[i], bits_b[i]))
            labels.append(label)
            keys.append(i)
            i = following
    table = np.array(spans, np.int64).reshape(-1, 4)
    return Instances(table[:, :2], table[:, 2:], np.array(labels, np.int64), np.array(keys, np.int64))


def _targets(n_documents: int, room: int, short_share: float, seed: int, epoch: int) -> np.ndarray:
    """Target length of each document's sequences: the room, or sometimes less."""
    document = np.arange(n_documents)
    short = uniform(draw(seed_of(seed, epoch, "short"), document)) < short_share
    shorter = 2 + below(draw(seed_of(seed, epoch, "target"), document), room - 1)
    return np.where(short, shorter, room)


def _another(document: int, n_documents: int, seed: int) -> int:
    """Sample another document in up to nine more tries; keep the last even if it is the same."""
    tries = below(draw(seed, np.arange(9)), n_documents)
    different = np.flatnonzero(tries != document)
    return int(tries[different[0]] if len(different) else tries[-1])


def _truncate(
    a_begin: int, a_end: int, b_begin: int, b_end: int, room: int, bits_a: int, bits_b: int
) -> tuple[int, int, int, int]:
    """Cut a pair to ``room`` tokens: always from the longer (on ties B), from front or back by a coin flip.

    In the end the shorter side is whole, or both have half the room (A the odd token).
    """
    size_a, size_b = a_end - a_begin, b_end - b_begin
    if size_a + size_b <= room:
        return a_begin, a_end, b_begin, b_end
    keep_a = min(size_a, max(room - size_b, room - room // 2))
    keep_b = room - keep_a
    front_a, front_b = _heads(size_a - keep_a, bits_a), _heads(size_b - keep_b, bits_b)
    return a_begin + front_a, a_begin + front_a + keep_a, b_begin + front_b, b_begin + front_b + keep_b


def _heads(n_coins: int, bits: int) -> int:
    """The number of heads in n coin flips; the first 64 are the given bits, more are derived from them."""
    heads = (bits & ((1 << min(n_coins, 64)) - 1)).bit_count()
    if n_coins > 64:
        words = draw(bits, np.arange((n_coins - 1) // 64))
        rest = int.from_bytes(words.tobytes(), "little")
        heads += (rest & ((1 << (n_coins - 64)) - 1)).bit_count()
    return heads
