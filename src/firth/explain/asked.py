"""The input of a page of ``firth explain``, and limits on how much of a long text it draws."""

from collections.abc import Callable
from dataclasses import dataclass

from firth.errors import FirthError
from firth.explain.sentences import Language, say_in
from firth.inference.model import Model

# Limits on what is drawn of a long text: more would be too small to read, and a page of many heads too large to open.
MOST_TOKENS = 200
MOST_MAPPED = 32
MOST_INPUT = 14
MOST_WORDS = 8
MOST_PLACES = 24
MOST_NEXT = 10
# Silencing a head scores the text once more, so models with more heads are skipped.
MOST_HEADS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The input of a page: texts, and the word to compare in them (None: the longest that repeats).

    ``name``: the model's; ``others``: models in which the word is compared too, with their names.
    """

    texts: tuple[str, ...]
    word: str | None = None
    language: Language = "en"
    name: str = ""
    others: tuple[tuple[str, Model], ...] = ()

    def say(self, key: str, **values: object) -> str:
        return say_in(self.language, key, **values)


def can(ask: Callable[[], object]) -> bool:
    """Whether a model supports what a section shows."""
    try:
        ask()
    except FirthError:
        return False
    return True
