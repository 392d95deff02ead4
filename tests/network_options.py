"""Network options for tests that vary them: the name of an option determines its network."""

from dataclasses import fields
from typing import Any

from firth.tasks.config import BiLstmConfig, LinearConfig

_LINEAR = {field.name for field in fields(LinearConfig)}
_BILSTM = {field.name for field in fields(BiLstmConfig)}


def network_of(**options: Any) -> Any:
    """The linear head with these options, or the BiLSTM if only it has them (without layers if none are given)."""
    if options.keys() & (_BILSTM - _LINEAR):
        return BiLstmConfig(**{"lstm_layers": 0, **options})
    return LinearConfig(**options)
