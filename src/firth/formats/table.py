"""The table of model formats: how each is detected, read and written. A new format is a row here.

``find_format`` decides by the files present, never by a name (except ``hub:``); the first row that recognises a path
applies. Writing ONNX, which takes a labelled data set to judge, is in ``export/onnx.py``.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from firth.config import read_whole
from firth.convert.cove import is_mtlstm
from firth.convert.elmo import find_parts, missing_half
from firth.convert.fastai import find_fastai, missing_words
from firth.convert.hf_mapping import Findings
from firth.convert.hub import fetch_model
from firth.convert.openai_gpt import SHAPES
from firth.convert.sentence_transformers import MODULES
from firth.convert.tf_bundle import bundle_prefix
from firth.convert.weights import FILES
from firth.convert.word_vectors import looks_like_vectors
from firth.errors import CheckpointError, ConfigError, InputError
from firth.folder import Loaded, find_model
from firth.formats import reading, writing
from firth.formats.reading import CONFIGS, NO_OPTIONS, Foreign, ReadOptions
from firth.manifest import MANIFEST, check_folder
from firth.names import HUB, locate, not_found
from firth.progress import say
from firth.systems import SIZES

# File names that end like those inside the folder of a model.
_OF_MODELS = (".safetensors", ".bin", ".pt", ".pth", ".json", ".onnx", ".hdf5", ".index", ".meta")
ONNX_ABOUT, ONNX_GRAPH = "onnx.json", "model.onnx"


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One model format on disk.

    ``key``: its name after ``--as``. ``title``: what a path in it is, in words.

    ``finds(path)``: what ``reads`` takes (a folder, a file, a prefix), or None if the path has another format.
    ``reads(path, options)``: reads the model; None if Firth cannot read the format, and ``instead`` says what to do.
    ``options``: the fields of ``ReadOptions`` that it takes. ``lacks(folder)``: what an unrecognised folder lacks for
    this format, empty if nothing suggests it.

    ``writes(folder, loaded)``: writes a model into an empty folder, reads it back and compares; returns facts to
    report, and raises ConfigError for a model that the format cannot hold. None if Firth does not write the format.
    ``made``: what is written, in words. ``extra``, ``packages``: the extra that the format needs, and what is in it.
    """

    key: str
    title: str
    finds: Callable[[Path], Path | None]
    reads: Callable[[Path, ReadOptions], Foreign] | None = None
    options: tuple[str, ...] = ()
    instead: str = ""
    lacks: Callable[[Path], str] = lambda folder: ""
    writes: Callable[[Path, Loaded], Findings] | None = None
    made: str = ""
    extra: str = ""
    packages: tuple[str, ...] = ()


def _has(*names: str) -> Callable[[Path], Path | None]:
    """Make a function that finds a folder with one of these files."""
    return lambda place: place if any((place / name).is_file() for name in names) else None


def _find_google(place: Path) -> Path | None:
    return None if _has(*FILES)(place) else bundle_prefix(place)


_TEXT = ("vocab", "lowercase")
FORMATS: tuple[Format, ...] = (
    Format(
        key="firth", title="a model of Firth",
        finds=_has("firth.json", "model/firth.json", ".model.old/firth.json"), reads=reading.read_firth,
        options=("vectors",),
        writes=writing.write_firth, made="a model folder",
    ),
    Format(
        key="st", title="a model of sentence-transformers",
        finds=_has(MODULES), reads=reading.read_sentence_transformers, options=_TEXT,
        writes=writing.write_sentence_transformers, made="a model folder that sentence-transformers reads too",
    ),
    Format(
        key="elmo", title="a published ELMo", extra="convert", packages=("h5py",),
        finds=lambda place: place if find_parts(place) else None, reads=reading.read_published_elmo, options=_TEXT,
        lacks=missing_half, writes=writing.write_published_elmo, made="options.json and weights.hdf5",
    ),
    Format(
        key="openai", title="OpenAI's released GPT",
        finds=_has(SHAPES), reads=reading.read_released_gpt, options=_TEXT,
        writes=writing.write_released_gpt, made="params_0.npy to params_9.npy, params_shapes.json and the tokenizer",
    ),
    Format(
        key="google", title="a checkpoint of google-research/bert",
        finds=_find_google, reads=reading.read_google, options=(*_TEXT, "gelu"),
        writes=writing.write_google, made="bert_config.json, vocab.txt and bert_model.ckpt",
    ),
    Format(
        key="onnx", title="an ONNX graph", extra="onnx",
        packages=("onnx", "onnxruntime", "onnxscript"), finds=_has(ONNX_ABOUT, ONNX_GRAPH),
        instead="a graph cannot be read back: use onnxruntime, or the model folder that it was made from",
        made="model.onnx and its tokenizer",
    ),
    Format(
        key="hf", title="a model in Hugging Face's layout",
        finds=_has(*CONFIGS), reads=reading.read_huggingface, options=_TEXT,
        writes=writing.write_huggingface, made="config.json, model.safetensors and the tokenizer",
    ),
    Format(
        key="fastai", title="a language model of fastai",
        finds=find_fastai, reads=reading.read_fastai_model, options=_TEXT, lacks=missing_words,
    ),
    Format(
        key="cove", title="the released encoder of CoVe",
        finds=lambda place: place if is_mtlstm(place) else None, reads=reading.read_cove,
        options=("lowercase", "vectors"),
    ),
    Format(
        key="vectors", title="a file of word vectors",
        finds=lambda place: place if looks_like_vectors(place) else None,
        instead="firth vectors convert SOURCE --out DIR makes a model folder of it",
    ),
)  # fmt: skip
BY_KEY = {row.key: row for row in FORMATS}


