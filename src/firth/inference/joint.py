"""TF-IDF and a fine-tuned encoder together: a weighted mean of their log-odds, or of their values (late fusion).

firth.json    names the joint model, its task, weight and calibration, provenance
tfidf/        the baseline's folder
encoder/      the fine-tuned model's folder

Both members are complete models, so each can be taken out and used alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from firth.baseline.config import JointConfig
from firth.baseline.folder import ABOUT, find_baseline, read_about, read_baseline, write_about, write_card
from firth.baseline.model import Baseline
from firth.baseline.tfidf import TextAnswer, Tfidf, answers_of
from firth.config import from_dict
from firth.errors import CheckpointError, ConfigError, FirthError
from firth.inference.model import Model, load_model
from firth.inference.precision import Precision
from firth.manifest import MANIFEST, check_folder
from firth.tasks.predictions import Labelled, MultiLabelled, Valued
from firth.text.records import Text

JOINT = "joint"
TFIDF, ENCODER = "tfidf", "encoder"
# Probabilities of exactly 0 or 1 have no log-odds.
_LEAST = 1e-7


@dataclass(frozen=True, slots=True)
class Joint:
    """A baseline and an encoder that predict together; has the same interface as ``Tfidf``."""

    config: JointConfig
    tfidf: Tfidf
    encoder: Model

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
        return self.tfidf.pairs

    def answers(self, texts: Sequence[Text]) -> list[TextAnswer]:
        """The predictions, in order."""
        if not texts:
            return []
        return self.combine(texts, [answer for _, answer in self.encoder.answer_stream(texts)])

    def combine(self, texts: Sequence[Text], read: Sequence[TextAnswer]) -> list[TextAnswer]:
        """The predictions for texts (at least one) that the encoder has ``read``: its own predictions."""
        ours = log_odds(self.tfidf.answers(texts), self.labels)
        found = answers_of(mixed(log_odds(read, self.labels), ours, self.config.weight), self.config)
        return [replace(one, windows=of.windows, cut=of.cut) for one, of in zip(found, read, strict=True)]


def log_odds(answers: Sequence[Any], labels: Sequence[str]) -> Float[np.ndarray, "n K"]:
    """Convert predictions to numbers whose weighted mean is again a prediction.

    Log-probabilities of classes, log-odds of labels that are not exclusive, or values (one column).
    """
    if isinstance(answers[0], Valued):
        return np.array([[answer.value] for answer in answers], np.float64)
    shares = np.array([[answer.probabilities[label] for label in labels] for answer in answers], np.float64)
    shares = np.clip(shares, _LEAST, 1 - _LEAST)
    if isinstance(answers[0], MultiLabelled):
        return np.log(shares) - np.log1p(-shares)
    assert isinstance(answers[0], Labelled)
    return np.log(shares)


def mixed(
    encoder: Float[np.ndarray, "n K"], tfidf: Float[np.ndarray, "n K"], weight: float
) -> Float[np.ndarray, "n K"]:
    """Return the weighted mean; ``weight`` is the encoder's, 0 to 1."""
    return weight * encoder + (1 - weight) * tfidf


def find_joint(path: str | Path) -> Path | None:
    """Return the folder of the joint model at a path; None for anything else."""
    return find_baseline(path, names=(JOINT,))


def write_joint(
    folder: Path, config: JointConfig, provenance: dict[str, Any], copy: Callable[[Path, Path], None]
) -> None:
    """Write a joint model into an existing empty folder; ``copy(tfidf, encoder)`` fills the members' folders."""
    copy(folder / TFIDF, folder / ENCODER)
    provenance = write_about(folder, JOINT, config.kind, config, provenance)
    facts = [
        f"task: {config.kind}",
        f"labels: {', '.join(config.labels) or 'none'}",
        f"weight of the encoder: {config.weight:g}, of TF-IDF: {1 - config.weight:g}",
    ]
    use = "Load it with `firth.load(folder)`. Its members, `tfidf/` and `encoder/`, are models of their own."
    write_card(folder, "TF-IDF and a fine-tuned encoder together", facts, use, provenance)


def read_joint(
    path: str | Path, *, device: str | None = None, precision: Precision = "float32", compile: bool = False
) -> Baseline:
    """Load a joint model; CheckpointError if it is damaged or not a joint model. The options apply to the encoder."""
    folder = find_joint(path)
    if folder is None:
        raise CheckpointError(f"{path} is not a joint model")
    if precision == "int8":
        raise ConfigError(
            f"{path} is a joint model, which no evaluation in 8-bit integers covers: leave precision out, or give "
            f"{folder / ENCODER}"
        )
    if (folder / MANIFEST).is_file():
        check_folder(folder)
    about = read_about(folder)
    try:
        config = from_dict(JointConfig, about.get("options", {}), str(folder / ABOUT))
        tfidf = read_baseline(folder / TFIDF)
    except (KeyError, TypeError, ValueError, FirthError) as error:
        raise CheckpointError(f"{folder} cannot be read as a joint model: {error}") from None
    encoder = load_model(folder / ENCODER, device=device, precision=precision, compile=compile)
    for name, member in ((TFIDF, tfidf), (ENCODER, encoder)):
        if member.task != config.kind or set(member.labels) != set(config.labels):
            raise CheckpointError(f"{folder}: {name} is not of the joint model's task and labels")
    if not isinstance(tfidf.method, Tfidf):
        raise CheckpointError(f"{folder}: {TFIDF} is of the kind {tfidf.system}")
    return Baseline(Joint(config, tfidf.method, encoder), about.get("provenance", {}))
