"""The ablation study: valid cells, correct texts and model halves, rows on tiny models, and the tables."""

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_language_models import tiny_language_model

from firth.errors import ConfigError
from firth.finetuning import runs as job
from firth.finetuning.recipe import build, plain_recipe
from firth.folder import PRETRAINING, read_model, write_model
from firth.inference.model import load_model
from firth.pretraining.run import resolve
from firth.recipes import laid_over
from firth.studies import ablations
from firth.studies.ablation_tables import ABLATIONS, HALVES, MODELS, SCORES, TEXTS, VECTORS
from firth.studies.ablations import (
    half_cell,
    model_cells,
    model_of,
    own_text_cell,
    pretrain_cell,
    shuffled_cell,
    shuffled_documents,
    study_cells,
    task_cells,
    text_cells,
)
from firth.studies.ablations_report import ablation_table, model_table, write_study_report
from firth.studies.cells import StudyCell
from firth.systems import size_named
from firth.tasks.datasets import DATASETS


def cell(score: float, metric: str = "accuracy") -> dict[str, Any]:
    return {"metric": metric, "dev": {"dev": {metric: {"mean": score, "sd": 0.01, "values": [score, score]}}}}


FACTS = {
    "GPT/as published/SST-2": cell(0.75),
    "GPT/no auxiliary loss/MRPC": cell(0.5, "f1"),
    "GPT's layers/1 of 4 transferred/SST-2": cell(0.25),
    "documents/documents/SNLI": cell(0.4),
    "models/GPT": {"dev": {"lm_loss": 5.25, "loss": 5.25}, "seconds": 600.0, "parameters": 7_400_000, "steps": 1250},
}


def every_cell(data: Path, out: Path) -> dict[str, StudyCell]:
    cells = [*text_cells(data, out), *model_cells(data, out), *task_cells(data, out)]
    found = {one.name: one for one in cells}
    assert len(found) == len(cells)
    return found


def test_cells_wait_for_what_they_read_and_nothing_is_made_for_none(tmp_path: Path) -> None:
    cells = every_cell(tmp_path / "data", tmp_path / "out")
    json.dumps([one.options for one in cells.values()])
    assert {need for one in cells.values() for need in one.needs} <= set(cells)
    used = {row.model for one in ABLATIONS.values() for row in one.rows.values()} | {m.base for m in MODELS.values()}
    assert set(MODELS) | set(HALVES) | {VECTORS} == used - {""}
    assert {one.text for one in MODELS.values()} == set(TEXTS)
    assert cells["ULMFiT/as published/AG News"].needs == ("models/ULMFiT tuned",)
    assert cells["models/ULMFiT tuned"].needs == ("text/news", "models/ULMFiT")
    assert cells["word vectors/pre-trained/CoNLL-2003"].needs == (f"models/{VECTORS}",)


def test_recipes_are_sound_and_differ_by_row(tmp_path: Path) -> None:
    cells = every_cell(tmp_path / "data", tmp_path / "out")
    for name, ablation in ABLATIONS.items():
        assert all(row.published.keys() <= set(ablation.tasks) for row in ablation.rows.values())
        for task in ablation.tasks:
            recipes = [cells[f"{name}/{row}/{task}"].options["recipe"] for row in ablation.rows]
            assert len({json.dumps(recipe, sort_keys=True) for recipe in recipes}) == len(recipes), name
            for recipe in recipes:
                plain = plain_recipe(recipe, [], "test")
                kind = DATASETS[plain["task"]].kind if plain["task"] in DATASETS else plain["task"]
                build({"kind": kind, "metric": "x", **plain, "head": {"labels": ["O", "B-a"]} | plain["head"]}, name)
                if plain["task"] in DATASETS:
                    assert SCORES[task] in DATASETS[plain["task"]].metrics
    sizes = {one.model for one in MODELS.values() if one.model}
    assert all(size_named(size) for size in sizes)
    # Each unfrozen layer group trains for at least one epoch: the head, the embeddings, the layers.
    assert ABLATIONS["ULMFiT"].tables["train"]["epochs"] > 1 + size_named("awd-lstm-small")[1]["n_layers"] + 1
    assert size_named("gpt-mini")[1]["n_layers"] == 4, "as many as the rows of GPT say"


