"""Build from a recipe what trains: the loader, the objective with its initial weights, and the trainer."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from firth.baseline.folder import ABOUT
from firth.config import read_json
from firth.data.batch import Batch, Objective
from firth.data.config import DataConfig, MaskingConfig
from firth.data.loader import Loader
from firth.data.shards import Corpus, Split
from firth.errors import ConfigError, InputError
from firth.folder import PRETRAINING, read_weights, tensor_names, write_model
from firth.formats.table import open_model
from firth.machine import Machine, free_memory
from firth.memory import check_memory
from firth.models.config import BertConfig
from firth.models.mtlstm import MtLstm
from firth.objectives.contrastive import POOL, Contrastive
from firth.pretraining.initialization import extrapolate_positions, initialize
from firth.pretraining.recipe import Pretrain, defaults, identity
from firth.pretraining.several import memory_of
from firth.pretraining.vocabulary_transfer import has_other_words, makes_same_words, weights_for_words
from firth.systems import has_weights
from firth.tasks.config import EmbeddingConfig
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import has_begun, list_checkpoints
from firth.training.collectives import World
from firth.training.layer_rates import layer_scales
from firth.training.log import summary_writer
from firth.training.schedules import rate_of
from firth.training.trainer import Trainer
from firth.vectors.fixed_words import fill_words

# While the length of a run is unknown, the learning rate is that at the start of a long one.
LONG_RUN_STEPS = 1_000_000


def make_loader(recipe: Pretrain, corpus: Corpus) -> Loader:
    """Build the stream of micro-batches of a recipe."""
    return _loader(recipe, corpus, recipe.data, recipe.masking, "train")


def make_dev_loader(recipe: Pretrain, corpus: Corpus) -> Loader:
    """Build the held-out batches of a recipe, with the sequence length of the last phase.

    Masking is as published, whatever the training uses, so that losses of different recipes are comparable.
    """
    data = dataclasses.replace(
        recipe.data,
        length=recipe.data.lengths[-1],
        long_length=0,
        mixed_lengths=False,
        varied_windows=False,
        restart_every=0,
    )
    return _loader(recipe, corpus, data, MaskingConfig(), "dev")


def _loader(recipe: Pretrain, corpus: Corpus, data: DataConfig, masking: MaskingConfig, split: Split) -> Loader:
    layout = (recipe.row.pretraining_layout or recipe.row.layout)(corpus.tokenizer)
    predict = "previous" if getattr(recipe.encoder, "backward", False) else recipe.row.predict
    return Loader(
        corpus,
        data,
        masking,
        layout,
        predict=predict,
        budget_tokens=recipe.train.batch_tokens,
        slots=recipe.train.slots,
        seed=recipe.train.seed,
        total_steps=recipe.train.steps,
        split=split,
    )


def make_objective(recipe: Pretrain) -> Objective:
    """Build the objective with random initialisation from the recipe's seed."""
    torch.manual_seed(recipe.train.seed)
    return recipe.row.objective(recipe.row.encoder(recipe.encoder), recipe.objective)


def _load_base(objective: Objective, folder: str, corpus: Corpus, tell: Callable[[str], None]) -> None:
    """Load the weights of the model to continue; next-sentence prediction may be dropped or added.

    Untrained parts are initialised from the run's seed.
    """
    loaded = open_model(folder)
    expected, found = objective.state_dict(), loaded.objective.state_dict()
    if has_other_words(loaded, corpus.tokenizer):
        found, n_new = weights_for_words(loaded, corpus.tokenizer)
        tell(
            f"{folder} has {corpus.tokenizer.size - n_new:,} of the {corpus.tokenizer.size:,} words of the corpus's "
            "vocabulary; the others are initialised with the mean of its words (zeros if those are frozen)"
        )
        if not makes_same_words(loaded.tokenizer, corpus.tokenizer):
            tell(
                f"{folder} was trained on text normalised or split differently from the corpus, so "
                "shared words may fit less well. To match it, prepare the corpus with its tokenizer "
                "(firth prepare --tokenizer MODEL_FOLDER)"
            )
    else:
        corpus.check_tokenizer(loaded.tokenizer, f"that of {folder}")
    other = [name for name in expected.keys() ^ found.keys() if not name.startswith(("nsp.", "decoder."))]
    if other:
        raise ConfigError(f"{folder} has another objective, which differs in {', '.join(sorted(other)[:3])}")
    absent = tuple(part for part in ("nsp.", "decoder.") if not any(name.startswith(part) for name in found))
    new = (*(f"{part}." for part in loaded.untrained), *absent)
    begun = sorted({name.rpartition(".")[0] for name in expected if name.startswith(new)})
    if begun:
        tell(f"{folder} has no trained {', '.join(begun)}: initialised randomly")
    objective.load_state_dict(
        {name: tensor if name.startswith(new) else found[name] for name, tensor in expected.items()}
    )


