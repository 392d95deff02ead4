"""The recipe of a fine-tuning: from TOML, flags and ``--set`` to one frozen object and back."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from firth.config import (
    AMOUNT,
    COUNT,
    FOREIGN_FINETUNING_KEYS,
    PART,
    POSITIVE,
    RATE,
    check_bounds,
    from_dict,
    option,
    override,
    parse_override,
    required,
    to_dict,
)
from firth.designs import SHORT_TASKS, design_named
from firth.errors import ConfigError
from firth.recipes import Settings, check_plain, laid_over
from firth.systems import SYSTEMS, TASKS, Task
from firth.tasks.config import NETWORKS, BiLstmConfig
from firth.training.config import OptimConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledConfig:
    """Where the labelled data is and how it is read."""

    folder: str = option("", "of a published data set, for a task that names one")
    train: str = option("", "file to learn from, for a task that is a kind")
    dev: str = option("", "file that is scored at the end, once")
    format: str = option("auto", "auto: by the file's name; tsv, csv, jsonl, conll, conllu, klue, squad, swag, dream …")
    columns: str = option("", "which column is what, such as text=2,label=0 or text=sentence,label=gold")
    header: Literal["auto", "yes", "no"] = option("auto", "whether the first line names the columns")
    skip_bad: bool = option(False, "True: bad rows are left out, counted and listed; False: the first one is an error")
    limit: int = option(0, "most training examples, drawn by hash; 0: all")
    limit_seed: int = option(0, "of that draw")
    held_out: float = option(0.1, "share of the training examples, chosen by hash, on which all choices are made")
    choose_on: Literal["held-out", "dev"] = option(
        "held-out", "dev: choices are made on the dev file, as papers do; its score then flatters"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptConfig:
    """What of the encoder learns, and how fast."""

    frozen_groups: int = option(
        0, "groups of layers, from the embeddings up, that stay as they are; -1: the whole encoder, a frozen feature"
    )
    transferred_groups: int = option(
        -1, "groups of layers, from the embeddings up, that have the model's weights; those above begin anew; -1: all"
    )
    layer_decay: float = option(1.0, "learning rate of each layer group: this times that of the group above", PART)
    unfreeze: Literal["at_once", "gradual"] = option(
        "at_once", "gradual: the head learns alone for an epoch, then each epoch one more group from the top (ULMFiT)"
    )
    dropout: float | None = option(None, "of the encoder's layers; not given: as it was pre-trained", RATE)
    vectors: str = option(
        "", "word vectors that head.network.own_words begin with: a file (GloVe, word2vec, fastText) or a model folder"
    )

    def __post_init__(self) -> None:
        check_bounds(self, "adapt")
        if self.frozen_groups < -1:
            raise ConfigError(f"adapt.frozen_groups={self.frozen_groups}: expected 0 or more, or -1 for all")
        if self.transferred_groups < -1:
            raise ConfigError(f"adapt.transferred_groups={self.transferred_groups}: expected 0 or more, or -1 for all")


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    """How long and how much at a time (Devlin et al. 2018, App. A.3)."""

    epochs: float = option(3.0, "times that the training examples are read", POSITIVE)
    batch_examples: int = option(32, "examples in an update", COUNT)
    batch_tokens: int = option(4096, "most tokens of an update that are in memory at once", COUNT)
    micro_batches: int = option(0, "parts of an update, for as many processes; 0: no more than memory asks for", AMOUNT)
    seed: int = option(
        1, "of the first run: of the head's weights, the order of examples, dropout; the next has 2", AMOUNT
    )
    seeds: int = option(1, "runs that differ in nothing but the seed", COUNT)
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "auto: bfloat16 where the processor or card computes in it, else float32"
    )
    compile: bool = option(
        False, "compile the encoder's blocks: a minute at the start for faster steps; needs a C++ compiler"
    )
    recompute: bool = option(False, "keep less for the backward and compute it again: less memory, slower steps")
    evaluations_per_epoch: int = option(
        2, "evaluations on held-out examples; the best checkpoint is kept; 0: one evaluation, at the end", AMOUNT
    )
    patience: int = option(0, "evaluations without a better score after which a run ends; 0: never", AMOUNT)
    balance: bool = option(False, "True: each label weighs as much as any other, however many examples it has")

    def __post_init__(self) -> None:
        check_bounds(self, "train")
        if self.patience and not self.evaluations_per_epoch:
            raise ConfigError("train.patience counts evaluations: train.evaluations_per_epoch=0 has only one")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetune:
    """All options of a fine-tuning. ``head`` is of the task's own type."""

    model: str = required("the folder of a run or of a model; or a size (bert-mini), to start without pre-training")
    tokenizer: str = option("", "the folder of a tokenizer, where the model is only a size")
    from_scratch: bool = option(
        False, "True: random initialisation at the model's size, to measure what pre-training adds"
    )
    task: str = required("a kind (classify, multilabel, regress, tag, answer, choose) or a data set (glue/sst2)")
    design: str = option("", "published settings by name (taglm, elmo, …), over those of the system; empty: none")
    kind: str = required("the kind of task; follows from the task")
    metric: str = required("the score that choices are made by; follows from the task")
    data: LabelledConfig = option(LabelledConfig(), "labelled examples")
    head: Any = required("what stands on the encoder")
    adapt: AdaptConfig = option(AdaptConfig(), "what of the encoder learns")
    optim: OptimConfig = option(OptimConfig(), "optimiser")
    train: TuneConfig = option(TuneConfig(), "length, batches, seeds")
    grid: tuple[str, ...] = option((), "keys with several values, such as optim.learning_rate=1e-4,3e-4: all are tried")

    def __post_init__(self) -> None:
        self.optim.check_looks(self.train.evaluations_per_epoch, "train.evaluations_per_epoch")
        # Only a size has its tokenizer from elsewhere.
        if self.adapt.transferred_groups != -1 and (self.from_scratch or self.tokenizer):
            raise ConfigError(
                f"adapt.transferred_groups={self.adapt.transferred_groups} is of a model's weights, and this recipe "
                "begins with new ones: leave it out, or take a pre-trained --model without --from-scratch"
            )
        if self.adapt.vectors and not own_word_width(self.head):
            raise ConfigError(
                f"adapt.vectors={self.adapt.vectors!r} are for the head's own words: set head.network.own_words to "
                "their width"
            )

    @property
    def row(self) -> Task:
        return TASKS[self.kind]


