"""What a page of ``firth explain`` is about, and how much of a long text it draws."""

from collections.abc import Callable
from dataclasses import dataclass

from firth.errors import FirthError
from firth.explain.sentences import Language, say_in
from firth.inference.model import Model

# What is drawn of a long text. More would be too small to read, and a page of many heads too large to open.
MOST_TOKENS = 200
MOST_MAPPED = 32
MOST_INPUT = 14
MOST_WORDS = 8
MOST_PLACES = 24
MOST_NEXT = 10
# Each head that is left out scores the text once more.
MOST_HEADS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a page is about: texts, the word to compare in them (None: the longest that repeats).

    ``name``: of the model; ``others``: models in which the word is compared too, with their names.
    """

    texts: tuple[str, ...]
    word: str | None = None
    language: Language = "en"
    name: str = ""
    others: tuple[tuple[str, Model], ...] = ()

    def say(self, key: str, **values: object) -> str:
        return say_in(self.language, key, **values)


def can(ask: Callable[[], object]) -> bool:
    """Whether a model has what a section shows."""
    try:
        ask()
    except FirthError:
        return False
    return True
