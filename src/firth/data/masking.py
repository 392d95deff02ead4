"""Masked language modelling: sample the tokens to predict and their replacements, vectorised.

Source: google-research/bert create_pretraining_data.py, create_masked_lm_predictions (specification
§4, step 7). Differs: the random choices are hashes of (seed, epoch, instance, position).
"""

from dataclasses import dataclass

import numpy as np

from firth.data.config import MaskingConfig
from firth.data.hashing import below, draw, seed_of, uniform


@dataclass(frozen=True, slots=True)
class Masker:
    """Applies masking to sequences of a vocabulary.

    ``continues``: bool (V,), True for tokens that continue a word. ``length``: maximum sequence length.
    """

    config: MaskingConfig
    mask_id: int
    continues: np.ndarray
    length: int

    def __call__(
        self, ids: np.ndarray, starts: np.ndarray, special: np.ndarray, keys: np.ndarray, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mask ``ids`` (T,) of sequences that start at ``starts`` (B,); ``special`` bool (T,), sequence ``keys`` (B,).

        Returns the masked ids (T,), the indices to predict in order (M,), and their labels (M,).
        """
        lengths = np.diff(np.append(starts, len(ids)))
        row = np.repeat(np.arange(len(starts)), lengths)
        position = np.arange(len(ids)) - starts[row]
        token_key = (keys[row] << 16) | position
        # np.rint rounds halves to even, as Python's round does in the original.
        wanted = np.maximum(1, np.rint(lengths * self.config.share).astype(np.int64))
        wanted = np.minimum(wanted, self.config.most(self.length))
        chance = draw(seed_of(seed, "choose"), token_key)
        candidate = np.flatnonzero(~special)
        if self.config.whole_words:
            chosen = self._whole_words(ids, candidate, row, chance, wanted)
        else:
            chosen = _first_of_each_row(candidate, row[candidate], chance[candidate], wanted)
        fate = uniform(draw(seed_of(seed, "fate"), token_key[chosen]))
        anything = below(draw(seed_of(seed, "piece"), token_key[chosen]), len(self.continues))
        labels, seen = ids[chosen], ids.copy()
        replaced = np.where(fate < self.config.mask + self.config.keep, labels, anything)
        seen[chosen] = np.where(fate < self.config.mask, self.mask_id, replaced)
        return seen, chosen, labels

    def _whole_words(
        self, ids: np.ndarray, candidate: np.ndarray, row: np.ndarray, chance: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        """Take words in random order while they fit; loops over the words' ranks in their sequences."""
        begins = ~self.continues[ids[candidate]]
        # A token that continues a word joins the candidate before it, across a special token too,
        # but not one of another sequence.
        begins |= np.diff(row[candidate], prepend=-1) != 0
        word = np.cumsum(begins) - 1
        first = candidate[begins]
        size = np.bincount(word, minlength=len(first))
        order = np.lexsort((chance[first], row[first]))
        word_row = row[first][order]
        rank = np.arange(len(order)) - np.searchsorted(word_row, word_row)
        taken, left = np.zeros(len(first), bool), wanted.copy()
        by_rank = np.argsort(rank, kind="stable")
        for same_rank in np.split(by_rank, np.flatnonzero(np.diff(rank[by_rank])) + 1):
            fits = size[order[same_rank]] <= left[word_row[same_rank]]
            picked = same_rank[fits]
            taken[order[picked]] = True
            left[word_row[picked]] -= size[order[picked]]
            if not left.any():
                break
        return candidate[taken[word]]


def _first_of_each_row(candidate: np.ndarray, row: np.ndarray, chance: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """In each sequence the ``wanted[row]`` candidates with the lowest random numbers, in token order."""
    order = np.lexsort((chance, row))
    sorted_row = row[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_row, sorted_row)
    return np.sort(candidate[order[rank < wanted[sorted_row]]])
