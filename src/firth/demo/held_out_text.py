"""Inspect a pre-trained model without labels: the masked tokens it predicts, the nearest sentences it finds."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from firth.data.hashing import seed_of
from firth.inference.masks import MASK, Candidate
from firth.inference.model import Model
from firth.text.records import Document
from firth.text.sentences import split_sentences
from firth.text.tokenizer import Encoded, Tokenizer


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and its document."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class MaskedWord:
    """A sentence with one word replaced by ``[MASK]``, that word, and the model's predictions, best first."""

    text: str
    truth: str
    candidates: tuple[Candidate, ...]

    @property
    def right(self) -> bool:
        return self.candidates[0].token == self.truth


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A sentence and those with the nearest vectors, with their cosines, nearest first."""

    query: Sentence
    nearest: tuple[tuple[Sentence, float], ...]


@dataclass(frozen=True, slots=True)
class Alike:
    """The nearest sentences of all. ``same_document``: how often the nearest is from the query's own document.

    ``chance``: how often a randomly chosen sentence would be.
    """

    neighbours: list[Neighbours]
    same_document: float
    chance: float


def new_sentences(held: Iterable[Document], train: Iterable[Document]) -> list[Sentence]:
    """The sentences of ``held``, each once, that do not also occur in ``train``."""
    known = {text for document in train for text in _sentences(document)}
    found = {text: document.where for document in held for text in _sentences(document) if text not in known}
    return [Sentence(text, where) for text, where in found.items()]


def _sentences(document: Document) -> list[str]:
    return [text for paragraph in document.paragraphs for text in split_sentences(paragraph)]


def of_length(sentences: Sequence[Sentence], tokenizer: Tokenizer, *, fewest: int, most: int) -> list[Sentence]:
    """The sentences that have from ``fewest`` to ``most`` tokens, in an order that depends only on their text."""
    sizes = map(len, tokenizer.ids_many([s.text for s in sentences]))
    kept = [s for s, size in zip(sentences, sizes, strict=True) if fewest <= size <= most]
    return sorted(kept, key=lambda s: seed_of("order", s.text))


def fill_masked_words(model: Model, sentences: Sequence[Sentence], top_k: int) -> list[MaskedWord]:
    """Mask one word of each sentence, chosen by a hash of the sentence, and predict it.

    Only words that are one token of letters are chosen; a sentence without such a word is left out.
    """
    tokenizer, tasks = model.loaded.tokenizer, list[tuple[str, str]]()
    encoded = tokenizer.encode_many([s.text for s in sentences])
    for sentence, row in zip(sentences, encoded, strict=True):
        places = _whole_words(row, tokenizer)
        if places and MASK not in sentence.text:
            place = places[seed_of("blank", sentence.text) % len(places)]
            start, end = row.offsets[place]
            text = f"{sentence.text[:start]}{MASK}{sentence.text[end:]}"
            tasks.append((text, tokenizer.pieces[row.ids[place]]))
    answers = model.fill_mask([text for text, _ in tasks], top_k)
    return [MaskedWord(text, truth, masks[0].candidates) for (text, truth), masks in zip(tasks, answers, strict=True)]


def commonest_word(texts: Sequence[str], tokenizer: Tokenizer) -> str:
    """The one-token word that the texts use most often: the best guess without reading the context."""
    counts: Counter[int] = Counter()
    for row in tokenizer.encode_many(texts):
        counts.update(row.ids[place] for place in _whole_words(row, tokenizer))
    return tokenizer.pieces[min(counts, key=lambda i: (-counts[i], i))] if counts else ""


def _whole_words(row: Encoded, tokenizer: Tokenizer) -> list[int]:
    """Positions of the tokens that are whole words of letters."""
    sizes = Counter(row.words)
    return [
        place
        for place, (piece, word) in enumerate(zip(row.ids, row.words, strict=True))
        if sizes[word] == 1 and tokenizer.pieces[piece].isalpha()
    ]


def find_alike(model: Model, sentences: Sequence[Sentence], n_nearest: int) -> Alike:
    """Find each sentence's nearest others by the cosine of their mean top-layer vectors.

    The mean over all sentences is subtracted first: what all of them share would make them all similar.
    """
    vectors = model.embed([s.text for s in sentences])
    vectors = vectors - vectors.mean(0)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, : min(n_nearest, len(sentences) - 1)]
    found = [
        Neighbours(query, tuple((sentences[j], float(cosines[i, j])) for j in order[i]))
        for i, query in enumerate(sentences)
    ]
    same = [n.nearest[0][0].where == n.query.where for n in found if n.nearest]
    sizes = np.array(list(Counter(s.where for s in sentences).values()))
    pairs = max(len(sentences) * (len(sentences) - 1), 1)
    return Alike(found, float(np.mean(same)) if same else 0.0, float((sizes * (sizes - 1)).sum() / pairs))
