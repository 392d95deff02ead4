"""``firth study ablations``: the findings of the papers before BERT, each removed or added, at small scale.

*TagLM*: a tagger's frozen language model by its text, directions and size (Peters et al. 2017, §4.3). *directions*: the
two halves of a bidirectional language model, separately and joined. *ULMFiT*: each stage left out (Howard & Ruder 2018,
Tables 4, 6 and 7). *GPT*: how many layers are transferred, and the auxiliary loss (Radford et al. 2018, §5). *LSTM*:
initialisation by a sequence autoencoder or a language model (Dai & Le 2015). *word vectors*: random or pre-trained, for
tagging (Collobert et al. 2011). *documents*: BERT on documents or on shuffled sentences (Devlin et al. 2018, §3.1).

All choices are made on a tenth of the training examples; dev files are scored once per run.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from firth.corpus.prepare import prepare
from firth.files import make_folder, write_text
from firth.finetuning.adaptation import texts_of
from firth.finetuning.labelled import read_labelled
from firth.finetuning.recipe import data_config
from firth.folder import read_model, write_model
from firth.models.bilm import Bilm
from firth.recipes import laid_over
from firth.studies.ablation_tables import (
    ABLATIONS,
    HALVES,
    LIMITS,
    MODELS,
    MOST_EXAMPLES,
    TEXTS,
    VECTOR_FOLDER,
    VECTORS,
    WIDTH,
    Ablation,
    Variation,
)
from firth.studies.cells import StudyCell, check_data
from firth.studies.directionality import pretrain_cell
from firth.studies.finetuning import ROWS, recipe_of
from firth.studies.representations import PIECES, WORDS, task_cell, text_cell, vector_cell
from firth.text.corpus import CorpusReader
from firth.text.records import Tagged
from firth.text.sentences import split_sentences


def study_cells(data: Path, _models: Path, out: Path) -> list[StudyCell]:
    """All cells: one for each text, each model pre-trained on one, and each row of the tables."""
    check_data(data)
    return [*text_cells(data, out), *model_cells(data, out), *task_cells(data, out)]


def text_cells(data: Path, out: Path) -> list[StudyCell]:
    """Cells that prepare the corpora; those with one vocabulary share held-out text, or hold out their own task's."""
    english = {split: [str(data / name / f"{split}.txt.xz") for name in ("en-wiki", "en-books")] for split in _SPLITS}
    cells = [
        StudyCell("text/words", text_cell, {**english, "kind": "words", "size": WORDS}),
        StudyCell("text/pieces", text_cell, {**english, "kind": "wordpiece", "size": PIECES}),
    ]
    tasks = {"entities": "CoNLL-2003", "news": "AG News", "sentiment": "SST-2"}
    for name, vocabulary in TEXTS.items():
        if vocabulary:
            options: dict[str, Any] = {"vocab": str(out / "cells" / "text" / vocabulary / "vocab")}
            work = shuffled_cell if name == "shuffled" else own_text_cell
            options |= english if name == "shuffled" else {"recipe": _plain_recipe(tasks[name], data, out)}
            cells.append(StudyCell(f"text/{name}", work, options, (f"text/{vocabulary}",)))
    return cells


_SPLITS = ("train", "dev")


