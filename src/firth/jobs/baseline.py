"""What a representation has to beat: counted words and a linear model."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from firth.errors import ConfigError

# Inverse strengths of the penalty among which cross-validation chooses: seven decades.
_STRENGTHS = tuple(10.0**power for power in range(-2, 5))
_FOLDS = 5


def tfidf_predictions(
    texts: Sequence[str], labels: Int[np.ndarray, " n"], test: Sequence[str], seed: int
) -> Int[np.ndarray, " m"]:
    """Labels of ``test`` by logistic regression on TF-IDF of words and pairs of words.

    Counts are damped (1 + log); the strength of the penalty is chosen by cross-validation on the
    training texts alone (``seed`` cuts them), then all of them are fitted. ConfigError without
    scikit-learn, or with fewer than two texts of a class.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import GridSearchCV, StratifiedKFold
        from sklearn.pipeline import make_pipeline
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types
    except ImportError:
        raise ConfigError("the comparison with TF-IDF needs scikit-learn: pip install 'firth[report]'") from None
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
