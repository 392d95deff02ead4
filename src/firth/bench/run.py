"""``firth bench``: speed of a model on this machine, and the share of its peak.

Texts and corpus are synthetic, with realistic lengths, so that nothing but a model's name is needed.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.bench.measure import Rate, Work, machine_facts, rates
from firth.bench.synthetic import REVIEW_SENTENCES, plain_corpus, plain_texts, plain_tokenizer
from firth.config import to_dict
from firth.data.batch import Batch
from firth.data.loader import Place
from firth.data.rows import pack_words
from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.files import make_folder
from firth.folder import PRETRAINING, write_model
from firth.inference.model import Model, load_model
from firth.machine import deterministic, find_machine
from firth.pretraining.assembly import assemble, make_loader, make_objective
from firth.pretraining.recipe import Pretrain, read_recipe
from firth.progress import say
from firth.systems import SIZES, SYSTEMS, has_weights, resolve_model
from firth.text.tokenizer import Tokenizer
from firth.training.collectives import World
from firth.training.trainer import Trainer

# The size of BERT's released English vocabularies.
VOCAB_SIZE = 30_522
_LENGTH = 128
_CORPUS_BATCHES = 100
_BATCHES_A_STEP = 2


@dataclass(frozen=True, slots=True)
class Bench:
    """The measurements of ``model`` on ``machine``."""

    model: str
    machine: dict[str, Any]
    rates: list[Rate]

    def facts(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {"model": self.model, "machine": self.machine, "rates": [rate.facts() for rate in self.rates]}


def bench(
    model: str = "bert-mini",
    *,
    repeats: int = 5,
    n_texts: int = 250,
    batch_tokens: int = 4096,
    vocab_size: int = VOCAB_SIZE,
    tell: Callable[[str], None] = say,
) -> Bench:
    """Time the model's parts in turn with the machine's matrix products.

    ``model``: a size or a folder, as everywhere. For a fine-tuned model, the pre-training step and the loader are left
    out, with a message. ``vocab_size``: for a model that is only a size.
    """
    model = resolve_model(model)
    with tempfile.TemporaryDirectory(prefix="firth-bench-") as place:
        folder = Path(place)
        base = load_model(model) if has_weights(model) else None
        _check_measured(model, base)
        if base is not None and base.loaded.task != PRETRAINING:
            tell(f"{model} is a model for {base.loaded.task}: only its encoder is measured, no pre-training")
            return _measured(model, {"encode": encode_work(base, n_texts)}, repeats)
        tokenizer = base.loaded.tokenizer if base is not None else plain_tokenizer(vocab_size)
        corpus = plain_corpus(folder / "corpus", tokenizer, _CORPUS_BATCHES * batch_tokens)
        recipe = bench_recipe(model, corpus, batch_tokens, base)
        if base is None:
            base = load_model(write_random_model(folder / "model", recipe, tokenizer))
        works = {"encode": encode_work(base, n_texts)}
        works["pre-training step"] = step_work(recipe, folder / "run")
        works["loader, one thread"] = loader_work(recipe)
        return _measured(model, works, repeats)


def _check_measured(model: str, base: Model | None) -> None:
    """ConfigError for a model that the synthetic text does not suit: one side, and no words with their characters."""
    name = base.loaded.system_name if base is not None else SIZES[model][0]
    system = SYSTEMS[name]
    if system.predict == "translation":
        raise ConfigError(f"{model}: firth bench does not measure models that learn from translations")
    if system.characters and base is None:
        raise ConfigError(
            f"{model} reads the characters of words: firth bench measures it from a trained model's folder"
        )


def _measured(model: str, works: dict[str, Work], repeats: int) -> Bench:
    device = str(find_machine("auto").device)
    return Bench(model, machine_facts(device), rates(works, repeats, device=device))


def bench_recipe(model: str, corpus: Path, batch_tokens: int, base: Model | None = None) -> Pretrain:
    """A pre-training recipe with only the required options; that of ``base`` if ``model`` is its folder."""
    data: dict[str, Any] = {"corpus": str(corpus), "length": _LENGTH, "workers": 0}
    plain: dict[str, Any] = {"model": model, "data": data}
    if base is not None:
        data["length"] = min(_LENGTH, base.loaded.max_length or _LENGTH)
        plain["objective"] = to_dict(base.loaded.objective.config)
        # A model is not trained on an objective that it was not pre-trained with.
        if plain["objective"].get("next_sentence") is False:
            data["instances"] = "crops" if plain["objective"]["contrastive"] else "documents"
    plain["train"] = {"batch_tokens": batch_tokens, "micro_batches": _BATCHES_A_STEP}
    return read_recipe(plain, [], "firth bench", vocab_size=Corpus(corpus).tokenizer.size)


def write_random_model(folder: Path, recipe: Pretrain, tokenizer: Tokenizer) -> Path:
    """Write a model folder with the recipe's random initialisation."""
    objective = make_objective(recipe)
    make_folder(folder, lambda new: write_model(new, recipe.system, PRETRAINING, objective, tokenizer, {}))
    return folder


def encode_work(model: Model, n_texts: int) -> Work:
    """The work of embedding texts as long as review sentences, as ``firth embed`` does."""
    lengths = [REVIEW_SENTENCES[i % len(REVIEW_SENTENCES)] for i in range(n_texts)]
    texts = plain_texts(model.loaded.tokenizer, lengths)
    rows = [model.loaded.layout.single(ids) for ids in model.loaded.tokenizer.ids_many(texts)]
    # Only the encoder: no vocabulary to predict, and no backward pass, which is two thirds.
    config = dataclasses.replace(model.loaded.objective.encoder.config, vocab_size=1)
    flops = model.loaded.system.flops(config, Batch(pack_words(rows, model.loaded.tokenizer), {})) / 3
    return Work(lambda: model.embed(texts), tokens=sum(map(len, rows)), flops=flops)


def step_work(recipe: Pretrain, run: Path) -> Work:
    """The work of a pre-training update as in ``firth pretrain``, from prepared batches."""
    trainer, loader = assemble(recipe, run, find_machine(recipe.train.precision), World(), lambda text: None)
    batches = next(loader.steps(Place(), step=0))[0]
    trainer.objective.train()
    return Work(
        lambda: step(trainer, batches),
        tokens=sum(batch.tokens.rows.n_tokens for batch in batches),
        flops=sum(trainer.flops(batch) for batch in batches),
    )


def step(trainer: Trainer, batches: list[Batch]) -> None:
    """Run one update with the settings of training."""
    with deterministic():
        trainer.train_step(batches)
    trainer.state.step += 1


def loader_work(recipe: Pretrain) -> Work:
    """The work of planning, masking and packing an epoch, in one thread."""
    corpus = Corpus(recipe.data.corpus)

    def read() -> int:
        # A new loader each time: it keeps its last plans.
        return sum(batch.tokens.rows.n_tokens for batch in make_loader(recipe, corpus).one_epoch())

    return Work(read, tokens=read())