_TABLES = ("data", "head", "adapt", "optim", "train")
_NEEDED = {"model": "give one, such as --model runs/a", "task": "give one, such as --task classify"}
# A grid that changed the data would compare what cannot be compared.
_IN_GRID = ("head", "adapt", "optim", "train")
_SAME_FOR_ALL = (
    "train.seed",
    "train.seeds",
    "train.precision",
    "train.micro_batches",
    "train.balance",
    "head.labels",
    "head.scheme",
    "head.unit",
)
# Published fine-tuning of the base size: 10 % warm-up, a rate of 5e-5 (google-research/bert run_classifier.py).
# Smaller models want more: in inverse proportion to the width, which meets the published grid of the miniatures.
_WARMUP_SHARE, _BASE_RATE = 0.1, 5e-5
# Kinds whose examples are read as one vector.
_READ_AS_ONE = ("classify", "multilabel", "regress", "choose")
# A row of a document holds several sentences: as many words in an update as 32 sentences have.
_BATCH_DOCUMENTS = 8


def plain_recipe(data: Mapping[str, Any], settings: Settings, where: str) -> dict[str, Any]:
    """A recipe's plain data with settings laid over it: known keys, and a table wherever one belongs."""
    plain = check_plain(
        Finetune, data, settings, where, tables=_TABLES, needed=_NEEDED, foreign=FOREIGN_FINETUNING_KEYS
    )
    if plain["task"] in SHORT_TASKS:
        plain["task"], design = SHORT_TASKS[plain["task"]]
        plain["design"] = plain.get("design") or design
    return plain


