"""Resolve model names: shipped weights, and published models by their well-known names; no torch.

A name stands for, in this order, an existing path, a shipped model, or a size (``firth.systems.SIZES``, for training
from scratch). ``hub:org/name`` is a model of the Hugging Face hub.
"""

import difflib
import itertools
import re
from collections.abc import Collection
from pathlib import Path

from firth.errors import ConfigError
from firth.files import MOST_BESIDE
from firth.progress import say

HUB = "hub:"
# The folder of the shipped models, if the installation has them.
WEIGHTS = Path(__file__).parent / "weights"
SHIPPED = {
    "firth-mini-en": "BERT-mini, English: encyclopedia articles and novels",
    "firth-mini-ko": "BERT-mini, Korean: encyclopedia articles and reviews",
}
# Models without an encoder (firth.baseline.model), which --model also accepts for fine-tuning.
BASELINE_NAMES = {
    "tfidf": "TF-IDF of words and characters with a linear model",
    "commonest-tag": "each word's commonest tag",
}
# Names that models had before the hub added their organisation, and others that are known without one.
PUBLISHED = {
    "bert-base-uncased": "google-bert/bert-base-uncased",
    "bert-base-cased": "google-bert/bert-base-cased",
    "bert-large-uncased": "google-bert/bert-large-uncased",
    "bert-large-cased": "google-bert/bert-large-cased",
    "bert-base-multilingual-cased": "google-bert/bert-base-multilingual-cased",
    "bert-base-multilingual-uncased": "google-bert/bert-base-multilingual-uncased",
    "bert-base-chinese": "google-bert/bert-base-chinese",
    "bert-base-german-cased": "google-bert/bert-base-german-cased",
    "klue-bert-base": "klue/bert-base",
    "openai-gpt": "openai-community/openai-gpt",
    "all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2",
    "all-MiniLM-L12-v2": "sentence-transformers/all-MiniLM-L12-v2",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*")
_NAMES = "firth models lists the names"


def locate(name: str | Path) -> Path:
    """The path of a name: the name itself if it exists as a path, or the folder of a shipped model.

    ConfigError for a shipped model that this installation does not have. An unknown name is returned as a path, which
    the caller then does not find; ``not_found`` suggests what may be meant.
    """
    path, text = Path(name), str(name)
    if path.exists():
        if text in SHIPPED:
            say(f"{text} is a folder here: it is used instead of the shipped model of that name")
        return path
    if text not in SHIPPED:
        return path
    folder = WEIGHTS / text
    if not (folder / "firth.json").is_file():
        raise ConfigError(
            f"{text} is not part of this installation: a clone builds it with make models; give the folder it is in"
        )
    return folder


def not_found(name: str | Path, sizes: Collection[str]) -> str:
    """Return a hint about a name for which no model was found, as the end of a message; empty if there is none.

    ``sizes``: the names of sizes, which have no weights.
    """
    text = str(name)
    if text in PUBLISHED:
        return f"the published model is --model {HUB}{PUBLISHED[text]}"
    if text.removeprefix("./") in sizes:
        size = text.removeprefix("./")
        return f"{size} is a size without weights: firth pretrain --model {size} makes a model of it"
    if near := _near(text, ()):
        return f"did you mean {near}?"
    if _HUB_NAME.fullmatch(text) and not Path(text).parent.exists():
        return f"a model of the Hugging Face hub is named {HUB}{text}"
    return ""


def unknown(name: str, sizes: Collection[str]) -> ConfigError:
    """Return the error for the name of a model to train that is neither an existing path nor known."""
    if name in PUBLISHED:
        return ConfigError(f"{name!r} is no folder and no size here: {not_found(name, sizes)} (extra hub)")
    if name in BASELINE_NAMES:
        return ConfigError(f"{name} is a baseline, without layers or weights to start from: firth finetune fits it")
    near = _near(name, [*sizes, *BASELINE_NAMES])
    hint = f"did you mean {near}? " if near else ""
    return ConfigError(f"{name!r} is no folder, no shipped model and no size: {hint}{_NAMES}")


def _near(text: str, sizes: Collection[str]) -> str:
    """The most similar name of a neighbouring folder, a shipped or published model, or a size."""
    path = Path(text)
    parents = [path.parent] if path.parent.is_dir() else _folders(path.parent.parent)
    beside = [str(other) for parent in parents for other in _folders(parent)]
    names = [*beside, *SHIPPED, *PUBLISHED, *PUBLISHED.values(), *sizes]
    found = difflib.get_close_matches(text, names, n=len(SHIPPED), cutoff=0.75)
    ratios = [difflib.SequenceMatcher(None, name, text).ratio() for name in found]
    # firth-mini is equally similar to both shipped models.
    equal = [name for name, ratio in zip(found, ratios, strict=True) if ratio == max(ratios)]
    full = [PUBLISHED.get(name, name) for name in equal]
    return " or ".join(f"{HUB}{name}" if name in PUBLISHED.values() else name for name in full)


def _folders(place: Path) -> list[Path]:
    """The folders in a place, among its first thousand entries."""
    try:
        return [other for other in itertools.islice(place.iterdir(), MOST_BESIDE) if other.is_dir()]
    except OSError:
        return []
