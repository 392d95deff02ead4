"""The batch of a training step: packed tokens and prediction targets."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from firth.packed import Carry, Encoder, Tokens


@dataclass(frozen=True, slots=True)
class Target:
    """Prediction targets: the ``label`` at each token, sequence or example ``index``. There is no ignore label.

    A label is a class index; (M, K) of 0 and 1 for K independent classes; or a real number.
    """

    index: Int[Tensor, " M"]
    label: Shaped[Tensor, "M *K"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    ``targets`` by term (``mlm``, ``nsp``, ``lm``, ``label``, ``translation``). ``place``: its position in the data,
    ``phase:epoch:group:batch``, enough to rebuild it. ``starts_stream``: reset recurrent
    state before it. ``ends_stream``: no batch continues from its state. ``rows_per_example``: number of sequences of
    each example (always on the host), None for one each. ``second``: the target side of translations, parallel to
    ``tokens``; its targets index its own tokens. ``rate_scale``: learning rate scale of its step, the same in all
    micro-batches of the step.
    """

    tokens: Tokens
    targets: dict[str, Target]
    place: str = ""
    starts_stream: bool = False
    ends_stream: bool = False
    rows_per_example: Int[Tensor, " E"] | None = None
    second: Tokens | None = None
    rate_scale: float = 1.0

    @property
    def n_tokens(self) -> int:
        """Number of tokens on both sides."""
        return self.tokens.rows.n_tokens + (0 if self.second is None else self.second.rows.n_tokens)

    def counts(self) -> dict[str, int]:
        """Number of predictions of each term."""
        return {term: target.label.numel() for term, target in self.targets.items()}

    def to(self, device: torch.device | str) -> "Batch":
        targets = {t: Target(x.index.to(device), x.label.to(device)) for t, x in self.targets.items()}
        second = None if self.second is None else self.second.to(device)
        return replace(self, tokens=self.tokens.to(device), targets=targets, second=second)


@dataclass(frozen=True, slots=True)
class Step:
    """The output of an objective: for each term the summed loss and the number of correct predictions.

    Sums, never means: the trainer divides once, by the count over all micro-batches and processes.
    """

    losses: dict[str, Float[Tensor, ""]]
    correct: dict[str, Shaped[Tensor, ""]]
    carry: Carry | None = None


class Objective(nn.Module):
    """Computes summed losses from a batch. A fine-tuning task is an objective that can also predict.

    ``encoder``: the system's encoder. ``config``: the objective's options. ``weights``: of each term in the total loss.
    ``penalties``: regularisation terms, computed in training only; they predict nothing.
    ``objective(batch, carry=None)`` returns a ``Step``.
    """

    penalties: ClassVar[frozenset[str]] = frozenset()

    encoder: Encoder
    config: Any
    weights: dict[str, float]

    def counts(self, batch: Batch) -> dict[str, int]:
        """The divisor of each term's loss; known before the forward pass."""
        return batch.counts()
