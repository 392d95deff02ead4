"""Batches for bidirectional language models: each sentence as a forward and a backward stream.

Source: allenai/bilm-tf data.py, _get_batch and BidirectionalLMDataset (specification of ELMo, §5). Its training
shuffles the sentences of a file (``shuffle_on_load``), and so does this: state that goes on through a whole book learns
its names by heart, and takes other text for it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firth.data.batch import Batch, Target
from firth.data.hashing import permutation
from firth.data.rows import begins_anew
from firth.data.shards import Shard
from firth.packed import Rows, Tokens
from firth.text.layouts import Layout


@dataclass(frozen=True, slots=True)
class Stream:
    """What is seen and what follows it, one for one: (slots, rows, column length) ids.

    The mark that ends a sentence is an answer, but never seen: the next sentence begins with one of its own.
    """

    seen: np.ndarray
    answers: np.ndarray


@dataclass(frozen=True, slots=True)
class BothWaysBatches:
    """Windows of both streams in ``slots × rows`` columns; batch n continues batch ``n - slots``.

    ``tokens`` of a batch are of the stream that is read forward, ``second`` of the one read backward: each sentence
    from its end to its begin, the sentences in their order. A window of both is of the same sentences; where it stops
    in the midst of one, not of the same words. ``chars``: (V, C), of each word of the vocabulary. ``restart_every``:
    windows after which the state begins anew; 0: never.
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
        """The shard's sentences, each between the layout's marks; the tail that fills no column is left out.

        A batch has at most ``budget_tokens`` tokens, both streams together. ``seed``: of the order of the sentences;
        None: as they stand.
        """
        (begin,), (end,) = layout.first, layout.last
        ids, bounds = shard.ids.astype(np.int64), shard.sentences.astype(np.int64)
        if seed is not None:
            ids, bounds = shuffled(ids, bounds, seed)
        turned = ids[turned_round(bounds)]
        size = len(ids) + len(bounds) - 1
        # A stream too short for so many columns is cut into fewer, of one token at least.
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
        anew = begins_anew(time, self.restart_every)
        return Batch(tokens[0], targets, starts_stream=anew, second=tokens[1])


def shuffled(ids: np.ndarray, bounds: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences and their bounds in another order."""
    order = permutation(seed, len(bounds) - 1)
    n_words = np.diff(bounds)[order]
    moved = np.concatenate([[0], n_words.cumsum()])
    return ids[np.repeat(bounds[:-1][order] - moved[:-1], n_words) + np.arange(moved[-1])], moved


def turned_round(bounds: np.ndarray) -> np.ndarray:
    """Index of the tokens of sentences, each from its end to its begin; ``bounds``: where they begin, and the end."""
    n_words = np.diff(bounds)
    return np.repeat(bounds[:-1] + bounds[1:] - 1, n_words) - np.arange(bounds[0], bounds[-1])


def chars_of(table: np.ndarray, ids: np.ndarray) -> Tensor:
    """The characters of words by their ids."""
    return torch.from_numpy(table.take(ids, 0).astype(np.int32))


def _columns(stream: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """A stream from left to right through the columns of all slots; the rest is left out."""
    slots, rows, size = shape
    return stream[: slots * rows * size].reshape(shape)
