"""Probes of all layers: what is in the vectors is found, what is not is not, and control labels are per word."""

import json
import random
from pathlib import Path

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

TAGS = dict(zip("abcdef", ("NOUN", "VERB", "ADJ", "ADV", "PRON", "DET"), strict=True))


def sentences(n: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    found = [[rng.choice(NAMES) for _ in range(rng.randint(2, 9))] for _ in range(n)]
    # In every fourth sentence one of five rarer words.
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
    """Words with a are persons, with b places; all others are outside."""
    folder = tmp_path / "conll"
    folder.mkdir()
    kinds = {"a": "B-PER", "b": "B-LOC"}
    for name, n, seed in (("train.txt", 80, 3), ("valid.txt", 40, 4)):
        blocks = ["\n".join(f"{w} X X {kinds.get(w[0], 'O')}" for w in words) for words in sentences(n, seed)]
        (folder / name).write_text("\n\n".join(blocks) + "\n", "utf-8")
    return folder


def test_every_task_is_probed_in_every_layer(treebank: Path, entities: Path, tmp_path: Path) -> None:
    made = tiny_language_model("bert")
    out = tmp_path / "out"
    told: list[str] = []
    data = [("ud-pos", treebank), ("conll2003", entities)]
    result = probe_layers(made, data, out, LayerProbing(words=400), tell=told.append)
    tasks = {task["task"]: task for task in result["tasks"]}
    assert list(tasks) == ["ud-pos", "sentence length", "word content", "conll2003 (type of entity)"]
    assert result == json.loads((out / "probe.json").read_text("utf-8"))
    pos = tasks["ud-pos"]
    # The embedding output has the word, among random positions, and the word has the tag.
    assert pos["accuracy"][0] > pos["majority"] + 0.1 and pos["n_labels"] == 6 and pos["n_train"] == 400
    assert tasks["conll2003 (type of entity)"]["n_labels"] == 2
    for task in tasks.values():
        assert len(task["accuracy"]) == len(task["interval"]) == 3
        for accuracy, (low, high) in zip(task["accuracy"], task["interval"], strict=True):
            assert low <= accuracy + 1e-9 and accuracy - 1e-9 <= high
        assert (task["control"] is None) == ("sentence" in task["task"] or "content" in task["task"])
    # All types were seen: the control task can be memorised from the embeddings as well.
    assert pos["selectivity"] == pytest.approx(np.subtract(pos["accuracy"], pos["control"]))
    assert {one["task"] for one in result["differences"]} == set(tasks) - {"ud-pos"}
    assert told == [
        "ud-pos: 200 training and 80 test sentences",
        "conll2003: 80 training and 40 test sentences",
    ]


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


def test_what_cannot_be_probed(treebank: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a data set of tags"):
        probe_layers(tiny_language_model("bert"), [("glue/sst2", treebank)], tmp_path / "o", LayerProbing())
    with pytest.raises(ConfigError, match="--tags is missing"):
        probe_layers(tiny_language_model("bert"), [], tmp_path / "o", LayerProbing())
    with pytest.raises(ConfigError, match="differ in hidden size"):
        probe_layers(tiny_language_model("awd-lstm"), [("ud-pos", treebank)], tmp_path / "o", LayerProbing())
    assert not (tmp_path / "o").exists()
