"""What a representation has to beat: counted words and letters, and what one would guess without any model."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from firth.errors import ConfigError
from firth.text.records import Tagged, Text

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Inverse strengths of the penalty among which cross-validation chooses: seven decades.
_STRENGTHS = tuple(10.0**power for power in range(-2, 5))
# Those among which held-out examples choose: what wins on more than a few hundred texts lies among them.
_LIKELY_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
_FOLDS = 5


def tfidf_predictions(
    texts: Sequence[str], labels: Int[np.ndarray, " n"], test: Sequence[str], seed: int
) -> Int[np.ndarray, " m"]:
    """Labels of ``test`` by logistic regression on TF-IDF of words and pairs of words, for few labels.

    Counts are damped (1 + log); the strength of the penalty is chosen by cross-validation on the
    training texts alone (``seed`` cuts them), then all of them are fitted. ConfigError without
    scikit-learn, or with fewer than two texts of a class.
    """
    _check_library()
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

    fewest = min(Counter(labels.tolist()).values())
    if fewest < 2:
        raise ConfigError("cross-validation needs at least two texts of each class")
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(max_iter=2000),
    )
    folds = StratifiedKFold(min(_FOLDS, fewest), shuffle=True, random_state=seed)
    search = GridSearchCV(model, {"logisticregression__C": _STRENGTHS}, cv=folds)
    # So small a problem gains nothing by threads, which wait for one another when the machine is busy.
    with threadpool_limits(1):
        search.fit(list(texts), labels)
    return np.asarray(search.predict(list(test)), np.int64)


def linear_predictions(
    train: Sequence[Text], held: Sequence[Text], test: Sequence[Text], labels: Sequence[str]
) -> Int[np.ndarray, " m"]:
    """Numbers of the labels of ``test`` by logistic regression on TF-IDF of words, pairs of words and letters.

    Each text of a pair is counted apart. The strength of the penalty is chosen on ``held``, as every
    fine-tuning's choices are; then all of ``train`` and ``held`` is fitted. ConfigError without scikit-learn.
    """
    _check_library()
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    numbers = {label: i for i, label in enumerate(labels)}
    gold = np.array([numbers[str(text.label)] for text in [*train, *held]])
    known, asked = _counted([*train, *held], test)
    n = len(train)
    with threadpool_limits(1):
        scores = []
        for strength in _LIKELY_STRENGTHS:
            model = LogisticRegression(C=strength, max_iter=1000).fit(known[:n], gold[:n])
            scores.append(model.score(known[n:], gold[n:]))
        best = _LIKELY_STRENGTHS[int(np.argmax(scores))]
        return np.asarray(LogisticRegression(C=best, max_iter=1000).fit(known, gold).predict(asked), np.int64)


def similarity(train: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " m"]:
    """How alike the texts of each pair are: cosine of TF-IDF vectors of words and letters, 0 to 1."""
    _check_library()
    first, second = zip(*pairs, strict=True)
    a, b = _vectors(list(train), [list(first), list(second)])
    return np.asarray(a.multiply(b).sum(1)).ravel() / 2  # two kinds of units, each of length 1


def commonest_tags(train: Sequence[Tagged], test: Sequence[Tagged]) -> list[tuple[str, ...]]:
    """Each word's commonest tag in training; for a word that is new there, the commonest of all."""
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for record in train:
        for word, tag in zip(record.words, record.tags or (), strict=True):
            by_word[word][tag] += 1
    every = sum(by_word.values(), Counter[str]())
    best = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    other = every.most_common(1)[0][0]
    return [tuple(best.get(word, other) for word in record.words) for record in test]


def _counted(known: Sequence[Text], asked: Sequence[Text]) -> "tuple[csr_matrix, csr_matrix]":
    from scipy.sparse import hstack

    parts: list[tuple[Any, Any]] = []
    for side in ("text", "second"):
        texts = [getattr(text, side) or "" for text in known]
        if any(texts):
            of_known, of_asked = _vectors(texts, [texts, [getattr(text, side) or "" for text in asked]])
            parts.append((of_known, of_asked))
    return hstack([a for a, _ in parts]).tocsr(), hstack([b for _, b in parts]).tocsr()


def _vectors(fit: list[str], texts: list[list[str]]) -> "list[csr_matrix]":
    """Each list of texts as vectors of words and pairs, then of 2 to 5 letters within words."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]").fit(fit)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2).fit(fit)
    return [hstack([words.transform(some), letters.transform(some)]).tocsr() for some in texts]


def _check_library() -> None:
    try:
        import sklearn  # noqa: F401  # only whether it is there
    except ImportError:
        raise ConfigError("the comparison with TF-IDF needs scikit-learn: pip install 'firth[report]'") from None
