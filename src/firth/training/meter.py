"""The speed of a run: tokens and floating-point operations per second, over all processes."""

import time
from collections.abc import Callable

from firth.data.batch import Batch
from firth.training.collectives import World, sum_over_ranks


class Meter:
    """Counts tokens and floating-point operations of all processes since the last reading."""

    def __init__(self) -> None:
        self.note = ""
        self._tokens, self._flops, self._at_s = 0, 0.0, time.monotonic()

    def add(self, batches: list[Batch], flops: Callable[[Batch], float]) -> None:
        self._tokens += sum(batch.n_tokens for batch in batches)
        self._flops += sum(flops(batch) for batch in batches)

    def read(self, world: World) -> dict[str, float]:
        done = sum_over_ranks({"tokens": self._tokens, "flops": self._flops}, world)
        elapsed_s = max(time.monotonic() - self._at_s, 1e-9)
        rates = {
            "tokens_per_s": round(done["tokens"] / elapsed_s, 1),
            "flops_per_s": round(done["flops"] / elapsed_s),
        }
        self._tokens, self._flops, self._at_s = 0, 0.0, time.monotonic()
        return rates
