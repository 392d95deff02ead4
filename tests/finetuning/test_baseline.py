"""TF-IDF with logistic regression: it learns, it is the same each time, and it says what it needs."""

import numpy as np
import pytest

from firth.errors import ConfigError
from firth.finetuning.baseline import tfidf_predictions

pytest.importorskip("sklearn")

TEXTS = [f"{word} the {other}" for word in ("open", "read") for other in ("file", "folder", "path", "disk")] + [
    f"{word} the {other}" for word in ("send", "reply") for other in ("mail", "message", "header", "body")
]
LABELS = np.repeat([0, 1], 8)


def test_words_of_a_class_are_learned() -> None:
    test = ["open a header folder file", "send mail to the disk"]
    given = tfidf_predictions(TEXTS, LABELS, test, seed=1)
    assert given.dtype == np.int64 and given.tolist() == [0, 1]
    assert np.array_equal(given, tfidf_predictions(TEXTS, LABELS, test, seed=1))


def test_one_text_of_a_class_is_too_few() -> None:
    with pytest.raises(ConfigError, match="at least two texts of each class"):
        tfidf_predictions(TEXTS[:9], LABELS[:9], TEXTS, seed=1)
