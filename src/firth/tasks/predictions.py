"""Prediction classes, one per kind of task, ready for JSON.

Each says how its text was read: ``windows``, in how many, and ``cut``, whether a part of it was left out.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Labelled:
    """The likeliest label of a text, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class MultiLabelled:
    """The labels that hold for a text, and the probability of each."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Valued:
    """The value of a text."""

    value: float
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Entity:
    """Characters ``[start:end]`` of the raw text. ``score``: mean probability of its words' tags."""

    label: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A tag for each word (or character) of a text, their probabilities, and the entities they make."""

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A possible answer: characters ``[start:end]`` of the context; empty for "no answer"."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer of a question (``text`` is empty for none), and those that come after it.

    ``no_answer_score``: score of "no answer" minus that of the best answer; None where every question has one.
    """

    text: str
    start: int
    end: int
    probability: float
    no_answer_score: float | None
    n_best: tuple[Span, ...]
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The number of the choice that fits best, its text, and the probability of each."""

    choice: int
    text: str
    probabilities: tuple[float, ...]
    windows: int = 1
    cut: bool = False


Prediction = Labelled | MultiLabelled | Valued | TaggedText | Answered | Chosen
