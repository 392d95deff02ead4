"""The pre-training recipe: from TOML, flags and ``--set`` to one frozen object and back."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firth.config import from_dict, option, required, to_dict
from firth.data.config import DataConfig, MaskingConfig
from firth.errors import ConfigError
from firth.folder import PRETRAINING
from firth.formats.table import open_model
from firth.pretraining.config import InitConfig
from firth.recipes import Settings, check_recipe
from firth.systems import SIZES, SYSTEMS, System, has_weights, resolve_model, size_named
from firth.text.tokenizer_kinds import WORDS
from firth.training.config import OptimConfig, TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrain:
    """The options of a pre-training run. ``encoder`` and ``objective`` have the system's own types."""

    model: str = required("a size (bert-mini), or the folder of a model to continue pre-training")
    vectors: str = option("", "initial word vectors for cove: a file or a model folder; empty: none")
    system: str = required("row of the table of systems; follows from the model")
    data: DataConfig = option(DataConfig(), "sequences from the corpus")
    masking: MaskingConfig = option(MaskingConfig(), "masked tokens")
    init: InitConfig = option(InitConfig(), "initialisation from scratch")
    objective: Any = required("the system's objective")
    encoder: Any = required("the system's configuration")
    optim: OptimConfig = option(OptimConfig(), "optimizer")
    train: TrainConfig = option(TrainConfig(), "length, batches, checkpoints")

    def __post_init__(self) -> None:
        self.optim.check_evaluations(self.train.eval_every, "train.eval_every")
        if self.train.patience and not self.train.eval_every:
            raise ConfigError("train.patience counts evaluations: train.eval_every=0 has only one")
        row = SYSTEMS[self.system]
        if self.data.instances not in row.instances:
            raise ConfigError(
                f"data.instances={self.data.instances!r} does not suit {self.system}: expected "
                f"{' or '.join(map(repr, row.instances))}"
            )
        if getattr(self.objective, "next_sentence", False) and self.data.instances != "pairs":
            raise ConfigError(f"objective.next_sentence=true needs data.instances='pairs', not {self.data.instances!r}")
        if getattr(self.objective, "contrastive", False) != (self.data.instances == "crops"):
            raise ConfigError(
                f"objective.contrastive and data.instances='crops' belong together, but instances is "
                f"{self.data.instances!r}: give both (--objective contrastive), or neither"
            )
        if self.data.instances == "pairs" and getattr(self.encoder, "n_segments", 2) < 2:
            raise ConfigError("encoder.n_segments=1: data.instances='pairs' needs two, one for each text")
        if self.vectors and not hasattr(self.encoder, "fixed_words"):
            raise ConfigError(f"vectors={self.vectors!r}: {self.system} takes no initial word vectors: leave it out")
        if self.optim.kind == "muon" and self.data.instances == "translations":
            raise ConfigError("optim.kind=muon updates the blocks of an encoder, not a decoder's: use adamw")
        if not getattr(self.objective, "decoder", True):
            raise ConfigError("objective.decoder=false: translation needs the decoder: leave it out")
        positions = getattr(self.encoder, "max_positions", None)
        if positions is not None and max(self.data.lengths) > positions:
            raise ConfigError(f"data.length={max(self.data.lengths)} is above encoder.max_positions={positions}")
        for name, value in row.fixed.items():
            if getattr(self.encoder, name) != value:
                raise ConfigError(f"encoder.{name}={getattr(self.encoder, name)}: {self.system} has {value}")

    @property
    def row(self) -> System:
        return SYSTEMS[self.system]


_TABLES = ("data", "masking", "init", "objective", "encoder", "optim", "train")
# Below this size the published settings of BERT-base learn little in practical time (docs/learning.md).
_BASE_WIDTH = 768
# How text is cut into sequences: a model goes on as it was trained.
_SEQUENCES = {"instances", "length", "long_length", "long_share", "mixed_lengths"}
_NEEDED = {"model": "give a size such as --model bert-mini"}


def default_recipe(model: str | None) -> str:
    """The name of the recipe for a model without one: "small" for a BERT below base size, else "published"."""
    system, sizes = SIZES.get(model or "", ("", {}))
    return "small" if system == "bert" and sizes["width"] < _BASE_WIDTH else "published"


