"""Probes of all layers: they find what the vectors contain and nothing else; control labels are per word."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_language_models import NAMES, tiny_language_model

from firth.errors import ConfigError
from firth.finetuning.layer_probes import (
    LayerProbing,
    control_labels,
    probe_layers,
    resampled_accuracies,
)
from firth.finetuning.layer_probes_report import probe_figure

TAGS = dict(zip("abcdef", ("NOUN", "VERB", "ADJ", "ADV", "PRON", "DET"), strict=True))


def sentences(n: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    found = [[rng.choice(NAMES) for _ in range(rng.randint(2, 9))] for _ in range(n)]
    # Every fourth sentence has one of five rarer words.
    for number, words in enumerate(found[::4]):
        words[1] = f"{NAMES[7 * (number % 5)]}s"
    return found


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """A word's tag follows from its first letter."""
    folder = tmp_path / "ud"
    folder.mkdir()
    for name, n, seed in (("train.conllu", 200, 1), ("dev.conllu", 80, 2)):
        blocks = []
        for words in sentences(n, seed):
            rows = [f"{i}\t{w}\t_\t{TAGS[w[0]]}\t_\t_\t_\t_\t_\t_" for i, w in enumerate(words, start=1)]
            blocks.append("\n".join(rows) + "\n")
        (folder / name).write_text("\n".join(blocks), "utf-8")
    return folder


@pytest.fixture
def entities(tmp_path: Path) -> Path:
    """Words with an a are persons, words with a b are places; all others are outside."""
    folder = tmp_path / "conll"
    folder.mkdir()
    kinds = {"a": "B-PER", "b": "B-LOC"}
    for name, n, seed in (("train.txt", 80, 3), ("valid.txt", 40, 4)):
        blocks = ["\n".join(f"{w} X X {kinds.get(w[0], 'O')}" for w in words) for words in sentences(n, seed)]
        (folder / name).write_text("\n\n".join(blocks) + "\n", "utf-8")
    return folder


def test_every_task_is_probed_in_every_layer(treebank: Path, entities: Path, tmp_path: Path) -> None:
    models = [(name, tiny_language_model(name)) for name in ("bert", "elmo")]
    out = tmp_path / "out"
    told: list[str] = []
    data = [("ud-pos", treebank), ("conll2003", entities)]
    found = probe_layers(models, data, out, LayerProbing(words=400), tell=told.append)
    assert found == json.loads((out / "probe.json").read_text("utf-8"))
    result, other = found["models"]
    assert (result["model"], other["model"], other["layers"]) == ("bert", "elmo", 2)
    assert [task["task"] for task in other["tasks"]] == [task["task"] for task in result["tasks"]]
    tasks = {task["task"]: task for task in result["tasks"]}
    assert list(tasks) == ["ud-pos", "sentence length", "word content", "conll2003 (type of entity)"]
    pos = tasks["ud-pos"]
    # The embedding output identifies the word, among random positions, and the word determines the tag.
    assert pos["accuracy"][0] > pos["majority"] + 0.1 and pos["n_labels"] == 6 and pos["n_train"] == 400
    assert tasks["conll2003 (type of entity)"]["n_labels"] == 2
    for task in tasks.values():
        assert len(task["accuracy"]) == len(task["interval"]) == 3
        for accuracy, (low, high) in zip(task["accuracy"], task["interval"], strict=True):
            assert low <= accuracy + 1e-9 and accuracy - 1e-9 <= high
        assert (task["control"] is None) == ("sentence" in task["task"] or "content" in task["task"])
    # All word types were seen: the control task can be memorised from the embeddings as well.
    assert pos["selectivity"] == pytest.approx(np.subtract(pos["accuracy"], pos["control"]))
    assert {one["task"] for one in result["differences"]} == set(tasks) - {"ud-pos"}
    assert told == [
        "ud-pos: 200 training and 80 test sentences",
        "conll2003: 80 training and 40 test sentences",
    ]
    page = (out / "report.html").read_text("utf-8")
    assert page.count("<svg") == 1 and "<h2>bert</h2>" in page and "<h2>elmo</h2>" in page


