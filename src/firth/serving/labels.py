"""Predictions as lists of labels with scores, highest first, as TEI and Hugging Face have them."""

from typing import Any

from firth.serving.hosted import Hosted
from firth.tasks.predictions import Labelled, MultiLabelled, Valued


def label_scores(hosted: Hosted, prediction: Any, top_k: int | None = None) -> list[dict[str, Any]]:
    """``[{label, score}]``. Below the model's threshold a null label stands first, with the best label's score."""
    if isinstance(prediction, Valued):
        return [{"label": "value", "score": prediction.value}]
    assert isinstance(prediction, (Labelled, MultiLabelled))
    shares = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    found: list[dict[str, Any]] = [{"label": label, "score": share} for label, share in shares]
    if isinstance(prediction, Labelled) and hosted.abstains(prediction.probability):
        found.insert(0, {"label": None, "score": prediction.probability})
    return found[:top_k]
