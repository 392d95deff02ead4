"""A model whose every step can be computed by hand, and a trainer for it."""

from pathlib import Path
from typing import Any

import torch

from firth.data.batch import Batch, Objective, Step, Target
from firth.data.loader import Place
from firth.data.rows import pack_lists
from firth.training.config import OptimConfig, TrainConfig
from firth.training.trainer import Trainer


class Guess(Objective):
    """One number per token; the loss of a prediction is (number - 1)²."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = torch.nn.Parameter(torch.zeros(8))
        self.weights = {"guess": 1.0}

    def forward(self, batch: Batch, carry: Any = None) -> Step:
        target = batch.targets["guess"]
        loss = ((self.numbers[batch.tokens.ids[target.index]] - 1) ** 2).sum()
        return Step({"guess": loss}, {"guess": torch.zeros(())})


def batch_of(ids: list[int], n_targets: int) -> Batch:
    index = torch.arange(n_targets)
    return Batch(pack_lists([ids]), {"guess": Target(index, index)}, "0:0:0:0")


class Fixed:
    """The same micro-batches in every step."""

    def __init__(self, batches: list[Batch]):
        self.batches = batches

    def steps(self, start: Place, *, step: int, rank: int, world: int) -> Any:
        while True:
            yield self.batches[rank::world], start


def trainer_of(run: Path, batches: list[Batch], **more: Any) -> Trainer:
    settings = {"steps": 4, "batch_tokens": 8, "micro_batches": len(batches), "log_every": 1, "save_every": 0}
    config = TrainConfig(**{**settings, **more.pop("config", {})})
    run.mkdir(exist_ok=True)
    return Trainer(
        objective=more.pop("objective", Guess()),
        source=Fixed(batches),
        dev=more.pop("dev", None),
        config=config,
        optim=more.pop("optim", None)
        or OptimConfig(decay=0.0, clip_norm=more.pop("clip_norm", 0.0), kind=more.pop("kind", "bert_adam")),
        rate=more.pop("rate", lambda step: 0.0),
        flops=lambda b: 1.0,
        run=run,
        save_model=lambda folder, facts, weights: (folder / "step").write_text(str(facts["step"])),
        tell=lambda text: None,
        **more,
    )
