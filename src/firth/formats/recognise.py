"""What a path is.

firth.json, or a run      our own folders                            folder.py
modules.json              sentence-transformers, around the next     convert/sentence_transformers.py
params_shapes.json        OpenAI's ten arrays of GPT                 convert/openai_gpt.py
*.h5, *.pth and itos*     fastai's language models, for ULMFiT       convert/fastai.py
…options.json, …weights.hdf5   ELMo                                convert/elmo.py
*.pth of one LSTM         the encoder of CoVe                        convert/cove.py
config.json               Hugging Face's layouts, of all years       convert/weights.py, convert/hf_bert.py, hf_gpt.py
….index and ….data-…      Google's TensorFlow checkpoints            convert/tf_bundle.py, convert/google_bert.py
hub:org/name              one of these, on the Hugging Face hub      convert/hub.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firth.convert.cove import is_mtlstm
from firth.convert.elmo import OPTIONS, WEIGHTS, find_files
from firth.convert.fastai import SUFFIXES, find_fastai
from firth.convert.hub import HUB, fetch_model
from firth.convert.openai_gpt import SHAPES
from firth.convert.sentence_transformers import MODULES
from firth.convert.tf_bundle import bundle_prefix
from firth.convert.weights import FILES
from firth.errors import CheckpointError
from firth.folder import find_model

Kind = Literal["firth", "huggingface", "sentence-transformers", "google", "openai", "elmo", "fastai", "cove"]

CONFIGS = ("config.json", "bert_config.json")


@dataclass(frozen=True, slots=True)
class Source:
    """What a path is. ``path``: the folder, or the prefix of a TensorFlow checkpoint; ``name``: as it was given."""

    kind: Kind
    path: Path
    name: str


def recognise(path: str | Path) -> Source:
    """What ``path`` is: by the files that are there, never by its name (but for ``hub:``).

    ConfigError if there is nothing, CheckpointError if it is no model.
    """
    name = str(path)
    place = fetch_model(name) if name.startswith(HUB) else Path(path)
    if any((place / part / "firth.json").is_file() for part in ("", "model", ".model.old")):
        return Source("firth", place, name)
    if (place / MODULES).is_file():
        return Source("sentence-transformers", place, name)
    if find_files(place) is not None:
        return Source("elmo", place, name)
    if (place / SHAPES).is_file():
        return Source("openai", place, name)
    configs = [file for file in CONFIGS if (place / file).is_file()]
    prefix = bundle_prefix(place)
    if prefix is not None and not any((place / file).is_file() for file in FILES):
        return Source("google", prefix, name)
    if configs:
        return Source("huggingface", place, name)
    if (weights := find_fastai(place)) is not None:
        return Source("fastai", weights, name)
    if is_mtlstm(place):
        return Source("cove", place, name)
    if place.is_file():
        raise CheckpointError(
            f"{name} is a file: give the folder that it lies in (word vectors: firth vectors convert)"
        )
    try:
        return Source("firth", find_model(place), name)
    except CheckpointError:
        if lacking := _lacking(place):
            raise CheckpointError(f"{name} {lacking}") from None
        raise


# Transformers' weights for TensorFlow, which nothing here reads.
_KERAS = "tf_model.h5"


def _lacking(folder: Path) -> str:
    """What a folder with one half of a published model lacks, in words; empty for any other."""
    for found, other in ((WEIGHTS, OPTIONS), (OPTIONS, WEIGHTS)):
        if files := sorted(folder.glob(f"*{found}")):
            return f"has {files[0].name}, but no …{other}: ELMo is both files, put the other one beside it"
    if any((folder / file).is_file() for file in FILES):
        return ""
    weights = [file.name for file in sorted(folder.glob("*")) if file.suffix in SUFFIXES and file.name != _KERAS]
    if weights and not any(folder.glob("*itos*")):
        return (
            f"has {weights[0]}, but no list of words (itos….pkl, .json or .txt): put fastai's beside it; of CoVe's "
            "encoder give the file itself"
        )
    return ""
