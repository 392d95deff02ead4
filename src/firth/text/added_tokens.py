"""Choose the tokens to add to a vocabulary for a text, and find the tokens they replace.

WordPiece training continues from the vocabulary: it merges the tokens that the vocabulary splits words into, the most
frequent pair first. Words are tokenised by greedy longest match (google-research/bert tokenization.py), so a merged
token helps only where the match selects it: each is tried on the words before it is kept.
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import tokenizers

from firth.errors import TokenizerError
from firth.text.tokenizer import WORD_LIMIT, Tokenizer
from firth.text.tokenizer_kinds import PREFIX, UNK, WORDPIECE, WORDS
from firth.text.wordpiece import joined_pieces

_MIN_COUNT = 2  # occurrences; a word seen once says little about a domain
_ENOUGH = 0.999  # of all characters: rarer missing ones are not worth an id each
_ENCODE_AT_ONCE = 50_000  # words
_FIRST_SIGN = 0xE000  # from here on there are more code points than any vocabulary has tokens

# The tokenizer drops other control characters that ``str.split`` treats as white space.
_SPACE = re.compile("[ \t\n\r]+")


@dataclass(frozen=True, slots=True)
class Fit:
    """How a vocabulary fits a text. ``whole``: words that are one token; ``unknown``: words that are [UNK]."""

    words: int
    tokens: int
    whole: int
    unknown: int

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / max(self.words, 1)


def check_extendable(tokenizer: Tokenizer) -> None:
    """Raise TokenizerError unless the vocabulary is WordPiece."""
    if tokenizer.kind is WORDS:
        raise TokenizerError(
            "only WordPiece vocabularies can be extended: a model of whole words takes those of the corpus when you "
            "continue its pre-training (firth pretrain --model MODEL --corpus DIR)"
        )
    if tokenizer.kind is not WORDPIECE:
        raise TokenizerError(
            f"only WordPiece vocabularies can be extended, not {tokenizer.kind.name}: its merges "
            "determine how a word is split"
        )


def text_runs(texts: Sequence[str]) -> Counter[str]:
    """Count character runs between white space, which no normaliser or word splitting here looks across."""
    return Counter(run for text in texts for run in _SPACE.split(text) if run)


def count_split_words(runs: Mapping[str, int], tokenizer: Tokenizer) -> Counter[str]:
    """Count words as the tokenizer's own normaliser and word splitting produce them from runs."""
    normalizer, splitter = tokenizer._backend.normalizer, tokenizer._backend.pre_tokenizer
    words: Counter[str] = Counter()
    for run, count in runs.items():
        normal = run if normalizer is None else normalizer.normalize_str(run)
        for word in [normal] if splitter is None else [word for word, _ in splitter.pre_tokenize_str(normal)]:
            words[word] += count
    return words


def measure_fit(tokenizer: Tokenizer, words: Mapping[str, int]) -> Fit:
    """Measure how the tokenizer's vocabulary fits words with their counts."""
    n_pieces = n_whole = n_unknown = 0
    for count, ids in _encoded(tokenizer, words):
        unknown = tokenizer.unk_id in ids
        n_pieces += count * len(ids)
        n_unknown += count * unknown
        n_whole += count * (len(ids) == 1 and not unknown)
    return Fit(sum(words.values()), n_pieces, n_whole, n_unknown)


def count_pieces(tokenizer: Tokenizer, words: Mapping[str, int]) -> Counter[str]:
    """Count each token in words with their counts."""
    counts: Counter[str] = Counter()
    for count, ids in _encoded(tokenizer, words):
        for i in ids:
            counts[tokenizer.pieces[i]] += count
    return counts


def _encoded(tokenizer: Tokenizer, words: Mapping[str, int]) -> Iterator[tuple[int, list[int]]]:
    types = list(words)
    for first in range(0, len(types), _ENCODE_AT_ONCE):
        some = types[first : first + _ENCODE_AT_ONCE]
        for word, ids in zip(some, tokenizer.ids_many(some), strict=True):
            yield words[word], ids


def greedy_pieces(piece: str, vocabulary: Collection[str]) -> list[str]:
    """Tokenise ``heart``, or ``##attack`` inside a word, by greedy longest match; [UNK] if that fails.

    Source: google-research/bert tokenization.py, WordpieceTokenizer.
    """
    found = list(_matches(piece, vocabulary))
    return [UNK] if found[-1] == UNK else found


def _matches(piece: str, vocabulary: Collection[str]) -> Iterator[str]:
    """Yield the longest match at each position; [UNK], and stop, if there is none."""
    inside = piece.startswith(PREFIX)
    text, start = piece.removeprefix(PREFIX), 0
    while start < len(text):
        mark = PREFIX if inside or start else ""
        ends = range(len(text), start, -1)
        end = next((end for end in ends if mark + text[start:end] in vocabulary), None)
        if end is None:
            yield UNK
            return
        yield mark + text[start:end]
        start = end


