"""Learn byte-pair encoding: join the most frequent pair of neighbouring pieces again and again.

Source: Sennrich et al. 2016, with the rules of subword-nmt: of pairs that are equally frequent the larger one in
lexicographic order is joined, and none that occurs less than twice.
Differs: white space stays in the pieces (``▁``), where subword-nmt marks the end of a word, so text can be made of
pieces again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from firth.errors import TokenizerError
from firth.text.merging import Merger, choose_alphabet
from firth.text.tokenizer import BPE_SPECIALS, WORD_LIMIT

_TELL_EVERY = 50  # pieces


def train_bpe(
    counts: Mapping[str, int],
    size: int,
    *,
    min_count: int = 2,
    alphabet_limit: int = 6000,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[str], list[tuple[str, str]]]:
    """A vocabulary of exactly ``size`` pieces (special ones, alphabet, joined ones in order of joining), and merges.

    ``counts``: of words with their marks. A character outside the alphabet parts its word: it will be ``<unk>``.
    There may be more merges than joined pieces, for two pairs may join to the same piece. Raises TokenizerError as
    ``train_wordpiece`` does.
    """
    words = {word: n for word, n in counts.items() if 0 < len(word) <= WORD_LIMIT and n > 0}
    if not words:
        raise TokenizerError("no words to learn a vocabulary from; give text with letters in it")
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
            # A smaller vocabulary may keep fewer characters, and so support fewer pieces still.
            train_bpe(words, largest, min_count=min_count, alphabet_limit=alphabet_limit)
        raise TokenizerError(
            f"the text supports at most {largest} pieces, not {size}; pass --size {largest} or give more text"
        )
    return pieces, merges


def _known_parts(words: Mapping[str, int], alphabet: frozenset[str]) -> Iterator[tuple[list[str], int]]:
    """The stretches of each word that are made of known characters."""
    for word, n in words.items():
        for known, characters in groupby(word, alphabet.__contains__):
            if known:
                yield list(characters), n


def merges_of(words: Iterable[tuple[Sequence[str], int]], min_count: int) -> Iterator[tuple[str, str]]:
    """Pairs of pieces in the order in which they are joined, learnt from words as symbols and their counts."""
    merger = Merger(
        words,
        join=lambda left, right: left + right,
        tie=lambda left, right: (_backwards(left), _backwards(right)),
        min_count=min_count,
    )
    return merger.merges()


def _backwards(piece: str) -> tuple[int, ...]:
    """What orders pieces from the largest to the smallest."""
    return (*(-ord(c) for c in piece), 0)
