"""Predictions as lists of labels with scores, highest first, in the form of TEI and Hugging Face."""

import math
from typing import Any

from firth.serving.hosted import Hosted
from firth.tasks.predictions import Chosen, Labelled, MultiLabelled, Valued


def label_scores(hosted: Hosted, prediction: Any, top_k: int | None = None) -> list[dict[str, Any]]:
    """Return ``[{label, score}]``; below the model's threshold, a null label with the best score comes first."""
    if isinstance(prediction, Valued):
        return [{"label": "value", "score": prediction.value}]
    assert isinstance(prediction, (Labelled, MultiLabelled))
    shares = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    found: list[dict[str, Any]] = [{"label": label, "score": share} for label, share in shares]
    if isinstance(prediction, Labelled) and hosted.abstains(prediction.probability):
        found.insert(0, {"label": None, "score": prediction.probability})
    return found[:top_k]


def entropy(prediction: Any) -> float | None:
    """The entropy of a label's or choice's probabilities, from 0 (certain) to 1 (uniform); None for other answers."""
    if isinstance(prediction, Labelled):
        shares = tuple(prediction.probabilities.values())
    elif isinstance(prediction, Chosen):
        shares = prediction.probabilities
    else:
        return None
    if len(shares) < 2:
        return 0.0
    return -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))