def test_every_model_is_in_every_panel() -> None:
    pytest.importorskip("matplotlib")

    def probes(model: str, layers: int) -> dict[str, Any]:
        of = [0.5 + 0.1 * n for n in range(layers + 1)]
        task = {"accuracy": of, "interval": [[a - 0.1, a + 0.1] for a in of]}
        tasks = [{"task": "a", "control": of, **task}, {"task": "b", "control": None, **task}]
        return {"model": model, "layers": layers, "tasks": tasks[: layers - 1]}

    figure = probe_figure([probes("deep", 4), probes("flat", 2)])
    first, second = (panel for panel in figure.axes if panel.get_visible())
    lines = [(line.get_label(), line.get_linestyle(), list(line.get_xdata())) for line in first.lines]
    assert [(name, dash) for name, dash, _ in lines if not name.startswith("_")] == [("deep", "-"), ("flat", "-")]
    assert [dash for _, dash, _ in lines].count("--") == 2
    assert lines[0][2] == [0, 0.25, 0.5, 0.75, 1] and lines[2][2] == [0, 0.5, 1]
    assert len({line.get_marker() for line in first.lines}) == 2, "told apart by more than colour"
    assert [line.get_label() for line in second.lines] == ["deep"]


def test_a_control_label_belongs_to_the_word() -> None:
    labels = np.array(["x"] * 90 + ["y"] * 10)
    types = [f"w{i}" for i in range(100)]
    found = control_labels(types, labels, [*types, *types, "new"], seed=0)
    assert (found[:100] == found[100:200]).all() and set(found) <= {"x", "y"}
    shares = [np.mean(control_labels(types, labels, types, seed) == "x") for seed in range(20)]
    assert np.mean(shares) == pytest.approx(0.9, abs=0.05)
    assert len(set(shares)) > 1


def test_resamples_take_sentences_whole() -> None:
    correct = np.array([[True, True, False, False], [True, False, True, False]])
    samples = resampled_accuracies(correct, np.array([0, 0, 5, 5]), seed=0)
    assert samples.shape == (2, 1000)
    assert set(np.unique(samples[0])) == {0.0, 0.5, 1.0} and set(np.unique(samples[1])) == {0.5}
    assert samples[0].mean() == pytest.approx(0.5, abs=0.05)


def test_data_sets_of_one_kind_are_told_apart(treebank: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(treebank, other)
    data = [("ud-pos", treebank), ("ud-pos", other)]
    options = LayerProbing(sentences=20, test_sentences=10)
    result = probe_layers([("bert", tiny_language_model("bert"))], data, tmp_path / "o", options)
    (found,) = result["models"]
    names = [task["task"] for task in found["tasks"]]
    assert names[0] == f"ud-pos ({treebank.name})" and "ud-pos (other)" in names
    assert {one["against"] for one in found["differences"]} == {names[0]}
    assert "ud-pos (other)" in {one["task"] for one in found["differences"]}


def test_what_cannot_be_probed(treebank: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a data set of tags"):
        probe_layers([("bert", tiny_language_model("bert"))], [("glue/sst2", treebank)], tmp_path / "o", LayerProbing())
    with pytest.raises(ConfigError, match="--tags is missing"):
        probe_layers([("bert", tiny_language_model("bert"))], [], tmp_path / "o", LayerProbing())
    with pytest.raises(ConfigError, match="differ in hidden size"):
        awd = tiny_language_model("awd-lstm")
        probe_layers([("awd", awd)], [("ud-pos", treebank)], tmp_path / "o", LayerProbing())
    with pytest.raises(ConfigError, match="bert is given twice"):
        probe_layers(
            [("bert", tiny_language_model("bert"))] * 2, [("ud-pos", treebank)], tmp_path / "o", LayerProbing()
        )
    with pytest.raises(ConfigError, match=rf"--tags ud-pos \({treebank.name}\) is given twice"):
        probe_layers(
            [("bert", tiny_language_model("bert"))], [("ud-pos", treebank)] * 2, tmp_path / "o", LayerProbing()
        )
    assert not (tmp_path / "o").exists()
