"""``firth pretrain --replay``: one micro-batch of a run, rebuilt from its place."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from firth.data.batch import Batch
from firth.data.loader import Place
from firth.files import lock
from firth.machine import deterministic, find_machine
from firth.pretraining.assembly import assemble, weights_of
from firth.pretraining.run import recipe_at
from firth.progress import say
from firth.training.collectives import World


def replay(
    run: str | Path, place: str, tell: Callable[[str], None] = say, *, corpus: str | Path | None = None
) -> dict[str, Any]:
    """Rebuild one micro-batch of a run, with its loss under the run's newest weights.

    ``corpus``: the corpus's new path, if it was moved. Returns the sequences as text, with their targets (position,
    label), and the mean loss of each term, None if it is not finite.
    """
    run = Path(run)
    recipe = recipe_at(run, corpus)
    with lock(run), deterministic():  # resuming puts back what a kill left under another name
        trainer, loader = assemble(recipe, run, find_machine(recipe.train.precision), World(), tell)
        trainer.resume(partial(weights_of, trainer.objective, recipe))
        batch = loader.batch_at(Place.parse(place))
        trainer.objective.eval()
        with torch.no_grad():
            step = trainer.forward(batch.to(trainer.device), None)
    counts = batch.counts()
    losses = {term: float(value) / max(counts[term], 1) for term, value in step.losses.items()}
    return {
        "place": place,
        "step": trainer.state.step,
        "rows": _rows_in_words(batch, loader.corpus.tokenizer.pieces),
        "losses": {term: loss if math.isfinite(loss) else None for term, loss in losses.items()},
    }


def _rows_in_words(batch: Batch, pieces: list[str]) -> list[dict[str, Any]]:
    """Each sequence's tokens, and its targets by position; for translations, positions of the target side."""
    if batch.second is not None:
        sides = Batch(batch.tokens, {}), Batch(batch.second, batch.targets)
        both = zip(*(_rows_in_words(side, pieces) for side in sides), strict=True)
        return [source | {"second": target.pop("text"), **target} for source, target in both]
    bounds = batch.tokens.rows.offsets.tolist()
    rows: list[dict[str, Any]] = []
    for number, (a, b) in enumerate(pairwise(bounds)):
        row: dict[str, Any] = {"text": " ".join(pieces[i] for i in batch.tokens.ids[a:b].tolist())}
        for term, target in batch.targets.items():
            pairs = list(zip(target.index.tolist(), target.label.tolist(), strict=True))
            if term in ("nsp", "contrast"):  # of the sequence: its label, or the index of the other crop
                row[term] = pairs[number][1]
            else:
                row[term] = [[index - a, pieces[label]] for index, label in pairs if a <= index < b]
        rows.append(row)
    return rows
