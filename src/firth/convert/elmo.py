"""The published ELMo: ``options.json`` and ``weights.hdf5``, as allenai/bilm-tf and AllenNLP read them.

char_embed                                       (261, character width)
CNN/W_cnn_k, CNN/b_cnn_k                         (1, size, character width, number), for each filter size
CNN_high_l/W_carry, b_carry, W_transform, …      "carry" is the gate of the transform
CNN_proj/W_proj, b_proj                          only if the number of filters differs from the width
RNN_d/RNN/MultiRNNCell/Cellj/LSTMCell/           d 0: forward, 1: backward
    W_0, B                                       (input + state, 4 cells), columns i, j, f, o
    W_P_0                                        (cells, width)

Source: specification of checkpoint formats §4, derived from files of the original code. Matrices are (in, out). These
files have no output layer, and no vocabulary is needed: any word is read by its characters.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth.config import read_json, read_whole
from firth.errors import CheckpointError, ConfigError, InputError
from firth.files import write_text
from firth.models.config import BilmConfig
from firth.text.characters import N_CHARACTERS, ROW
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
# Names of the special words in vocabulary files of the original code.
_MARKS = ("<S>", "</S>", "<UNK>")
# The number of characters in these options counts one more id, which means "no word".
_N_CHARACTERS = N_CHARACTERS + 1
_KEYS = {
    "lstm": {"cell_clip", "dim", "n_layers", "proj_clip", "projection_dim", "use_skip_connections"},
    "char_cnn": {"activation", "embedding", "filters", "max_characters_per_token", "n_characters", "n_highway"},
}
_MOST_RATIO = 1100  # deflate compresses a run of zeros about a thousandfold
_CELL = "RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell/"

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class _Part:
    """An array in the file: its name and shape, our tensors in it, and the conversion in both directions."""

    theirs: str
    shape: tuple[int, ...]
    ours: tuple[str, ...]
    read: Callable[[Array], tuple[Array, ...]]
    write: Callable[..., Array]


def find_parts(place: Path) -> tuple[Path, Path] | None:
    """Find the options and the weights at a path: a folder with one of each, or either file; None for anything else.

    Published files are named ``…options.json`` and ``…weights.hdf5``, with the same prefix or none.
    CheckpointError if it is unclear which ones belong together.
    """
    if place.is_dir():
        weights, options = sorted(place.glob(f"*{WEIGHTS}")), sorted(place.glob(f"*{OPTIONS}"))
        if not weights or not options:
            return None
        if len(weights) > 1:
            names = ", ".join(file.name for file in weights)
            raise CheckpointError(f"{place} holds several models ({names}): give the file of one")
        return _of_one_name(weights[0], options), weights[0]
    if not place.is_file() or not place.name.endswith((OPTIONS, WEIGHTS)):
        return None
    if place.name.endswith(WEIGHTS):
        return _of_one_name(place, sorted(place.parent.glob(f"*{OPTIONS}"))), place
    return place, _of_one_name(place, sorted(place.parent.glob(f"*{WEIGHTS}")))


def missing_half(folder: Path) -> str:
    """Describe which of the two files a folder lacks; empty if it has none or both."""
    for found, other in ((WEIGHTS, OPTIONS), (OPTIONS, WEIGHTS)):
        if (files := sorted(folder.glob(f"*{found}"))) and not any(folder.glob(f"*{other}")):
            return f"has {files[0].name}, but no …{other}: ELMo is both files, put the other one beside it"
    return ""


def _of_one_name(file: Path, others: list[Path]) -> Path:
    """Return the one that belongs to ``file``: the only one, or the one with the same prefix."""
    begin = file.name.removesuffix(OPTIONS).removesuffix(WEIGHTS)
    same = [other for other in others if other.name in (begin + OPTIONS, begin + WEIGHTS)]
    found = same or others
    if len(found) != 1:
        what = ", ".join(other.name for other in found) or "none"
        raise CheckpointError(f"{file}: which options and weights belong together? Beside it: {what}")
    return found[0]


def read_elmo(options: Path, weights: Path, vocab_size: int) -> tuple[BilmConfig, dict[str, Tensor]]:
    """Read the sizes, and the encoder's tensors under our names; CheckpointError names what does not fit."""
    config = _config(options, vocab_size)
    arrays = _read_arrays(weights)
    # Check the numbers of layers before using them: each layer has arrays of its own.
    for name, n in (("lstm.n_layers", config.n_layers), ("char_cnn.n_highway", config.n_highways)):
        if n > len(arrays):
            raise CheckpointError(f"{options} says {name} {n:,}, but {weights.name} has {len(arrays)} arrays in all")
    parts = list(_parts(config))
    known = {part.theirs for part in parts}
    missing, unknown = [p.theirs for p in parts if p.theirs not in arrays], sorted(arrays.keys() - known)
    if missing or unknown:
        problems = [f"lacks {', '.join(missing[:5])}"] * bool(missing)
        problems += [f"has unknown {', '.join(unknown[:5])}"] * bool(unknown)
        raise CheckpointError(
            f"{weights} {' and '.join(problems)}, as {options.name} has it ({len(missing)} missing, {len(unknown)} "
            "unknown arrays)"
        )
    state: dict[str, Tensor] = {}
    for part in parts:
        array = arrays[part.theirs]
        if array.shape != part.shape:
            raise CheckpointError(
                f"{weights}: {part.theirs} has shape {array.shape}, expected {part.shape} by {options.name}"
            )
        for name, value in zip(part.ours, part.read(array), strict=True):
            state[name] = torch.from_numpy(np.ascontiguousarray(value))
    return config, state


