"""The precisions in which an encoder can run; no torch."""

from typing import Literal, get_args

from firth.errors import ConfigError

Precision = Literal["float32", "bfloat16", "float16", "int8", "auto"]
# They run on CPUs only.
ON_CPU = ("float16", "int8")


def check_precision(precision: str) -> None:
    """Raise ConfigError for an unknown precision."""
    if precision not in (known := get_args(Precision)):
        raise ConfigError(f"precision={precision!r}: expected {', '.join(map(repr, known))}")
