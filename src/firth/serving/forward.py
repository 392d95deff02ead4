"""What the engine thread runs: a batch of one kind, and a question to a model as rows, a forward pass and answers.

Only the engine thread, which owns all modules, calls ``Forward.run``. Except for rounding, no answer depends on the
rest of its batch: models whose layers depend on the whole batch (such as ELMo's layer normalisation) get one sequence
at a time.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from firth.baseline.model import Baseline
from firth.serving.cost import CostModel
from firth.serving.scheduler import QueuedRow

if TYPE_CHECKING:
    from firth.serving.hosted import Hosted

What = Literal[
    "predict",
    "embed",
    "embed_all",
    "layers",
    "layer_means",
    "fill-mask",
    "masking",
    "attention",
    "follow",
    "nearest",
    "step",
]
# Kinds of rows whose work is a function, each called separately: its time says nothing about a batch of tokens.
CALLED = frozenset({"attention", "follow", "nearest", "step"})


@dataclass(frozen=True, slots=True)
class Forward:
    """What a batch runs: rows with equal ``Forward`` may share one. ``options`` change what is computed."""

    hosted: "Hosted"
    what: What
    options: tuple[Any, ...] = ()

    def run(self, works: Sequence[Any]) -> list[Any]:
        """Run the works of some rows, and return their outputs in order."""
        if self.what in CALLED:
            return [work() for work in works]
        if self.hosted.batch_matters and len(works) > 1:
            return [one for work in works for one in self._run([work])]
        return self._run(works)

    def _run(self, works: Sequence[Any]) -> list[Any]:
        hosted = self.hosted
        if (model := hosted.encoder) is None:
            assert isinstance(hosted.predictor, Baseline)
            return list(hosted.predictor.method.answers(works))
        if self.what == "predict":
            from firth.inference.answering import task_model
            from firth.inference.outputs import part_outputs

            return list(part_outputs(task_model(model.loaded), works))
        if self.what == "fill-mask":
            from firth.inference.masks import fill_rows

            (top_k,) = self.options
            return list(fill_rows(model.loaded, works, top_k, model.device))
        if self.what == "masking":
            from firth.inference.masks import guess_rows

            (top_k,) = self.options
            return list(guess_rows(model.loaded, works, top_k, model.device))
        from firth.inference.embedding import layer_means, layer_rows, pooled_rows, token_rows

        if self.what == "layers":
            return list(layer_rows(model.loaded, works, model.device))
        if self.what == "layer_means":
            return list(layer_means(model.loaded, works, model.device))
        if self.what == "embed":
            layer, pool = self.options
            return list(pooled_rows(model.loaded, works, layer, pool, model.device))
        (layer,) = self.options
        return list(token_rows(model.loaded, works, layer, model.device))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A question as rows, and the function that turns their outputs into answers.

    ``cut``: whether a part of a text is not read. ``unknown``: how many tokens of the rows the vocabulary lacks.
    """

    rows: Sequence[QueuedRow]
    answers: Callable[[list[Any]], Any]
    windows: int = 1
    cut: bool = False
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A question to a model. ``prepare`` needs only the tokenizer. ``alone``: it shares no batch, and comes last."""

    forward: Forward
    prepare: Callable[[], Prepared]
    alone: bool = False


def cost_of(kind: Hashable) -> CostModel:
    """The cost model for a kind of batch: one per model."""
    assert isinstance(kind, Forward)
    return kind.hosted.cost
