"""Read and write the folder of a baseline.

firth.json             the name of the baseline, task, options, provenance
vocabulary.json        n-grams, the commonest first; for commonest-tag: words with their tags
model.safetensors      idf, weights and biases; for commonest-tag: shares
README.md              model card
"""

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firth.baseline.config import CommonestTagConfig, TfidfConfig
from firth.baseline.grams import BLOCKS, Vocabulary
from firth.baseline.model import BASELINES, Baseline
from firth.baseline.tags import CommonestTag
from firth.baseline.tfidf import Tfidf, Vectorizer
from firth.config import from_dict, read_json, to_dict
from firth.errors import CheckpointError, FirthError, InputError
from firth.manifest import MANIFEST, check_folder
from firth.names import BASELINE_NAMES
from firth.version import firth_version

FORMAT, VERSION = "firth-model", 1
ABOUT, VOCABULARY, WEIGHTS = "firth.json", "vocabulary.json", "model.safetensors"


def write_baseline(folder: Path, baseline: Baseline) -> None:
    """Write the files of a baseline into an existing empty folder."""
    from safetensors.numpy import save

    method = baseline.method
    words, tensors = _tfidf_parts(method) if isinstance(method, Tfidf) else _tag_parts(method)
    # Not save_file, whose files only their owner may read: a server often runs as another user.
    (folder / WEIGHTS).write_bytes(save({name: np.ascontiguousarray(values) for name, values in tensors.items()}))
    _write(folder / VOCABULARY, words, indent=None)
    provenance = {"numpy": np.__version__, **baseline.provenance}
    provenance = write_about(folder, baseline.system, baseline.task, method.config, provenance)
    facts = [f"system: {baseline.system}", f"task: {baseline.task}", f"labels: {', '.join(baseline.labels) or 'none'}"]
    facts += [f"{name}: {' × '.join(map(str, values.shape))}" for name, values in sorted(tensors.items())]
    use = "Load it with `firth.load(folder)`; it needs NumPy and SciPy, no torch."
    write_card(folder, BASELINE_NAMES[baseline.system], facts, use, provenance)


