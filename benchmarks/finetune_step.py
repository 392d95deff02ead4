"""P6: fine-tuning steps on sentences of real lengths on a CPU, Firth beside transformers' ``Trainer``.

.venv/bin/python benchmarks/finetune_step.py --size base      # or mini; --steps 5; --quick

Both start from one folder and read the same rows once each, 32 per step; neither scores nor saves. Timings include
making the trainer, but not making rows from texts. To add a row for Firth, put its settings into OURS.
"""

import importlib.util
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import measure
import texts as material
from encode import write_folder
from pretraining import checked, gradient_norm

from firth.bench.measure import Work, rates
from firth.bench.run import step
from firth.data.batch import Batch
from firth.data.loader import Place
from firth.finetuning.base import Base, make_model, rate_scales
from firth.finetuning.recipe import Finetune
from firth.finetuning.resolve import resolve
from firth.finetuning.train import Run, split_of
from firth.folder import write_model
from firth.inference.score import EncodedSplit
from firth.machine import find_machine, has_fast_bfloat16
from firth.systems import SYSTEMS
from firth.tasks.example_source import ExampleSource
from firth.tasks.rows import Example
from firth.training.schedules import rate_of
from firth.training.trainer import Trainer

# A row's name and its --set settings.
FIRTH = "Firth"
OURS: dict[str, list[str]] = {FIRTH: []}
BATCH = 32
LABELS = ("0", "1")