def test_models_are_pretrained_and_continued_as_their_recipes_say(
    tiny_corpus: Path, tiny_word_corpus: Path, tmp_path: Path
) -> None:
    cells = every_cell(tmp_path / "data", tmp_path / "out")
    for name, one in MODELS.items():
        corpus = tiny_word_corpus if "words" in (one.text, TEXTS[one.text]) else tiny_corpus
        options = cells[f"models/{name}"].options
        options["recipe"] = laid_over(options["recipe"], {"data": {"corpus": str(corpus)}})
        if not one.base:
            made = resolve(options["recipe"], [], "test")
            assert made.train.steps == options["recipe"]["train"]["steps"]
    small = {
        "ULMFiT": {"encoder": {"width": 8, "hidden_width": 12, "n_layers": 2}},
        "ULMFiT tuned, constant rates": {},
        "autoencoder of the task's text": {"encoder": {"width": 8}},
    }
    for name, sizes in small.items():
        few = {"train": {"steps": 2, "eval_every": 2, "save_every": 2, "batch_tokens": 560}}
        recipe = laid_over(cells[f"models/{name}"].options["recipe"], laid_over(sizes, few))
        folder = model_of(name, tmp_path / "out").parent
        folder.mkdir(parents=True)
        facts = pretrain_cell(folder, recipe=recipe, settings=[])
        assert facts["steps"] == 2 and facts["dev"]["loss"] > 0


def test_shuffled_documents_keep_sentences_and_sizes() -> None:
    documents = [[f"{d} {i}." for i in range(n)] for d, n in enumerate([3, 1, 0, 40])]
    found = shuffled_documents(documents)
    assert [len(one) for one in found] == [3, 1, 0, 40]
    assert sorted(sum(found, [])) == sorted(sum(documents, [])) and found != documents
    assert shuffled_documents(documents) == found


@pytest.mark.parametrize("kept", ["ahead", "back"])
def test_half_of_a_bidirectional_model_is_silent_and_the_other_as_it_was(tmp_path: Path, kept: Any) -> None:
    made = tiny_language_model("elmo")
    whole = tmp_path / "whole"
    whole.mkdir()
    write_model(whole, "elmo", PRETRAINING, made.loaded.objective, made.loaded.tokenizer, {})
    (tmp_path / "half").mkdir()
    assert half_cell(tmp_path / "half", model=str(whole), kept=kept) == {"kept": kept}
    before, after = (load_model(folder).vectors("a1 b2 zzz") for folder in (whole, tmp_path / "half" / "model"))
    np.testing.assert_allclose(after.layer(0), before.layer(0))
    width = before.layers.shape[-1] // 2
    first, second = after.layers[1:, :, :width], after.layers[1:, :, width:]
    silent, heard = (second, first) if kept == "ahead" else (first, second)
    assert not silent.any()
    np.testing.assert_allclose(heard, before.layers[1:, :, :width] if kept == "ahead" else before.layers[1:, :, width:])
    assert half_cell(tmp_path / "half", model=str(whole), kept=kept), "what is there is not made again"


