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

import re

# Characters that control a terminal, change the text direction or cannot be encoded; not the newline.
_UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Those of them that control a terminal or override the text direction; not the tab.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# An overlong field of a message: a run without white space, or a quoted string.
_LONG_RUN = re.compile(r"\S{300,}")
_LONG_QUOTE = re.compile("'[^'\n]{300,}'|\"[^\"\n]{300,}\"")
_KEPT_BEGIN, _KEPT_END = 200, 60
# Messages up to the first length keep their quotations whole; those beyond the second are cut.
_SHORT, _LONGEST = 600, 2_000


def printable(text: str) -> str:
    """Make text from untrusted files safe to print: escape control characters, shorten overlong fields.

    Newlines are kept. All messages of the command line pass through here; results are printed unchanged, on a terminal
    through ``harmless``.
    """
    text = _UNSEEN.sub(_escaped, text)
    text = _LONG_RUN.sub(lambda match: _shortened(match[0]), text)
    if len(text) > _SHORT:
        text = _LONG_QUOTE.sub(lambda match: _shortened(match[0]), text)
    return _shortened(text, _LONGEST - _KEPT_END) if len(text) > _LONGEST else text


def harmless(text: str) -> str:
    """Escape the characters of a result that would control a terminal, and keep all others."""
    return _OBEYED.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _shortened(text: str, begin: int = _KEPT_BEGIN) -> str:
    return f"{text[:begin]} … ({len(text):,} characters) … {text[-_KEPT_END:]}"


class FirthError(Exception):
    """Base of all errors that Firth raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        """The message, safe to print."""
        return printable(super().__str__())


class UsageError(FirthError):
    """The call or its input is wrong."""

    exit_code = 2


class InputError(UsageError):
    """A text or data file is missing or not in the expected form."""


class ConfigError(UsageError):
    """A recipe, flag or size does not fit."""


class TokenizerError(UsageError):
    """A vocabulary or tokenizer does not fit."""


class LengthError(UsageError):
    """A text is longer than the model's maximum length."""


class CorpusError(FirthError):
    """A corpus folder is damaged, has an older layout, or was made with another tokenizer."""

    exit_code = 2


class CheckpointError(FirthError):
    """A model folder or checkpoint cannot be read."""

    exit_code = 2


class SaveError(CheckpointError):
    """A checkpoint or model cannot be written."""

    exit_code = 1


class TrainingError(FirthError):
    """Training cannot continue."""
