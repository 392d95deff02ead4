"""Fine-tuning a pre-trained encoder to sort texts into classes, by the one trainer."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from firth.data.batch import Batch, Target
from firth.data.hashing import permutation, seed_of
from firth.data.loader import Place
from firth.data.rows import pack_lists
from firth.errors import InputError, LengthError
from firth.folder import Loaded, write_model
from firth.inference.batching import in_batches
from firth.jobs.pretrain import deterministic, say
from firth.machine import find_machine
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig
from firth.text.records import Text
from firth.training.config import OptimConfig, TrainConfig
from firth.training.schedules import warmup_linear
from firth.training.trainer import Trainer


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Rows in memory with the number of each one's label, as a source of micro-batches without end.

    Every epoch shuffles them anew by a hash of (seed, epoch) and cuts them into micro-batches of at most
    ``budget_tokens`` tokens. A place is (epoch, batch): all that is needed to go on from there.
    """

    rows: Sequence[Sequence[int]]
    labels: Sequence[int]
    budget_tokens: int
    seed: int
    slots: int = 1

    def epoch(self, number: int) -> list[np.ndarray]:
        """The row numbers of each micro-batch of an epoch, in order."""
        order = permutation(seed_of(self.seed, number), len(self.rows))
        cuts, size = [0], 0
        for at, row in enumerate(order):
            size += len(self.rows[row])
            if size > self.budget_tokens and at > cuts[-1]:
                cuts.append(at)
                size = len(self.rows[row])
        return [order[a:b] for a, b in pairwise([*cuts, len(order)])]

    def batch(self, chosen: Sequence[int] | np.ndarray, place: Place | None = None) -> Batch:
        """The chosen rows as one micro-batch."""
        label = torch.tensor([self.labels[i] for i in chosen])
        tokens = pack_lists([self.rows[i] for i in chosen])
        return Batch(tokens, {"label": Target(torch.arange(len(label)), label)}, str(place or ""))

    def steps(
        self, start: Place, *, step: int, rank: int = 0, world: int = 1
    ) -> Generator[tuple[list[Batch], Place], None, None]:
        """For each step from ``start`` on: this rank's micro-batches, and where the next step begins."""
        stream = self._stream(start)
        while True:
            made = [next(stream) for _ in range(self.slots)]
            last = made[-1][0]
            yield [self.batch(rows, place) for place, rows in made[rank::world]], replace(last, batch=last.batch + 1)

    def _stream(self, place: Place) -> Iterator[tuple[Place, np.ndarray]]:
        while True:
            cuts = self.epoch(place.epoch)
            for number in range(place.batch, len(cuts)):
                yield replace(place, batch=number), cuts[number]
            place = replace(place, epoch=place.epoch + 1, batch=0)


def finetune_classifier(
    base: Loaded,
    texts: Sequence[Text],
    labels: tuple[str, ...],
    run: Path,
    *,
    optim: OptimConfig,
    train: TrainConfig,
    head_dropout: float = 0.1,
    provenance: dict[str, Any] | None = None,
) -> Classifier:
    """Train a classifier on ``texts``, starting from the encoder of ``base``, in the new folder ``run``.

    The encoder is trained with the rest and belongs to the classifier afterwards. The head's first
    weights, the order of the texts and dropout are functions of ``train.seed``. ``run/model`` is the
    model folder. InputError for a label that is not in ``labels``, LengthError for a text that the
    encoder cannot read whole; KeyboardInterrupt when it was asked to stop.
    """
    machine = find_machine(train.precision)
    with deterministic():
        torch.manual_seed(seed_of(train.seed, "head"))
        classifier = Classifier(base.objective.encoder, ClassifyConfig(labels=labels, dropout=head_dropout))
        rows = make_rows(base, texts)
        numbers = label_numbers(texts, labels).tolist()

        def save_model(folder: Path, facts: dict[str, Any]) -> None:
            write_model(folder, base.system_name, "classify", classifier, base.tokenizer, (provenance or {}) | facts)

        run.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(
            objective=classifier,
            source=LabelledRows(rows, numbers, train.batch_tokens, train.seed, train.micro_batches),
            dev=None,
            config=train,
            optim=optim,
            rate=partial(
                warmup_linear,
                peak_rate=optim.peak_rate,
                warmup_steps=optim.warmup_steps(train.steps),
                total_steps=train.steps,
            ),
            flops=partial(SYSTEMS[base.system_name].flops, classifier.encoder.config),
            run=run,
            save_model=save_model,
            dtype=machine.dtype,
            device=machine.device,
            tell=say,
        )
        if not trainer.fit():
            raise KeyboardInterrupt(f"fine-tuning stopped after step {trainer.state.step} of {train.steps}")
    classifier.eval()
    return classifier


def make_rows(base: Loaded, texts: Sequence[Text]) -> list[list[int]]:
    """The row of each text; LengthError for one that the encoder cannot read whole."""
    layout = base.system.layout(base.tokenizer)
    rows = [layout.single(ids) for ids in base.tokenizer.ids_many([text.text for text in texts])]
    for text, row in zip(texts, rows, strict=True):
        if base.max_length is not None and len(row) > base.max_length:
            raise LengthError(f"{text.where}: {len(row)} pieces, the model reads at most {base.max_length}")
    return rows


def predict_labels(
    classifier: Classifier, base: Loaded, texts: Sequence[Text], budget_tokens: int = 4096
) -> Float[np.ndarray, "n K"]:
    """Probabilities of the labels for each text, float32, in the order of the texts."""
    rows = make_rows(base, texts)
    device = next(classifier.parameters()).device
    out = np.zeros((len(rows), len(classifier.config.labels)), np.float32)
    for numbers in in_batches([len(row) for row in rows], budget_tokens):
        tokens = pack_lists([rows[i] for i in numbers]).to(device)
        out[numbers] = classifier.predict(tokens).float().cpu().numpy()
    return out


def label_numbers(texts: Sequence[Text], labels: tuple[str, ...]) -> np.ndarray:
    """The number of each text's label, int64; InputError for one that is not in ``labels``."""
    return np.array([_number_of(text, labels) for text in texts], np.int64)


def _number_of(text: Text, labels: tuple[str, ...]) -> int:
    if text.label not in labels:
        raise InputError(f"{text.where}: label {text.label!r}: expected one of {', '.join(labels)}")
    return labels.index(text.label)

