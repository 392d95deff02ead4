"""The fine-tuning recipe: from TOML, flags and ``--set`` to one frozen object and back."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from firth.config import (
    AMOUNT,
    COUNT,
    FRACTION,
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
from firth.errors import ConfigError
from firth.finetuning.small import is_small, small_settings
from firth.head_presets import preset_named
from firth.option_names import FOREIGN_FINETUNING_KEYS
from firth.recipes import Settings, check_recipe, laid_over
from firth.systems import SYSTEMS
from firth.tasks.config import NETWORKS, BiLstmConfig, WindowConfig
from firth.tasks.kinds import SHORT_TASKS
from firth.tasks.table import TASKS, Task
from firth.training.config import OptimConfig

# The name of the training examples' texts in ``adapt.text``.
TASK_TEXT = "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledConfig:
    """Location and format of the labelled data."""

    folder: str = option("", "folder of a published data set, for a task that names one")
    train: str = option("", "training file, for a task that is a kind")
    dev: str = option("", "file to score once, at the end")
    format: str = option("auto", "auto: by the file's name; tsv, csv, jsonl, conll, conllu, klue, squad, swag, dream …")
    columns: str = option("", "columns of the parts, such as text=2,label=0 or text=sentence,label=gold")
    header: Literal["auto", "yes", "no"] = option("auto", "whether the first line names the columns")
    skip_bad: bool = option(False, "True: skip, count and list malformed rows; False: the first one is an error")
    limit: int = option(0, "maximum number of training examples, sampled by hash; 0: all", AMOUNT)
    limit_seed: int = option(0, "of that draw")
    held_out: float = option(0.1, "share of the training examples held out by hash for all choices", FRACTION)
    choose_on: Literal["held-out", "dev"] = option(
        "held-out", "dev: make choices on the dev file, as papers do; its score is then optimistic"
    )

    def __post_init__(self) -> None:
        check_bounds(self, "data")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptConfig:
    """Which parts of the encoder are trained, and how fast."""

    frozen_groups: int = option(
        0, "layer groups to freeze, from the embeddings up; -1: the whole encoder (frozen features)"
    )
    transferred_groups: int = option(
        -1,
        "layer groups, from the embeddings up, that keep the model's weights; others start random; -1: all",
    )
    layer_decay: float = option(1.0, "learning rate of each layer group relative to the group above", PART)
    unfreeze: Literal["at_once", "gradual"] = option(
        "at_once", "gradual: train only the head for an epoch, then unfreeze one group per epoch from the top (ULMFiT)"
    )
    dropout: float | None = option(None, "dropout in the encoder; not given: as in pre-training", RATE)
    vectors: str = option(
        "", "initial vectors of head.network.own_words: a file (GloVe, word2vec, fastText) or a model folder"
    )
    text: tuple[str, ...] = option(
        (), "text files to continue pre-training on before fine-tuning; train: the texts of the training examples"
    )
    text_epochs: float = option(
        0.0, "passes over that text; without text_minutes too: 5, for 10 minutes at most", AMOUNT
    )
    text_minutes: float = option(0.0, "time for it; if both are given, the shorter one holds", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "adapt")
        if self.frozen_groups < -1:
            raise ConfigError(f"adapt.frozen_groups={self.frozen_groups}: expected 0 or more, or -1 for all")
        if self.transferred_groups < -1:
            raise ConfigError(f"adapt.transferred_groups={self.transferred_groups}: expected 0 or more, or -1 for all")
        if (self.text_epochs or self.text_minutes) and not self.text:
            raise ConfigError(
                "adapt.text_epochs and adapt.text_minutes require a text: give --adapt-text FILE, or train"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneConfig:
    """Length, batch size and precision of training (Devlin et al. 2018, App. A.3)."""

    epochs: float = option(
        3.0, "passes over the training examples; not given: 3, or more for 200 updates of few examples", POSITIVE
    )
    batch_examples: int = option(32, "examples per update", COUNT)
    batch_tokens: int = option(4096, "maximum tokens per micro-batch; bounds memory", COUNT)
    micro_batches: int = option(0, "fewest micro-batches per step, over all processes; 0: one per process", AMOUNT)
    seed: int = option(1, "seed of the first run: head weights, order of examples, dropout; the next run has 2", AMOUNT)
    seeds: int = option(1, "number of runs that differ only in the seed", COUNT)
    average_seeds: bool = option(
        False,
        "True: the model is the mean of their weights, and their heads begin alike; False: it is that of the run with "
        "the best held-out score",
    )
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "auto: bfloat16 if the CPU or GPU supports it, else float32"
    )
    compile: bool = option(
        False, "compile the encoder's blocks: faster steps after a minute of compilation; needs a C++ compiler"
    )
    recompute: bool = option(False, "recompute activations in the backward pass: less memory, slower steps")
    evaluations_per_epoch: int = option(
        2, "held-out evaluations per epoch; the best checkpoint is kept; 0: one evaluation, at the end", AMOUNT
    )
    patience: int = option(0, "early stopping after this many evaluations without a better score; 0: never", AMOUNT)
    balance: bool = option(False, "True: weight all labels equally, however many examples they have")

    def __post_init__(self) -> None:
        check_bounds(self, "train")
        if self.patience and not self.evaluations_per_epoch:
            raise ConfigError("train.patience counts evaluations: train.evaluations_per_epoch=0 has only one")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetune:
    """The options of a fine-tuning. ``head`` has the task's own type."""

    model: str = required("folder of a run or model; or a size (bert-mini), to start without pre-training")
    tokenizer: str = option("", "folder of a tokenizer, if the model is only a size")
    from_scratch: bool = option(
        False, "True: random initialisation at the model's size, to measure what pre-training adds"
    )
    task: str = required("a kind (classify, multilabel, regress, tag, answer, choose) or a data set (glue/sst2)")
    head_preset: str = option(
        "", "head preset by name (taglm, elmo, …), which overrides the system's settings; empty: none"
    )
    kind: str = required("the kind of task; follows from the task")
    metric: str = required("metric for model selection; follows from the task")
    data: LabelledConfig = option(LabelledConfig(), "labelled examples")
    head: Any = required("the task head")
    adapt: AdaptConfig = option(AdaptConfig(), "which parts of the encoder are trained")
    optim: OptimConfig = option(OptimConfig(), "optimizer")
    train: TuneConfig = option(TuneConfig(), "length, batches, seeds")
    grid: tuple[str, ...] = option(
        (), "grid search over keys with several values, such as optim.learning_rate=1e-4,3e-4"
    )

    def __post_init__(self) -> None:
        self.optim.check_evaluations(self.train.evaluations_per_epoch, "train.evaluations_per_epoch")
        _check_windows(self.head.windows)
        _check_shared_dropout(self.head)
        if self.train.average_seeds and self._begins_random:
            raise ConfigError(
                "train.average_seeds=true requires pre-trained weights and a single layer on them: networks that begin "
                "at random weights end too far from each other for a mean; leave it out"
            )
        if self.adapt.frozen_groups and getattr(self.head, "mark_shared_words", False):
            raise ConfigError(
                f"adapt.frozen_groups={self.adapt.frozen_groups} freezes the embeddings, but "
                "head.mark_shared_words=true trains some of them: leave one of the two out"
            )
        # Only a size takes a separate tokenizer.
        if self.adapt.transferred_groups != -1 and (self.from_scratch or self.tokenizer):
            raise ConfigError(
                f"adapt.transferred_groups={self.adapt.transferred_groups} requires pre-trained weights, but this "
                "recipe starts from scratch: leave it out, or use a pre-trained --model without --from-scratch"
            )
        if self.adapt.vectors and not own_word_width(self.head):
            raise ConfigError(
                f"adapt.vectors={self.adapt.vectors!r} requires the head's own words: set head.network.own_words to "
                "their width"
            )

    @property
    def _begins_random(self) -> bool:
        """Whether a network of several layers starts from random weights: a part of the encoder, or the head's."""
        encoder = self.from_scratch or bool(self.tokenizer) or self.adapt.transferred_groups != -1
        network = self.head.network
        hidden = network.kind not in ("linear", "towers") or bool(getattr(network, "hidden_width", 0))
        return encoder or hidden

    @property
    def row(self) -> Task:
        return TASKS[self.kind]


