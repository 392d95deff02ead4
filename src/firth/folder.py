"""Read and write model folders.

config.json            sizes; for BERT and GPT with the keys that transformers reads
model.safetensors      weights, tied ones once; for BERT and GPT under the names that transformers reads
tokenizer.json, tokenizer_config.json, vocab.txt
firth.json             system, task and its options, provenance
README.md              model card
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.baseline.folder import origin_lines, read_about, write_about
from firth.baseline.model import METHODS
from firth.config import from_dict, read_json, to_dict
from firth.convert.renames import Rename, expand, to_ours, to_theirs
from firth.data.batch import Objective
from firth.errors import CheckpointError, ConfigError, FirthError, InputError
from firth.files import nearest
from firth.machine import free_memory, sizes_only, unfilled
from firth.manifest import MANIFEST, check_folder, covered_files
from firth.progress import say
from firth.systems import SYSTEMS, System
from firth.tasks.config import EmbeddingConfig, LinearConfig
from firth.tasks.learnt import POOLER, pretrained_summary, trained_length
from firth.tasks.table import TASKS
from firth.text.layouts import Layout
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import load_tensors, save_tensors

WEIGHTS = "model.safetensors"
PRETRAINING = "pretraining"
# Options of a head that no other tool has, if they are set.
OWN_HEAD_OPTIONS = ("crf", "both_orders", "mark_shared_words")
# Each of these affects a model's answers, so the manifest of the folder must cover it.
_READ = (WEIGHTS, "config.json", "firth.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
# Maximum number of names of a stored tensor.
_SHARED = 2
# Maximum number of attempts: a model is replaced at most once per evaluation, and reading it takes about a second.
_READINGS = 5
_MEAN = EmbeddingConfig()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model folder in memory. ``task``: ``"pretraining"`` or a name of ``tasks.table.TASKS``.

    ``untrained``: parts with random initialisation, because the published model that this one comes from lacks them.
    ``stored``: the dtype of the weights in the folder's file; in memory they are float32.
    """

    system_name: str
    task: str
    objective: Objective
    tokenizer: Tokenizer
    provenance: dict[str, Any] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()
    embedding: EmbeddingConfig = _MEAN
    stored: torch.dtype = torch.float32

    @property
    def system(self) -> System:
        return SYSTEMS[self.system_name]

    @property
    def layout(self) -> Layout:
        """How a text becomes a sequence, as by ``layout_of``."""
        return layout_of(self.system_name, self.task, self.tokenizer)

    @property
    def never_learnt(self) -> tuple[str, ...]:
        """The parts with random weights, as prefixes of tensor names.

        These are the parts that the published model lacked, and the pooler if pre-training did not train it.
        """
        parts = self.untrained
        if self.task != PRETRAINING or POOLER in parts or pretrained_summary(self.system_name, self.provenance):
            return parts
        return (*parts, POOLER)

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length of the encoder, special tokens included; None: unlimited."""
        return getattr(self.objective.encoder.config, "max_positions", None)

    @property
    def window_length(self) -> int | None:
        """As ``max_length``, but at most that of pre-training, whose later positions are untrained."""
        return None if self.max_length is None else min(self.max_length, trained_length(self.provenance) or 10**9)

    @property
    def reads_letters(self) -> bool:
        """Whether the model reads words outside its vocabulary by their characters."""
        return self.system.reads_letters(self.objective.encoder.config, self.objective.config)


def tensor_names(system_name: str, task: str, options: Any) -> tuple[Rename, ...] | None:
    """The foreign tensor names of a folder, or None if it uses Firth's.

    Other tools support fine-tuned models only with the published heads.
    """
    theirs = SYSTEMS[system_name].huggingface
    if theirs is None:
        return None
    if task == PRETRAINING:
        return theirs.names
    ours = any(getattr(options, name, False) for name in OWN_HEAD_OPTIONS)
    published = isinstance(options.network, LinearConfig) and options.network.plain and not ours
    return theirs.task_names.get(task) if published else None


def layout_of(system_name: str, task: str, tokenizer: Tokenizer) -> Layout:
    """How a text becomes a sequence; a model that was only pre-trained uses its pre-training layout.

    It then sees no special token that is new to it; a text without tokens may give an empty sequence.
    """
    system = SYSTEMS[system_name]
    as_pretrained = system.pretraining_layout if task == PRETRAINING else None
    return (as_pretrained or system.layout)(tokenizer)


def save_tokenizer(folder: Path, system_name: str, task: str, tokenizer: Tokenizer, max_length: int | None) -> None:
    """Write the tokenizer's files so that other tools build the sequences that the model reads."""
    layout = layout_of(system_name, task, tokenizer)
    tokenizer.save(folder, max_length=max_length, framed=layout.n_special > 0, segments=layout.has_segments)


