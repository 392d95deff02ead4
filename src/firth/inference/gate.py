"""Quality gate: int8 is refused until an evaluation shows that it matches float32.

int8.json lies in the model folder, beside what its manifest names: the scores in both precisions, on which data, of
which weights. A folder that is written again has none.
"""

from dataclasses import dataclass
from pathlib import Path

from firth.config import read_json, to_dict
from firth.errors import CheckpointError, ConfigError, FirthError
from firth.files import file_sha256, write_json
from firth.folder import PRETRAINING, WEIGHTS, find_model, read_about
from firth.formats.table import find_format

GATE = "int8.json"
# Points of the task's main score that int8 may cost where nothing else is said.
MAX_DROP = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """``weights``: SHA-256 of model.safetensors; ``data``: of each file, by its name. Scores are shares of 1."""

    weights: str
    task: str
    data: dict[str, str]
    examples: int
    metric: str
    float32: float
    int8: float
    max_drop: float


def gated_folder(model: str | Path) -> Path:
    """The model folder that a record of int8 belongs into; ConfigError for a model that can have none."""
    located = find_format(model)
    if located.format.key != "firth":
        raise ConfigError(
            f"precision='int8': {model} is not a folder of Firth's own, where its scores could be recorded: "
            f"firth convert {model} --out FOLDER makes one"
        )
    folder = find_model(located.path)
    if read_about(folder).get("task") == PRETRAINING:
        raise ConfigError(
            f"precision='int8': {model} has not learnt a task whose score would tell what int8 costs; "
            "use 'bfloat16', or fine-tune it first"
        )
    return folder


def check_gate(model: str | Path) -> None:
    """ConfigError unless int8 was scored, with the weights that are in the folder, and was good enough."""
    folder = gated_folder(model)
    how = f"firth evaluate {model} --data DEV --precision int8"
    try:
        weights = read_json(folder / GATE).get("weights")
    except FirthError:
        raise ConfigError(f"precision='int8': not yet known to answer as well as float32: {how}") from None
    if weights != file_sha256(folder / WEIGHTS):
        raise ConfigError(f"precision='int8': {folder / GATE} is of other weights than the model's: {how}")


def record_gate(folder: Path, gate: Gate, *, passed: bool) -> None:
    """Write the record, or where int8 was not good enough take an older one away: the last comparison counts."""
    path = folder / GATE
    try:
        if passed:
            write_json(path, to_dict(gate))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from None
