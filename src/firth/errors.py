"""All exceptions that Firth raises on purpose, as one tree, with the exit code of the command line.

    FirthError                 base                                                                    1
    ├── UsageError             the call or its input is wrong                                          2
    │   ├── InputError         a text or data file: missing, empty, malformed, not UTF-8               2
    │   ├── ConfigError        a recipe, flag or size that does not fit                                2
    │   ├── TokenizerError     a vocabulary or tokenizer that does not fit                             2
    │   └── LengthError        a text longer than the model's maximum length                           2
    ├── CorpusError            a corpus folder that is damaged, old, or made with another tokenizer    2
    ├── CheckpointError        a model folder or checkpoint that cannot be read                        2
    │   └── SaveError          a checkpoint that cannot be written                                     1
    └── TrainingError          training cannot continue (a loss that is not a number)                  1

A message says what was given, what was expected, and what to do. ``assert`` is for our own mistakes.
"""


class FirthError(Exception):
    """Base of all errors that Firth raises on purpose."""

    exit_code = 1


class UsageError(FirthError):
    """The call or its input is wrong."""

    exit_code = 2


class InputError(UsageError):
    """A text or data file cannot be read as what it should be."""


class ConfigError(UsageError):
    """A recipe, flag or size does not fit."""


class TokenizerError(UsageError):
    """A vocabulary or tokenizer does not fit."""


class LengthError(UsageError):
    """A text is longer than the model's maximum length."""


class CorpusError(FirthError):
    """A corpus folder is damaged, of an older layout, or made with another tokenizer."""

    exit_code = 2


class CheckpointError(FirthError):
    """A model folder or checkpoint cannot be read."""

    exit_code = 2


class SaveError(CheckpointError):
    """A checkpoint or model cannot be written."""

    exit_code = 1


class TrainingError(FirthError):
    """Training cannot continue."""