# Both are checked here, not in the head's own options: models that were trained with them before can still be read.
def _check_windows(windows: WindowConfig) -> None:
    if windows.long == "cut" and (windows.stride, windows.merge) != (0, "mean"):
        raise ConfigError(
            "head.windows.long=cut reads no windows: leave out head.windows.stride and head.windows.merge, or set "
            "head.windows.long=windows"
        )


def _check_shared_dropout(head: Any) -> None:
    if getattr(head, "shared_dropout", False) and getattr(head.network, "hidden_width", 0):
        raise ConfigError(
            "head.shared_dropout=true is for a single linear layer: set it to false, or head.network.hidden_width=0"
        )


_TABLES = ("data", "head", "adapt", "optim", "train")
NEEDED = {"model": "give one, such as --model runs/a", "task": "give one, such as --task classify"}
# Scores on different data cannot be compared, so the grid does not vary the data.
_IN_GRID = ("head", "adapt", "optim", "train")
_SAME_FOR_ALL = (
    "train.seed",
    "train.seeds",
    "train.average_seeds",
    "train.precision",
    "train.micro_batches",
    "train.balance",
    "adapt.text",
    "adapt.text_epochs",
    "adapt.text_minutes",
    "head.labels",
    "head.scheme",
    "head.unit",
)
# Published fine-tuning of the base size: 10 % warm-up, learning rate 5e-5 (google-research/bert run_classifier.py).
# Smaller models need a higher one: inversely proportional to the hidden size, in line with the miniatures' grid.
_WARMUP_SHARE, _BASE_RATE = 0.1, 5e-5
# A linear head alone on a frozen encoder.
_FROZEN_RATE = 5e-3
# Devlin et al. 2018, §A.3.
_EPOCHS, _BATCH = 3.0, 32
# With few examples the epochs grow until there are this many updates, which a new layer needs.
FEWEST_UPDATES = 200
# Kinds whose examples are read as one vector.
_READ_AS_ONE = ("classify", "multilabel", "regress", "choose")
# A sequence of a document holds about four sentences, so this many have the words of 32 sentences.
_BATCH_DOCUMENTS = 8


