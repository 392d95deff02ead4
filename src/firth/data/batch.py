"""The batch of a training step: packed tokens and prediction targets."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from firth.packed import Carry, Encoder, Tokens


@dataclass(frozen=True, slots=True)
class Target:
    """Predictions asked for: at token, row or example ``index``, the answer ``label``. Nothing stands for "none".

    A label is the number of a class; (M, K) of 0 and 1 where each of K classes may hold; or a real number.
    """

    index: Int[Tensor, " M"]
    label: Shaped[Tensor, "M *K"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    ``targets`` by term (``mlm``, ``nsp``, ``lm``, ``label``, ``translation``). ``place`` says where in the data it
    comes from, ``phase:epoch:group:batch``, enough to make it again. ``starts_stream``: recurrent
    state begins anew here. ``rows_per_example``: where a long text is several rows (on the host always),
    None for one each. ``second``: the target side of translations, row by row beside ``tokens``; its targets count
    the tokens there. ``rate_scale``: of the learning rate of its step, alike in all micro-batches of the step.
    """

    tokens: Tokens
    targets: dict[str, Target]
    place: str = ""
    starts_stream: bool = False
    rows_per_example: Int[Tensor, " E"] | None = None
    second: Tokens | None = None
    rate_scale: float = 1.0

    @property
    def n_tokens(self) -> int:
        """Tokens of both sides."""
        return self.tokens.rows.n_tokens + (0 if self.second is None else self.second.rows.n_tokens)

    def counts(self) -> dict[str, int]:
        """How many predictions each term asks for."""
        return {term: target.label.numel() for term, target in self.targets.items()}

    def to(self, device: torch.device | str) -> "Batch":
        targets = {t: Target(x.index.to(device), x.label.to(device)) for t, x in self.targets.items()}
        second = None if self.second is None else self.second.to(device)
        return replace(self, tokens=self.tokens.to(device), targets=targets, second=second)


@dataclass(frozen=True, slots=True)
class Step:
    """What an objective makes of a batch: for each term the summed loss and the number of right answers.

    Sums, never means: the trainer divides once, by the count over all micro-batches and processes.
    """

    losses: dict[str, Float[Tensor, ""]]
    correct: dict[str, Float[Tensor, ""]]
    carry: Carry | None = None


class Objective(nn.Module):
    """A batch in, summed losses out. A fine-tuning task is one too, which can also predict.

    ``encoder``: the system's. ``config``: its options. ``weights``: of each term in the total loss. ``penalties``: the
    terms that predict nothing: in training alone, with losses but no right answers.
    Calling it: ``objective(batch, carry=None)`` gives a ``Step``.
    """

    penalties: ClassVar[frozenset[str]] = frozenset()

    encoder: Encoder
    config: Any
    weights: dict[str, float]

    def counts(self, batch: Batch) -> dict[str, int]:
        """What the loss of each term is divided by; known before the forward."""
        return batch.counts()
