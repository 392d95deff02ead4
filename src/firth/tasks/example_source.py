"""Serve examples in memory as training steps."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from firth.data.batch import Batch
from firth.data.hashing import permutation, seed_of
from firth.data.loader import Place
from firth.tasks.rows import Example, collate


@dataclass(frozen=True, slots=True)
class ExampleSource:
    """Endless steps of ``batch_examples`` examples, each in micro-batches of at most ``budget_tokens`` tokens.

    ``parts``: at least this many micro-batches, with about equally many tokens each, if there are as many examples.

    Every epoch is shuffled by a hash of (seed, epoch) and drops the remainder that does not fill a step, as
    published fine-tuning does (fewer examples than a step form one step). A position is (epoch, batch): all
    that resuming needs. ``next_tokens``: add the term ``lm`` to the batches.
    """

    examples: Sequence[Example]
    batch_examples: int
    budget_tokens: int
    seed: int
    next_tokens: bool = False
    parts: int = 1

    @property
    def steps_per_epoch(self) -> int:
        return max(len(self.examples) // self.batch_examples, 1)

    def steps(
        self, start: Place, *, step: int, rank: int = 0, world: int = 1
    ) -> Generator[tuple[list[Batch], Place], None, None]:
        """For each step from ``start`` on: this rank's micro-batches, and the position of the next step."""
        place = start
        while True:
            order = permutation(seed_of(self.seed, "epoch", place.epoch), len(self.examples))
            for number in range(place.batch, self.steps_per_epoch):
                chosen = order[number * self.batch_examples : (number + 1) * self.batch_examples]
                parts = self.cut(chosen)[rank::world]
                here = replace(place, batch=number)
                batches = [
                    collate([self.examples[i] for i in part], str(here), next_tokens=self.next_tokens) for part in parts
                ]
                following = replace(place, batch=number + 1)
                if following.batch == self.steps_per_epoch:
                    following = replace(place, epoch=place.epoch + 1, batch=0)
                yield batches, following
            place = replace(place, epoch=place.epoch + 1, batch=0)

    def cut(self, chosen: np.ndarray) -> list[np.ndarray]:
        """Split the examples of a step into micro-batches; an example longer than the budget is alone in one."""
        lengths = [sum(len(row.ids) for row in self.examples[number].rows) for number in chosen]
        budget = min(self.budget_tokens, -(-sum(lengths) // self.parts)) if self.parts > 1 else self.budget_tokens
        cuts, size = [0], 0
        for at, tokens in enumerate(lengths):
            size += tokens
            # At least as many examples are left as parts are still to be made.
            needed = self.parts - len(cuts) >= len(chosen) - at
            if at > cuts[-1] and (size > budget and len(cuts) < self.parts or size > self.budget_tokens or needed):
                cuts.append(at)
                size = tokens
        return np.split(chosen, cuts[1:])