def plain_recipe(data: Mapping[str, Any], settings: Settings, where: str) -> dict[str, Any]:
    """Apply settings to a recipe's plain data; checks keys and tables."""
    plain = check_recipe(
        Finetune, data, settings, where, tables=_TABLES, needed=NEEDED, foreign=FOREIGN_FINETUNING_KEYS
    )
    if plain["task"] in SHORT_TASKS:
        plain["task"], preset = SHORT_TASKS[plain["task"]]
        plain["head_preset"] = plain.get("head_preset") or preset
    # The number of epochs follows from these values before the whole recipe is built and checked.
    from_dict(TuneConfig, plain["train"], where, prefix="train.", foreign=FOREIGN_FINETUNING_KEYS)
    return plain


def with_defaults(
    plain: dict[str, Any],
    system: str,
    kind: str,
    width: int,
    *,
    n_train: int,
    documents: bool,
    pairs: bool = False,
    has_summary: bool = True,
    pretrained: bool = True,
    n_layers: int = 0,
) -> dict[str, Any]:
    """Fill in the published settings of fine-tuning that the recipe does not give: BERT's, overridden by the system's
    own, and these by the head preset's if it names one. Small encoders have their own (``small_settings``).

    ``n_train``: number of training examples; few get more epochs (see ``epochs_for``).
    ``has_summary``: whether the encoder's summary vector of a text was trained; if not, the mean of its tokens is read.
    ``pretrained``: whether all of the encoder's weights are. ``n_layers``: of the encoder. ``documents``: sentences
    share sequences. ``pairs``: texts are pairs. Settings that a head of this kind does not have are left out.
    """
    own = {table: dict(values) for table, values in SYSTEMS[system].tuning.items()}
    known = {field.name for field in dataclasses.fields(TASKS[kind].config)}
    said = laid_over(preset_settings(plain, kind), plain)
    usual = {"optim": {"warmup_share": _WARMUP_SHARE, "learning_rate": _BASE_RATE}, "train": {}}
    epochs, updates = own.get("train", {}).pop("epochs", _EPOCHS), float(FEWEST_UPDATES)
    small = small_settings(kind, said["head"], n_layers, pairs=pairs) if is_small(width, has_summary) else None
    if small is not None:
        usual, epochs, updates = laid_over(usual, small.tables_of(n_train)), small.epochs, small.updates_of(n_train)
    if _hidden_width(said["head"].get("network")):
        known.discard("shared_dropout")  # it is for a single linear layer
    if said["adapt"].get("frozen_groups"):
        known.discard("mark_shared_words")  # embeddings that would not learn
    if said["adapt"].get("frozen_groups") == -1:
        known -= {"auxiliary_lm", "consistency"}  # nothing of the encoder would learn from them
        own.pop("adapt", None)
        usual.pop("adapt", None)
    found = laid_over(usual, own)
    found["head"] = {name: value for name, value in found.get("head", {}).items() if name in known}
    if "network" in found["head"]:
        found["head"]["network"] = _fitting(found["head"]["network"], said["head"].get("network"), kind)
    if not has_summary and kind in _READ_AS_ONE:
        mean = _fitting({"pool": "mean"}, said["head"].get("network"), kind)
        found["head"] = laid_over(found["head"], {"network": mean} if mean else {})
    tuned_width = SYSTEMS[system].tuned_width
    frozen = laid_over(own, said)["adapt"].get("frozen_groups") == -1
    if frozen and _kind(said["head"].get("network")) == "linear":
        found["optim"]["learning_rate"] = _FROZEN_RATE
    elif tuned_width is not None:
        found["optim"]["learning_rate"] *= tuned_width / width
    if documents:
        found["train"]["batch_examples"] = _BATCH_DOCUMENTS
    found = laid_over(found, said)
    batch = found["train"].get("batch_examples", _BATCH)
    found["train"].setdefault("epochs", epochs_for(count_sequences(n_train, documents), batch, epochs, updates))
    adapt = found["adapt"]
    learns = pretrained and adapt.get("frozen_groups") != -1 and adapt.get("transferred_groups", -1) == -1
    decided = bool(found.get("grid")) or bool({"seeds", "average_seeds"} & set(found["train"]))
    few = small is not None and n_train * epochs < small.updates * batch
    if small is not None and small.averaged > 1 and learns and few and not decided:
        found["train"] |= {"seeds": small.averaged, "average_seeds": True}
    return found


