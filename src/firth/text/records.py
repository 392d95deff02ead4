"""Examples of data sets in plain Python: one frozen class per kind of example.

Each has ``where`` (``file:line``) for error messages. The target (label, tags, answers, the correct choice)
is None in unlabelled data. ``group`` names an article, dialogue or document whose examples must stay
together when a data set is split.
"""

from dataclasses import dataclass

# One label; several (multi-label); or a number (regression).
Label = str | tuple[str, ...] | float


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: paragraphs (or sentences) in order, none of them blank."""

    paragraphs: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One text, or with ``second`` a pair of texts, and its label."""

    text: str
    label: Label | None = None
    where: str = ""
    second: str | None = None
    id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence with a tag for each word.

    ``spans``: the characters ``[start:end]`` of ``text`` that each word covers (for tags on characters,
    one span per character), in order and without overlap. Consecutive sentences with the same ``group``
    form one document: each is context for its neighbours.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    tags: tuple[str, ...] | None = None
    where: str = ""
    id: str = ""
    group: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.text[a:b] for a, b in self.spans)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in a context: its text, and its first character."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context. ``answers``: all correct ones; empty if it cannot be answered."""

    question: str
    context: str
    answers: tuple[Answer, ...] | None = None
    where: str = ""
    id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A multiple-choice question: ``label`` is the index of the correct one of ``choices``.

    ``text``: the context (a passage, a dialogue, a first sentence; may be empty). ``question``:
    precedes each choice (a question, the start of a sentence; may be empty).
    """

    text: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None
    where: str = ""
    id: str = ""
    group: str = ""


Record = Text | Tagged | Question | Choice