def read_recipe(data: Mapping[str, Any], settings: Settings, where: str, vocab_size: int | None = None) -> Pretrain:
    """Build a recipe from plain data and settings.

    Missing options follow from the model: system, configuration, instance plan and published settings.
    ``vocab_size``: that of the corpus's tokenizer, used if neither the recipe nor the model gives it. ConfigError,
    beginning with ``where``, for what does not fit or is missing.
    """
    plain = without_sizes(data, _plain(data, settings, where))
    plain["model"] = resolve_model(plain["model"])
    system, sizes, sequences = _model(plain["model"])
    if plain.setdefault("system", system) != system:
        raise ConfigError(f"{where}: system={plain['system']!r}, but model {plain['model']!r} is a {system}")
    if has_weights(plain["model"]):
        for key, value in plain["encoder"].items():
            if key in sizes and sizes[key] != value and not key.endswith("dropout"):
                raise ConfigError(f"{where}: encoder.{key}={value}, but {plain['model']} has {sizes[key]}")
    elif plain["init"].get("trained_positions"):
        raise ConfigError(f"{where}: init.trained_positions needs a trained model, but {plain['model']} is a size")
    row = SYSTEMS[system]
    given = {} if vocab_size is None else {"vocab_size": vocab_size}
    plain["encoder"] = given | sizes | dict(row.fixed) | plain["encoder"]
    if "instances" not in plain["data"]:
        # A length of one's own replaces both lengths of the model.
        kept = {"instances"} if "length" in plain["data"] else _SEQUENCES
        plain["data"] = {key: value for key, value in sequences.items() if key in kept} | plain["data"]
    plain["data"].setdefault("instances", row.instances[0])
    for table, values in row.pretraining.items():
        plain[table] = {**values, **plain[table]}
    if "next_sentence" in {f.name for f in dataclasses.fields(row.objective_config)}:
        plain["objective"].setdefault("next_sentence", plain["data"]["instances"] == "pairs")
        plain["objective"].setdefault("contrastive", plain["data"]["instances"] == "crops")
    return _built(plain, where)


def without_sizes(own: Mapping[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Leave out of ``plain`` what a recipe ``own`` says of the sizes of its own model and vocabulary.

    A run's recipe names them all, and ``plain``, which overrides it, may name another size or corpus.
    """
    model, table, encoder = plain.get("model"), own.get("encoder"), plain.get("encoder")
    if "model" not in own or model not in SIZES or not isinstance(table, dict) or not isinstance(encoder, dict):
        return plain
    stale = set[str]()
    if model != own["model"]:
        stale = {*SIZES[model][1], "vocab_size"}
    elif _corpus(plain) != _corpus(own):
        stale = {"vocab_size"}
    kept = {key: value for key, value in encoder.items() if key not in stale or table.get(key) != value}
    return plain | {"encoder": kept}


def _corpus(plain: Mapping[str, Any]) -> Any:
    table = plain.get("data")
    return table.get("corpus") if isinstance(table, Mapping) else None


def read_resolved_recipe(data: Mapping[str, Any], where: str) -> Pretrain:
    """Read the complete recipe that a run stores; needs no other file."""
    plain = _plain(data, (), where)
    if plain.get("system") not in SYSTEMS:
        raise ConfigError(f"{where}: system={plain.get('system')!r}: expected one of {', '.join(SYSTEMS)}")
    return _built(plain, where)


def _plain(data: Mapping[str, Any], settings: Settings, where: str) -> dict[str, Any]:
    return check_recipe(Pretrain, data, settings, where, tables=_TABLES, needed=_NEEDED)


def _built(plain: dict[str, Any], where: str) -> Pretrain:
    row = SYSTEMS[plain["system"]]
    return from_dict(Pretrain, plain, where, kinds={"encoder": row.config, "objective": row.objective_config})


# Options that may change on resuming: paths, the loader's resources, and how often checkpoints are saved and kept.
_FREE = (
    "model",
    "vectors",
    "data.corpus",
    "data.workers",
    "data.cache_gb",
    "train.keep_checkpoints",
    "train.save_every",
    "train.tensorboard",
)


def identity(recipe: Pretrain) -> dict[str, Any]:
    """The options that identify a run, by dotted key."""
    plain = to_dict(recipe)
    flat = {
        (f"{table}.{key}" if isinstance(value, dict) else table): inner
        for table, value in plain.items()
        for key, inner in (value.items() if isinstance(value, dict) else [("", value)])
    }
    return {key: value for key, value in flat.items() if key not in _FREE}


def defaults(recipe: Pretrain) -> dict[str, Any]:
    """The default of each option, by dotted key as in ``identity``."""
    return {
        f"{table}.{option.name}": option.default
        for table in _TABLES
        for option in dataclasses.fields(getattr(recipe, table))
        if option.default is not dataclasses.MISSING
    }


def _model(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The system and configuration of a size name or model folder, and of which sequences a model has read."""
    if not has_weights(name):
        return *size_named(name), {}
    loaded = open_model(name)
    if loaded.task != PRETRAINING:
        raise ConfigError(f"{name} is a model for {loaded.task}: only a pre-trained model can continue pre-training")
    sizes = to_dict(loaded.objective.encoder.config)
    if loaded.tokenizer.kind is WORDS:
        del sizes["vocab_size"]  # its words are transferred to the corpus's vocabulary
    recorded = loaded.provenance.get("recipe", {})
    sequences = {key: recorded[f"data.{key}"] for key in _SEQUENCES if f"data.{key}" in recorded}
    # A contrastive stage is one of its own: more of it has to be asked for.
    return loaded.system_name, sizes, {} if sequences.get("instances") == "crops" else sequences
