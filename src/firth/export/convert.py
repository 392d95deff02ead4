"""``firth convert``: convert any supported model to a model folder or another tool's format."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from firth.convert.hf_mapping import Findings
from firth.errors import ConfigError
from firth.export.onnx import Int8, check_exportable, write_onnx
from firth.files import check_new, make_folder
from firth.folder import PRETRAINING, Loaded
from firth.formats.reading import Gelu, ReadOptions, describe
from firth.formats.table import BY_KEY, check_packages, find_format, read_format
from firth.tasks.config import RegressConfig
from firth.tasks.rows import LEAST_WORDS
from firth.vectors.fixed_words import over_words

ONNX = "onnx"
TARGETS = tuple(key for key, row in BY_KEY.items() if row.writes is not None or key == ONNX)
StoredDtype = Literal["float32", "bfloat16"]
_STORED_IN = ("firth", "hf", "st")
_POSITIONS = "encoder.embeddings.positions.weight"


@dataclass(frozen=True, slots=True)
class Converted:
    """The format of a source (a key of ``formats.table``), what was found in it, and the folder made from it."""

    source: str
    format: str
    facts: Findings
    out: str


def convert(
    source: str | Path,
    out: str | Path,
    target: str = "firth",
    *,
    vocab: Path | None = None,
    vectors: Path | None = None,
    lowercase: bool | None = None,
    gelu: Gelu | None = None,
    int8: Int8 | None = None,
    max_positions: int | None = None,
    allow_unknown_hangul: bool = False,
    dtype: StoredDtype | None = None,
) -> Converted:
    """Write the model at ``source`` to the new folder ``out`` in the format ``target``, atomically.

    The output is read back and compared, number by number, before the folder appears. ``vocab``,
    ``lowercase`` and ``gelu`` are for models of other tools, as in ``ReadOptions``; ``int8`` is for ONNX.
    ``max_positions``: keep only the first position embeddings, for a model of shorter sequences. ``vectors``: a file
    of word vectors, or a model folder, for an encoder that reads any word that has a vector (cove).
    ``dtype``: of the stored weights, for ``firth``, ``hf`` and ``st``; None: as in the source for ``firth``, float32
    for other tools, which compute in it.
    ``allow_unknown_hangul``: convert a model even if its tokenizer cannot read the Korean of its own vocabulary.
    """
    out = Path(out)
    if target not in TARGETS:
        known = f"{BY_KEY[target].title} is read, not written" if target in BY_KEY else f"{target!r} is not known"
        raise ConfigError(f"the format {target}: {known}; expected one of {', '.join(TARGETS)}")
    if int8 is not None and target != ONNX:
        raise ConfigError(f"int8 is for the format {ONNX}: leave it out")
    check_new(out)
    check_packages(BY_KEY[target])
    located = find_format(source)
    found = read_format(located, ReadOptions(vocab=vocab, lowercase=lowercase, gelu=gelu, vectors=vectors))
    if found.warning and not allow_unknown_hangul:
        raise ConfigError(f"{located.name}: {found.warning}; --allow-unknown-hangul converts it as it is")
    loaded, facts = found.loaded, list(found.facts)
    if vectors is not None:
        loaded, more = over_words(loaded, vectors, out)
        sizes = describe(loaded.system_name, loaded.task, loaded.objective)
        facts = [*sizes, *facts[len(sizes) :], *more]
    if max_positions is not None:
        loaded = shortened(loaded, max_positions)
        facts.append(("positions", f"the first {max_positions} are kept"))
    if dtype is not None and target not in _STORED_IN:
        raise ConfigError(f"dtype={dtype!r} is for {', '.join(_STORED_IN)}: the format {target} has float32 alone")
    if dtype is None and target != "firth" and loaded.stored != torch.float32:
        dtype = "float32"  # other tools compute in the dtype in which weights are stored
    if dtype is not None:
        loaded = rounded(loaded, getattr(torch, dtype))
        facts.append(("weights", f"stored as {dtype}"))
    if target != located.format.key or target == ONNX:
        for fold in (with_temperature, with_scale):
            loaded, more = fold(loaded, target)
            facts += more
    if target == ONNX:
        check_exportable(loaded, located.name, int8)
    write = BY_KEY[target].writes

    def fill(folder: Path) -> None:
        try:
            facts.extend(write_onnx(folder, loaded, int8) if write is None else write(folder, loaded))
        except ConfigError as error:
            raise ConfigError(f"{located.name}: {error}") from None

    make_folder(out, fill)
    return Converted(located.name, located.format.key, facts, str(out))


def rounded(loaded: Loaded, dtype: torch.dtype) -> Loaded:
    """Round the model's weights to ``dtype``, in which its folder will store them. In place."""
    with torch.no_grad():
        for tensor in loaded.objective.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.to(dtype))
    return replace(loaded, stored=dtype)


