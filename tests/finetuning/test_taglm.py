"""TagLM over a tiny bidirectional language model: head presets by name, initial word vectors, end-to-end pipeline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from network_options import network_of

from firth.config import read_json, read_toml, to_dict
from firth.errors import CheckpointError, ConfigError
from firth.finetuning import runs as job
from firth.finetuning.base import find_vectors, make_model
from firth.finetuning.finetune import resume, run_resolved
from firth.finetuning.resolve import check_own, resolve
from firth.folder import PRETRAINING, read_model, write_model
from firth.head_presets import HEADS
from firth.inference.model import load_model
from firth.models.bilm import Bilm
from firth.models.config import BilmConfig
from firth.objectives.bilm import BilmLM
from firth.objectives.config import BilmLMConfig
from firth.systems import SYSTEMS
from firth.tasks.model import TaskModel
from firth.tasks.table import TASKS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.vectors.folder import convert_vectors

QUIET: Callable[[str], None] = lambda text: None  # noqa: E731  # reports nothing
KNOWN = ["walked", "to", "Alton", "river", "Bolton", "farmer", "Hilton", "market"]
TOWNS = ["Alton", "Bolton", "Carlton", "Felton", "Hilton"]
SIZES = {"width": 4, "cells": 6, "character_width": 3, "filters": ((1, 4), (3, 4)), "n_highways": 0}
# The presets have the paper's sizes, which are too slow for a test.
SMALL = [
    "head.network.lstm_width=8",
    "head.network.own_words=3",
    "train.precision=float32",
    "train.batch_examples=4",
    "train.epochs=2",
    "data.held_out=0.2",
    "train.evaluations_per_epoch=1",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of an untrained language model."""
    folder = tmp_path_factory.mktemp("bilm")
    tokenizer = SYSTEMS["elmo"].reads(Tokenizer.from_words([*WORDS.specials, *KNOWN], lowercase=False))
    torch.manual_seed(0)
    encoder = Bilm(BilmConfig(vocab_size=tokenizer.size, **SIZES))
    write_model(folder, "elmo", PRETRAINING, BilmLM(encoder, BilmLMConfig()), tokenizer, {})
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagged")
    names = ["farmer O\n{} B-LOC\nriver I-LOC\nwalked O\n", "to O\n{} B-LOC\n. O\n"]
    lines = "\n".join(names[i % 2].format(TOWNS[i % 5]) for i in range(20))
    (folder / "t.conll").write_text(lines)
    (folder / "pos.conll").write_text("\n".join(f"farmer{i} NOUN\nwalked VERB\n" for i in range(4)))
    vectors = "".join(f"{word} {i}.5 {-i} 0.25\n" for i, word in enumerate(["the", "alton", "walked", "to", "Hilton"]))
    (folder / "v.txt").write_text(vectors)
    return folder


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here; the report has tests of its own."""
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")


@pytest.fixture
def plain(base: Path, data: Path) -> dict[str, Any]:
    files = {"train": str(data / "t.conll"), "format": "conll"}
    return {"task": "tag", "model": f"{base}/", "head_preset": "taglm", "data": files}


# -- head presets --------------------------------------------------------------------------------------------


def test_taglm_is_the_papers_tagger_of_names(plain: dict[str, Any]) -> None:
    """Peters et al. 2017, §3.2."""
    recipe, _, _ = resolve(plain, [], "test")
    features = recipe.head.network
    assert (features.layers, features.mix, features.join) == ((-1,), "one", "first")
    assert (features.cell, features.lstm_layers, features.lstm_width) == ("gru", 2, 300)
    assert (features.own_words, features.own_characters) == (50, "gru")
    assert (features.dropout, features.output_dropout) == (0.25, False)
    assert (recipe.head.crf, recipe.head.scheme, recipe.adapt.frozen_groups) == (True, "BIOES", -1)
    assert recipe.head.labels == ("O", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    assert (recipe.optim.kind, recipe.optim.learning_rate, recipe.optim.clip_norm) == ("adamw", 1e-3, 5.0)
    assert (recipe.optim.schedule, recipe.optim.plateau_factor, recipe.optim.plateau_patience) == ("constant", 0.1, 5)
    assert (recipe.optim.min_learning_rate, recipe.train.evaluations_per_epoch) == (1e-5, 1)


@pytest.mark.parametrize("name", sorted(HEADS))
def test_every_design_is_known_to_its_kinds_and_to_no_other(name: str, plain: dict[str, Any]) -> None:
    assert set(HEADS[name].tasks) <= set(TASKS) and HEADS[name].tasks
    if "tag" in HEADS[name].tasks:
        assert resolve(plain | {"head_preset": name}, [], "test")[0].head_preset == name
    else:
        with pytest.raises(ConfigError, match=f"head_preset='{name}' is for .*, not for a task of kind tag"):
            resolve(plain | {"head_preset": name}, [], "test")


def test_a_design_goes_over_the_systems_settings_and_below_what_is_said(plain: dict[str, Any]) -> None:
    said = ["head.network.dropout=0.1", "optim.learning_rate=0.5", "head.scheme=BIO", "adapt.frozen_groups=0"]
    recipe, _, _ = resolve(plain, said, "test")
    assert (recipe.head.network.dropout, recipe.optim.learning_rate, recipe.head.scheme) == (0.1, 0.5, "BIO")
    assert recipe.adapt.frozen_groups == 0 and recipe.head.network.join == "first"
    # The system's default is 0.5.
    assert resolve(plain, [], "test")[0].head.network.dropout == 0.25


def test_a_resolved_design_stays_as_it_is(plain: dict[str, Any]) -> None:
    recipe, _, _ = resolve(plain, SMALL, "test")
    assert resolve(to_dict(recipe), [], "test")[0] == recipe


def test_tags_that_are_of_no_entities_stay_plain(plain: dict[str, Any], data: Path) -> None:
    plain["data"] = {"train": str(data / "pos.conll"), "format": "conll"}
    recipe, _, _ = resolve(plain, [], "test")
    assert (recipe.head.scheme, recipe.head.labels) == ("plain", ("NOUN", "VERB"))


def test_a_design_that_goes_by_scores_wants_more_than_one(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="during training: train.evaluations_per_epoch=0 has one, at the end"):
        resolve(plain, ["train.evaluations_per_epoch=0"], "test")
    with pytest.raises(ConfigError, match=r"min_learning_rate=1e-05: must not exceed optim.learning_rate=5e-06"):
        resolve(plain, ["optim.learning_rate=5e-6"], "test")


def test_unknown_designs_are_named(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"head_preset='tagml': known are taglm, elmo, bilstm-crf"):
        resolve(plain | {"head_preset": "tagml"}, [], "test")
    with pytest.raises(ConfigError, match="head_preset='taglm' is for tag, not for a task of kind classify"):
        resolve(plain | {"task": "classify"}, [], "test")


def test_characters_need_a_system_that_has_them(base: Path) -> None:
    tokenizer = read_model(base).tokenizer
    with pytest.raises(ConfigError, match=r"'gru': tokens of bert have no characters; set it to none, .*elmo"):
        check_own(network_of(own_characters="gru"), "bert", tokenizer)
    check_own(network_of(own_words=3), "bert", tokenizer)


def test_words_need_a_vocabulary(plain: dict[str, Any], base: Path, tmp_path: Path) -> None:
    tokenizer = SYSTEMS["elmo"].reads(Tokenizer.from_words(WORDS.specials, lowercase=False))
    encoder = Bilm(BilmConfig(vocab_size=tokenizer.size, **SIZES))
    write_model(tmp_path, "elmo", PRETRAINING, BilmLM(encoder, BilmLMConfig()), tokenizer, {})
    with pytest.raises(ConfigError, match="own_words=50: the model has no vocabulary.*--vocab FILE"):
        resolve(plain | {"model": f"{tmp_path}/"}, [], "test")


# -- initial word vectors ------------------------------------------------------------------------------------


def test_words_begin_with_their_vectors_and_the_others_as_without(
    plain: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    recipe, base, _ = resolve(plain, [*SMALL, f"adapt.vectors={data / 'v.txt'}"], "test")
    pieces = base.tokenizer.pieces
    convert_vectors(data / "v.txt", tmp_path / "vectors")
    for path in (data / "v.txt", tmp_path / "vectors"):
        found = find_vectors(str(path), base.tokenizer, 3)
        assert found.told == f"{path}: vectors for 4 of the vocabulary's 8 words (1 by their lower case)"
        with_vectors = make_model(base, recipe, 1, found).features.own.words.weight
        plain_ones = make_model(base, recipe, 1).features.own.words.weight
        line = {"Alton": 1, "walked": 2, "to": 3, "Hilton": 4}
        for number, piece in enumerate(pieces):
            i = line.get(piece)
            wanted = plain_ones[number] if i is None else torch.tensor([i + 0.5, -i, 0.25])
            assert torch.equal(with_vectors[number], wanted), piece


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["head.network.own_words=5"], "vectors of width 3, but head.network.own_words=5: set it to 3"),
        (["head.network.own_words=0"], "requires the head's own words: set head.network.own_words to their width"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    plain: dict[str, Any], data: Path, tmp_path: Path, settings: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run_resolved(resolve(plain, [*SMALL, f"adapt.vectors={data / 'v.txt'}", *settings], "test"), tmp_path / "out")
    assert not (tmp_path / "out" / "recipe.toml").exists()


def test_words_with_capitals_stand_for_those_of_a_lower_cased_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Paris 1 2\nPARIS 3 4\nThe 5 6\nthe 7 8\n")
    tokenizer = Tokenizer.from_words([*WORDS.specials, "the", "paris", "oslo"], lowercase=True)
    found = find_vectors(str(tmp_path / "v.txt"), tokenizer, 2)
    rows = dict(zip(found.numbers.tolist(), found.rows.tolist(), strict=True))
    assert rows == {4: [7.0, 8.0], 5: [1.0, 2.0]}
    assert found.told.endswith("vectors for 2 of the vocabulary's 3 words")


def test_vectors_of_other_words_are_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("Fluss 1 2\nMarkt 3 4\n")
    with pytest.raises(ConfigError, match="has no vector for any of the 8 words"):
        find_vectors(str(tmp_path / "v.txt"), read_model(base).tokenizer, 2)


# -- end-to-end pipeline -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["taglm", "elmo", "bilstm-crf"])
def test_a_tagger_learns_and_the_language_model_stays(
    name: str, plain: dict[str, Any], base: Path, data: Path, tmp_path: Path
) -> None:
    vectors = f"adapt.vectors={data / 'v.txt'}"
    settings = [*SMALL, "train.epochs=12", "optim.learning_rate=0.02", vectors]
    heard: list[str] = []
    run_resolved(resolve(plain | {"head_preset": name}, settings, "test"), tmp_path / "out", tell=heard.append)
    assert any("vectors for 4 of the vocabulary's 8 words" in line for line in heard)
    assert read_toml(tmp_path / "out" / "recipe.toml")["head_preset"] == name
    results = read_json(tmp_path / "out" / "results.json")
    assert results["held_out"]["entity_f1"]["mean"] == 1
    before, after = read_model(base).objective, read_model(tmp_path / "out").objective
    assert isinstance(after, TaskModel)
    kept = after.encoder.state_dict()
    assert all(torch.equal(tensor, kept[n]) for n, tensor in before.encoder.state_dict().items())
    # Felton is in no vocabulary: its characters reveal the tag.
    (entity,) = load_model(tmp_path / "out").predict("to Felton .").entities
    assert (entity.label, entity.text) == ("LOC", "Felton")


def test_changed_word_vectors_are_refused(plain: dict[str, Any], data: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "v.txt", tmp_path / "out"
    text = (data / "v.txt").read_text("utf-8")
    file.write_text(text, "utf-8")
    run_resolved(resolve(plain, [*SMALL, "train.epochs=0.5", f"adapt.vectors={file}"], "test"), out, tell=QUIET)
    file.write_text(text.replace("0.25", "0.75"), "utf-8")
    with pytest.raises(CheckpointError, match="out: the word vectors changed since the run began: start a new one"):
        resume(out, tell=QUIET)


def test_a_stopped_run_goes_on_with_what_it_began_with(
    plain: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL, "train.epochs=1", f"adapt.vectors={data / 'v.txt'}"]
    whole = run_resolved(resolve(plain, [*settings, "train.seeds=2"], "test"), tmp_path / "whole", tell=QUIET)
    real, calls = job.tune, []

    def stop_at_the_second(run: Any, folder: Path, *others: Any) -> Any:
        calls.append(folder)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(run, folder, *others)

    monkeypatch.setattr(job, "tune", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run_resolved(resolve(plain, [*settings, "train.seeds=2"], "test"), tmp_path / "out", tell=QUIET)
    monkeypatch.setattr(job, "tune", real)
    again = resume(tmp_path / "out", tell=QUIET)
    assert again.results["model"] == whole.results["model"]
