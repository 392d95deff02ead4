"""What a data set says, in plain Python: one frozen class per kind of example.

Each has ``where`` (``file:line``), so that an error about an example can name its place. What is to be
found (label, tags, answers, the right choice) is None where it is to be predicted. ``group`` names what
examples must not be torn apart from when a data set is split: an article, a dialogue, a document.
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
    """A sentence whose words have a tag each.

    ``spans``: the characters ``[start:end]`` of ``text`` that each word covers (for tags on characters,
    one span a character), in order and without overlap. Sentences with the same ``group`` that follow one
    another are one document: each is context for its neighbours.
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
    """An answer as it stands in a context: its text, and the character it begins at."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context. ``answers``: all that count as right; none if it cannot be answered."""

    question: str
    context: str
    answers: tuple[Answer, ...] | None = None
    where: str = ""
    id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of the ``choices`` fits: ``label`` is its number.

    ``text``: what they are about (a passage, a dialogue, a first sentence; may be empty). ``question``:
    stands before each choice (a question, the beginning of a sentence; may be empty).
    """

    text: str
    question: str
    choices: tuple[str, ...]
    label: int | None = None
    where: str = ""
    id: str = ""
    group: str = ""


Record = Text | Tagged | Question | Choice
