"""Open vocabularies: unknown words keep their spelling for character-level systems."""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np
import tokenizers

from firth.errors import TokenizerError
from firth.text.characters import BEGIN_SENTENCE, END_SENTENCE, character_rows, mark_row
from firth.text.tokenizer import Encoded, Tokenizer
from firth.text.tokenizer_kinds import WORDS

# Maximum number of words outside the vocabulary remembered at a time, and of their characters.
MOST_WORDS, MOST_CHARACTERS = 1_000_000, 50_000_000

T = TypeVar("T")


class OpenWords(Tokenizer):
    """A whole-word tokenizer that gives every word its own id, even outside the vocabulary.

    An unknown word gets the next id from ``size`` on, which is never reused; this object remembers it. Beyond
    ``MOST_WORDS`` or ``MOST_CHARACTERS`` the least recently used words are forgotten. On disk and in its fingerprint
    the tokenizer is the closed vocabulary, without the words seen.
    """

    def __init__(self, backend: tokenizers.Tokenizer, source: str = "the vocabulary"):
        super().__init__(backend, source)
        if self.kind is not WORDS:
            raise TokenizerError(
                f"{source}: a model that reads characters requires whole words, these are tokens of the kind "
                f"{self.kind.name}; {WORDS.advice}"
            )
        self._reserved = frozenset(self.special_ids)
        self._next_id = self.size
        self._by_word: dict[str, int] = {}
        self._by_id: dict[int, str] = {}
        self._n_characters = 0
        self._lock = threading.Lock()

    def encode_many(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenise several texts with offsets; ids from ``size`` on are words outside the vocabulary."""
        found = super().encode_many(texts)
        return [
            dataclasses.replace(row, ids=self._opened(text, row.ids)) for text, row in zip(texts, found, strict=True)
        ]

    def ids_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise several texts to ids only."""
        found = super().ids_many(texts)
        return [self._opened(text, ids) for text, ids in zip(texts, found, strict=True)]

    def ids_of_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of single words, one each."""
        found = super().ids_of_words(words)
        return [
            ids if self._reserved.isdisjoint(ids) else [self._id(word)] for word, ids in zip(words, found, strict=True)
        ]

    def piece(self, number: int) -> str:
        """The word of an id. TokenizerError for an id that was never assigned or has been forgotten."""
        if number < self.size:
            return self.pieces[number]
        with self._lock:
            word = self._by_id.get(number)
        if word is None:
            raise TokenizerError(
                f"id {number} is no remembered word; of words outside the vocabulary only the last {MOST_WORDS:,}"
            )
        return word

    def decode(self, ids: Iterable[int]) -> str:
        """Join words with spaces, without special tokens."""
        return " ".join(self.piece(number) for number in ids if number not in self._reserved)

    def characters(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """uint16 (T, 50): the characters of each token; ``<s>`` and ``</s>`` are ELMo's start and end of sentence."""
        numbers = np.asarray(ids, np.int64)
        rows = self._known.take(np.minimum(numbers, self.size - 1), 0)
        (unknown,) = np.nonzero(numbers >= self.size)
        if len(unknown):
            rows[unknown] = character_rows([self.piece(number) for number in numbers[unknown].tolist()])
        return rows

    @cached_property
    def _known(self) -> np.ndarray:
        """The characters of the words in the vocabulary."""
        return vocabulary_characters(self)

    def _opened(self, text: str, ids: list[int]) -> list[int]:
        """Replace the ids of unknown words, and of words spelled like special tokens, by their own ids."""
        if self._reserved.isdisjoint(ids):
            return ids
        words = self.words(text)
        assert len(words) == len(ids), "each word is one token"
        return [self._id(word) if number in self._reserved else number for word, number in zip(words, ids, strict=True)]

    def _id(self, word: str) -> int:
        """Return the id of a word outside the vocabulary, and mark it as most recently used."""
        with self._lock:
            number = self._by_word.pop(word, None)
            if number is None:
                number, self._next_id = self._next_id, self._next_id + 1
                self._by_id[number] = word
                self._n_characters += len(word)
            self._by_word[word] = number
            while len(self._by_word) > MOST_WORDS or (self._n_characters > MOST_CHARACTERS and len(self._by_word) > 1):
                oldest = next(iter(self._by_word))
                del self._by_id[self._by_word.pop(oldest)]
                self._n_characters -= len(oldest)
            return number

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # A copy in another process starts without the words seen here: sequences carry their characters.
        return _from_state, (self._backend.to_str(),)


def in_blocks(items: Sequence[T], n_characters: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split items into blocks small enough that all their words are remembered at the same time.

    Each block has at least one item. ``n_characters``: counts those of an item, over all of its texts.
    """
    begin = n_before = 0
    for number, item in enumerate(items):
        n = n_characters(item)
        if number > begin and n_before + n > MOST_WORDS:
            yield items[begin:number]
            begin, n_before = number, 0
        n_before += n
    if begin < len(items):
        yield items[begin:]


def vocabulary_characters(tokenizer: Tokenizer) -> np.ndarray:
    """uint16 (V, 50): the characters of all tokens; start and end of sentence have their own marks."""
    rows = character_rows(tokenizer.pieces)
    rows[tokenizer.start_id], rows[tokenizer.end_id] = mark_row(BEGIN_SENTENCE), mark_row(END_SENTENCE)
    return rows


def opened(tokenizer: Tokenizer) -> OpenWords:
    """Open a vocabulary to any word. TokenizerError for one that is not of whole words."""
    if isinstance(tokenizer, OpenWords):
        return tokenizer
    return _from_state(tokenizer._backend.to_str())


def _from_state(state: str) -> OpenWords:
    return OpenWords(tokenizers.Tokenizer.from_str(state))
