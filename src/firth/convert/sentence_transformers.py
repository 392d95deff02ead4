"""Folders of sentence-transformers: a transformer, a pooling, and optionally normalisation to unit length.

modules.json             the parts in order: the class of each, and the folder of its files
config.json …            the transformer, in the folder itself or in 0_Transformer
1_Pooling/config.json    how tokens are pooled into one vector
sentence_bert_config.json    how long texts are truncated
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.config import read_json, read_whole
from firth.errors import CheckpointError, InputError
from firth.files import write_json, write_text
from firth.tasks.config import EmbeddingConfig

MODULES = "modules.json"

# Their key (before version 6) and name (since then) for each kind of pooling that we also have.
_POOLS = {
    "pooling_mode_cls_token": ("cls", "first"),
    "pooling_mode_mean_tokens": ("mean", "mean"),
    "pooling_mode_max_tokens": ("max", "max"),
    "pooling_mode_lasttoken": ("lasttoken", "last"),
}


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """What such a folder specifies besides the transformer in ``transformer``; ``notes``: what is not followed."""

    transformer: Path
    embedding: EmbeddingConfig
    notes: list[str]


def read_sentence_model(folder: Path) -> SentenceModel:
    """Read the parts of a folder with modules.json; CheckpointError names the parts if Firth lacks any."""
    parts = _modules(folder / MODULES)
    kinds = [kind for kind, _ in parts]
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{folder / MODULES}: parts {', '.join(kinds)}: Firth reads a Transformer, a Pooling and perhaps a "
            f"Normalize, in this order"
        )
    pool: Any = _pool(parts[1][1] / "config.json") if len(parts) > 1 else "mean"
    embedding = EmbeddingConfig(pool=pool, normalize=len(parts) > 2)
    return SentenceModel(parts[0][1], embedding, _notes(folder, parts[0][1]))


def _modules(path: Path) -> list[tuple[str, Path]]:
    """Return the class and the folder of each part."""
    try:
        parts = json.loads(read_whole(path))
        found = [(str(part["type"]).rpartition(".")[2], str(part["path"])) for part in parts]
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: expected a list of parts with type and path: {error}") from None
    for _, place in found:
        if place != Path(place).name or place == "..":
            raise CheckpointError(f"{path}: path {place!r}: expected a folder in this one")
    return [(kind, path.parent / place) for kind, place in found]


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except InputError as error:
        raise CheckpointError(str(error)) from None


def _pool(path: Path) -> str:
    """Return our name for the one kind of pooling that the file specifies."""
    about = _read(path)
    modes = [key for key, value in about.items() if key.startswith("pooling_mode_") and value is True]
    modes += [str(mode) for mode in _listed(about.get("pooling_mode"))]
    ours = {name: pool for key, (word, pool) in _POOLS.items() for name in (key, word)}
    if len(modes) != 1 or modes[0] not in ours:
        raise CheckpointError(f"{path}: pooling {' and '.join(modes) or 'of no kind'}: expected one of cls, mean, max")
    return ours[modes[0]]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _notes(folder: Path, transformer: Path) -> list[str]:
    """List the settings of the folder that Firth does not follow."""
    notes = []
    files = (folder / "sentence_bert_config.json", transformer / "sentence_bert_config.json")
    about: Mapping[str, Any] = next((_read(path) for path in files if path.is_file()), {})
    if about.get("do_lower_case"):
        notes.append("its do_lower_case (sentence_bert_config.json) is not followed, only the tokenizer's")
    if about.get("max_seq_length"):
        notes.append(f"it cuts texts at {about['max_seq_length']} tokens; here longer ones are read to their end")
    prompts = folder / "config_sentence_transformers.json"
    if prompts.is_file() and _read(prompts).get("default_prompt_name"):
        notes.append("its default prompt is not added to texts: write it into them")
    return notes


def write_sentence_model(folder: Path, embedding: EmbeddingConfig, width: int, max_length: int | None) -> None:
    """Add to a model folder the files that sentence-transformers needs to read it."""
    words = {pool: key for key, (_, pool) in _POOLS.items()}
    if embedding.pool not in words:
        raise CheckpointError(f"sentence-transformers knows no pooling {embedding.pool!r}, only {', '.join(words)}")
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if embedding.normalize else {})
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    for path in kinds:
        (folder / path).mkdir(exist_ok=True)
    write_text(folder / MODULES, json.dumps(modules, indent=2) + "\n")
    pooling = {key: key == words[embedding.pool] for key in _POOLS}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **pooling})
    cut = {} if max_length is None else {"max_seq_length": max_length}
    write_json(folder / "sentence_bert_config.json", {**cut, "do_lower_case": False})
