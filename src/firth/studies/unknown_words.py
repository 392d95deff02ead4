"""``firth study unknown-words``: named entity recognition on unseen words, by the rule for their vectors.

Word vectors are trained once on English articles, by word2vec and by fastText, and stay frozen; a BiLSTM with a CRF
on top learns to find the named entities of CoNLL-2003. The rules are those of the specification of word vectors, §5.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firth.files import write_text
from firth.finetuning.labelled import read_labelled
from firth.finetuning.recipe import data_config
from firth.folder import read_model
from firth.recipes import laid_over
from firth.studies.cells import StudyCell, check_data
from firth.studies.finetuning import tune_cell
from firth.vectors.folder import VectorOptions, convert_vectors
from firth.vectors.train import VectorTraining, train_vectors

TRAINING = "vectors"
# Small and fast: about four minutes on one core for both.
VECTORS: dict[str, dict[str, Any]] = {
    "word2vec": {"width": 100, "epochs": 2, "min_count": 5, "workers": 1},
    "fasttext": {"kind": "fasttext", "width": 100, "epochs": 1, "min_count": 5, "workers": 1, "n_buckets": 200_000},
}
MOST_EXAMPLES = 2000  # training sentences
SEEDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownWordRule:
    """``known``: whether words outside the training text keep their vectors. ``reading``: the other options.

    ``characters``: how the tagger itself encodes each word's characters, in addition to its vector.
    """

    vectors: str = "word2vec"
    known: bool = True
    reading: dict[str, Any] = field(default_factory=dict)
    characters: str = "none"


RULES: dict[str, UnknownWordRule] = {
    "one vector": UnknownWordRule(known=False),
    "one for each shape": UnknownWordRule(known=False, reading={"unknown": "shapes"}),
    "one at random for each word": UnknownWordRule(known=False, reading={"unknown": "hashed"}),
    "pre-trained, then one vector": UnknownWordRule(),
    "pre-trained, then by shape": UnknownWordRule(reading={"unknown": "shapes"}),
    "pre-trained, then at random": UnknownWordRule(reading={"unknown": "hashed"}),
    "pre-trained, then zeros": UnknownWordRule(reading={"stand_in": "zero"}),
    "one vector, and its characters": UnknownWordRule(known=False, characters="cnn"),
    "pre-trained, and its characters": UnknownWordRule(characters="cnn"),
    "fastText, then one vector": UnknownWordRule(vectors="fasttext", reading={"unknown": "one"}),
    "fastText, then its n-grams": UnknownWordRule(vectors="fasttext"),
}


def study_cells(data: Path, _models: Path, out: Path) -> list[StudyCell]:
    """All cells: one for each kind of vectors, and each rule."""
    check_data(data)
    return [*vector_cells(data), *rule_cells(data, out)]


def vector_cells(data: Path) -> list[StudyCell]:
    """One cell per kind of vectors, trained on the same text."""
    text = str(data / "en-wiki" / "train.txt.xz")
    return [StudyCell(f"{TRAINING}/{n}", vector_cell, {"text": text, "training": t}) for n, t in VECTORS.items()]


def rule_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell per rule: the same tagger, examples and seeds."""
    recipe = {
        "task": "conll2003",
        "data": {"folder": str(data / "conll2003"), "limit": MOST_EXAMPLES},
        # Short sequences, few at once: a tagger trained from scratch needs many updates (128 left it at 24 F1).
        "head": {
            "crf": True,
            "network": {"kind": "bilstm", "lstm_layers": 1, "lstm_width": 100, "dropout": 0.3},
            "windows": {"length": 64, "stride": 48},
        },
        "adapt": {"frozen_groups": -1},
        "optim": {"kind": "adamw", "learning_rate": 5e-3, "warmup_share": 0.1, "decay": 0.0, "clip_norm": 5.0},
        "train": {
            "epochs": 6.0,
            "batch_examples": 6,
            "seeds": SEEDS,
            "precision": "float32",
            "evaluations_per_epoch": 1,
        },
    }
    cells = []
    for name, rule in RULES.items():
        # Characters are an option of the tagger, all others of the vectors.
        own = {"head": {"network": {"own_characters": rule.characters}}} if rule.characters != "none" else {}
        vectors = {key: value for key, value in asdict(rule).items() if key != "characters"}
        options = {
            "rule": name,
            "options": vectors,
            "recipe": laid_over(recipe, own),
            "vectors": str(out / "cells" / TRAINING / rule.vectors / "model"),
        }
        cells.append(StudyCell(f"rules/{name}", rule_cell, options, (f"{TRAINING}/{rule.vectors}",)))
    return cells


def vector_cell(folder: Path, *, text: str, training: dict[str, Any]) -> dict[str, Any]:
    """Train word vectors on a text; the cost is in the log."""
    if not (folder / "model").exists():
        train_vectors([text], folder / "model", VectorTraining(**training), VectorOptions())
    loaded = read_model(folder / "model")
    return {"words": loaded.tokenizer.size, "training": loaded.provenance["origin"]["training"]}


def rule_cell(
    folder: Path, *, rule: str, options: dict[str, Any], recipe: dict[str, Any], vectors: str
) -> dict[str, Any]:
    """Apply a rule to the vectors, and fine-tune a tagger on them. Words are the task's, split at white space."""
    if not (folder / "model").exists():
        words = folder / "words.txt"
        write_text(words, "".join(f"{word}\n" for word in training_words(recipe)))
        texts = () if options["known"] else (words,)
        reading = VectorOptions(split="blanks", lowercase=False, texts=texts, **options["reading"])
        convert_vectors(vectors, folder / "model", reading)
    facts = tune_cell(folder, recipe={**recipe, "model": str(folder / "model") + "/"}, settings=[])
    return facts | coverage(folder / "model", recipe)


def training_words(recipe: dict[str, Any]) -> Iterator[str]:
    """The words that the tagger is trained on, each as often as it occurs."""
    read = read_labelled(recipe["task"], data_config(recipe, "study"), {})
    return (word for record in (*read.train, *read.held) for word in record.words)


def coverage(model: Path, recipe: dict[str, Any]) -> dict[str, float]:
    """The share of the words of the dev file that are in the vocabulary."""
    known = set(read_model(model).tokenizer.pieces)
    dev = next(iter(read_labelled(recipe["task"], data_config(recipe, "study"), {}).dev.values()))
    words = [word for record in dev for word in record.words]
    return {"known_words": sum(word in known for word in words) / len(words)}
