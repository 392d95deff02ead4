"""Loss and accuracy of an objective on held-out text, over all processes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from firth.data.batch import Batch, Objective, Step
from firth.packed import Carry
from firth.training.collectives import World, any_rank, sum_over_ranks


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """An objective and its held-out text.

    ``batches``: yields this process's micro-batches, with slots as in a step. ``slots``: their number over all
    processes. ``forward``: runs a micro-batch on ``device`` from its stream's state. ``spare``: returns another batch,
    for when there are fewer batches than processes.
    """

    objective: Objective
    batches: Callable[[], Iterator[Batch]]
    forward: Callable[[Batch, Carry | None], Step]
    spare: Callable[[], Batch]
    slots: int
    device: torch.device
    world: World

    @torch.no_grad()
    def score(self) -> dict[str, float]:
        """Compute loss per prediction and accuracy of each term, without penalties. Empty without predictions."""
        self.objective.eval()
        terms = [term for term in self.objective.weights if term not in self.objective.penalties]
        # Read once, after the last batch: on a GPU each read waits for all queued work.
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        totals = {f"{term}_{kind}": zero for term in terms for kind in ("loss", "correct")}
        counts = {f"{term}_count": 0.0 for term in terms}
        n_slots = len(range(self.world.rank, self.slots, self.world.size))
        carries: dict[int, Carry | None] = {}
        for number, batch in enumerate(self._in_step(self.batches())):
            slot = number % n_slots
            step = self.forward(batch.to(self.device), None if batch.starts_stream else carries.get(slot))
            carries[slot] = step.carry
            for term in terms:
                totals[f"{term}_loss"] = totals[f"{term}_loss"] + step.losses[term]
                totals[f"{term}_correct"] = totals[f"{term}_correct"] + step.correct[term]
                counts[f"{term}_count"] += batch.counts().get(term, 0)
        self.objective.train()
        if self.world.sharded:
            from firth.training.sharding import drop_gathered

            drop_gathered(self.objective)
        sums = sum_over_ranks(counts | {name: float(total) for name, total in totals.items()}, self.world)
        # Without predictions there is no score: a loss of zero would be unbeatable.
        return means_of(self.objective.weights, sums) if all(sums[f"{term}_count"] for term in terms) else {}

    def _in_step(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield this process's batches. With sharded weights every forward needs all processes: one that has no batch
        left recomputes its last one and discards the result."""
        if not self.world.sharded:
            yield from batches
            return
        last: Batch | None = None
        while True:
            batch = next(batches, None)
            if not any_rank(batch is not None, self.world):
                return
            if batch is not None:
                last = batch
                yield batch
                continue
            if last is None:
                last = self.spare()
            self.forward(last.to(self.device), None)


def means_of(weights: Mapping[str, float], sums: Mapping[str, float]) -> dict[str, float]:
    """Loss per prediction and accuracy of each counted term, and the total loss; ``weights``: of each term in it."""
    means, total = {}, 0.0
    for term, weight in weights.items():
        if f"{term}_count" not in sums:
            continue
        count = max(sums[f"{term}_count"], 1)
        means[f"{term}_loss"] = sums[f"{term}_loss"] / count
        if f"{term}_correct" in sums:
            means[f"{term}_accuracy"] = sums[f"{term}_correct"] / count
        total += weight * means[f"{term}_loss"]
    return means | {"loss": total}