def write_elmo(folder: Path, config: BilmConfig, state: Mapping[str, Tensor]) -> None:
    """Write the two files of an encoder into an existing folder."""
    import h5py

    filters = [list(pair) for pair in config.filters]
    clips = {"cell_clip": config.cell_clip, "proj_clip": config.projection_clip}
    options = {
        "lstm": {
            "use_skip_connections": config.residual,
            "projection_dim": config.width,
            "dim": config.cells,
            "n_layers": config.n_layers,
            # An absent key means no clipping; 0 would clip everything to 0.
            **{name: clip for name, clip in clips.items() if clip},
        },
        "char_cnn": {
            "activation": config.activation,
            "filters": filters,
            "n_highway": config.n_highways,
            "embedding": {"dim": config.character_width},
            "n_characters": _N_CHARACTERS,
            "max_characters_per_token": ROW,
        },
    }
    write_text(folder / OPTIONS, json.dumps(options) + "\n")
    with h5py.File(folder / WEIGHTS, "w") as file:
        for part in _parts(config):
            ours = (state[name].float().cpu().numpy() for name in part.ours)
            file.create_dataset(part.theirs, data=np.ascontiguousarray(part.write(*ours)))


def read_vocabulary(file: Path) -> Tokenizer:
    """Build a tokenizer from a vocabulary file of the original code (one word per line, special ones included), or from
    the words of a ``tokenizer.json``."""
    if file.is_dir() or file.suffix == ".json":
        return _words_of(file)
    try:
        lines = read_whole(file).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as a list of words: {error}") from None
    words = [line.strip() for line in lines]
    words = words[:-1] if words and not words[-1] else words
    for number, word in enumerate(words, 1):
        if not word or len(word.split()) > 1:
            raise InputError(f"{file}, line {number}: {word!r}: expected one word")
    missing = [mark for mark in _MARKS if mark not in words]
    if missing:
        raise InputError(
            f"{file}: lacks {' '.join(missing)}: expected a vocabulary file of bilm-tf, with a word in each line, "
            "or the tokenizer.json of firth vocab --kind words"
        )
    return spaced_words([word for word in words if word not in _MARKS])