def own_text_cell(folder: Path, *, vocab: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """Prepare the texts of a task's training examples, without labels, as a corpus; a tenth of them is held out."""
    read = read_labelled(recipe["task"], data_config(recipe, "study"), {})
    records = [*read.train, *read.held]
    tagged = [" ".join(record.words) for record in records if isinstance(record, Tagged)]
    text = folder / "text.txt"
    write_text(text, "".join(f"{' '.join(one.split())}\n\n" for one in tagged or texts_of(records)))
    made = prepare([text], vocab, folder / "corpus", hold_out=0.1)
    return {"tokens": made.tokens, "documents": made.documents}


def shuffled_cell(folder: Path, *, vocab: str, train: list[str], dev: list[str]) -> dict[str, Any]:
    """Prepare a corpus of the documents with all sentences shuffled, keeping document lengths; held-out text stays."""
    text = folder / "text.txt"
    documents = [
        [one for paragraph in document.paragraphs for one in split_sentences(paragraph)]
        for document in CorpusReader(train)
    ]
    write_text(text, "\n\n".join("\n".join(sentences) for sentences in shuffled_documents(documents)) + "\n")
    made = prepare([text], vocab, folder / "corpus", lines="sentence", dev=dev)
    return {"tokens": made.tokens, "documents": made.documents}


def shuffled_documents(documents: Sequence[Sequence[str]]) -> list[list[str]]:
    """Shuffle the sentences of all documents, keeping the number of sentences in each; deterministic."""
    sentences = [sentence for document in documents for sentence in document]
    order = iter(np.random.default_rng(1).permutation(len(sentences)).tolist())
    return [[sentences[next(order)] for _ in document] for document in documents]


def model_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell per model: pre-trained, half of another, or word vectors."""
    cells = []
    for name, one in MODELS.items():
        corpus = {"data": {"corpus": str(out / "cells" / "text" / one.text / "corpus")}}
        begun = {"model": f"{model_of(one.base, out)}/" if one.base else one.model}
        recipe = laid_over(laid_over(one.recipe, corpus), begun)
        steps = recipe["train"]["steps"]
        cadence = {"eval_every": steps // 5, "save_every": steps // 5, "eval_batches": 20, "log_every": steps // 50}
        recipe = laid_over({"train": cadence}, recipe)
        needs = (f"text/{one.text}", *([f"models/{one.base}"] if one.base else []))
        cells.append(StudyCell(f"models/{name}", pretrain_cell, {"recipe": recipe, "settings": []}, needs))
    for name, kept in HALVES.items():
        options = {"model": str(model_of("ELMo", out)), "kept": kept}
        cells.append(StudyCell(f"models/{name}", half_cell, options, ("models/ELMo",)))
    training = {"width": WIDTH, "epochs": 3, "workers": 1}
    texts = [str(data / "en-wiki" / "train.txt.xz")]
    cells.append(StudyCell(f"models/{VECTORS}", vector_cell, {"texts": texts, "training": training}))
    return cells


def model_of(name: str, out: Path) -> Path:
    """The folder of a model."""
    return out / "cells" / "models" / name / ("run" if name in MODELS else "model")


def half_cell(folder: Path, *, model: str, kept: Literal["ahead", "back"]) -> dict[str, Any]:
    """Silence one direction of a bidirectional language model by setting the weights of its outputs to zero."""
    loaded = read_model(Path(model))
    encoder = loaded.objective.encoder
    assert isinstance(encoder, Bilm)
    with torch.no_grad():
        for layer in (encoder.back if kept == "ahead" else encoder.ahead).layers:
            layer.get_parameter("weight_hr").zero_()

    def fill(new: Path) -> None:
        write_model(new, loaded.system_name, loaded.task, loaded.objective, loaded.tokenizer, {"half": kept})

    if not (folder / "model").exists():
        make_folder(folder / "model", fill)
    return {"kept": kept}


def task_cells(data: Path, out: Path) -> list[StudyCell]:
    """One cell for each row of each ablation, and each of its tasks."""
    return [
        StudyCell(
            f"{name}/{row}/{task}",
            task_cell,
            {"recipe": task_recipe(task, ablation, variation, data, out)},
            tuple(f"models/{model}" for model in {variation.model: None, **_vectors_of(variation)}),
        )
        for name, ablation in ABLATIONS.items()
        for row, variation in ablation.rows.items()
        for task in ablation.tasks
    ]


def _vectors_of(variation: Variation) -> dict[str, None]:
    return {VECTORS: None} if variation.tables.get("adapt", {}).get("vectors") else {}


def task_recipe(task: str, ablation: Ablation, variation: Variation, data: Path, out: Path) -> dict[str, Any]:
    """Build the recipe for a row of a table on a task."""
    begun = {"model": f"{model_of(variation.model, out)}/", "optim": {}}
    limit = {"data": {"limit": LIMITS.get(task, MOST_EXAMPLES)}}
    recipe = laid_over(_plain_recipe(task, data, out) | begun, limit)
    recipe = laid_over(laid_over(recipe, ablation.tables), variation.tables)
    if recipe.get("adapt", {}).get("vectors") == VECTOR_FOLDER:
        recipe = laid_over(recipe, {"adapt": {"vectors": str(model_of(VECTORS, out))}})
    return recipe


def _plain_recipe(task: str, data: Path, out: Path) -> dict[str, Any]:
    """Build a recipe with only the task's data and seeds."""
    return recipe_of(replace(next(row for row in ROWS if row.name == task), settings={}), data, out)