@pytest.fixture
def data(tmp_path: Path, tiny_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")
    place = tmp_path / "data"
    for folder in ("en-wiki", "en-books", "conll2003"):
        (place / folder).mkdir(parents=True)
    for split in ("train", "dev"):
        for folder in ("en-wiki", "en-books"):
            (place / folder / f"{split}.txt.xz").write_bytes(lzma.compress(tiny_text.read_bytes()))
    sentences = [f"The DT B-NP O\nqueen NN I-NP O\nsaw{i} VB B-VP O\nAnn NNP B-NP I-PER\n" for i in range(30)]
    begin = "-DOCSTART- -X- O O\n\n"
    text = "\n".join(begin * (i % 5 == 0) + sentence for i, sentence in enumerate(sentences))
    for file in ("eng.train", "eng.testa"):
        (place / "conll2003" / file).write_text(text, "utf-8")
    return place


def test_texts_are_made_in_the_vocabulary_of_another(data: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    cells = every_cell(data, tmp_path / "out")
    entities, shuffled = (dict(cells[f"text/{name}"].options) for name in ("entities", "shuffled"))
    for name, work, options in (("own", own_text_cell, entities), ("shuffled", shuffled_cell, shuffled)):
        folder = tmp_path / name
        folder.mkdir()
        facts = work(folder, **(options | {"vocab": str(tiny_vocab)}))
        assert facts["tokens"] > 0 and (folder / "corpus" / "manifest.json").is_file()
    lines = (tmp_path / "own" / "text.txt").read_text("utf-8").split("\n\n")
    assert "The queen saw3 Ann" in lines and len([line for line in lines if line]) == 30


def test_rows_of_word_vectors_on_tiny_ones(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("gensim", reason="gensim (extra: vectors) is not here")
    out = tmp_path / "out"
    cells = every_cell(data, out)
    vectors = cells[f"models/{VECTORS}"]
    folder = out / "cells" / vectors.name
    folder.mkdir(parents=True)
    vectors.work(folder, texts=vectors.options["texts"], training={"width": 6, "epochs": 1, "workers": 1})
    for row in ("random", "pre-trained"):
        recipe = cells[f"word vectors/{row}/CoNLL-2003"].options["recipe"]
        recipe["train"] |= {"epochs": 1.0, "seeds": 1}
        recipe["head"]["network"] |= {"lstm_width": 4, "own_words": 6}
        (tmp_path / row).mkdir()
        assert "entity_f1" in ablations.task_cell(tmp_path / row, recipe=recipe)["dev"]["dev"]
    trained, given = (read_model(tmp_path / row / "run" / "model").objective for row in ("random", "pre-trained"))
    own = [
        next(p for name, p in one.named_parameters() if "own" in name and p.shape[-1] == 6) for one in (trained, given)
    ]
    table = read_model(folder / "model").objective.encoder.piece_embedding
    assert (own[1] - table).abs().mean() < 0.5 * (own[0] - table).abs().mean(), "one row began from the vectors"


def test_tables_have_the_papers_numbers(tmp_path: Path) -> None:
    header, rows = ablation_table(FACTS, "GPT")
    assert header == ["variation", "SST-2, accuracy", "paper", "MRPC, f1", "paper"]
    assert rows == [
        ["as published", "75.0 ± 1.0", "91.3", "–", "82.3"],
        ["no auxiliary loss", "–", "92", "50.0 ± 1.0", "84.9"],
    ]
    header, rows = ablation_table(FACTS, "GPT's layers")
    assert (header, rows) == (["variation", "SST-2, accuracy"], [["1 of 4 transferred", "25.0 ± 1.0"]])
    assert ablation_table(FACTS, "documents") == (
        ["variation", "SST-2, accuracy", "MRPC, f1", "SNLI, accuracy"],
        [["documents", "–", "–", "40.0 ± 1.0"]],
    )
    assert ablation_table(FACTS, "ULMFiT")[1] == []
    assert model_table(FACTS)[1] == [["GPT", "7.4 M", 1250, "10.0", "lm_loss 5.25"]]
    page = write_study_report(tmp_path, FACTS).read_text("utf-8")
    assert "Radford et al. 2018" in page and "TagLM" not in page


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of the data sets"):
        study_cells(tmp_path / "no", tmp_path, tmp_path / "out")
