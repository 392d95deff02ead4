"""What a data set says, in plain Python: one frozen class per kind of example.

Each has ``where`` (``file:line``), so that an error about an example can name its place.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: paragraphs (or sentences) in order, none of them blank."""

    paragraphs: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One text with its label, or None where it is to be predicted."""

    text: str
    label: str | None = None
    where: str = ""