def write_about(
    folder: Path,
    system: str,
    task: str,
    config: Any,
    provenance: Mapping[str, Any],
    *,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write ``firth.json``, of any model; returns the provenance with the versions of Firth and Python.

    ``more``: further entries, of models with an encoder.
    """
    provenance = {"firth": firth_version(), "python": platform.python_version(), **provenance}
    about = {"format": FORMAT, "version": VERSION, "system": system, "task": task, "options": to_dict(config)}
    _write(folder / ABOUT, about | dict(more or {}) | {"provenance": provenance}, indent=2)
    return provenance


def write_card(folder: Path, name: str, facts: Sequence[str], use: str, provenance: Mapping[str, Any]) -> None:
    """Write the model card of a baseline or a joint model. ``use``: how to load it."""
    lines = ["---", "tags: [firth]", "---", "", f"# {name[0].upper()}{name[1:]}, made by Firth", ""]
    lines += [*(f"- {fact}" for fact in facts), "", use, "", *origin_lines(provenance)]
    (folder / "README.md").write_text("\n".join(lines), "utf-8")


def find_baseline(path: str | Path, names: Collection[str] = BASELINES) -> Path | None:
    """The folder of a baseline that a path refers to (itself, or the ``model/`` of a run); None for anything else.

    ``names``: of the baselines to accept.
    """
    folder = Path(path)
    # As in firth.folder.find_model: a run may be replacing its model at this moment.
    for candidate in (folder, folder / "model", folder / ".model.old"):
        if (candidate / ABOUT).is_file():
            try:
                return candidate if read_json(candidate / ABOUT).get("system") in names else None
            except FirthError:
                return None  # the reader of models reports what is wrong with it
        if (candidate / "config.json").is_file():
            return None
    return None


def read_about(folder: Path) -> dict[str, Any]:
    """Read ``firth.json`` of any model folder and check that this version supports its layout."""
    try:
        about = read_json(folder / ABOUT)
    except FirthError as error:
        raise CheckpointError(f"{folder} is not a model folder made by Firth: {error}") from None
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise CheckpointError(
            f"{folder} has layout {about.get('format')!r} version {about.get('version')!r}, this Firth reads "
            f"{FORMAT!r} version {VERSION}"
        )
    return about


def origin_lines(provenance: Mapping[str, Any]) -> list[str]:
    """The end of a model card: where the model comes from."""
    origin = json.dumps(provenance, indent=2, ensure_ascii=False)
    return ["## Where it comes from", "", "```json", origin, "```", ""]


def read_baseline(path: str | Path) -> Baseline:
    """Load a baseline, strictly; CheckpointError if it is damaged or not a baseline."""
    folder = find_baseline(path)
    if folder is None:
        raise CheckpointError(f"{path} is not a baseline ({', '.join(BASELINES)})")
    if (folder / MANIFEST).is_file():
        check_folder(folder)
    about = read_about(folder)
    try:
        options = from_dict(BASELINES[about["system"]], about.get("options", {}), str(folder / ABOUT))
        words, tensors = read_json(folder / VOCABULARY), _tensors(folder / WEIGHTS)
        made = _tfidf(options, words, tensors) if isinstance(options, TfidfConfig) else _tags(options, words, tensors)
    except (KeyError, TypeError, ValueError, FirthError) as error:
        raise CheckpointError(f"{folder} cannot be read as a baseline: {error}") from None
    if about.get("task") != made.task:
        raise CheckpointError(f"{folder}: task {about.get('task')!r}, but its options are of {made.task!r}")
    return Baseline(made, about.get("provenance", {}))


def _tfidf_parts(method: Tfidf) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    words: dict[str, Any] = {vocabulary.block: list(vocabulary.grams) for vocabulary in method.reader.vocabularies}
    tensors = {f"{vocabulary.block}.idf": vocabulary.idf for vocabulary in method.reader.vocabularies}
    return words, tensors | {"weight": method.weight.astype(np.float32), "bias": method.bias.astype(np.float32)}


def _tfidf(options: TfidfConfig, words: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Tfidf:
    vocabularies = []
    for block in BLOCKS:
        if block in words:
            grams, idf = _strings(words[block], block), tensors[f"{block}.idf"]
            if idf.shape != (len(grams),):
                raise InputError(f"{block}.idf has shape {idf.shape}, the vocabulary {len(grams)} n-grams")
            vocabularies.append(Vocabulary.of(block, grams, idf))
    reader = Vectorizer(options.grams, options.pairs, tuple(vocabularies))
    n_labels = len(options.labels)
    n_outputs = 1 if options.kind == "regress" or (options.kind == "classify" and n_labels == 2) else n_labels
    weight, bias = tensors["weight"], tensors["bias"]
    if weight.shape != (n_outputs, reader.n_features) or bias.shape != (n_outputs,):
        raise InputError(f"weight has shape {weight.shape}, expected {(n_outputs, reader.n_features)}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise InputError("weights are not all finite numbers")
    return Tfidf(options, reader, weight, bias)


def _tag_parts(method: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    assert isinstance(method, CommonestTag)
    tags = {label: number for number, label in enumerate(method.labels)}
    words = {"words": list(method.words), "other": method.other[0]}
    return words, {
        "tag": np.array([tags[tag] for tag, _ in method.words.values()], np.int32),
        "share": np.array([share for _, share in method.words.values()], np.float32),
        "other_share": np.array([method.other[1]], np.float32),
    }


def _tags(options: CommonestTagConfig, words: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> CommonestTag:
    names, tag, share = _strings(words["words"], "words"), tensors["tag"], tensors["share"]
    if tag.shape != (len(names),) or share.shape != (len(names),) or words["other"] not in options.labels:
        raise InputError("words, tags and shares do not belong together")
    if len(tag) and not 0 <= int(tag.min()) <= int(tag.max()) < len(options.labels):
        raise InputError(f"a tag is not one of the {len(options.labels)} labels")
    found = zip(names, tag.tolist(), share.tolist(), strict=True)
    guesses = {word: (options.labels[number], value) for word, number, value in found}
    return CommonestTag(options, guesses, (words["other"], float(tensors["other_share"][0])))


def _strings(found: Any, name: str) -> Sequence[str]:
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise InputError(f"{VOCABULARY}: {name}: expected a list of strings")
    return found


def _tensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _write(path: Path, data: Mapping[str, Any], indent: int | None) -> None:
    path.write_text(json.dumps(data, indent=indent, ensure_ascii=False) + "\n", "utf-8")