def _begin_words(encoder: MtLstm, recipe: Pretrain, tokenizer: Tokenizer, tell: Callable[[str], None]) -> None:
    """Load the initial word vectors of an encoder that needs them, from the recipe or its model."""
    if recipe.vectors:
        tell(fill_words(encoder, tokenizer, recipe.vectors))
    elif encoder.config.fixed_words and not has_weights(recipe.model):
        raise ConfigError(
            f"{recipe.model} keeps its word vectors frozen, and random ones carry no meaning: give some with --vectors "
            "PATH, or train them with --set encoder.fixed_words=false"
        )


def assemble(
    recipe: Pretrain,
    run: Path,
    machine: Machine,
    world: World,
    tell: Callable[[str], None],
    *,
    measured: bool = False,
) -> tuple[Trainer, Loader]:
    """Build a run's trainer and loader. ``measured``: only to measure speed, so weights do not matter."""
    corpus = Corpus(recipe.data.corpus, cache_gb=recipe.data.cache_gb)
    _check_fits(recipe, corpus, world)
    if recipe.train.tensorboard and world.leads:
        summary_writer()  # before anything is written
    # Not part of the run's identity: with more processes there may be enough room.
    config = dataclasses.replace(recipe.train, recompute=recipe.train.recompute or world.recompute)
    if world.leads or world.group is None:  # one process per machine loads the weights
        shares = world.size if world.sharded else 1
        n = 1 if world.group is None else world.size
        need = memory_of(dataclasses.replace(recipe, train=config), machine, n, shares=shares)
        may_save = not config.recompute and recipe.row.saves_by_recomputing(recipe.encoder)
        tell(check_memory(need, machine, config.batch_tokens, recompute=may_save))
    loader = make_loader(recipe, corpus)
    _tell_left_out(loader, "training", tell)
    objective = make_objective(recipe)
    if not measured and not has_begun(run):
        _first_weights(objective, recipe, corpus, world, tell)
    untrained = _never_trained(recipe, run)
    dev = None
    if any(info.tokens for info in corpus.shards("dev")):
        held_out = make_dev_loader(recipe, corpus)
        _tell_left_out(held_out, "held-out", tell)

        def dev() -> Iterator[Batch]:
            return held_out.one_epoch(recipe.train.eval_batches, world.rank, world.size)

    def save_model(folder: Path, facts: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        origin = {"recipe": identity(recipe), "tokenizer": corpus.manifest.tokenizer, "corpus": corpus.fingerprint}
        # A contrastive model embeds texts as the vectors that training compares.
        unit = isinstance(objective, Contrastive)
        embedding = EmbeddingConfig(pool=POOL if unit else EmbeddingConfig().pool, normalize=unit)
        write_model(
            folder,
            recipe.system,
            PRETRAINING,
            objective,
            corpus.tokenizer,
            origin | facts,
            untrained=untrained,
            embedding=embedding,
            weights=weights,
        )

    trainer = Trainer(
        objective=objective,
        source=loader,
        dev=dev,
        config=config,
        optim=recipe.optim,
        rate=rate_of(recipe.optim, recipe.train.steps or LONG_RUN_STEPS),
        scales={} if recipe.train.layer_decay == 1 else layer_scales(objective, recipe.train.layer_decay, below=0),
        flops=partial(recipe.row.flops, recipe.encoder),
        run=run,
        save_model=save_model,
        free=partial(free_memory, torch.device("cpu")),
        identity={"corpus": corpus.fingerprint, **identity(recipe)},
        defaults=defaults(recipe),
        dtype=machine.dtype,
        device=machine.device,
        world=world,
        tell=tell,
        advice=""
        if measured
        else (
            f"Inspect that batch with: firth pretrain --resume {run} --replay {{place}}. To begin again with other "
            f"values, delete {run} or choose another --out."
        ),
    )
    return trainer, loader


def _check_fits(recipe: Pretrain, corpus: Corpus, world: World) -> None:
    """Raise ConfigError if the recipe does not fit the corpus's vocabulary or the number of processes."""
    if recipe.encoder.vocab_size != corpus.tokenizer.size:
        raise ConfigError(
            f"encoder.vocab_size={recipe.encoder.vocab_size:,}, but the tokenizer of {corpus.folder} has "
            f"{corpus.tokenizer.size:,} tokens: to continue from a model, prepare the text with its tokenizer, "
            f"firth prepare TEXT --tokenizer MODEL --out CORPUS"
        )
    kind = corpus.tokenizer.kind
    if kind.mask is None and (recipe.row.predict == "masked" or recipe.row.config is BertConfig):
        raise ConfigError(
            f"{recipe.model} needs a WordPiece vocabulary, with tokens for masks and padding, but that of "
            f"{corpus.folder} is of the kind {kind.name}: prepare a corpus with another (firth vocab --kind wordpiece)"
        )
    recipe.row.reads(corpus.tokenizer)
    n_slots = recipe.train.slots
    if world.size > n_slots or (world.group is None and n_slots % world.size):
        raise ConfigError(
            f"{world.size} processes cannot share the {n_slots} micro-batches of a step (train.micro_batches): start "
            f"{n_slots}, or a number that divides it; a new run has more with more train.batch_tokens"
        )


def _first_weights(
    objective: Objective, recipe: Pretrain, corpus: Corpus, world: World, tell: Callable[[str], None]
) -> None:
    """Give a new run its weights: those of the model to continue, or initial ones."""
    if has_weights(recipe.model):
        _load_base(objective, recipe.model, corpus, tell)
        if recipe.init.trained_positions:
            extrapolate_positions(objective.encoder, recipe.init.trained_positions)
    elif world.leads or world.group is None:
        # Processes of one machine share the leading one's weights.
        initialize(objective, corpus, recipe.init, tell)
    if isinstance(objective.encoder, MtLstm):
        _begin_words(objective.encoder, recipe, corpus.tokenizer, tell)


def _never_trained(recipe: Pretrain, run: Path) -> tuple[str, ...]:
    """Parts that stay at their random initialisation: contrastive learning does not train the masked-LM head."""
    if recipe.data.instances != "crops":
        return ()
    if not has_weights(recipe.model):
        return ("mlm",)
    # The model that a resumed run started from may be gone.
    for folder in (*(path for _, path in reversed(list_checkpoints(run / "checkpoints"))), run / "model"):
        with contextlib.suppress(InputError, KeyError):
            return tuple(read_json(folder / ABOUT)["untrained"])
    return open_model(recipe.model).untrained


def _tell_left_out(loader: Loader, what: str, tell: Callable[[str], None]) -> None:
    if n_long := loader.left_out():
        tell(f"{n_long:,} {what} pairs are longer than data.length={max(loader.data.lengths)} and skipped")


def weights_of(objective: Objective, recipe: Pretrain, folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint's model folder, by the objective's names for them."""
    return read_weights(folder, objective, tensor_names(recipe.system, PRETRAINING, None), recipe.encoder)