def with_temperature(loaded: Loaded, target: str) -> tuple[Loaded, Findings]:
    """Move the temperature into the last layer, for tools that support none; returns the model and a note for the user.

    softmax((W x + b) / T) is softmax of W/T and b/T: other tools then compute the calibrated probabilities too.
    """
    # In pre-training, the temperature is that of the contrastive term, not a calibration.
    temperature = 1.0 if loaded.task == PRETRAINING else getattr(loaded.objective.config, "temperature", 1.0)
    if target == "firth" or temperature == 1.0:
        return loaded, []
    head = getattr(loaded.objective, "head", None)
    if not isinstance(head, nn.Linear):
        return loaded, [("calibration", f"other tools must divide the outputs by {temperature:.4g} before the softmax")]
    objective = copy.deepcopy(loaded.objective)
    with torch.no_grad():
        for parameter in objective.get_submodule("head").parameters():
            parameter.div_(temperature)
    objective.config = replace(objective.config, temperature=1.0)
    words = f"the temperature {temperature:.4g} is part of the last layer: probabilities are calibrated everywhere"
    # The divided weights do not fit their dtype exactly: what is written is compared with what is read.
    return rounded(replace(loaded, objective=objective), loaded.stored), [("calibration", words)]


def with_scale(loaded: Loaded, target: str) -> tuple[Loaded, Findings]:
    """Move the scale of a regression into the last layer, for tools that support none; returns the model and a note."""
    config = loaded.objective.config
    if target == "firth" or not isinstance(config, RegressConfig) or (config.centre, config.scale) == (0.0, 1.0):
        return loaded, []
    values = f"centre {config.centre:.4g}, scale {config.scale:.4g}"
    if not isinstance(loaded.objective.head, nn.Linear):
        return loaded, [("values", f"other tools must multiply the outputs and add: {values}")]
    objective = copy.deepcopy(loaded.objective)
    head = objective.get_submodule("head")
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.mul_(config.scale)
        head.bias.mul_(config.scale).add_(config.centre)
    objective.config = replace(config, centre=0.0, scale=1.0)
    found = rounded(replace(loaded, objective=objective), loaded.stored)
    return found, [("values", f"{values} are part of the last layer")]


def shortened(loaded: Loaded, max_positions: int) -> Loaded:
    """The same model for sequences of at most ``max_positions`` tokens.

    Source: openai/finetune-transformer-lm train.py keeps the first n_ctx rows. ConfigError if there are not as many.
    """
    encoder = loaded.objective.encoder
    state = loaded.objective.state_dict()
    if _POSITIONS not in state or not 1 <= max_positions <= len(state[_POSITIONS]):
        has = f"{len(state[_POSITIONS])} position embeddings" if _POSITIONS in state else "no position embeddings"
        raise ConfigError(f"max_positions={max_positions}: this model has {has}: expected 1 or more, and no more")
    config, options = replace(encoder.config, max_positions=max_positions), loaded.objective.config
    windows = getattr(options, "windows", None)
    if windows is not None and max_positions < (least := loaded.layout.n_special_pair + LEAST_WORDS):
        raise ConfigError(f"max_positions={max_positions}: a model for {loaded.task} reads at least {least}")
    if windows is not None and windows.length > max_positions:
        options = replace(options, windows=replace(windows, length=max_positions))
    make: Any = type(loaded.objective)
    with torch.device("meta"):
        objective = make(type(encoder)(config), options)
    objective.load_state_dict(state | {_POSITIONS: state[_POSITIONS][:max_positions].clone()}, assign=True)
    return replace(loaded, objective=objective.eval())
