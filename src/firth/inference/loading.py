"""``firth.load``: load any model or baseline for inference. A baseline loads without torch."""

from pathlib import Path
from typing import TYPE_CHECKING

from firth.baseline.folder import find_baseline, read_baseline
from firth.baseline.model import METHODS, Baseline
from firth.errors import ConfigError
from firth.inference.precision import Precision, check_precision

if TYPE_CHECKING:
    from firth.inference.model import Model


def load(
    path: str | Path, *, device: str | None = None, precision: Precision = "float32", compile: bool = False
) -> "Model | Baseline":
    """Load a model for inference: a ``Model`` (see ``firth.inference.model.load_model``) or a ``Baseline``.

    Both satisfy ``firth.baseline.model.Predictor`` if fine-tuned. ConfigError for an unknown ``precision``.
    """
    check_precision(precision)
    if find_baseline(path) is None:
        if find_baseline(path, names=METHODS) is not None:
            from firth.inference.joint import read_joint

            return read_joint(path, device=device, precision=precision, compile=compile)
        from firth.inference.model import load_model

        return load_model(path, device=device, precision=precision, compile=compile)
    check_baseline_options(str(path), device=device, precision=precision, compile=compile)
    return read_baseline(path)


def check_baseline_options(
    path: str, *, device: str | None = None, precision: str = "float32", compile: bool = False
) -> None:
    """Raise ConfigError for options that a baseline, which runs in NumPy, does not have."""
    wrong = [] if device in (None, "cpu") else ["device"]
    wrong += [] if precision in ("float32", "auto") else ["precision"]
    wrong += ["compile"] if compile else []
    if wrong:
        raise ConfigError(f"{path} is a baseline, which runs in NumPy on the CPU: leave out {' and '.join(wrong)}")
