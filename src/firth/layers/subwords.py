"""fastText's character n-grams, for many words at once, and the mean of their vectors."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_OFFSET, _PRIME, _32_BITS = 2_166_136_261, 16_777_619, 0xFFFF_FFFF
_NOTHING = -1


def word_bytes(words: Sequence[bytes]) -> Int[Tensor, "T C"]:
    """UTF-8 bytes for ``ngram_buckets``: ``<word>`` padded with -1; an empty word has no bytes."""
    if not words:
        return torch.zeros(0, 0, dtype=torch.int64)
    rows = [torch.tensor(list(b"<" + word + b">") if word else [], dtype=torch.int64) for word in words]
    return pad_sequence(rows, batch_first=True, padding_value=_NOTHING)


def ngram_buckets(
    text: Int[Tensor, "T C"], shortest: int, longest: int, n_buckets: int
) -> tuple[Int[Tensor, " M"], Int[Tensor, " T"]]:
    """The buckets of all n-grams of T words, word by word, and their number per word.

    An n-gram is ``shortest`` to ``longest`` characters (not bytes) of ``<word>``; a single ``<`` or ``>`` is not one.
    Its bucket is its 32-bit FNV-1a hash over signed bytes.
    Source: facebookresearch/fastText src/dictionary.cc, computeSubwords and hash.
    """
    there = text >= 0
    begins = there & ((text & 0xC0) != 0x80)
    signed = torch.where(text >= 0x80, text | 0xFFFF_FF00, text)
    ends = there.sum(1, keepdim=True)
    place = torch.arange(text.shape[1], device=text.device).expand_as(text)
    state = torch.full_like(text, _OFFSET)
    n_characters = torch.zeros_like(text)
    going = begins
    owners, hashes = list[Tensor](), list[Tensor]()
    # Step k reads the byte k positions after each start; before it is added, the bytes so far may be an n-gram.
    for step in range(text.shape[1] + 1):
        at = place + step
        inside = at < ends
        slot = at.clamp(max=text.shape[1] - 1)
        border = ~inside | begins.gather(1, slot)
        alone = (n_characters == 1) & ((place == 0) | (at == ends))
        whole = going & border & (n_characters >= shortest) & (at <= ends) & ~alone
        owner, begin = whole.nonzero(as_tuple=True)
        owners.append(owner)
        hashes.append(state[owner, begin])
        n_characters = n_characters + border
        going = going & inside & (n_characters <= longest)
        if not going.any():
            break
        state = torch.where(going, ((state ^ signed.gather(1, slot)) * _PRIME) & _32_BITS, state)
    of_word = torch.cat(owners)
    order = of_word.argsort(stable=True)
    return torch.cat(hashes)[order] % n_buckets, of_word.bincount(minlength=len(text))


def ngram_mean(
    text: Int[Tensor, "T C"], weight: Float[Tensor, "G H"], shortest: int, longest: int
) -> Float[Tensor, "T H"]:
    """The mean of each word's n-gram vectors, zeros if it has none (fastText's vector of a new word).

    ``text``: bytes as of ``word_bytes``.
    """
    buckets, counts = ngram_buckets(text, shortest, longest, len(weight))
    return F.embedding_bag(buckets, weight, counts.cumsum(0) - counts, mode="mean")
