"""Batches for bidirectional language models: a forward and a backward stream of the same sentences.

Source: allenai/bilm-tf data.py, _get_batch and BidirectionalLMDataset (specification of ELMo, §5). Like its training
(``shuffle_on_load``), this shuffles sentences: recurrent state carried through a whole book memorises its names and
does worse on other text.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firth.data.batch import Batch, Target
from firth.data.hashing import permutation
from firth.data.rows import resets_state
from firth.data.shards import Shard
from firth.packed import Rows, Tokens
from firth.text.layouts import Layout


@dataclass(frozen=True, slots=True)
class Stream:
    """Inputs and next-token targets: (slots, rows, column length) ids each.

    The end-of-sentence token is a target but never an input: the next sentence starts with its own start token.
    """

    seen: np.ndarray
    answers: np.ndarray


@dataclass(frozen=True, slots=True)
class BothWaysBatches:
    """Windows of both streams in ``slots × rows`` columns; batch n continues batch ``n - slots``.

    ``tokens`` of a batch belong to the forward stream, ``second`` to the backward one: each sentence reversed, the
    sentences in their order. Both windows cover the same sentences; a window that stops inside a sentence covers
    different words of it. ``chars``: (V, C), of each word of the vocabulary. ``restart_every``: windows after which
    recurrent state is reset; 0: never.
    """

    forward: Stream
    backward: Stream
    length: int
    chars: np.ndarray
    restart_every: int = 0

    @classmethod
    def cut(
        cls,
        shard: Shard,
        layout: Layout,
        *,
        length: int,
        budget_tokens: int,
        slots: int,
        chars: np.ndarray,
        seed: int | None,
        restart_every: int = 0,
    ) -> "BothWaysBatches":
        """Cut the shard's sentences, each between start and end token, into columns; drops the remainder.

        A batch has at most ``budget_tokens`` tokens, both streams together. ``seed``: shuffles the sentences;
        None: keeps their order.
        """
        (begin,), (end,) = layout.first, layout.last
        ids, bounds = shard.ids.astype(np.int64), shard.sentences.astype(np.int64)
        if seed is not None:
            ids, bounds = shuffled(ids, bounds, seed)
        turned = ids[turned_round_ids(bounds)]
        size = len(ids) + len(bounds) - 1
        # A stream too short for that many columns is cut into fewer, of at least one token each.
        rows = max(min(budget_tokens // (2 * length), size // slots), 1)
        shape = (slots, rows, size // (slots * rows))
        forward, backward = (
            Stream(
                _columns(np.insert(words, bounds[:-1], before), shape),
                _columns(np.insert(words, bounds[1:], after), shape),
            )
            for words, before, after in ((ids, begin, end), (turned, end, begin))
        )
        return cls(forward, backward, length, chars, restart_every)

    def __len__(self) -> int:
        slots, _, size = self.forward.seen.shape
        return slots * -(-size // self.length)

    def __getitem__(self, number: int) -> Batch:
        time, slot = divmod(number, len(self.forward.seen))
        window = slice(time * self.length, (time + 1) * self.length)
        tokens, targets = [], {}
        for term, stream in (("forward", self.forward), ("backward", self.backward)):
            seen, answers = stream.seen[slot, :, window], stream.answers[slot, :, window]
            rows, ids = Rows.from_lengths([seen.shape[1]] * len(seen)), seen.flatten()
            tokens.append(Tokens(rows, torch.from_numpy(ids), chars=chars_of(self.chars, ids)))
            targets[term] = Target(torch.arange(ids.size), torch.from_numpy(answers.flatten()))
        anew = resets_state(time, self.restart_every)
        return Batch(tokens[0], targets, starts_stream=anew, second=tokens[1])


def shuffled(ids: np.ndarray, bounds: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle sentences; returns their ids and bounds."""
    order = permutation(seed, len(bounds) - 1)
    n_words = np.diff(bounds)[order]
    moved = np.concatenate([[0], n_words.cumsum()])
    return ids[np.repeat(bounds[:-1][order] - moved[:-1], n_words) + np.arange(moved[-1])], moved


def turned_round_ids(bounds: np.ndarray) -> np.ndarray:
    """Token indices with each sentence reversed; ``bounds``: the start of each sentence, and the end."""
    n_words = np.diff(bounds)
    return np.repeat(bounds[:-1] + bounds[1:] - 1, n_words) - np.arange(bounds[0], bounds[-1])


def chars_of(table: np.ndarray, ids: np.ndarray) -> Tensor:
    """Look up the characters of words by id."""
    return torch.from_numpy(table.take(ids, 0).astype(np.int32))


def _columns(stream: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Cut a stream into the columns of all slots, in order; drops the remainder."""
    slots, rows, size = shape
    return stream[: slots * rows * size].reshape(shape)
