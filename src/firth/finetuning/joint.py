"""Fit a joint model: the weight of a fine-tuned encoder beside TF-IDF, chosen on held-out training examples."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from firth.baseline.config import JointConfig, TfidfConfig
from firth.baseline.fit import calibrated, fit_linear, losses_of
from firth.baseline.folder import read_baseline
from firth.baseline.tfidf import Tfidf, fit_vectorizer
from firth.files import make_folder
from firth.finetuning.labelled import LabelledData
from firth.inference.joint import log_odds, mixed, write_joint
from firth.inference.model import load_model

# The weights of the encoder's predictions that are tried.
WEIGHTS = tuple(round(0.05 * i, 2) for i in range(21))
_MIDDLE = 0.5


@dataclass(frozen=True, slots=True)
class FittedJoint:
    """The options of a joint model, the run folder of its encoder, and its mean loss on held-out examples."""

    config: JointConfig
    encoder: Path
    loss: float


def fit_joint(baseline: Path, encoders: Sequence[Path], labelled: LabelledData) -> FittedJoint:
    """Choose the encoder and its weight by the loss on ``labelled.held``.

    ``baseline``, ``encoders``: run folders, all fitted to these examples. TF-IDF is fitted once more without the
    held-out examples, so that neither member has learned from them.
    """
    tfidf = read_baseline(baseline).method
    assert isinstance(tfidf, Tfidf)
    unseen = _without_held(tfidf.config, labelled)
    ours = log_odds(unseen.answers(labelled.held), tfidf.labels)
    found = []
    for run in encoders:
        answers = [answer for _, answer in load_model(run).answer_stream(labelled.held)]
        config, loss = fit_weight(tfidf.config, labelled.held, log_odds(answers, tfidf.labels), ours)
        found.append(FittedJoint(config, run, loss))
    return min(found, key=lambda joint: joint.loss)


def _without_held(config: TfidfConfig, labelled: LabelledData) -> Tfidf:
    reader = fit_vectorizer(labelled.train, config.grams)
    # A sample cannot lose its pairs by chance: the records of a task are all pairs, or none is.
    weight, bias = fit_linear(config, reader.read(labelled.train), labelled.train)
    return Tfidf(config, reader, weight, bias)


def fit_weight(
    config: TfidfConfig, held: Sequence[Any], encoder: Float[np.ndarray, "n K"], tfidf: Float[np.ndarray, "n K"]
) -> tuple[JointConfig, float]:
    """The options with the encoder's weight, and its mean loss on the examples.

    Of all weights whose loss is within one standard error of the best, the one nearest to 0.5 is chosen: few examples
    cannot show that one member is worthless. Source: Breiman et al. 1984, §3.4.3 (the one-standard-error rule).
    """
    joint = JointConfig(kind=config.kind, labels=config.labels, lowest=config.lowest, highest=config.highest)
    outputs = [mixed(encoder, tfidf, weight) for weight in WEIGHTS]
    options = [calibrated(replace(joint, weight=w), held, of) for w, of in zip(WEIGHTS, outputs, strict=True)]
    losses = np.stack([losses_of(one, held, of) for one, of in zip(options, outputs, strict=True)])
    best = int(losses.mean(1).argmin())
    behind = losses - losses[best]
    n = len(held)
    error = behind.std(1, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(options), np.inf)
    close = [i for i in range(len(options)) if behind[i].mean() <= error[i] or i == best]
    chosen = min(close, key=lambda i: (abs(options[i].weight - _MIDDLE), losses[i].mean()))
    return options[chosen], float(losses[chosen].mean())


def keep_joint(folder: Path, fitted: FittedJoint, baseline: Path, provenance: dict[str, Any]) -> None:
    """Write the joint model in the new ``folder``, with copies of its members."""

    def copy(tfidf: Path, encoder: Path) -> None:
        for source, place in ((baseline, tfidf), (fitted.encoder, encoder)):
            shutil.copytree(source / "model", place)

    make_folder(folder, lambda new: write_joint(new, fitted.config, provenance, copy))
