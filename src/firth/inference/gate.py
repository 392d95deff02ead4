"""Quality gate: int8 is refused until an evaluation shows that it matches float32.

int8.json in the model folder, outside its manifest, records the scores in both precisions, the data, and
the weights. Rewriting a folder removes it.
"""

from dataclasses import dataclass
from pathlib import Path

from firth.baseline.folder import read_about
from firth.config import read_json, to_dict
from firth.errors import CheckpointError, ConfigError, FirthError
from firth.files import write_json
from firth.folder import PRETRAINING, WEIGHTS, find_model
from firth.formats.table import find_format
from firth.manifest import file_sha256

GATE = "int8.json"
# Default limit on int8's drop in the task's main score, in points.
MAX_DROP = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A recorded evaluation. ``weights``, ``data``: SHA-256 of model.safetensors and each file. Scores: 0 to 1."""

    weights: str
    task: str
    data: dict[str, str]
    examples: int
    metric: str
    float32: float
    int8: float
    max_drop: float


def gated_folder(model: str | Path) -> Path:
    """Return the model folder that holds the int8 record; ConfigError for a model that cannot have one."""
    located = find_format(model)
    if located.format.key != "firth":
        raise ConfigError(
            f"precision='int8': {model} is not a Firth model folder, which could record its scores: "
            f"create one with firth convert {model} --out FOLDER"
        )
    folder = find_model(located.path)
    if read_about(folder).get("task") == PRETRAINING:
        raise ConfigError(
            f"precision='int8': {model} is not fine-tuned, so no score can show what int8 costs; "
            "use 'bfloat16', or fine-tune it first"
        )
    return folder


def check_gate(model: str | Path) -> None:
    """Raise ConfigError unless int8 was evaluated with the folder's weights and passed."""
    folder = gated_folder(model)
    how = f"firth evaluate {model} --data DEV --precision int8"
    try:
        weights = read_json(folder / GATE).get("weights")
    except FirthError:
        raise ConfigError(f"precision='int8': not yet shown to match float32: {how}") from None
    if weights != file_sha256(folder / WEIGHTS):
        raise ConfigError(f"precision='int8': {folder / GATE} belongs to other weights than the model's: {how}")


def record_gate(folder: Path, gate: Gate, *, passed: bool) -> None:
    """Write the record, or remove an older one if int8 failed: the last comparison counts."""
    path = folder / GATE
    try:
        if passed:
            write_json(path, to_dict(gate))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from None