def with_defaults(
    plain: dict[str, Any], system: str, kind: str, width: int, *, documents: bool, has_summary: bool = True
) -> dict[str, Any]:
    """The published settings of fine-tuning where the recipe says nothing: BERT's, over them the system's own, over
    those the design's if it names one.

    ``has_summary``: whether the encoder's own vector of a text was trained; without it the mean of its tokens is read.
    ``documents``: sentences share rows. Settings of the system that a head of this kind does not have are left out.
    """
    own = {table: dict(values) for table, values in SYSTEMS[system].tuning.items()}
    known = {f.name for f in dataclasses.fields(TASKS[kind].config)}
    said = laid_over(design_settings(plain, kind), plain)
    if said["adapt"].get("frozen_groups") == -1:
        known.discard("auxiliary_lm")  # nothing would learn from it
        own.pop("adapt", None)
    own["head"] = {name: value for name, value in own.get("head", {}).items() if name in known}
    if "network" in own["head"]:
        own["head"]["network"] = _fitting(own["head"]["network"], said["head"].get("network"), kind)
    bert = {"optim": {"warmup_share": _WARMUP_SHARE, "learning_rate": _BASE_RATE}, "train": {}}
    found = laid_over(bert, own)
    if not has_summary and kind in _READ_AS_ONE:
        mean = _fitting({"pool": "mean"}, said["head"].get("network"), kind)
        found["head"] = laid_over(found["head"], {"network": mean} if mean else {})
    tuned_width = SYSTEMS[system].tuned_width
    if tuned_width is not None:
        found["optim"]["learning_rate"] *= tuned_width / width
    if documents:
        found["train"]["batch_examples"] = _BATCH_DOCUMENTS
    return laid_over(found, said)


def _fitting(own: Mapping[str, Any], said: Any, kind: str) -> dict[str, Any]:
    """Those of a system's settings of the head's network that are for the network that the recipe names."""
    name = said.get("kind", "linear") if isinstance(said, Mapping) else "linear"
    known = {field.name for variant in NETWORKS if variant().kind == name for field in dataclasses.fields(variant)}
    if kind != "classify":
        known.discard("hidden_width")  # Howard and Ruder 2018 have it for labels of texts
    return {key: value for key, value in own.items() if key in known}


def design_settings(plain: Mapping[str, Any], kind: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of the design that a recipe names; none if it names none."""
    name = plain.get("design", "")
    return design_named(str(name), kind).settings if name else {}


def own_word_width(head: Any) -> int:
    """The width of the vectors that a head learns of words; 0: none."""
    return head.network.own_words if isinstance(head.network, BiLstmConfig) else 0


def build(plain: Mapping[str, Any], where: str) -> Finetune:
    """The recipe of complete plain data."""
    kind = plain.get("kind")
    if kind not in TASKS:
        raise ConfigError(f"{where}: kind={kind!r}: expected one of {', '.join(TASKS)}")
    return from_dict(Finetune, plain, where, kinds={"head": TASKS[kind].config}, foreign=FOREIGN_FINETUNING_KEYS)


def data_config(plain: Mapping[str, Any], where: str) -> LabelledConfig:
    """The ``data`` table alone: labels must be read before the head can be described."""
    return from_dict(LabelledConfig, plain["data"], where, prefix="data.", foreign=FOREIGN_FINETUNING_KEYS)


def combinations(grid: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every combination of the grid's values, each as ``--set`` settings; one empty one without a grid."""
    axes = []
    for text in grid:
        key, equals, values = text.partition("=")
        if key.split(".")[0] not in _IN_GRID or "." not in key or not equals or not values:
            raise ConfigError(
                f"--grid {text!r}: expected a key of {', '.join(_IN_GRID)} and its values, "
                "such as optim.learning_rate=1e-4,3e-4"
            )
        if key in _SAME_FOR_ALL:
            raise ConfigError(f"--grid {text!r}: {key} is the same for all settings: give it with --set {key}=…")
        axes.append([f"{key}={value}" for value in _values(values)])
        parse_override(axes[-1][0])
    return product(*axes)


def _values(text: str) -> list[str]:
    """Values between commas; those inside brackets belong to one list."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [value.strip() for value in found]


def varied(recipe: Finetune, settings: Sequence[str]) -> Finetune:
    """The recipe with one combination of the grid laid over it."""
    return build(override(to_dict(recipe), settings), "--grid")