@dataclass(frozen=True, slots=True)
class Located:
    """A model on disk: its format, ``path`` as the format's reader takes it, and ``name`` as it was given."""

    format: Format
    path: Path
    name: str


def find_format(path: str | Path) -> Located:
    """Detect the format of ``path``.

    ConfigError if nothing is there, CheckpointError if it is not a model.
    """
    name = str(path)
    place = fetch_model(name) if name.startswith(HUB) else locate(path)
    for row in FORMATS:
        if (found := row.finds(place)) is not None:
            return Located(row, found, name)
    if not place.exists():
        hint = not_found(name, SIZES)
        raise ConfigError(f"{name}: no such model folder{hint and ': '}{hint}")
    if place.is_file():
        where = "give the folder that it lies in" if place.suffix in _OF_MODELS else "a model is a folder"
        raise CheckpointError(f"{name} is a file: {where}")
    try:
        return Located(BY_KEY["firth"], find_model(place), name)
    except CheckpointError:
        if lacking := next(filter(None, (row.lacks(place) for row in FORMATS)), ""):
            raise CheckpointError(f"{name} {lacking}") from None
        raise


def read_format(located: Located, options: ReadOptions = NO_OPTIONS) -> Foreign:
    """Read a model of any format; a tensor that is neither used nor known to be unused is an error."""
    row, name = located.format, located.name
    given = [field.name for field in fields(options) if getattr(options, field.name) is not None]
    if strange := [option for option in given if option not in row.options]:
        raise ConfigError(f"{name} is {row.title}, which needs no {' and no '.join(strange)}: leave out")
    if row.reads is None:
        raise CheckpointError(f"{name} is {row.title}: {row.instead.replace('SOURCE', name)}")
    if row.key == "firth":
        return row.reads(located.path, options)
    check_packages(row)
    _check_written_here(located)
    try:
        found = row.reads(located.path, options)
    except (ConfigError, InputError) as error:
        raise CheckpointError(f"{name} cannot be read as a model: {error}") from None
    origin = {"from": name, "format": row.key, "found": [list(fact) for fact in found.facts]}
    return replace(found, loaded=replace(found.loaded, provenance={"origin": origin}))


def _check_written_here(located: Located) -> None:
    """Raise CheckpointError if a folder that Firth wrote for another tool, or its manifest, is damaged."""
    folder = located.path if located.path.is_dir() else located.path.parent
    if not os.path.lexists(folder / MANIFEST) or _is_of_another_tool(folder / MANIFEST):
        return
    try:
        check_folder(folder, whole=False)  # the format's reader reports missing files
    except CheckpointError as error:
        raise CheckpointError(f"{error}; if the change is meant, delete {folder / MANIFEST}") from None


def _is_of_another_tool(manifest: Path) -> bool:
    """Whether a manifest is sound JSON without anything like an entry of Firth's; CheckpointError if it is not JSON."""
    try:
        found = json.loads(read_whole(manifest))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not JSON"
        raise CheckpointError(
            f"{manifest} is damaged or another tool's ({reason}), so the files beside it cannot be checked; if they "
            "are sound, delete it"
        ) from None
    entries = found.values() if isinstance(found, dict) else ()
    return not any(isinstance(entry, dict) and ("sha256" in entry or "bytes" in entry) for entry in entries)


def check_packages(row: Format) -> None:
    """Raise ConfigError unless the extra of a format is installed."""
    if missing := [name for name in row.packages if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"{row.title} needs {' and '.join(missing)}: pip install 'firth[{row.extra}]'")


def open_model(path: str | Path) -> Loaded:
    """Load the model at ``path`` in any format. Problems of its tokenizer are reported on stderr."""
    found = read_format(find_format(path))
    if found.warning:
        say(f"{path}: {found.warning}")
    return found.loaded
