"""P3: a pre-training step of BERT-base and BERT-large on one GPU, Firth beside transformers.

PYTHONPATH=src python benchmarks/gpu_pretrain_step.py      # --sizes large --lengths 512; --device cpu --quick

Needs torch, NumPy, jaxtyping, safetensors, tokenizers and tomli-w; uses transformers if it is installed. Writes one
JSON file for each size and length. To add a row for Firth, put it into OURS.
"""

import importlib.util
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import card
import measure
import torch
from pretraining import PeerStep, checked, first, padded, peer

from firth.bench.measure import Work, rates
from firth.bench.synthetic import plain_corpus, plain_tokenizer
from firth.data.batch import Batch
from firth.data.config import DataConfig, MaskingConfig
from firth.data.loader import Loader, Place
from firth.data.shards import Corpus
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.text.layouts import bert_layout
from firth.training.config import OptimConfig, TrainConfig
from firth.training.trainer import Trainer

SIZES = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768), "large": (24, 1024)}
THEIRS = ("transformers, bfloat16", "transformers, bfloat16, compiled")
_STEPS = 4


def config_of(size: str, vocab_size: int) -> BertConfig:
    """BERT's sizes, without dropout inside attention."""
    n_layers, width = SIZES[size]
    return BertConfig(
        vocab_size=vocab_size, n_layers=n_layers, width=width, n_heads=width // 64, feed_forward_width=4 * width,
        attention_dropout=0.0,
    )  # fmt: skip


def batches_of(corpus: Corpus, length: int, batch_tokens: int) -> list[Batch]:
    """The first batches of sentence pairs, masked."""
    loader = Loader(
        corpus, DataConfig(length=length, workers=0), MaskingConfig(), bert_layout(corpus.tokenizer), predict="masked",
        budget_tokens=batch_tokens, slots=1, seed=1,
    )  # fmt: skip
    return [each[0] for each, _ in islice(loader.steps(Place(), step=0), _STEPS)]


def trainer_of(config: BertConfig, device: str, folder: Path, *, compiled: bool) -> Trainer:
    """The trainer with random initial weights, the same each time."""
    torch.manual_seed(1)
    return Trainer(
        objective=MaskedLM(Bert(config), MaskedLMConfig()), source=_NoSource(), dev=None,
        config=TrainConfig(compile=compiled), optim=OptimConfig(),
        rate=lambda step: 1e-4, flops=lambda batch: 0.0, run=folder, save_model=lambda place, facts, weights: None,
        dtype=torch.bfloat16, device=torch.device(device),
    )  # fmt: skip


class _NoSource:
    """A source that is never read: batches are passed in one by one."""

    def steps(
        self, start: Place, *, step: int, rank: int, world: int
    ) -> Generator[tuple[list[Batch], Place], None, None]:
        raise NotImplementedError


# A row's name, and how its trainer is made.
OURS: dict[str, Callable[[BertConfig, str, Path], Trainer]] = {
    "Firth, bfloat16": lambda config, device, folder: trainer_of(config, device, folder, compiled=False),
    "Firth, bfloat16, compiled": lambda config, device, folder: trainer_of(config, device, folder, compiled=True),
}


def train(trainer: Trainer, batches: Sequence[Batch]) -> None:
    """One update from each batch."""
    trainer.objective.train()
    for batch in batches:
        trainer.train_step([batch])
        trainer.state.step += 1


def flops_of(config: BertConfig, batches: Sequence[Batch]) -> float:
    """Operations of forward and backward."""
    return sum(3 * measure.bert_flops(config, b.tokens.rows.lengths.tolist(), b.counts()["mlm"]) for b in batches)


def run(options: Namespace, size: str, length: int, folder: Path) -> Path:
    corpus = Corpus(folder / "corpus")
    config = config_of(size, corpus.tokenizer.size)
    batches = batches_of(corpus, length, options.batch_tokens)
    given = [padded(batch) for batch in batches]
    n_tokens, flops = sum(b.tokens.rows.n_tokens for b in batches), flops_of(config, batches)
    field = card.Field(options.device)

    def ours(name: str) -> Work:
        trainer = OURS[name](config, options.device, folder)
        if expected is not None:
            checks.extend(checked(name, trainer.dtype, first(trainer, batches[0]), expected))
        return Work(lambda: train(trainer, batches), n_tokens, flops)

    def theirs(name: str) -> Work:
        each = their_step(config, torch.bfloat16, options.device, folder, compiled="compiled" in name)
        return Work(lambda: each.train(given), n_tokens, flops)

    checks, expected = list[dict[str, Any]](), None
    if importlib.util.find_spec("transformers") is None:
        field.notes.append("transformers is not installed: nothing was compared, nor checked.")
    else:
        expected = their_step(config, torch.float32, options.device, folder).first(given[0])
    for name in OURS:
        if not (options.eager and "compiled" in name):
            field.add(name, lambda name=name: ours(name))
    for name in THEIRS if expected is not None else ():
        if not (options.eager and "compiled" in name):
            field.add(name, lambda name=name: theirs(name))
    if not any(name in OURS for name in field.works):
        sys.exit(f"error: nothing of ours ran: {' '.join(field.notes)}")
    measured = rates(field.works, options.repeats, device=options.device)
    best = max((r for r in measured if r.name in OURS), key=lambda r: r.tokens_per_s or 0.0).name
    shapes = ", ".join(f"{g['input_ids'].shape[0]}×{g['input_ids'].shape[1]}" for g in given)
    return measure.write(
        f"gpu-pretrain-step-{size}-{length}",
        title=f"A pre-training step on a GPU, BERT-{size}, sequences of {length}",
        target="50 % of peak for BERT-base and 60 % for BERT-large at 512; at least 2.5 times transformers",
        about=f"Masked words and next sentences, {_STEPS} steps of one batch, {n_tokens / _STEPS:,.0f} tokens each "
        f"({shapes} with padding), made-up words in the lengths of articles; bfloat16 autocast, dropout 0.1, none "
        "inside attention; the optimiser's update and clipping included. Peak is the fastest matrix product "
        "(8192×8192×8192) of the same run; memory is what each contestant adds, at its highest.",
        arguments=options,
        settings={"size": size, "length": length, "batch_tokens": options.batch_tokens, "tokens": n_tokens},
        checks=checks,
        tables=[field.table("", measured, best),
                card.top_kernels(f"Where the time of {best} goes", field.works[best].run, options.device)],
        notes=field.notes,
        device=options.device,
    )  # fmt: skip


def their_step(
    config: BertConfig, dtype: torch.dtype, device: str, folder: Path, *, compiled: bool = False
) -> PeerStep:
    """Their updates, starting from our initial weights."""
    return PeerStep(peer(trainer_of(config, "cpu", folder, compiled=False).objective), dtype, device, compiled)


def main(arguments: Sequence[str] | None = None) -> list[Path]:
    options = card.parsed(card.arguments(str(__doc__).splitlines()[0]), arguments)
    with tempfile.TemporaryDirectory(prefix="firth-gpu-") as place:
        folder = Path(place)
        tokenizer = plain_tokenizer(2000 if options.quick else 30_522)
        plain_corpus(folder / "corpus", tokenizer, 2 * _STEPS * options.batch_tokens)
        return [run(options, size, length, folder) for size in options.sizes for length in options.lengths]


if __name__ == "__main__":
    main()
