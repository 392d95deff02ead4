"""The unknown-word study: every rule on tiny vectors and texts, its cells and its tables."""

import lzma
from pathlib import Path

import pytest

from firth.errors import ConfigError
from firth.finetuning import runs as job
from firth.finetuning.recipe import build, plain_recipe
from firth.folder import read_model
from firth.studies.unknown_words import RULES, VECTORS, rule_cell, rule_cells, study_cells, vector_cell, vector_cells
from firth.studies.unknown_words_report import rule_table, vector_table, write_study_report

pytest.importorskip("gensim", reason="gensim (extra: vectors) is not here")

FACTS = {
    "vectors/word2vec": {"words": 5000, "training": {"width": 100, "epochs": 2}},
    "rules/one vector": {
        "known_words": 0.75,
        "metric": "entity_f1",
        "seconds_a_run": 9.6,
        "dev": {"dev": {"entity_f1": {"mean": 0.5, "sd": 0.01, "values": [0.5]}}},
    },
}


@pytest.fixture
def data(tmp_path: Path, tiny_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")
    place = tmp_path / "data"
    for folder in ("en-wiki", "conll2003"):
        (place / folder).mkdir(parents=True)
    (place / "en-wiki" / "train.txt.xz").write_bytes(lzma.compress(tiny_text.read_bytes()))
    sentences = [f"The DT B-NP O\nqueen NN I-NP O\nsaw{i} VB B-VP O\nAnn NNP B-NP I-PER\n" for i in range(30)]
    begin = "-DOCSTART- -X- O O\n\n"
    text = "\n".join(begin * (i % 5 == 0) + sentence for i, sentence in enumerate(sentences))
    for file in ("eng.train", "eng.testa"):
        (place / "conll2003" / file).write_text(text, "utf-8")
    return place


def test_cells_have_sound_recipes_and_rules(tmp_path: Path) -> None:
    cells = rule_cells(tmp_path, tmp_path / "out")
    assert len(cells) == len(RULES) == len({cell.name for cell in cells})
    for cell in cells:
        assert cell.options["options"]["vectors"] in VECTORS
        plain = plain_recipe(cell.options["recipe"] | {"model": "x/"}, [], "test")
        build({"kind": "tag", "metric": "x", **plain, "head": {"labels": ["a", "b"]} | plain["head"]}, cell.name)


@pytest.mark.parametrize(
    "names", [("one for each shape", "pre-trained, then at random"), ("fastText, then its n-grams",)]
)
def test_rules_are_laid_over_the_vectors(data: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    kind = RULES[names[0]].vectors
    (cell,) = (cell for cell in vector_cells(data) if cell.name.endswith(kind))
    cell.options["training"].update({"width": 6, "epochs": 1, **({"n_buckets": 30} if kind == "fasttext" else {})})
    facts = vector_cell(tmp_path, **cell.options)
    assert facts["words"] > 30 and facts["training"]["width"] == 6
    assert vector_cell(tmp_path, **cell.options) == facts, "what is there is not trained again"
    for number, name in enumerate(names):
        (rule,) = (cell for cell in rule_cells(data, tmp_path) if cell.options["rule"] == name)
        recipe = rule.options["recipe"]
        recipe["train"] |= {"epochs": 1.0}
        recipe["head"]["network"] |= {"lstm_width": 4}
        (tmp_path / str(number)).mkdir()
        found = rule_cell(tmp_path / str(number), **(rule.options | {"vectors": str(tmp_path / "model")}))
        assert 0 < found["known_words"] < 1
        assert set(found["dev"]["dev"]) >= {"entity_f1"}
        words = read_model(tmp_path / str(number) / "model").tokenizer.pieces
        assert ("river" in words) is RULES[name].known, "river is in no sentence that the tagger learns on"


def test_tables_show_what_is_done(tmp_path: Path) -> None:
    assert rule_table(FACTS)[1] == [["one vector", "75.0", "50.0", 10]]
    assert vector_table(FACTS)[1] == [["word2vec", 5000, 100, 2]]
    pytest.importorskip("matplotlib")
    assert "one vector" in write_study_report(tmp_path, FACTS).read_text("utf-8")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder of the data sets"):
        study_cells(tmp_path / "no", tmp_path, tmp_path / "out")
