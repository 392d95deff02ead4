"""Probing: every way to read the layers is tried on a frozen encoder that runs once, and the best is reported."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_language_models import tiny_language_model

from firth.cli import main
from firth.errors import ConfigError
from firth.finetuning import features
from firth.finetuning.probe import probe, readings
from firth.folder import write_model

SETTINGS = ["train.precision=float32", "train.epochs=2", "train.batch_examples=4"]


@pytest.fixture
def plain(tiny_run: Path, tmp_path: Path) -> dict[str, Any]:
    """Words that determine their tag: a probe of any layer must find it."""
    words = {"NOUN": ["river", "queen", "mill", "baker"], "VERB": ["walked", "wrote", "waited", "painted"]}
    lines = []
    for i in range(24):
        for tag in ("NOUN", "VERB") if i % 2 else ("VERB", "NOUN"):
            lines.append(f"{words[tag][i % 4]}{' ' if i % 3 else chr(9)}{tag}")
        lines.append(f"s{i} X\n")
    file = tmp_path / "t.conll"
    file.write_text("\n".join(lines).replace("\t", " "), "utf-8")
    return {"task": "tag", "model": str(tiny_run), "data": {"train": str(file), "dev": str(file)}}


def test_readings_are_every_layer_alone_and_their_mixes() -> None:
    names = [reading.name for reading in readings([8] * 13)]
    assert len(names) == 13 + 4 and len(set(names)) == len(names)
    assert "last four concatenated" in names and "last four concatenated" not in [r.name for r in readings([8] * 5)]
    assert readings([8] * 13)[0].features["layers"] == list(range(13)), "the first one needs all layers"
    assert {r.features["mix"] for r in readings([4, 8, 4])} == {"one", "concat"}, "layers of unequal widths"


def test_a_probe_compares_all_readings_and_reads_the_text_once(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = []
    fill = features._fill
    monkeypatch.setattr(
        features,
        "_fill",
        lambda place, model, rows, kind, names, *rest: (
            filled.append(list(names)),
            fill(place, model, rows, kind, names, *rest),
        ),
    )
    out = tmp_path / "probe"
    result = probe(plain, SETTINGS, "test", out, tell=lambda text: None)
    assert filled == [[0, 1, 2]]
    assert set(result["readings"]) == {r.name for r in readings([8] * 3)}
    assert result["readings"][result["best"]]["held_out"]["mean"] == max(
        row["held_out"]["mean"] for row in result["readings"].values()
    )
    assert len(result["readings"]["scalar mix of all"]["mix"]) == 3
    assert all("dev" in row for row in result["readings"].values())
    assert json.loads((out / "probe.json").read_text("utf-8")) == result
    assert not (out / "runs").exists() and not (out / "features").exists()


def test_dev_is_scored_with_the_threshold_of_the_held_out_examples(tiny_run: Path, tmp_path: Path) -> None:
    """With one of eight labels per text, each label is improbable: none would exceed 0.5."""
    file = tmp_path / "t.tsv"
    words = ("river", "queen", "mill", "baker", "winter", "market", "farmer", "house")
    lines = [f"the {word} {n}\t{word[0]}" for n in range(5) for word in words]
    file.write_text("\n".join(["text\tlabel", *lines]) + "\n", "utf-8")
    plain = {"task": "multilabel", "model": str(tiny_run), "data": {"train": str(file), "dev": str(file)}}
    settings = ["train.precision=float32", "train.epochs=8", "optim.learning_rate=1e-3"]
    found = probe(plain, settings, "test", tmp_path / "probe", tell=lambda text: None)
    assert all(row["dev"]["mean"] > 0 for row in found["readings"].values())


def test_what_contradicts_probing_is_refused(plain: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave out --grid"):
        probe(plain, [*SETTINGS, 'grid=["optim.learning_rate=1e-3,2e-3"]'], "test", tmp_path / "a", tell=print)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").touch()
    with pytest.raises(ConfigError, match="exists already"):
        probe(plain, SETTINGS, "test", tmp_path / "b", tell=print)


def test_pairs_are_probed_with_a_linear_head(tiny_run: Path, tmp_path: Path) -> None:
    """By default a small encoder would read them separately, with a nonlinear head."""
    file = tmp_path / "t.tsv"
    words = ("river", "queen", "mill", "baker")
    lines = [f"the {a}\tthe {b}\t{'same' if a == b else 'other'}" for _ in range(3) for a in words for b in words]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    data = {"train": str(file), "columns": "text=0,second=1,label=2", "header": "no"}
    plain = {"task": "classify", "model": str(tiny_run), "data": data}
    found = probe(plain, SETTINGS, "test", tmp_path / "probe", tell=lambda text: None)
    assert set(found["readings"]) == {r.name for r in readings([8] * 3)}
    part = [*SETTINGS, "head.network.dropout=0.2"]
    assert (
        probe(plain, part, "test", tmp_path / "part", tell=lambda text: None)["readings"].keys()
        == found["readings"].keys()
    )
    with pytest.raises(ConfigError, match="always uses a linear head"):
        probe(plain, ["head_preset=towers", *SETTINGS], "test", tmp_path / "towers", tell=lambda text: None)


def test_the_verb_prints_a_table_and_what_to_do_with_it(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plain["data"]["train"]
    out = tmp_path / "probe"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    code = main(["probe", "--task", "tag", "--model", plain["model"], "--train", file, "--out", str(out), *settings])
    printed = capsys.readouterr().out
    assert code == 0 and "layer 2 (top)" in printed and " best" in printed
    assert "--set adapt.frozen_groups=-1 " in printed and "--set 'head.network.layers=[" in printed
    assert (out / "report.html").is_file()


def test_a_probe_that_was_stopped_leaves_nothing_and_is_begun_again(plain: dict[str, Any], tmp_path: Path) -> None:
    def stop(text: str) -> None:
        if text.startswith("reading 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(plain, SETTINGS, "test", tmp_path / "out", tell=stop)
    assert not (tmp_path / "out").exists()
    assert probe(plain, SETTINGS, "test", tmp_path / "out", tell=lambda text: None)["best"]


def test_layers_of_unequal_widths_are_probed_apart_and_concatenated(plain: dict[str, Any], tmp_path: Path) -> None:
    loaded = tiny_language_model("awd-lstm").loaded
    model = tmp_path / "awd"
    model.mkdir()
    write_model(model, loaded.system_name, loaded.task, loaded.objective, loaded.tokenizer, loaded.provenance)
    file = tmp_path / "names.conll"
    file.write_text("\n\n".join(f"a{i % 6} NOUN\nb{i % 5} VERB" for i in range(24)) + "\n", "utf-8")
    data = {"train": str(file), "dev": str(file)}
    recipe = plain | {"model": str(model), "data": data}
    result = probe(recipe, SETTINGS, "test", tmp_path / "out", tell=lambda text: None)
    assert "all concatenated" in result["readings"] and "sum of all" not in result["readings"]
