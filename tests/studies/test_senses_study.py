"""The word-sense study: its labels on synthetic articles, every cell on a tiny model, its tables and its figure."""

import json
import lzma
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.errors import ConfigError, InputError
from firth.folder import PRETRAINING, write_model
from firth.studies import senses
from firth.studies.senses import CUES, PICTURED, LabelledOccurrence, SenseRules, ambiguous_words, labelled, points
from firth.studies.senses_report import (
    ONE_VECTOR,
    accuracy_table,
    sense_figure,
    word_table,
    write_study_report,
)
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS

TWO = {name: cues for name, cues in CUES.items() if name.split("/")[0] in PICTURED}
N_ARTICLES = 8
# For each sense: a sentence without cues, and three cues, which each article has twice.
ARTICLES = {
    "bank/money": ("In that year the {} paid its clients back every penny.", "A loan, a deposit and the currency. "),
    "bank/river": ("Reeds and willows grow on the {} near the old mill.", "A river, a tributary and the estuary. "),
    "plant/factory": (
        "Hundreds of people were hired when the {} was opened.",
        "A reactor, a turbine and the factory. ",
    ),
    "plant/organism": ("Every summer the {} opens its white petals at dawn.", "A leaf, the seed and its pollen. "),
}


def article(name: str, title: str, *, more: str = "") -> str:
    sentence, cues = ARTICLES[name]
    return f"{title}\n{sentence.format(name.split('/')[0])}\n{2 * cues}{more}"


