"""Score labelled examples: records -> sequences -> outputs -> predictions -> scores.

Outputs come from any engine: PyTorch (``row_outputs``), onnxruntime (``session_outputs``), or a model with stored
vectors for an encoder (also ``row_outputs``). Fine-tuning, probing, evaluation and the ONNX quality gate score here.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firth.progress import Progress
from firth.tasks.breakdown import Breakdown
from firth.tasks.datasets import DATASETS
from firth.tasks.items import AT_ONCE, chunks
from firth.tasks.kinds import kind_of_task
from firth.tasks.rows import Example, Outputs, RowMaker
from firth.tasks.scoring import Scores, score_from
from firth.tasks.table import TASKS

# Returns the predictions for some records, and counts of texts too long, by how they were handled.
Answer = Callable[[Sequence[Any]], tuple[list[Any], Mapping[str, int]]]


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """Labelled records with their sequences, for repeated evaluation. ``noted``: as in ``RowMaker``."""

    records: Sequence[Any]
    examples: Sequence[Example]
    noted: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Scored:
    """All scores of an evaluation, their breakdown, and counts of texts too long for a sequence."""

    scores: Scores
    breakdown: Breakdown
    noted: Mapping[str, int]

    def notes(self) -> list[str]:
        """A line for each kind of text that was too long."""
        return [f"{what}: {n:,} examples" for what, n in self.noted.items()]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        return {"scores": self.scores, "breakdown": self.breakdown.to_dict()}


def read_split(kind: str, records: Sequence[Any], maker: RowMaker, options: Any) -> EncodedSplit:
    """First step: build the sequences and targets of records. ``options``: the head's."""
    examples = TASKS[kind].examples(records, maker, options)
    return EncodedSplit(records, examples, dict(maker.noted))


def score_split(task: str, split: EncodedSplit, outputs: Sequence[Outputs], options: Any) -> Scored:
    """Last steps, from ``outputs = run(split.examples)``: decode with these options, and score."""
    answers = TASKS[kind_of_task(task)].answers(split.records, split.examples, outputs, options)
    return score_outputs(task, split.records, answers, getattr(options, "labels", ()), split.noted)


def score_records(task: str, records: Sequence[Any], labels: Sequence[str], answer: Answer, what: str) -> Scored:
    """All steps at once, in constant memory; ``what`` is shown as progress."""
    answers, noted = [], Counter[str]()
    with Progress(what, len(records), "examples") as progress:
        for some in chunks(records, AT_ONCE):
            found, long = answer(some)
            answers += found
            noted.update(long)
            progress.advance(len(some))
    return score_outputs(task, records, answers, labels, noted)


def score_outputs(
    task: str, records: Sequence[Any], answers: Sequence[Any], labels: Sequence[str], noted: Mapping[str, int]
) -> Scored:
    """Only the last step, for predictions from any source."""
    kind = TASKS[kind_of_task(task)]
    scores = kind.score(records, answers, labels)
    published = DATASETS.get(task)
    if published is not None and published.positive_from is not None:
        scores |= score_from(records, answers, published.positive_from)
    return Scored(scores, kind.break_down(records, answers, labels), noted)