def _words_of(file: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(file)
    if tokenizer.kind is not WORDS or tokenizer.lowercase:
        found = "words in lower case" if tokenizer.kind is WORDS else f"a {tokenizer.kind.name} vocabulary"
        raise InputError(f"{file}: {found}: expected words as they are written, as firth vocab --kind words makes them")
    return spaced_words([word for word in tokenizer.pieces if word not in WORDS.specials])


def spaced_words(words: list[str]) -> Tokenizer:
    """Build a tokenizer that splits text at white space, as published models read it: cased, with words unchanged."""
    return Tokenizer.from_spaced_words([*WORDS.specials, *words])


def _config(options: Path, vocab_size: int) -> BilmConfig:
    """Read the sizes from an options file; CheckpointError for any unknown option in its tables."""
    found, where = read_json(options), str(options)
    if not isinstance(found.get("lstm"), dict) or not isinstance(found.get("char_cnn"), dict):
        raise CheckpointError(f"{where}: expected the tables lstm and char_cnn; models without characters are not read")
    if found.get("bidirectional", True) is not True:
        raise CheckpointError(f"{where}: bidirectional={found['bidirectional']!r}: expected true")
    for table, keys in _KEYS.items():
        if unknown := sorted(found[table].keys() - keys):
            raise CheckpointError(f"{where}: {table} has unknown {', '.join(unknown)}")
    lstm, cnn = found["lstm"], found["char_cnn"]
    n_characters = cnn.get("n_characters")
    if n_characters == N_CHARACTERS:
        raise CheckpointError(
            f"{where}: n_characters is {N_CHARACTERS}, as in training: set it to {_N_CHARACTERS} to use the model"
        )
    if n_characters != _N_CHARACTERS or cnn.get("max_characters_per_token") != ROW:
        raise CheckpointError(
            f"{where}: n_characters={n_characters!r}, max_characters_per_token={cnn.get('max_characters_per_token')!r}"
            f": expected {_N_CHARACTERS} and {ROW}"
        )
    try:
        return BilmConfig(
            vocab_size=vocab_size,
            width=int(lstm["projection_dim"]),
            cells=int(lstm["dim"]),
            n_layers=int(lstm["n_layers"]),
            cell_clip=float(lstm.get("cell_clip") or 0),
            projection_clip=float(lstm.get("proj_clip") or 0),
            residual=bool(lstm.get("use_skip_connections")),
            character_width=int(cnn["embedding"]["dim"]),
            filters=tuple((int(a), int(b)) for a, b in cnn["filters"]),
            activation=_activation(cnn.get("activation"), where),
            n_highways=int(cnn.get("n_highway") or 0),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where}: cannot be read as the options of ELMo: {error!r}") from None
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _activation(name: object, where: str) -> Any:
    if name not in ("relu", "tanh"):
        raise CheckpointError(f"{where}: char_cnn.activation={name!r}: expected 'relu' or 'tanh'")
    return name


def _parts(config: BilmConfig) -> Iterator[_Part]:
    """Yield all arrays of a model."""
    width, n_filters = config.width, sum(n for _, n in config.filters)
    words = "encoder.words."
    yield _plain("char_embed", (N_CHARACTERS, config.character_width), f"{words}embedding.weight")
    for k, (size, n) in enumerate(config.filters):
        ours = f"{words}convolutions.{k}."
        shape = (1, size, config.character_width, n)
        yield _Part(f"CNN/W_cnn_{k}", shape, (f"{ours}weight",), lambda x: (x[0].T,), lambda x: x.T[None])
        yield _plain(f"CNN/b_cnn_{k}", (n,), f"{ours}bias")
    for number in range(config.n_highways):
        for theirs, ours in (("carry", "gate"), ("transform", "transform")):
            name = f"{words}highways.{number}.{ours}."
            yield _turned(f"CNN_high_{number}/W_{theirs}", (n_filters, n_filters), f"{name}weight")
            yield _plain(f"CNN_high_{number}/b_{theirs}", (n_filters,), f"{name}bias")
    if n_filters != width:
        yield _turned("CNN_proj/W_proj", (n_filters, width), f"{words}projection.weight")
        yield _plain("CNN_proj/b_proj", (width,), f"{words}projection.bias")
    for direction, side in enumerate(("ahead", "back")):
        for number in range(config.n_layers):
            theirs = _CELL.format(direction=direction, number=number)
            ours = f"encoder.{side}.layers.{number}."
            yield _Part(
                f"{theirs}W_0",
                (2 * width, 4 * config.cells),
                (f"{ours}weight_ih", f"{ours}weight_hh"),
                lambda x: tuple(np.split(_other_order(x.T), 2, axis=1)),
                lambda *x: _other_order(np.concatenate(x, axis=1)).T,
            )
            yield _Part(f"{theirs}B", (4 * config.cells,), (f"{ours}bias",), lambda x: (_other_order(x),), _other_order)
            yield _turned(f"{theirs}W_P_0", (config.cells, width), f"{ours}weight_hr")


def _plain(theirs: str, shape: tuple[int, ...], ours: str) -> _Part:
    return _Part(theirs, shape, (ours,), lambda x: (x,), lambda x: x)


def _turned(theirs: str, shape: tuple[int, ...], ours: str) -> _Part:
    return _Part(theirs, shape, (ours,), lambda x: (x.T,), lambda x: x.T)


def _other_order(x: Array) -> Array:
    """Reorder gates along the first axis from i, j, f, o to i, f, j, o, or back."""
    i, second, third, o = np.split(x, 4)
    return np.concatenate([i, third, second, o])


def _read_arrays(path: Path) -> dict[str, Array]:
    """Read all arrays of an HDF5 file, as float32; refuses links, external data and arrays too large for the file."""
    import h5py

    found: dict[str, Array] = {}

    def visit(group: Any, prefix: str) -> None:
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise CheckpointError(f"{path}: {prefix}{name} is a link to elsewhere, expected data")
            item = group[name]
            if isinstance(item, h5py.Group):
                visit(item, f"{prefix}{name}/")
                continue
            if not isinstance(item, h5py.Dataset) or item.dtype.kind != "f" or item.is_virtual or item.external:
                raise CheckpointError(f"{path}: {prefix}{name} is no array of real numbers in this file")
            if item.nbytes > _MOST_RATIO * n_bytes:
                raise CheckpointError(
                    f"{path}: {prefix}{name} has shape {item.shape}, more than a file of {n_bytes:,} bytes holds"
                )
            found[prefix + name] = item[()].astype(np.float32)

    try:
        n_bytes = path.stat().st_size
        if not path.is_file():  # opening a pipe would wait for its writer
            raise OSError("not a regular file")
        with h5py.File(path, "r") as file:
            visit(file, "")
    # For a damaged file the library raises any of these, depending on where the damage is.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{path} cannot be read as HDF5: {error}") from None
    return found