def found_in(text: str) -> list[tuple[str, str]]:
    return [(one.word, one.sense) for one in labelled(text.split("\n"), TWO, SenseRules())]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Articles of every sense, one sense twice as often, where the study finds them in the data folder."""
    names = [name for name in ARTICLES for _ in range(N_ARTICLES * (1 + (name == "bank/money")))]
    articles = [article(name, f"Article {i}") for i, name in enumerate(names)]
    file = tmp_path / "data" / "en-wiki-large" / "train.txt.xz"
    file.parent.mkdir(parents=True)
    file.write_bytes(lzma.compress("\n\n".join(articles).encode()))
    return file


def test_the_table_has_two_senses_a_word_and_no_cue_of_both() -> None:
    for word in ambiguous_words(CUES):
        one, other = (set(cues.split()) for name, cues in CUES.items() if name.startswith(f"{word}/"))
        assert len(one) > SenseRules().kinds < len(other)
        assert not one & other and word not in one | other
    assert len(ambiguous_words(CUES)) >= 10


@pytest.mark.parametrize("name", ARTICLES)
def test_cues_outside_the_sentence_tell_the_sense(name: str) -> None:
    assert found_in(article(name, "Title")) == [tuple(name.split("/"))]
    sentence, cues = ARTICLES[name]
    word = name.split("/")[0]
    inside = sentence.format(word).rstrip(".") + ": " + 2 * cues.replace(". ", ", ")
    assert not found_in(f"Title\n{inside}."), "cues of the sentence itself do not count"


def test_what_is_not_clear_is_left_out() -> None:
    assert not found_in(article("bank/money", "Both", more=ARTICLES["bank/river"][1]))
    assert not found_in(article("bank/money", "Rare cues", more="Other words of a long article. " * 400))
    assert not found_in(article("bank/money", "A verb").replace("the bank", "could bank"))
    assert not found_in(article("bank/money", "Twice").replace("its clients", "the other bank"))
    assert not found_in(article("bank/money", "A name").replace("the bank", "the Bank"))
    first, *_ = labelled(article("bank/money", "Bank").split("\n"), TWO, SenseRules())
    assert first.text[first.start :].startswith("bank paid") and first.title == "Bank"


def untrained(folder: Path, system_name: str, tokenizer: Tokenizer, **sizes: Any) -> None:
    """Write a randomly initialised model."""
    system = SYSTEMS[system_name]
    torch.manual_seed(0)
    config = system.config(vocab_size=tokenizer.size, width=16, n_layers=2, **sizes)
    folder.mkdir()
    objective = system.objective(system.encoder(config), system.objective_config())
    write_model(folder, system_name, PRETRAINING, objective, tokenizer, {})


def test_every_cell_on_tiny_models(
    text: Path, tiny_run: Path, tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gensim", reason="gensim (extra: vectors) is not here")
    monkeypatch.setattr(senses, "CUES", TWO)
    monkeypatch.setattr(senses, "VECTORS", {"width": 6, "epochs": 1, "lowercase": True, "workers": 1})
    models, out, told = tmp_path / "models", tmp_path / "out", list[str]()
    models.mkdir()
    words = SYSTEMS["elmo"].reads(Tokenizer.from_words([*WORDS.specials, "the"], lowercase=False))
    untrained(models / "elmo", "elmo", words, cells=12, character_width=4, filters=((1, 8), (2, 8)))
    cells = senses.sense_cells(text, models, out, told.append)
    assert [line for line in told if "gpt: no such folder" in line] == told and len(told) == 1
    # Fewer positions than the longest sentences need, so those are read in windows.
    untrained(models / "gpt", "gpt", Tokenizer.load(tiny_vocab), n_heads=2, max_positions=24)
    cells = senses.sense_cells(text, models, out, told.append)
    assert len(told) == 1 and {cell.name for cell in cells} >= {f"scores/{name}" for name in senses.MODELS}
    facts = {}
    for cell in cells:
        folder = out / "cells" / cell.name
        folder.mkdir(parents=True)
        shipped = {"model": str(tiny_run / "model")} if cell.name.endswith(senses.SHIPPED) else {}
        facts[cell.name] = json.loads(json.dumps(cell.work(folder, **(cell.options | shipped))))
    assert facts["occurrences"]["counts"] == {"bank": N_ARTICLES, "plant": N_ARTICLES}
    assert facts["occurrences"]["found"]["bank/money"] == 2 * N_ARTICLES
    ones = senses.read_occurrences(str(out / "cells" / "occurrences" / senses.OCCURRENCES))
    assert len(ones) == len({one.title for one in ones}) == 4 * N_ARTICLES
    scores = facts["scores/baselines"]["accuracy"]
    # All sentences of a sense are the same, so their words alone identify it.
    assert scores[senses.TFIDF] == scores[senses.MEAN] == {"bank": 1.0, "plant": 1.0}
    for name in senses.MODELS:
        assert facts[f"scores/{name}"]["accuracy"]["layer 2"] == {"bank": 1.0, "plant": 1.0}
        assert len(facts[f"scores/{name}"]["points"]["bank"]["river"]["x"]) == N_ARTICLES
    # ELMo's characters say nothing about the sentence; GPT's embeddings know the word's position in it.
    assert facts["scores/ELMo"]["accuracy"]["layer 0"]["bank"] < 1 == facts["scores/GPT"]["accuracy"]["layer 0"]["bank"]

    header, rows = accuracy_table(facts)
    assert rows[0] == [ONE_VECTOR, "50.0", None, "-50.0", "-50.0 – -50.0"]
    assert rows[1][1:] == ["100.0", "100.0 – 100.0", "+0.0", None]
    assert len(header) == 5 and len(rows) == 1 + 3 + 3 * len(senses.MODELS)
    header, rows = word_table(facts)
    assert rows[0][:3] == ["bank", "money, river", N_ARTICLES]
    assert len(header) == len(rows[0]) == 3 + 3 + len(senses.MODELS)
    pytest.importorskip("matplotlib")
    page = write_study_report(out, facts).read_text("utf-8")
    assert senses.MEAN in page and "svg" in page
    drawn = sense_figure(facts).axes
    titles = [axes.get_title(loc="left") for axes in drawn]
    assert titles[:3] == [
        "bank: word2vec, 50%",
        "plant: word2vec, 50%",
        f"bank: ELMo, {facts['scores/ELMo']['best']}, 100%",
    ]
    assert [title.split(": ")[1].split(",")[0] for title in titles[2::2]] == list(senses.MODELS)
    assert "b  river: willows grow on the bank near the old mill." in drawn[2].get_xlabel()
    assert {"every occurrence", "a"} < {each.get_text() for axes in drawn for each in axes.texts}


def test_too_few_occurrences_are_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only 0 clear occurrences of a sense of 'band'"):
        senses.occurrence_cell(tmp_path, text=str(text), cues=CUES, rules={})


def test_occurrences_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Even with characters at which ``str.splitlines`` splits."""
    one = LabelledOccurrence("bank", "money", "A title", "The bank\u2028\x85 pays.", 4)
    (tmp_path / "occurrences.jsonl").write_text(json.dumps(asdict(one), ensure_ascii=False) + "\n", "utf-8")
    assert senses.read_occurrences(str(tmp_path / "occurrences.jsonl")) == [one]


def test_points_lie_apart_as_the_vectors_do() -> None:
    ones = [LabelledOccurrence("bank", "ab"[i % 2], str(i), f"on the bank of {i}", 7) for i in range(6)]
    x = np.array([[1.0, 0.0, 0.1 * i] if i % 2 else [0.0, 1.0, 0.1 * i] for i in range(6)])
    found = points(ones, x, "bank")
    assert min(found["a"]["x"]) > max(found["b"]["x"]) or max(found["a"]["x"]) < min(found["b"]["x"])
    assert list(found["a"]["labels"])[0] == "on the bank of 2", "the middle one"
    assert list(found["a"]["labels"].values())[1] in (0, 2), "an outer one"


def test_an_empty_study_has_an_empty_table(tmp_path: Path) -> None:
    assert accuracy_table({})[1] == word_table({})[1] == []
    with pytest.raises(ConfigError, match="the folder of the data sets"):
        senses.study_cells(tmp_path / "no", tmp_path, tmp_path / "out")
