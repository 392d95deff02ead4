"""The state of a run apart from its tensors, such as its position; stored with each checkpoint as JSON."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firth.config import read_json
from firth.data.loader import Place
from firth.errors import CheckpointError, ConfigError, UsageError

# Error text for a file that this run cannot have written.
OF_ANOTHER = "is not what this run writes"


@dataclass
class State:
    """Everything that resuming needs besides weights, optimizer state and carry."""

    step: int = 0
    place: str = str(Place())
    log_offset: int = 0
    elapsed_s: float = 0.0
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    scores: list[float] = field(default_factory=list)
    plateaus: int = 0
    identity: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# A check for each field of a stored state.
_STATE: Mapping[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "place": lambda value: isinstance(value, str),
    "log_offset": _is_count,
    "elapsed_s": _is_number,
    "best": lambda value: value is None or _is_number(value),
    "best_step": _is_count,
    "evaluations_since_best": _is_count,
    "scores": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "plateaus": _is_count,
    "identity": lambda value: isinstance(value, dict),
    "environment": lambda value: isinstance(value, dict),
    "pending": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}


def read_state(path: Path) -> State:
    """Read a checkpoint's state; CheckpointError for an invalid one."""
    try:
        plain = read_json(path)
        for name, value in plain.items():
            if name not in _STATE or not _STATE[name](value):
                raise ConfigError(f"{name[:60]} = {str(value)[:60]}")
        if lacking := _STATE.keys() - plain.keys():
            raise ConfigError(f"it lacks {', '.join(sorted(lacking))}")
        folder = path.parent.parent.name
        if folder != f"step-{plain['step']}":
            raise ConfigError(f"step = {plain['step']} in the folder {folder}")
        Place.parse(plain["place"])
    except UsageError as error:
        raise CheckpointError(f"{path} {OF_ANOTHER}: {error}") from None
    return State(**plain)


def check_identity(
    stored: Mapping[str, Any], identity: Mapping[str, Any], defaults: Mapping[str, Any], checkpoint: Path
) -> None:
    """Raise CheckpointError if a checkpoint belongs to a run with other options or another text.

    ``stored``: its identity. ``defaults``: of options that its version may lack.
    """
    began = {key: defaults.get(key) for key in identity} | dict(stored)
    if other := [key for key in sorted(began | dict(identity)) if began.get(key) != identity.get(key)]:
        raise CheckpointError(
            f"{checkpoint} was made with another {', '.join(other[:5])}: put it back as it was, "
            f"or start a new run from it with --model {checkpoint}"
        )
