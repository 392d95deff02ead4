"""P2: a step of masked-LM and next-sentence pre-training on a CPU, Firth beside transformers.

.venv/bin/python benchmarks/pretrain_step.py --size mini      # or base; --quick; --text FILE

Both update the same weights from the same tokens with the same masks, in the dtypes that a user gets; losses and
gradients must be equal before the first step. To add a row for Firth, put its settings into OURS.
"""

import importlib.util
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import measure
import texts as material
import torch
from pretraining import PeerStep, checked, first, padded, peer

from firth.bench.measure import Work, rates
from firth.bench.run import step
from firth.bench.synthetic import plain_corpus
from firth.corpus.prepare import prepare
from firth.data.batch import Batch
from firth.data.loader import Place
from firth.data.shards import Corpus
from firth.machine import deterministic, find_machine, has_fast_bfloat16
from firth.pretraining.assembly import assemble, make_loader
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.training.collectives import World
from firth.training.trainer import Trainer

# A row's name and its --set settings.
FIRTH, PLAIN = "Firth", "transformers, float32"
OURS: dict[str, list[str]] = {FIRTH: []}
# Tokens per step: a base model takes seconds for a thousand.
BATCH_TOKENS = {"tiny": 512, "mini": 4096, "small": 4096, "medium": 2048, "base": 1024, "large": 512}
_STEPS = 2
_BYTES = 2_000_000


def corpus_of(options: Namespace, folder: Path) -> tuple[Corpus, str]:
    """The corpus and its origin: a given file, real articles and novels, or made-up text."""
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    if options.text is None and not material.real(options.data):
        n_tokens = 20_000 if options.quick else 400_000
        return Corpus(plain_corpus(folder / "corpus", tokenizer, n_tokens)), "made-up words in the lengths of articles"
    text = options.text or folder / "text.txt"
    if options.text is None:
        material.write_text(text, 100_000 if options.quick else _BYTES, options.data, tokenizer)
    tokenizer.save(folder / "vocab")
    prepare([text], folder / "vocab", folder / "corpus", hold_out=0.0)
    return Corpus(folder / "corpus"), str(options.text or "English articles and novels")


def recipe_for(corpus: Corpus, size: str, settings: Sequence[str]) -> Pretrain:
    plain: dict[str, Any] = {
        "model": f"bert-{size}",
        "data": {"corpus": str(corpus.folder), "length": 128, "workers": 0},
        "train": {"batch_tokens": BATCH_TOKENS[size]},
    }
    return read_recipe(plain, settings, "benchmark", vocab_size=corpus.tokenizer.size)


def trainer_for(recipe: Pretrain, run: Path) -> Trainer:
    """The trainer that ``firth pretrain`` would use."""
    trainer, _ = assemble(recipe, run, find_machine(recipe.train.precision), World(), lambda text: None)
    return trainer


def train(trainer: Trainer, batches: Sequence[Batch]) -> None:
    """One update from each batch."""
    for batch in batches:
        step(trainer, [batch])


def peers(trainer: Trainer, options: Namespace) -> dict[str, PeerStep]:
    """Their steps, starting from the trainer's weights."""
    if importlib.util.find_spec("transformers") is None:
        return {}
    made = {PLAIN: PeerStep(peer(trainer.objective), torch.float32)}
    if has_fast_bfloat16():
        made["transformers, bfloat16"] = PeerStep(peer(trainer.objective), torch.bfloat16)
        if options.compiled:
            name = "transformers, bfloat16, compiled"
            made[name] = PeerStep(peer(trainer.objective), torch.bfloat16, compiled=True)
    return made


def check(
    trainers: dict[str, Trainer], theirs: dict[str, PeerStep], batch: Batch, given: dict[str, torch.Tensor]
) -> list[dict[str, Any]]:
    """Check that all compute what theirs does in float32."""
    if not theirs:
        return []
    expected = theirs[PLAIN].first(given)
    checks = [c for name, each in theirs.items() for c in checked(name, each.dtype, each.first(given), expected)]
    with deterministic():
        ours = [c for name, each in trainers.items() for c in checked(name, each.dtype, first(each, batch), expected)]
    return ours + checks


def run(options: Namespace, folder: Path) -> Path:
    size = "tiny" if options.quick else options.size
    corpus, source = corpus_of(options, folder)
    recipes = {name: recipe_for(corpus, size, settings) for name, settings in OURS.items()}
    trainers = {name: trainer_for(recipe, folder / "run") for name, recipe in recipes.items()}
    batches = [each[0] for each, _ in islice(make_loader(recipes[FIRTH], corpus).steps(Place(), step=0), _STEPS)]
    given = [padded(batch) for batch in batches]
    theirs = peers(trainers[FIRTH], options)
    checks = check(trainers, theirs, batches[0], given[0])
    n_tokens = sum(batch.tokens.rows.n_tokens for batch in batches)
    flops = sum(trainers[FIRTH].flops(batch) for batch in batches)
    works = {name: Work(lambda t=t: train(t, batches), n_tokens, flops) for name, t in trainers.items()}
    works |= {name: Work(lambda each=each: each.train(given), n_tokens, flops) for name, each in theirs.items()}
    measured = rates(works, options.repeats)
    shapes = ", ".join(f"{g['input_ids'].shape[0]}×{g['input_ids'].shape[1]}" for g in given)
    target = {"mini": "at least 12 times transformers in bfloat16", "base": "at least 4 times transformers"}
    return measure.write(
        f"pretrain-step-{size}",
        title=f"A pre-training step, BERT-{size}",
        target=target.get(size, ""),
        about=f"Masked words and next sentences from {source}, {n_tokens:,} tokens in {_STEPS} steps of one batch each "
        f"({shapes} with padding); dropout 0.1; the optimiser's update and clipping included, making batches not. "
        "Peak is the fastest matrix product of the same run. Checked: loss and norm of the gradient before the first "
        "step, dropout off.",
        arguments=options,
        settings={"size": size, "batch_tokens": BATCH_TOKENS[size], "length": 128, "tokens": n_tokens, "text": source,
                  "ours": OURS, "dtype": {name: str(t.dtype) for name, t in trainers.items()}},
        checks=checks,
        tables=[measure.rate_table("", measured, FIRTH)],
        notes=[] if theirs else ["transformers is not installed: nothing was compared, nor checked."],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--size", choices=tuple(BATCH_TOKENS), default="mini")
    parser.add_argument("--text", type=Path, help="a file of text, instead of articles and novels")
    parser.add_argument("--compiled", action="store_true", help="also transformers with torch.compile")
    options = measure.parsed(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firth-pretrain-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
