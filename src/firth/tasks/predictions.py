"""Prediction classes, one per kind of task, ready for JSON.

Each says how its text was read: ``windows`` is the number of windows, ``cut`` whether a part was dropped.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Labelled:
    """The most probable label of a text, and the probability of each label."""

    label: str
    probability: float
    probabilities: dict[str, float]
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class MultiLabelled:
    """The predicted labels of a text, and the probability of each label."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Valued:
    """The predicted value of a text."""

    value: float
    windows: int = 1
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity: characters ``[start:end]`` of the raw text. ``score``: mean probability of its words' tags."""

    label: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class TaggedText:
    """A tag for each word (or character) of a text, their probabilities, and the entities they make.

    ``words``, ``offsets``: what each tag belongs to, and its characters ``[start:end]`` in the raw text.
    """

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]
    words: tuple[str, ...] = ()
    offsets: tuple[tuple[int, int], ...] = ()
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
    """The answer to a question (``text`` is empty for no answer), and the next best.

    ``no_answer_score``: score of "no answer" minus that of the best answer; None if every question has an answer.
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
    """The index and text of the predicted choice, and the probability of each."""

    choice: int
    text: str
    probabilities: tuple[float, ...]
    windows: int = 1
    cut: bool = False


Prediction = Labelled | MultiLabelled | Valued | TaggedText | Answered | Chosen