def write_model(
    folder: Path,
    system_name: str,
    task: str,
    objective: Objective,
    tokenizer: Tokenizer,
    provenance: dict[str, Any],
    *,
    untrained: Sequence[str] = (),
    embedding: EmbeddingConfig = _MEAN,
    stored: torch.dtype = torch.float32,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write the files of a model folder into an existing empty folder.

    ``untrained``, ``embedding`` and ``stored``: as in ``Loaded``. ``weights``: a copy of the objective's state; None:
    the objective's own.
    """
    names, config = tensor_names(system_name, task, objective.config), objective.encoder.config
    weights = objective.state_dict() if weights is None else weights
    state = {name: t.to(stored) if t.is_floating_point() else t for name, t in weights.items()}
    if names is not None:
        state = to_theirs(state, expand(names, config.n_layers))
    save_tensors(folder / WEIGHTS, state)
    theirs = SYSTEMS[system_name].huggingface
    if names is not None and theirs is not None:
        sizes = theirs.config_to(config, theirs.architecture(task, objective, untrained), tokenizer)
        sizes |= theirs.task_to(task, objective.config) | {"dtype": str(stored).removeprefix("torch.")}
    else:
        sizes = {"model_type": f"firth-{system_name}", **to_dict(config)}
    _write(folder / "config.json", sizes)
    save_tokenizer(folder, system_name, task, tokenizer, getattr(config, "max_positions", None))
    provenance = write_about(
        folder,
        system_name,
        task,
        objective.config,
        {"torch": torch.__version__, **provenance},
        more={"untrained": list(untrained), "embedding": to_dict(embedding)},
    )
    (folder / "README.md").write_text(_card(system_name, task, objective, provenance, untrained), "utf-8")


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _card(
    system_name: str, task: str, objective: Objective, provenance: dict[str, Any], untrained: Sequence[str]
) -> str:
    n_parameters = sum(p.numel() for p in objective.parameters())
    facts = [
        f"system: {system_name}",
        f"task: {task}",
        f"parameters: {n_parameters:,}",
        *(f"{key}: {value}" for key, value in to_dict(objective.encoder.config).items()),
        *(f"not learnt, at random: {part}" for part in untrained),
    ]
    lines = [f"- {fact}" for fact in facts]
    foreign = tensor_names(system_name, task, objective.config) is not None
    others = " or `transformers.AutoModel.from_pretrained(folder)`" if foreign else ""
    temperature = 1.0 if task == PRETRAINING else getattr(objective.config, "temperature", 1.0)
    calibration = [
        f"Probabilities are calibrated: outputs are divided by the temperature {temperature:.4g} before the softmax. "
        "Other tools do not read it from here; `firth convert folder --as hf` writes it into the last layer.",
        "",
    ]
    return "\n".join(
        [
            "---",
            *(["library_name: transformers"] if foreign else []),
            "tags: [firth]",
            "---",
            "",
            f"# {system_name} model ({task}) made by Firth",
            "",
            *lines,
            "",
            f"Load it with `firth.load(folder)`{others}.",
            "",
            *(calibration if foreign and temperature != 1.0 else []),
            *origin_lines(provenance),
        ]
    )


def find_model(path: str | Path) -> Path:
    """Find the model folder of a path: the path itself, or the ``model/`` of a run folder."""
    folder = Path(path).resolve()
    # A run may be replacing its model at this moment, or was killed while doing so: then the older one is there, or
    # was until the new one appeared.
    for candidate in (folder, folder / "model", folder / ".model.old", folder / "model"):
        if (candidate / "firth.json").is_file() or (candidate / "config.json").is_file():
            return candidate
    if not folder.exists():
        hint = nearest(Path(path))
        raise ConfigError(f"{path}: no such model folder{hint and ': '}{hint}")
    if (folder / "recipe.toml").is_file():
        # A fine-tuning run first writes identity.json; a pre-training run has only its recipe.
        verb = "finetune" if (folder / "identity.json").is_file() else "pretrain"
        raise CheckpointError(f"{path} is a run without a model yet: let it train, or firth {verb} --resume {path}")
    raise CheckpointError(f"{path} is not a model folder: it has no config.json")


def read_model(path: str | Path, *, unfinished: bool = False) -> Loaded:
    """Load a model folder (or a run's ``model/``), strictly: every tensor named and shaped as expected.

    A run may replace its model at any moment: if that happens during the read, the model is read again.
    ``unfinished``: the folder is still being written, and has no manifest yet.
    """
    for _ in range(_READINGS):
        folder = find_model(path)
        before = _stamp(folder)
        try:
            loaded = _read_model(folder, unfinished)
        except (FirthError, OSError):
            if _stamp(folder) == before:
                raise
            continue
        if _stamp(folder) == before:
            return loaded
    raise CheckpointError(f"{path} is replaced faster than it can be read: read a checkpoint of the run instead")


def _stamp(folder: Path) -> tuple[int, ...] | None:
    """Identify a folder, so that its replacement by another one is noticed; None if it is gone."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _check(folder: Path) -> None:
    """Raise CheckpointError for a damaged file; report files that no manifest covers."""
    covered: Collection[str] = ()
    if (folder / MANIFEST).is_file():
        check_folder(folder, skip="train")
        covered = covered_files(folder)
    open_to_damage = [name for name in _READ if name not in covered and (folder / name).is_file()]
    if open_to_damage:
        say(f"{folder}: {MANIFEST} does not cover {', '.join(open_to_damage)}: damage to them would go unnoticed")


def _read_model(folder: Path, unfinished: bool) -> Loaded:
    about = read_about(folder)
    if not unfinished:
        _check(folder)
    try:
        system_name, task = about["system"], about["task"]
        if system_name in METHODS:
            raise CheckpointError(_no_encoder(folder, system_name))
        if system_name not in SYSTEMS or task not in (PRETRAINING, *TASKS):
            raise CheckpointError(f"{folder}: system {system_name!r}, task {task!r} are not known to this Firth")
        system = SYSTEMS[system_name]
        sizes = read_json(folder / "config.json")
        where = str(folder / "config.json")
        make_config = system.objective_config if task == PRETRAINING else TASKS[task].config
        options = from_dict(make_config, about.get("options", {}), str(folder / "firth.json"))
        embedding = from_dict(EmbeddingConfig, about.get("embedding", {}), str(folder / "firth.json"))
        untrained = tuple(map(str, about.get("untrained", ())))
        names = tensor_names(system_name, task, options)
        if names is not None and system.huggingface is not None:
            config = system.huggingface.config_from(sizes, where)
        else:
            config = from_dict(system.config, {k: v for k, v in sizes.items() if k != "model_type"}, where)
    except (KeyError, TypeError, ConfigError, InputError) as error:
        raise CheckpointError(f"{folder} cannot be read as a model: {error}") from None
    tokenizer = system.reads(Tokenizer.load(folder))
    if tokenizer.size != config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.size:,} tokens, the model {config.vocab_size:,}: not of one make"
        )
    make: Callable[[Any, Any], Objective] = system.objective if task == PRETRAINING else TASKS[task].model
    _check_size(folder, lambda: system.encoder(config))
    objective = unfilled(lambda: make(system.encoder(config), options))
    weights = read_weights(folder, objective, names, config)
    stored = {t.dtype for t in weights.values() if t.is_floating_point()}
    objective.load_state_dict(weights)
    objective.eval()
    return Loaded(
        system_name=system_name,
        task=task,
        objective=objective,
        tokenizer=tokenizer,
        provenance=about.get("provenance", {}),
        untrained=untrained,
        embedding=embedding,
        stored=stored.pop() if len(stored) == 1 else torch.float32,
    )


