"""Train byte-pair encoding: repeatedly merge the most frequent pair of neighbouring tokens.

Source: Sennrich et al. 2016, with the rules of subword-nmt: among equally frequent pairs the larger one in
lexicographic order is merged, and pairs that occur only once are never merged.
Differs: tokens keep white space (``▁``), where subword-nmt marks the end of a word, so that decoding restores the
text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from firth.text.merging import Merger, choose_alphabet, known_words, too_large
from firth.text.tokenizer_kinds import BPE_SPECIALS

_TELL_EVERY = 50  # tokens


def train_bpe(
    counts: Mapping[str, int],
    size: int,
    *,
    min_count: int = 2,
    alphabet_limit: int = 6000,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[str], list[tuple[str, str]]]:
    """Train a vocabulary of exactly ``size`` tokens (special tokens, alphabet, merged tokens in order), and its merges.

    ``counts``: counts of words with their marks. A character outside the alphabet splits its word and becomes
    ``<unk>``. There may be more merges than merged tokens, as two pairs may give the same token. Raises TokenizerError
    as ``train_wordpiece`` does.
    """
    words = known_words(counts)
    forms = {c: [c] for word in words for c in word}
    alphabet = choose_alphabet(words, forms, len(BPE_SPECIALS), size, alphabet_limit)
    pieces, merges = [*BPE_SPECIALS, *alphabet], list[tuple[str, str]]()
    known = set(pieces)
    for left, right in merges_of(_known_parts(words, frozenset(alphabet)), min_count):
        piece = left + right
        if piece not in known:
            if len(pieces) == size:
                break
            known.add(piece)
            pieces.append(piece)
            if on_progress is not None and len(pieces) % _TELL_EVERY == 0:
                on_progress(len(pieces))
        merges.append((left, right))
    if len(pieces) < size:
        largest = len(pieces)
        if choose_alphabet(words, forms, len(BPE_SPECIALS), largest, alphabet_limit) != alphabet:
            # A smaller vocabulary may keep fewer characters, and therefore support even fewer tokens.
            train_bpe(words, largest, min_count=min_count, alphabet_limit=alphabet_limit)
        raise too_large(size, largest)
    return pieces, merges


def _known_parts(words: Mapping[str, int], alphabet: frozenset[str]) -> Iterator[tuple[list[str], int]]:
    """Yield the spans of each word that consist of known characters."""
    for word, n in words.items():
        for known, characters in groupby(word, alphabet.__contains__):
            if known:
                yield list(characters), n


def merges_of(words: Iterable[tuple[Sequence[str], int]], min_count: int) -> Iterator[tuple[str, str]]:
    """Yield token pairs in the order of merging, from words as symbols with their counts."""
    merger = Merger(
        words,
        join=lambda left, right: left + right,
        tie=lambda left, right: (_backwards(left), _backwards(right)),
        min_count=min_count,
    )
    return merger.merges()


def _backwards(piece: str) -> tuple[int, ...]:
    """Sort key that orders tokens from the largest to the smallest."""
    return (*(-ord(c) for c in piece), 0)
