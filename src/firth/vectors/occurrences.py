"""Find the occurrences of words in a corpus that are nearest to a word in its sentence, by contextual vectors."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from firth.errors import InputError
from firth.inference.model import Model
from firth.inference.token_vectors import TextVectors
from firth.metrics.neighbours import unit_vectors
from firth.text.corpus import CorpusReader
from firth.text.sentences import split_sentences
from firth.text.words import folded_word


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A word of a sentence, at characters ``[start:end]``, and the cosine of its vector with that of the query."""

    cosine: float
    word: str
    sentence: str
    start: int
    end: int


def sentences_of(reader: CorpusReader) -> Iterator[str]:
    """Yield the sentences of a corpus of plain text, in order."""
    for document in reader:
        for paragraph in document.paragraphs:
            yield from split_sentences(paragraph)


def nearest_in_context(
    model: Model,
    word: str,
    sentence: str,
    corpus: Iterable[str],
    *,
    top_k: int = 10,
    layer: int = -1,
    same_word: bool = False,
) -> list[Occurrence]:
    """Find the occurrences in the sentences of ``corpus`` nearest by cosine similarity to ``word`` in ``sentence``.

    A word's vector is the mean of its tokens' vectors in one layer. ``same_word``: only occurrences of
    the same word, ignoring case. ``sentence`` itself is left out of the corpus. Memory does not grow with the corpus.
    InputError if the sentence lacks the word, or the corpus has no sentence.
    """

    def word_vectors(found: TextVectors) -> np.ndarray:
        return unit_vectors(found.of_words(found.layer(-1)))

    (asked,) = model.vectors_stream([sentence], layer)
    number = asked.word_at(word)
    vector, spelled = word_vectors(asked)[number], folded_word(asked.words[number].text)
    best: list[tuple[float, int, Occurrence]] = []
    n_seen = n_met = 0
    for found in model.vectors_stream(corpus, layer):
        n_seen += 1
        if found.text == sentence or not found.words:
            continue
        cosines = word_vectors(found) @ vector
        for i in np.argsort(-cosines, kind="stable")[: len(cosines) if same_word else top_k].tolist():
            unit, cosine = found.words[i], float(cosines[i])
            if same_word and folded_word(unit.text) != spelled:
                continue
            # Ties go to the earlier occurrence.
            n_met += 1
            item = (cosine, -n_met, Occurrence(cosine, unit.text, found.text, unit.start, unit.end))
            if len(best) < top_k:
                heapq.heappush(best, item)
            elif item[:2] > best[0][:2]:
                heapq.heapreplace(best, item)
    if not n_seen:
        raise InputError("the corpus has no sentence: give text files with words in them")
    return [item[2] for item in sorted(best, key=lambda item: (-item[0], -item[1]))]