def _check_size(folder: Path, make: Callable[[], torch.nn.Module]) -> None:
    """Raise CheckpointError for an encoder larger than its weights or than the machine's memory.

    Nothing is allocated to check this.
    """
    with sizes_only():
        n_parameters = sum(tensor.numel() for tensor in make().state_dict().values())
    weights = folder / WEIGHTS
    # A number takes at least a byte, and a tensor with two names is stored once.
    if weights.is_file() and n_parameters > _SHARED * weights.stat().st_size:
        raise CheckpointError(
            f"{folder / 'config.json'} implies {n_parameters:,} numbers, but {WEIGHTS} has "
            f"{weights.stat().st_size:,} bytes: they are not of one model"
        )
    free = free_memory(torch.device("cpu"))
    if free is not None and 4 * n_parameters > free:
        raise CheckpointError(
            f"{folder} needs {4e-9 * n_parameters:.1f} GB of memory, and {1e-9 * free:.1f} GB are free: use a smaller "
            "model, or free some"
        )


def _no_encoder(folder: Path, name: str) -> str:
    if name == "joint":
        return f"{folder} is a joint model, which only predict, evaluate and serve run: its encoder is in encoder/"
    return f"{folder} is the baseline {name}, which has no encoder: only predict, evaluate and serve run it, alone"


def read_weights(
    folder: Path, objective: Objective, names: tuple[Rename, ...] | None, config: Any
) -> dict[str, Tensor]:
    """Read a folder's tensors under Firth's names, checked against the objective's."""
    expected = objective.state_dict()
    rows: list[Rename] = [((name,), name) for name in expected] if names is None else expand(names, config.n_layers)
    return to_ours(load_tensors(folder / WEIGHTS), rows, expected, str(folder / WEIGHTS))
