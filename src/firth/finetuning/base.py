"""The starting point of fine-tuning: the encoder and its weights, which of them are trained, and word vectors."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.data.hashing import seed_of
from firth.errors import ConfigError
from firth.finetuning.recipe import AdaptConfig, Finetune
from firth.folder import PRETRAINING, Loaded
from firth.formats.table import open_model
from firth.packed import Encoder
from firth.systems import SYSTEMS, has_weights, size_named
from firth.tasks.learnt import pretrained_summary, trained_length
from firth.tasks.model import TaskModel
from firth.tasks.rows import RowMaker
from firth.text.published import load_tokenizer
from firth.text.tokenizer import Tokenizer
from firth.training.layer_rates import layer_scales
from firth.vectors.folder import open_source, vectors_for


@dataclass(frozen=True, slots=True)
class Base:
    """What fine-tuning starts from: a system, its configuration, a tokenizer, and weights unless from scratch.

    ``untrained``: parts of the encoder that were never trained; they are not among the weights. ``task``: the whole
    model of which the encoder is a part, if it was fine-tuned.
    """

    system_name: str
    config: Any
    tokenizer: Tokenizer
    weights: dict[str, Tensor] | None
    origin: dict[str, Any]
    untrained: tuple[str, ...] = ()
    task: TaskModel | None = None

    @property
    def max_length(self) -> int | None:
        return getattr(self.config, "max_positions", None)

    @property
    def has_summary(self) -> bool:
        """Whether the encoder's summary vector of a text was trained: see ``pretrained_summary``.

        The same encoder from scratch gets the settings of the trained one.
        """
        return "pooler" not in self.untrained and pretrained_summary(
            self.system_name, self.origin.get("provenance", {})
        )

    @property
    def trained_length(self) -> int | None:
        """The sequence length of pre-training, if the system has positions and the folder records it; else None."""
        most, known = self.max_length, trained_length(self.origin.get("provenance", {}))
        return None if most is None or known is None else min(known, most)

    def config_with(self, dropout: float | None) -> Any:
        """The configuration with this dropout (None: its own); ConfigError if the system has none."""
        if dropout is None:
            return self.config
        if hasattr(self.config, "with_dropout"):
            return self.config.with_dropout(dropout)
        rates = [n for n in ("dropout", "embedding_dropout", "attention_dropout") if hasattr(self.config, n)]
        if not rates:
            raise ConfigError(
                f"adapt.dropout={dropout}: the encoder of {self.system_name} has no dropout: leave it out, or set "
                "head.network.dropout"
            )
        return dataclasses.replace(self.config, **dict.fromkeys(rates, dropout))

    def encoder(self, seed: int, dropout: float | None, transferred_groups: int = -1) -> Encoder:
        """Build the encoder with the base's weights in its lowest ``transferred_groups`` layer groups (-1: in all).

        The seed initialises all other weights.
        """
        torch.manual_seed(seed_of(seed, "encoder"))
        encoder = SYSTEMS[self.system_name].encoder(self.config_with(dropout))
        if self.weights is not None:
            names = transferred(encoder, transferred_groups)
            encoder.load_state_dict(encoder.state_dict() | {n: self.weights[n] for n in names & self.weights.keys()})
        return encoder

    def learnt_head(self, recipe: Finetune) -> dict[str, Tensor]:
        """A fine-tuned model's weights besides its encoder's, for a task of the same kind, labels, network and scale.

        None of them if layers below the head start at random.
        """
        if self.task is None or not self._has_head_for(recipe) or self.other_scale(recipe):
            return {}
        return {name: weight for name, weight in self.task.state_dict().items() if not name.startswith("encoder.")}

    def _has_head_for(self, recipe: Finetune) -> bool:
        """Whether the model's head has the weights that the recipe's needs, on layers that keep theirs."""
        if self.task is None or self.origin["task"] != recipe.kind or recipe.adapt.transferred_groups != -1:
            return False
        options = ("network", "labels", "crf")  # those that decide which weights there are
        asked, learnt = ([getattr(head, name, None) for name in options] for head in (recipe.head, self.task.config))
        return asked == learnt

    def other_scale(self, recipe: Finetune) -> str:
        """A sentence if the model's head computes values on another scale than the recipe's, and so starts anew."""
        if self.task is None or recipe.kind != "regress" or not self._has_head_for(recipe):
            return ""
        asked, learnt = recipe.head, self.task.config
        if (asked.centre, asked.scale) == (learnt.centre, learnt.scale):
            return ""
        return (
            f"the head starts anew, because that of {recipe.model} computes values on another scale; --set "
            f"head.centre={learnt.centre} --set head.scale={learnt.scale} continues with it"
        )

    def maker(self, head: Any) -> RowMaker:
        """The sequence builder for a task whose options are ``head``."""
        row = SYSTEMS[self.system_name]
        return RowMaker(
            self.tokenizer,
            row.layout(self.tokenizer),
            head.windows,
            self.max_length,
            characters=row.reads_letters(self.config, head),
        )


def read_base(model: str, tokenizer: str, from_scratch: bool) -> Base:
    """Read the base that a recipe names: a model folder, or a size with a tokenizer."""
    if has_weights(model):
        if tokenizer:
            raise ConfigError(f"--tokenizer {tokenizer}: {model} has its own; leave it out")
        return base_of(open_model(model), from_scratch)
    system_name, sizes = size_named(model)
    if not tokenizer:
        raise ConfigError(
            f"--model {model} is only a size, without weights: give a pre-trained model, such as --model "
            "firth-mini-en or a run; or --tokenizer, to train from scratch"
        )
    loaded = SYSTEMS[system_name].reads(load_tokenizer(tokenizer))
    config = SYSTEMS[system_name].config(vocab_size=loaded.size, **sizes)
    return Base(system_name, config, loaded, None, {"model": model})


def base_of(loaded: Loaded, from_scratch: bool = False) -> Base:
    """Use a loaded model of any task as a base."""
    encoder = loaded.objective.encoder
    untrained = (p.removeprefix("encoder.") for p in loaded.untrained if p.startswith("encoder."))
    new = () if from_scratch else tuple(untrained)
    learnt = {name: t for name, t in encoder.state_dict().items() if name.partition(".")[0] not in new}
    weights = None if from_scratch else learnt
    task = "" if loaded.task == PRETRAINING else loaded.task
    origin = {"system": loaded.system_name, "task": task, "provenance": loaded.provenance}
    whole = loaded.objective if isinstance(loaded.objective, TaskModel) and not from_scratch else None
    return Base(loaded.system_name, encoder.config, loaded.tokenizer, weights, origin, new, whole)


@dataclass(frozen=True, slots=True)
class FirstVectors:
    """Word vectors ``rows`` for the words ``numbers`` of a vocabulary; ``told``: a sentence on how many were found."""

    numbers: Int[Tensor, " n"]
    rows: Float[Tensor, "n width"]
    told: str

    @torch.no_grad()
    def put_into(self, table: nn.Embedding) -> None:
        """Copy the vectors into an embedding table; other words keep theirs."""
        table.weight.index_copy_(0, self.numbers.to(table.weight.device), self.rows.to(table.weight.device))


def find_vectors(path: str, tokenizer: Tokenizer, width: int) -> FirstVectors:
    """Look up the words of a vocabulary in a file of vectors or a word-vector model.

    A word without a vector takes that of its lower-case form, and in a lower-cased vocabulary that of the first form
    with capitals. ConfigError for another width, and if no word has a vector.
    """
    file, _ = open_source(path)
    if file.width != width:
        raise ConfigError(
            f"adapt.vectors={path!r} has vectors of width {file.width}, but head.network.own_words={width}: "
            f"set it to {file.width}"
        )
    special = set(tokenizer.special_ids)
    numbers = {piece: i for i, piece in enumerate(tokenizer.pieces) if i not in special}
    wanted = numbers.keys() | {piece.lower() for piece in numbers}
    rows = {word: torch.tensor(row) for word, row in vectors_for(file, wanted, lowercase=tokenizer.lowercase)}
    sources = {piece: piece if piece in rows else piece.lower() for piece in numbers}
    filled = {numbers[piece]: rows[word] for piece, word in sources.items() if word in rows}
    if not filled:
        raise ConfigError(
            f"adapt.vectors={path!r} has no vector for any of the {len(numbers):,} words of the model's vocabulary"
        )
    lowered = sum(piece != word and word in rows for piece, word in sources.items())
    told = f"{path}: vectors for {len(filled):,} of the vocabulary's {len(numbers):,} words"
    told += f" ({lowered:,} by their lower case)" if lowered else ""
    return FirstVectors(torch.tensor(list(filled)), torch.stack(list(filled.values())), told)


def make_model(base: Base, recipe: Finetune, seed: int, vectors: FirstVectors | None = None) -> TaskModel:
    """Build the task's model before the first step, a function of base, recipe, seed and the head's word vectors."""
    encoder = base.encoder(seed, recipe.adapt.dropout, recipe.adapt.transferred_groups)
    # Models with equal initial heads end near each other: the mean of their weights is as good a model as each.
    torch.manual_seed(seed_of(recipe.train.seed if recipe.train.average_seeds else seed, "head"))
    model = recipe.row.model(encoder, recipe.head)
    model.load_state_dict(model.state_dict() | base.learnt_head(recipe))
    if vectors is not None:
        assert model.features.own is not None and model.features.own.words is not None
        vectors.put_into(model.features.own.words)
    return model


def lowest_groups(encoder: Encoder, key: str, n_groups: int) -> list[list[nn.Parameter]]:
    """The lowest ``n_groups`` layer groups from the embeddings up (-1: all); ConfigError if there are fewer."""
    groups = encoder.layer_groups()
    if n_groups > len(groups):
        raise ConfigError(f"{key}={n_groups}: this encoder has {len(groups)}; -1 stands for all")
    return groups if n_groups == -1 else groups[:n_groups]


def transferred(encoder: Encoder, n_groups: int) -> set[str]:
    """Names of the tensors copied from the base: those of the lowest groups, and all buffers.

    Source: Radford et al. 2018, §5 (layers transferred).
    """
    groups = lowest_groups(encoder, "adapt.transferred_groups", n_groups)
    kept = {id(p) for group in groups for p in group}
    tensors = encoder.state_dict(keep_vars=True).items()
    return {name for name, tensor in tensors if id(tensor) in kept or not isinstance(tensor, nn.Parameter)}


def freeze(model: TaskModel, adapt: AdaptConfig) -> bool:
    """Freeze the lowest layer groups; returns whether that is the whole encoder.

    ConfigError for options that require a trainable encoder if all of it is frozen.
    """
    n_groups = adapt.frozen_groups
    chosen = lowest_groups(model.encoder, "adapt.frozen_groups", n_groups)
    for group in chosen:
        for p in group:
            p.requires_grad_(False)
    whole = len(chosen) == len(model.encoder.layer_groups())
    if whole and "lm" in model.weights:
        raise ConfigError(
            f"adapt.frozen_groups={n_groups} freezes the encoder, but head.auxiliary_lm requires a trainable one: "
            "set head.auxiliary_lm=0, or freeze fewer groups"
        )
    if whole and (adapt.dropout or adapt.layer_decay != 1 or adapt.unfreeze != "at_once"):
        hint = "" if n_groups == -1 else ", or set it to -1 if they are the system's own"
        raise ConfigError(
            f"adapt.frozen_groups={n_groups} freezes the encoder: leave out adapt.dropout, layer_decay and unfreeze"
            + hint
        )
    return whole


def rate_scales(model: TaskModel, decay: float) -> dict[str, float]:
    """The learning rate scale of each encoder parameter: layer-wise decay from the head down.

    Source: Howard and Ruder 2018, §3.2 (discriminative fine-tuning), applied to any encoder's groups.
    """
    return layer_scales(model, decay, below=1)


def gradually(model: TaskModel, steps_per_epoch: int) -> Callable[[int], frozenset[str]]:
    """Gradual unfreezing: the encoder parameters frozen in a step; each epoch after the first unfreezes one more group.

    Source: Howard and Ruder 2018, §3.3, applied to any encoder's groups, from the top. The head always learns.
    """
    groups = model.encoder.layer_groups()
    number = {id(p): n for n, group in enumerate(groups) for p in group}
    resting = [
        frozenset(name for name, p in model.named_parameters() if number.get(id(p), len(groups)) < n_resting)
        for n_resting in range(len(groups), -1, -1)
    ]
    return lambda step: resting[min(step // steps_per_epoch, len(groups))]