def choose_pieces(
    words: Mapping[str, int], vocabulary: Collection[str], n: int, on_progress: Callable[[int], None] | None = None
) -> list[str]:
    """Choose up to ``n`` new tokens: characters by count, then merged tokens in the order of merging.

    Skips a token that greedy longest match never selects, that saves nothing where it is selected, or that would turn a
    known word into [UNK]. Returns fewer than ``n`` if no others are useful.
    ``on_progress`` receives the number of tokens so far.
    """
    known = frozenset(vocabulary)
    broken = {
        word: parts
        for word, count in words.items()
        if 0 < len(word) <= WORD_LIMIT and count > 0 and (parts := greedy_pieces(word, known)) != [word]
    }
    candidates = _candidates({word: words[word] for word in broken}, known)
    chosen: list[str] = []
    while True:
        for piece in islice(candidates, min(n, sys.maxsize) - len(chosen)):
            chosen.append(piece)
            if on_progress is not None:
                on_progress(len(chosen))
        saved = _savings(broken, words, known, frozenset(chosen))
        kept = [piece for piece in chosen if saved[piece] > 0]
        if kept == chosen:  # enough tokens, or no more candidates
            return chosen
        chosen = kept


def _candidates(words: Mapping[str, int], known: frozenset[str]) -> Iterator[str]:
    """Yield candidate tokens for the words that the vocabulary splits, each once."""
    characters = _missing_characters(words, known)
    yield from characters
    letters_too = known.union(characters)
    parts = {word: greedy_pieces(word, letters_too) for word in words}
    yield from _joined({tuple(some): words[word] for word, some in parts.items() if some != [UNK]})


def _missing_characters(words: Mapping[str, int], known: frozenset[str]) -> list[str]:
    """List the missing characters, in the forms in which they occur, most frequent first."""
    forms: Counter[str] = Counter()
    for word, count in words.items():
        forms[word[0]] += count
        for character in word[1:]:
            forms[PREFIX + character] += count
    ranked = sorted(forms, key=lambda form: (-forms[form], form))
    covered = accumulate((forms[form] for form in ranked), initial=0)
    enough = _ENOUGH * forms.total()
    return [
        form
        for form, before in zip(ranked, covered, strict=False)
        if before < enough and forms[form] >= _MIN_COUNT and form not in known
    ]


def _joined(words: Mapping[tuple[str, ...], int]) -> Iterator[str]:
    """Yield the tokens that WordPiece training merges from words already split into parts, in order.

    Training starts from characters, so each part is encoded as one character. Greedy longest match splits a string in
    only one way, so no two encoded strings stand for the same token.
    """
    parts = sorted({part for word in words for part in word})
    signs = {part: chr(_FIRST_SIGN + number) for number, part in enumerate(parts)}
    spelled = {"".join(signs[part] for part in word): count for word, count in words.items()}
    alphabet = [PREFIX * part.startswith(PREFIX) + sign for part, sign in signs.items()]
    for piece in joined_pieces(spelled, alphabet, "frequency", _MIN_COUNT):
        first, *rest = (parts[ord(sign) - _FIRST_SIGN] for sign in piece.removeprefix(PREFIX))
        yield first + "".join(part.removeprefix(PREFIX) for part in rest)


def _savings(
    broken: Mapping[str, list[str]], words: Mapping[str, int], known: frozenset[str], chosen: frozenset[str]
) -> dict[str, float]:
    """Count the tokens that each chosen one saves over all words; in a word that was [UNK], each counts as saving one.

    Up to its first new token a word is tokenised as before. From there on, gains and losses relative to
    the old tokenisation are credited to the last new token.
    """
    vocabulary = known | chosen
    saved: dict[str, float] = defaultdict(float)
    for word, before in broken.items():
        count, last, start = words[word], None, 0
        parts = list(_matches(word, vocabulary))
        if parts[-1] == UNK:
            if before != [UNK]:
                saved[next(part for part in reversed(parts) if part in chosen)] = -math.inf
            continue
        ends = set(accumulate(map(_length, before)))
        for part in parts:
            end = start + _length(part)
            last = part if part in chosen else last
            if before == [UNK]:
                saved[part] += count
            elif last is not None:
                saved[last] += count * (len(ends.intersection(range(start + 1, end + 1))) - 1)
            start = end
    return saved


def _length(piece: str) -> int:
    """Number of a word's characters that a token covers."""
    return len(piece.removeprefix(PREFIX))


def extended(tokenizer: Tokenizer, pieces: Sequence[str]) -> Tokenizer:
    """Add tokens to a tokenizer; existing ones keep their ids. TokenizerError as ``check_extendable``."""
    check_extendable(tokenizer)
    state = json.loads(tokenizer._backend.to_str())
    state["model"]["vocab"] |= {piece: tokenizer.size + i for i, piece in enumerate(pieces)}
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(state)), "the extended vocabulary")
