"""A loaded baseline, which predicts like a neural model, without torch."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from firth.baseline.config import CommonestTagConfig, JointConfig, TfidfConfig
from firth.tasks.items import AT_ONCE, check_items, check_several, in_chunks, listed, record_of
from firth.tasks.learnt import check_pair
from firth.tasks.predictions import Prediction
from firth.text.records import Record

# The type of the options in a baseline's folder, by name. ``firth finetune --model NAME`` fits one.
BASELINES: dict[str, type[Any]] = {"tfidf": TfidfConfig, "commonest-tag": CommonestTagConfig}
# Everything that predicts like a baseline: also a baseline and an encoder together (``firth.inference.joint``).
METHODS: dict[str, type[Any]] = {**BASELINES, "joint": JointConfig}


class Method(Protocol):
    """How a baseline predicts: ``Tfidf`` or ``CommonestTag``; or, with an encoder, ``firth.inference.joint.Joint``."""

    @property
    def config(self) -> Any: ...
    @property
    def task(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def unit(self) -> str: ...
    @property
    def pairs(self) -> bool | None: ...
    def answers(self, records: Sequence[Any], /) -> Sequence[Any]: ...


class Predictor(Protocol):
    """The interface of a task's model from ``firth.load``: a fine-tuned ``firth.Model``, or a ``Baseline``."""

    @property
    def system(self) -> str:
        """Name of the system or of the baseline."""

    @property
    def task(self) -> str:
        """The kind of task."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the model comes from."""

    @property
    def pairs(self) -> bool | None:
        """Whether it has learnt from pairs of texts (True) or from single ones (False); None if unknown."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags that it knows; none for values, spans and choices."""

    @property
    def unit(self) -> str:
        """What a tagger tags: ``"word"`` or ``"character"``."""

    def record(self, item: Any) -> Record:
        """Convert an item to a record of the task."""

    def predict(self, items: Any) -> Any:
        """The prediction for one item, or for each of a list of items, in order."""

    def answer_stream(
        self, records: Iterable[Record], *, at_once: int = AT_ONCE, noted: Counter[str] | None = None
    ) -> Iterator[tuple[Record, Prediction]]:
        """Each record with its prediction, in order; ``noted`` counts texts too long to read at once."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A TF-IDF, commonest-tag or joint model. ``predict`` takes what ``firth.Model.predict`` takes for its task."""

    method: Method
    provenance: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Baseline(system={self.system!r}, task={self.task!r}, {len(self.labels)} labels)"

    @property
    def system(self) -> str:
        """``"tfidf"``, ``"commonest-tag"`` or ``"joint"``."""
        return next(name for name, config in METHODS.items() if isinstance(self.method.config, config))

    @property
    def task(self) -> str:
        """The kind of task."""
        return self.method.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels or tags, in the order of the outputs; none for values."""
        return self.method.labels

    @property
    def pairs(self) -> bool | None:
        """Whether it has learnt from pairs of texts (True) or from single ones (False); None for words."""
        return self.method.pairs

    @property
    def unit(self) -> str:
        """What a tagger tags: ``"word"`` or ``"character"``."""
        return self.method.unit

    def record(self, item: Any) -> Record:
        """Convert an item to a record of the task; ``firth.tasks.items.record_of`` says what may be passed in."""
        return check_pair(record_of(self.task, item, self.unit), self.pairs)

    def predict(self, items: Any) -> Any:
        """The prediction for one item, or for each of a list of items, in order."""
        given, several = listed(items)
        found = [answer for _, answer in self.predict_stream(given)]
        return found if several else found[0]

    def predict_stream(self, items: Iterable[Any], at_once: int = AT_ONCE) -> Iterator[tuple[Record, Prediction]]:
        """Yield each item's record and prediction as ``predict`` makes it; ``at_once`` are held in memory."""
        return self.answer_stream(map(self.record, check_several(items)), at_once=at_once)

    def answer_stream(
        self, records: Iterable[Record], *, at_once: int = AT_ONCE, noted: Counter[str] | None = None
    ) -> Iterator[tuple[Record, Prediction]]:
        """Each record with its prediction, in order; ``noted`` counts texts too long for a joint model's encoder."""
        return in_chunks(self.answer_records, records, at_once, noted)

    def answer_records(self, records: Sequence[Record]) -> tuple[list[Any], dict[str, int]]:
        """The predictions for some records, and counts of texts too long for a joint model's encoder."""
        check_items(self.task, records)
        answers = list(self.method.answers(records))
        long, cut = sum(answer.windows > 1 for answer in answers), sum(answer.cut for answer in answers)
        return answers, {what: n for what, n in (("read in windows", long), ("cut", cut)) if n}
