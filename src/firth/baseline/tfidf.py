"""TF-IDF with a linear model: its features of texts and pairs, and its predictions; NumPy and SciPy alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from firth.baseline.config import GramConfig, JointConfig, TfidfConfig
from firth.baseline.grams import BLOCKS, Vocabulary, fit_vocabulary, tfidf
from firth.metrics.calibration import sigmoid, softmax
from firth.tasks.predictions import Labelled, MultiLabelled, Valued
from firth.text.records import Text

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TextAnswer = Labelled | MultiLabelled | Valued


@dataclass(frozen=True, slots=True)
class Vectorizer:
    """Texts, or pairs of texts, as rows of one sparse matrix."""

    grams: GramConfig
    pairs: bool
    vocabularies: tuple[Vocabulary, ...]

    @property
    def n_features(self) -> int:
        per_text = sum(map(len, self.vocabularies))
        # For a pair: both texts, what they share, and for each kind of n-gram their cosine and lengths.
        return 3 * per_text + 3 * len(self.vocabularies) if self.pairs else per_text

    def read(self, texts: Sequence[Text]) -> "csr_matrix":
        """(texts, features): TF-IDF of each kind of n-gram; for a pair u, v, u · v, and their cosine, its
        square and the difference of their log numbers of n-grams, side by side.

        All but u and v express how much the texts have in common, which no weighted sum of u and v can.
        """
        from scipy.sparse import csr_matrix, hstack

        parts = []
        for vocabulary in self.vocabularies:
            first = tfidf([text.text for text in texts], vocabulary, self.grams)
            parts.append(first)
            if self.pairs:
                second = tfidf([text.second or "" for text in texts], vocabulary, self.grams)
                shared = first.multiply(second).tocsr()
                sizes = [np.log1p(np.diff(matrix.indptr)) for matrix in (first, second)]
                cosine = np.asarray(shared.sum(1)).ravel()
                between = np.stack([cosine, cosine**2, np.abs(sizes[0] - sizes[1])], 1)
                parts += [second, shared, csr_matrix(between)]
        return hstack(parts, "csr")

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        """How similar the texts of each pair are, 0 to 1: the mean cosine over the kinds of n-grams."""
        found = np.zeros(len(first))
        for vocabulary in self.vocabularies:
            vectors = [tfidf(texts, vocabulary, self.grams) for texts in (first, second)]
            found += np.asarray(vectors[0].multiply(vectors[1]).sum(1)).ravel() / len(self.vocabularies)
        return found


def fit_vectorizer(texts: Sequence[Text], grams: GramConfig) -> Vectorizer:
    """Build the vectorizer with the vocabularies of the texts; both texts of a pair are counted."""
    pairs = any(text.second is not None for text in texts)
    every = [text.text for text in texts] + [text.second for text in texts if text.second is not None]
    wanted = {"words": grams.words, "characters": grams.longest}
    return Vectorizer(grams, pairs, tuple(fit_vocabulary(every, block, grams) for block in BLOCKS if wanted[block]))


@dataclass(frozen=True, slots=True)
class Tfidf:
    """A fitted model. ``weight`` has one row for regress and for two labels, else one for each label."""

    config: TfidfConfig
    reader: Vectorizer
    weight: Float[np.ndarray, "K F"]
    bias: Float[np.ndarray, " K"]

    @property
    def task(self) -> str:
        return self.config.kind

    @property
    def labels(self) -> tuple[str, ...]:
        return self.config.labels

    @property
    def unit(self) -> str:
        return "word"

    @property
    def pairs(self) -> bool:
        return self.config.pairs

    def outputs(self, texts: Sequence[Text]) -> Float[np.ndarray, "n K"]:
        """A logit for each label, or the value, before temperature and bounds."""
        return linear_outputs(self.reader.read(texts), self.weight, self.bias, self.config.kind)

    def answers(self, texts: Sequence[Text]) -> list[TextAnswer]:
        """The predictions, in order."""
        return answers_of(self.outputs(texts), self.config)


def linear_outputs(
    features: "csr_matrix", weight: Float[np.ndarray, "K F"], bias: Float[np.ndarray, " K"], kind: str
) -> Float[np.ndarray, "n C"]:
    """Linear outputs; for two labels, which have one row of weights, the first one's logit is 0."""
    found = np.asarray(features @ weight.T.astype(np.float64)) + bias
    two_labels = kind == "classify" and found.shape[1] == 1
    return np.concatenate([np.zeros_like(found), found], 1) if two_labels else found


def answers_of(outputs: Float[np.ndarray, "n K"], config: TfidfConfig | JointConfig) -> list[TextAnswer]:
    """Convert outputs to predictions."""
    if config.kind == "regress":
        return [Valued(float(value)) for value in np.clip(outputs[:, 0], config.lowest, config.highest)]
    if config.kind == "multilabel":
        return [_multilabelled(row, config) for row in sigmoid(outputs).tolist()]
    shares = softmax(outputs / config.temperature) if len(outputs) else outputs
    return [_labelled(row, config.labels) for row in shares.tolist()]


def _labelled(shares: list[float], labels: tuple[str, ...]) -> Labelled:
    by_label = dict(zip(labels, shares, strict=True))
    best = max(by_label, key=by_label.__getitem__)
    return Labelled(best, by_label[best], by_label)


def _multilabelled(shares: list[float], config: TfidfConfig | JointConfig) -> MultiLabelled:
    by_label = dict(zip(config.labels, shares, strict=True))
    return MultiLabelled(tuple(label for label, share in by_label.items() if share >= config.threshold), by_label)
