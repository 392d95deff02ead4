"""Everything that can go wrong through no fault of ours, as one tree.

    FirthError                 base; the command line prints its message alone and exits with 1
    ├── UsageError             the call or the input is wrong; the command line exits with 2
    │   ├── InputError         a text or data file: missing, empty, broken, not UTF-8
    │   ├── ConfigError        a recipe, a flag, a size that does not fit
    │   ├── TokenizerError     a vocabulary or tokenizer that cannot serve
    │   └── LengthError        a text longer than the model can read
    ├── CorpusError            a corpus folder that is damaged, older, or made with another tokenizer
    ├── CheckpointError        a model folder or checkpoint that cannot be read or written
    └── TrainingError          training cannot go on (a loss that is not a number)

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
    """A vocabulary or tokenizer cannot serve."""


class LengthError(UsageError):
    """A text is longer than the model can read."""


class CorpusError(FirthError):
    """A corpus folder is damaged, of an older layout, or made with another tokenizer."""


class CheckpointError(FirthError):
    """A model folder or checkpoint cannot be read or written."""


class TrainingError(FirthError):
    """Training cannot go on."""