def count_sequences(n_train: int, documents: bool) -> int:
    """The approximate number of training sequences: one per example, or one per four sentences of documents."""
    return max(n_train * _BATCH_DOCUMENTS // _BATCH, 1) if documents else n_train


def epochs_for(
    n_train: int, batch_examples: int = _BATCH, usual: float = _EPOCHS, updates: float = FEWEST_UPDATES
) -> float:
    """The ``usual`` epochs (the published three), or for few examples as many as make ``updates`` updates.

    Source: Mosbach et al. 2021, §6: with few examples more updates make fine-tuning stable.
    """
    return max(usual, math.ceil(updates * min(batch_examples, n_train) / max(n_train, 1)))


def count_updates(n_train: int, batch_examples: int, epochs: float) -> int:
    """Weight updates in this many epochs: one per whole batch; fewer examples than a batch form one."""
    return max(int(max(n_train / batch_examples, 1.0) * epochs), 1)


def _kind(network: Any) -> Any:
    return network.get("kind", "linear") if isinstance(network, Mapping) else "linear"


def _hidden_width(network: Any) -> Any:
    return network.get("hidden_width") if isinstance(network, Mapping) else None


def _fitting(own: Mapping[str, Any], said: Any, kind: str) -> dict[str, Any]:
    """The system's head settings that apply to the network that the recipe names."""
    name = _kind(said)
    known = {field.name for variant in NETWORKS if variant().kind == name for field in dataclasses.fields(variant)}
    if kind != "classify":
        known.discard("hidden_width")  # Howard and Ruder 2018 use it for text labels
    return {key: value for key, value in own.items() if key in known}


def preset_settings(plain: Mapping[str, Any], kind: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of the recipe's head preset; empty if it names none."""
    name = plain.get("head_preset", "")
    return preset_named(str(name), kind).settings if name else {}


def own_word_width(head: Any) -> int:
    """The size of the head's own word embeddings; 0: none."""
    return head.network.own_words if isinstance(head.network, BiLstmConfig) else 0


def build(plain: Mapping[str, Any], where: str) -> Finetune:
    """Build the recipe from complete plain data."""
    kind = plain.get("kind")
    if kind not in TASKS:
        raise ConfigError(f"{where}: kind={kind!r}: expected one of {', '.join(TASKS)}")
    return from_dict(Finetune, plain, where, kinds={"head": TASKS[kind].config}, foreign=FOREIGN_FINETUNING_KEYS)


def data_config(plain: Mapping[str, Any], where: str) -> LabelledConfig:
    """Read the ``data`` table first: the head's options depend on the labels."""
    return from_dict(LabelledConfig, plain["data"], where, prefix="data.", foreign=FOREIGN_FINETUNING_KEYS)


def combinations(grid: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every combination of the grid's values as ``--set`` settings; an empty one without a grid."""
    axes, keys = [], set[str]()
    for text in grid:
        key, equals, values = text.partition("=")
        if key in keys:
            raise ConfigError(f"--grid {text!r}: {key} is given twice: give all its values together, {key}=A,B")
        keys.add(key)
        if key.split(".")[0] not in _IN_GRID or "." not in key or not equals or not values:
            raise ConfigError(
                f"--grid {text!r}: expected a key of {', '.join(_IN_GRID)} and its values, "
                "such as optim.learning_rate=1e-4,3e-4"
            )
        if key in _SAME_FOR_ALL:
            raise ConfigError(f"--grid {text!r}: {key} is the same for all settings: give it with --set {key}=…")
        if key == "head.network.kind":
            raise ConfigError(
                f"--grid {text!r}: settings of one network do not fit another: run firth finetune once for each, with "
                "--set head.network.kind=…"
            )
        axes.append([f"{key}={value}" for value in _values(values)])
        parse_override(axes[-1][0])
    return product(*axes)


def _values(text: str) -> list[str]:
    """Split values at commas, except inside brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [value.strip() for value in found]


def varied(recipe: Finetune, settings: Sequence[str]) -> Finetune:
    """Apply one combination of the grid to the recipe."""
    return build(override(to_dict(recipe), settings), "--grid")
