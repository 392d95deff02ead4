"""P11: what a model has learnt after the same minutes on the same text, Firth beside transformers' ``Trainer``.

.venv/bin/python benchmarks/same_minutes.py --minutes 15      # of each; --quick

Both train a mini BERT from scratch on the same tokens of the same documents, masked-LM alone, with the same optimiser,
learning rates and number of tokens per step, in bfloat16 where the CPU computes in it. The number of steps of a run
follows from its own speed over the first ones. Both models then predict the same held-out words, and are fine-tuned
by the same recipe.
"""

import importlib.util
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
import texts as material
import torch
from pretrain_step import FIRTH

from firth.config import read_json
from firth.corpus.prepare import prepare
from firth.data.shards import Corpus, Split
from firth.finetuning.finetune import run_resolved
from firth.finetuning.resolve import resolve as resolve_finetuning
from firth.machine import deterministic, find_machine, has_fast_bfloat16
from firth.pretraining.assembly import assemble
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.pretraining.run import pretrain
from firth.training.collectives import World
from firth.training.log import read_log

THEIRS = "transformers Trainer"
LENGTH, ROWS = 128, 16
PEAK_RATE, WARMUP, BETA2, DECAY = 1e-3, 0.05, 0.98, 0.01
SEEDS, MOST_EXAMPLES = 3, 8000
COLUMNS: measure.Columns = (
    ("name", "", "{}"),
    ("minutes", "minutes", "{:.1f}"),
    ("steps", "steps", "{:,}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("loss", "masked-LM loss, sequences of documents", "{:.3f}"),
    ("right", "masked-LM accuracy", "{:.1%}"),
    ("block_loss", "the same, blocks across documents", "{:.3f}"),
    ("sst2", "SST-2 dev accuracy", "{:.2%}"),
    ("sst2_sd", "standard deviation", "{:.2%}"),
)


@dataclass(frozen=True, slots=True)
class Amount:
    """The length of a run: first some steps to measure the speed, then the minutes."""

    probe: int
    minutes: float

    def steps(self, seconds_a_step: float) -> int:
        return max(round(60 * self.minutes / seconds_a_step), self.probe)


def corpus_of(options: Namespace, folder: Path) -> Corpus:
    """Articles and novels, a fiftieth of the documents held out; made-up words where those are missing."""
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    material.write_text(folder / "text.txt", 100_000 if options.quick else 40_000_000, options.data, tokenizer)
    tokenizer.save(folder / "vocab")
    prepare([folder / "text.txt"], folder / "vocab", folder / "corpus", hold_out=0.2 if options.quick else 0.02)
    return Corpus(folder / "corpus")


# -- Firth -----------------------------------------------------------------------------------------------------


def recipe_for(corpus: Corpus, size: str, steps: int, model: str = "") -> Pretrain:
    plain: dict[str, Any] = {
        "model": model or f"bert-{size}",
        "data": {"corpus": str(corpus.folder), "length": LENGTH, "instances": "documents"},
        "objective": {"next_sentence": False},
        "encoder": {} if model else {"dropout": 0.0, "attention_dropout": 0.0},
        "optim": {"kind": "adamw", "learning_rate": PEAK_RATE, "warmup_share": WARMUP, "beta2": BETA2, "decay": DECAY},
        "train": {
            "steps": steps, "batch_tokens": ROWS * LENGTH, "eval_every": 0, "eval_batches": 0, "save_every": 0,
            "log_every": 5,
        },
    }  # fmt: skip
    return read_recipe(plain, [], "benchmark", vocab_size=corpus.tokenizer.size)


def ours(corpus: Corpus, size: str, amount: Amount, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The model's folder, and the facts of its run."""
    pretrain(recipe_for(corpus, size, amount.probe), folder / "probe", tell=_silent)
    first, last = (_training(folder / "probe")[i] for i in (0, -1))
    seconds = (last["elapsed_s"] - first["elapsed_s"]) / (last["step"] - first["step"])
    pretrain(recipe_for(corpus, size, amount.steps(seconds)), folder / "run", tell=_silent)
    every = _training(folder / "run")
    speed = float(np.median([event["tokens_per_s"] for event in every]))
    facts = {"minutes": every[-1]["elapsed_s"] / 60, "steps": every[-1]["step"], "tokens_per_s": speed}
    return folder / "run" / "model", facts


def _training(run: Path) -> list[dict[str, Any]]:
    return [event for event in read_log(run / "log.jsonl") if event["event"] == "train"]


def _silent(text: str) -> None:
    """Report nothing: only the figures are shown."""


# -- transformers ----------------------------------------------------------------------------------------------


def blocks(corpus: Corpus, split: Split) -> list[list[int]]:
    """Documents with their special tokens, concatenated and cut every ``LENGTH``, as in ``run_mlm``."""
    stream = [piece for document in _documents(corpus, split) for piece in document]
    return [stream[a : a + LENGTH] for a in range(0, len(stream) - LENGTH + 1, LENGTH)]


def _documents(corpus: Corpus, split: Split) -> Iterator[list[int]]:
    start, end = corpus.tokenizer.start_id, corpus.tokenizer.end_id
    for shard in map(corpus.open, corpus.shards(split)):
        bounds = shard.document_tokens
        for a, b in zip(bounds, bounds[1:], strict=False):
            yield [start, *shard.ids[a:b].tolist(), end]


def collator(corpus: Corpus) -> Any:
    """Their collator, which masks."""
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(corpus.folder / "tokenizer" / "tokenizer.json"),
        unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip
    return transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)


def theirs(corpus: Corpus, size: str, amount: Amount, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The same for a ``BertForMaskedLM``."""
    rows = [{"input_ids": block} for block in blocks(corpus, "train")]
    trainer, _ = assemble(recipe_for(corpus, size, 1), folder / "none", find_machine("auto"), World(), _silent)
    (folder / "fresh").mkdir()
    trainer.save_model(folder / "fresh", {}, trainer.objective.state_dict())
    _, probed = _trained(corpus, size, rows, amount.probe, folder)
    model, times = _trained(corpus, size, rows, amount.steps(float(np.mean(np.diff(probed[5:])))), folder)
    model.save_pretrained(folder / "theirs")
    corpus.tokenizer.save(folder / "theirs")
    facts = {
        "minutes": (times[-1] - times[0]) / 60, "steps": len(times) - 1,
        "tokens_per_s": ROWS * LENGTH / float(np.median(np.diff(times))),
    }  # fmt: skip
    return folder / "theirs", facts


def _trained(
    corpus: Corpus, size: str, rows: list[dict[str, Any]], steps: int, folder: Path
) -> tuple[Any, list[float]]:
    """A new model after this many steps, and the time at the start and after each step."""
    import transformers

    times: list[float] = []

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # it has no types
        def on_train_begin(self, *given: Any, **named: Any) -> None:
            times.append(time.monotonic())

        def on_step_end(self, *given: Any, **named: Any) -> None:
            times.append(time.monotonic())

    options = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), max_steps=steps, per_device_train_batch_size=ROWS,
        learning_rate=PEAK_RATE, warmup_steps=int(WARMUP * steps), adam_beta2=BETA2, adam_epsilon=1e-6,
        weight_decay=DECAY, lr_scheduler_type="linear", bf16=has_fast_bfloat16(), use_cpu=True, save_strategy="no",
        report_to="none", disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no", seed=1,
    )  # fmt: skip
    model = transformers.BertForMaskedLM.from_pretrained(folder / "fresh")
    learner = transformers.Trainer(
        model=model, args=options, train_dataset=rows, data_collator=collator(corpus), callbacks=[Clock()]
    )
    learner.remove_callback(transformers.PrinterCallback)
    learner.train()
    return model, times


# -- both ------------------------------------------------------------------------------------------------------


def on_rows(corpus: Corpus, folder: Path, scratch: Path) -> dict[str, float]:
    """Held-out documents in rows of their own, as in Firth: loss per masked word, and masked-LM accuracy."""
    recipe = recipe_for(corpus, "", 1, f"{folder}/")
    with deterministic():
        trainer, _ = assemble(recipe, scratch, find_machine("float32"), World(), _silent)
        found = trainer.evaluate()
    return {"loss": found["mlm_loss"], "right": found["mlm_accuracy"]}


def on_blocks(corpus: Corpus, folder: Path) -> float:
    """Held-out blocks, as in transformers: loss per masked word."""
    import transformers

    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    rows, mask = blocks(corpus, "dev"), collator(corpus)
    torch.manual_seed(0)
    total, n = 0.0, 0
    with torch.no_grad():
        for a in range(0, len(rows), ROWS):
            given = mask([{"input_ids": row} for row in rows[a : a + ROWS]])
            asked = int((given["labels"] != -100).sum())
            total, n = total + float(model(**given).loss) * asked, n + asked
    return total / n


def on_sentiment(folder: Path, data: Path, out: Path) -> dict[str, float]:
    """The result on SST-2 after fine-tuning with one recipe."""
    plain = {
        "task": "glue/sst2", "model": f"{folder}/",
        "data": {"folder": str(data / "glue/SST-2"), "limit": MOST_EXAMPLES},
        # The mean of all tokens: without next-sentence prediction, the first token was not trained to represent a text.
        "head": {"network": {"pool": "mean"}},
        "optim": {"kind": "adamw", "learning_rate": 4e-4}, "train": {"seeds": SEEDS, "epochs": 1.0},
    }  # fmt: skip
    run_resolved(resolve_finetuning(plain, [], "benchmark"), out, tell=_silent)
    accuracy = read_json(out / "results.json")["dev"]["dev"]["accuracy"]
    return {"sst2": accuracy["mean"], "sst2_sd": accuracy["sd"]}


def run(options: Namespace, folder: Path) -> Path:
    size, amount = ("tiny", Amount(10, 0.0)) if options.quick else ("mini", Amount(100, options.minutes))
    corpus = corpus_of(options, folder)
    contestants: dict[str, Callable[[Corpus, str, Amount, Path], tuple[Path, dict[str, Any]]]] = {
        FIRTH: ours, THEIRS: theirs,
    }  # fmt: skip
    rows = []
    for name, contestant in contestants.items():
        model, facts = contestant(corpus, size, amount, folder)
        facts |= on_rows(corpus, model, folder / "none") | {"block_loss": on_blocks(corpus, model)}
        if material.real(options.data) and not options.quick:
            facts |= on_sentiment(model, options.data, folder / f"tuned-{len(rows)}")
        rows.append({"name": name, **facts})
    return measure.write(
        "same-minutes",
        title="The same minutes of pre-training",
        target="a lower masked-LM loss and a better dev score than transformers after 30 minutes of a core",
        about=f"BERT-{size} from the same random initialisation, masked words alone, sequences of {LENGTH}, "
        f"{ROWS * LENGTH:,} tokens a step, AdamW with the same learning rates, no dropout. The Trainer reads blocks "
        "that are cut across documents, as transformers' example makes them; held-out words are asked in such blocks "
        "and in sequences of documents, of both models the same ones. SST-2: fine-tuned by one recipe, "
        f"{SEEDS} seeds, {MOST_EXAMPLES:,} examples once.",
        arguments=options,
        settings={"size": size, "minutes": amount.minutes, "length": LENGTH, "rows": ROWS, "peak_rate": PEAK_RATE,
                  "warmup": WARMUP, "beta2": BETA2, "decay": DECAY},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    if any(importlib.util.find_spec(name) is None for name in ("transformers", "accelerate")):
        sys.exit("error: there is nothing to compare with: pip install firth[bench]")
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0, help="of each, of all cores: 15 of two are 30 of one")
    options = measure.parsed(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firth-minutes-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