def write_rows(path: Path, some: Sequence[str]) -> None:
    """Write labelled texts. One label is rarer: with balanced labels the gradients would cancel and prove nothing."""
    rows = [f"{text}\t{LABELS[number % 8 > 0]}" for number, text in enumerate(some)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")


class Ours:
    """Firth's side: a recipe with its defaults and the settings of the row."""

    def __init__(self, model: Path, rows: Path, settings: Sequence[str], run: Path):
        data = {"model": str(model), "task": "classify", "data": {"train": str(rows)}}
        data |= {"train": {"batch_examples": BATCH, "epochs": 1.0, "evaluations_per_epoch": 0}}
        self.recipe: Finetune
        self.base: Base
        self.recipe, self.base, labelled = resolve(data, list(settings), "benchmark")
        self.machine = find_machine(self.recipe.train.precision)
        records = [*labelled.train, *labelled.held]
        self.examples: list[Example] = split_of(self.base, self.recipe, records).examples
        self.run = Run(self.base, self.recipe, 1, self.examples, EncodedSplit([], [], {}), self.machine, run)
        self.model = make_model(self.base, self.recipe, 1)

    def trainer(self) -> tuple[Trainer, ExampleSource]:
        """The trainer that ``firth.finetuning.train.tune`` builds, without scoring and saving."""
        config, optim = self.run.train_config(), self.recipe.optim
        train = self.recipe.train
        source = ExampleSource(self.examples, train.batch_examples, train.batch_tokens, 1)
        trainer = Trainer(
            objective=self.model, source=source, dev=None, config=config, optim=optim,
            rate=rate_of(optim, config.steps),
            flops=partial(SYSTEMS[self.base.system_name].flops, self.base.config), run=self.run.features,
            save_model=lambda folder, facts, weights: None,
            scales=rate_scales(self.model, self.recipe.adapt.layer_decay),
            dtype=self.machine.dtype, device=self.machine.device,
        )  # fmt: skip
        return trainer, source

    def steps(self) -> list[list[Batch]]:
        """The micro-batches of each step of an epoch."""
        _, source = self.trainer()
        return [batches for batches, _ in islice(source.steps(Place(), step=0), source.steps_per_epoch)]

    def train(self) -> None:
        """One epoch."""
        trainer, source = self.trainer()
        trainer.objective.train()
        for batches, _ in islice(source.steps(Place(), step=0), source.steps_per_epoch):
            step(trainer, batches)

    def first(self) -> tuple[float, float]:
        """The loss of all examples and the norm of its gradient, without dropout."""
        trainer, _ = self.trainer()
        trainer.objective.eval()
        every = [batch for batches in self.steps() for batch in batches]
        n, total = sum(batch.counts()["label"] for batch in every), 0.0
        for batch in every:
            loss = trainer.forward(batch, None).losses["label"] / n
            loss.backward()
            total += float(loss.detach())
        return total, gradient_norm(self.model)


class Theirs:
    """``Trainer`` with its defaults, except for batches of 32 rows and no saving."""

    def __init__(self, model: Path, rows: Sequence[dict[str, Any]], out: Path, *, bf16: bool):
        import transformers

        self.rows, self.out, self.bf16 = rows, out, bf16
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(model)
        self.collate = transformers.DataCollatorWithPadding(self.tokenizer)

    def train(self) -> None:
        """One epoch."""
        import transformers

        options = transformers.TrainingArguments(
            output_dir=str(self.out), per_device_train_batch_size=BATCH, num_train_epochs=1, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=True, bf16=self.bf16, dataloader_pin_memory=False,
            logging_strategy="no",
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=self.model, args=options, train_dataset=list(self.rows), data_collator=self.collate
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()

    def first(self) -> tuple[float, float]:
        """The loss of all rows and the norm of its gradient, without dropout, in float32."""
        self.model.eval()
        total = 0.0
        for a in range(0, len(self.rows), BATCH):
            part = list(self.rows[a : a + BATCH])
            loss = self.model(**self.collate(part)).loss * (len(part) / len(self.rows))
            loss.backward()
            total += float(loss.detach())
        return total, gradient_norm(self.model)


def their_rows(examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Our rows in their format, so that both train on the same ids."""
    rows = []
    for example in examples:
        (row,) = example.rows
        _, (label,) = example.targets["label"]
        rows.append({
            "input_ids": row.ids.tolist(), "token_type_ids": row.segments.tolist(),
            "attention_mask": [1] * len(row.ids), "label": int(label),
        })  # fmt: skip
    return rows


def run(options: Namespace, folder: Path) -> Path:
    size, steps = ("tiny", 2) if options.quick else (options.size, options.steps)
    rows, base = folder / "rows.tsv", folder / "base"
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    write_rows(rows, material.texts(options.data, "sentences", steps * BATCH, tokenizer))
    config = write_folder(base, size, tokenizer)
    ours = {name: Ours(base, rows, settings, folder / "run") for name, settings in OURS.items()}
    first = ours[FIRTH]
    theirs = peers(first, folder)
    checks = list[dict[str, Any]]()
    if theirs:
        expected = next(iter(theirs.values())).first()
        for name, each in ours.items():
            checks += checked(name, each.machine.dtype, each.first(), expected)
    lengths = [len(row.ids) for example in first.examples for row in example.rows]
    # Backward costs twice as much as forward.
    n_tokens, flops = sum(lengths), 3 * measure.bert_flops(config, lengths)
    runs: dict[str, Callable[[], None]] = {name: each.train for name, each in ours.items()}
    runs |= {name: each.train for name, each in theirs.items()}
    measured = rates({name: Work(train, n_tokens, flops) for name, train in runs.items()}, options.repeats)
    padded = sum(max(lengths[a : a + BATCH]) * BATCH for a in range(0, len(lengths), BATCH))
    source = "SST-2" if material.real(options.data) else "made-up words in the lengths of SST-2"
    return measure.write(
        f"finetune-step-{size}",
        title=f"Fine-tuning steps, BERT-{size}",
        target="at least 4 times transformers' Trainer" if size == "base" else "",
        about=f"{steps} steps of {BATCH} sentences ({source}), {n_tokens:,} tokens, about {padded:,} with padding; two "
        "labels; dropout 0.1; each side with its own defaults, from the same weights and sequences. Making the trainer "
        "is inside the timing; making sequences, scoring and saving are not. Checked: loss and norm of the gradient of "
        "all sequences before the first step, dropout off.",
        arguments=options,
        settings={"size": size, "steps": steps, "batch": BATCH, "tokens": n_tokens, "padded": padded, "ours": OURS,
                  "dtype": {name: str(each.machine.dtype) for name, each in ours.items()}},
        checks=checks,
        tables=[measure.rate_table("", measured, FIRTH)],
        notes=[] if theirs else ["transformers or accelerate is not installed: nothing was compared, nor checked."],
    )  # fmt: skip


def peers(ours: Ours, folder: Path) -> dict[str, Theirs]:
    """Their trainers, starting from our initial weights."""
    if any(importlib.util.find_spec(package) is None for package in ("transformers", "accelerate")):
        return {}
    model = folder / "classifier"
    model.mkdir()
    write_model(model, ours.base.system_name, "classify", ours.model, ours.base.tokenizer, {})
    rows = their_rows(ours.examples)
    made = {"transformers Trainer, float32": Theirs(model, rows, folder / "out", bf16=False)}
    if has_fast_bfloat16():
        made["transformers Trainer, bf16=True"] = Theirs(model, rows, folder / "out", bf16=True)
    return made


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--size", choices=("tiny", "mini", "small", "medium", "base", "large"), default="base")
    parser.add_argument("--steps", type=int, default=5, help="in each timing")
    options = measure.parsed(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firth-finetune-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
