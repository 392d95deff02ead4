"""The folder of a baseline: it reads back as written, and is refused if damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import firth
from firth.baseline.config import CommonestTagConfig, GramConfig
from firth.baseline.fit import fit_tfidf
from firth.baseline.folder import find_baseline, read_baseline, write_baseline
from firth.baseline.model import Baseline
from firth.baseline.tags import fit_commonest_tag
from firth.errors import CheckpointError, ConfigError, InputError
from firth.files import make_folder
from firth.tasks.scoring import score_labels, score_values
from firth.text.records import Tagged, Text

TEXTS = [Text(f"{word} the {thing}", label) for word, label in (("open", "in"), ("send", "out")) for thing in "abcdef"]
PAIRS = [Text(f"{a} {b}", float(a == b), second=b) for a in "abcdef" for b in "abcdef"]
TAGGED = [Tagged("a b", ((0, 1), (2, 3)), ("X", "Y")), Tagged("b a", ((0, 1), (2, 3)), ("Y", "X"))]
GRAMS = (GramConfig(words=1, longest=2),)


def classifier() -> Baseline:
    found = fit_tfidf(
        "classify", ("in", "out"), TEXTS, [], lambda r, a: score_labels(r, a, ("in", "out"))["accuracy"], grams=GRAMS
    )
    return Baseline(found.model, {"recipe": {"task": "classify"}})


def regressor() -> Baseline:
    found = fit_tfidf("regress", (), PAIRS, [], lambda r, a: score_values(r, a, ())["pearson"], grams=GRAMS)
    return Baseline(found.model)


def tagger() -> Baseline:
    return Baseline(fit_commonest_tag(TAGGED, CommonestTagConfig(labels=("X", "Y"), scheme="plain")))


ITEMS: dict[str, tuple[Any, list[Any]]] = {
    "classify": (classifier, ["open it", "send the x", ""]),
    "regress": (regressor, [("a b", "b"), ("c d", "d")]),
    "tag": (tagger, ["a b c", ["b", "q"]]),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("baselines")
    for task, (make, _) in ITEMS.items():
        baseline = make()
        make_folder(root / task / "model", lambda new, baseline=baseline: write_baseline(new, baseline))
    return {task: root / task for task in ITEMS}


@pytest.mark.parametrize("task", ITEMS)
def test_what_is_read_answers_alike(folders: dict[str, Path], task: str) -> None:
    make, items = ITEMS[task]
    made, loaded = make(), firth.load(folders[task])
    assert isinstance(loaded, Baseline) and (loaded.task, loaded.labels) == (made.task, made.labels)
    for one, other in zip(made.predict(items), loaded.predict(items), strict=True):
        if task == "tag":
            assert one.tags == other.tags
        else:
            np.testing.assert_allclose(*(list(numbers(p)) for p in (one, other)), atol=1e-6)
    assert loaded.predict(items[0]) == loaded.predict(items)[0]
    assert loaded.provenance["firth"] and "\n" not in repr(loaded)
    assert [record for record, _ in loaded.predict_stream(items)] == [loaded.record(item) for item in items]
    with pytest.raises(InputError, match="is one text: expected a list of them"):
        list(loaded.predict_stream("open it"))


def numbers(prediction: Any) -> list[float]:
    return list(prediction.probabilities.values()) if hasattr(prediction, "probabilities") else [prediction.value]


def test_a_baseline_answers_without_torch_and_without_scikit_learn(folders: dict[str, Path]) -> None:
    program = (
        "import sys, firth\n"
        "print(firth.load(sys.argv[1]).predict('open it').label)\n"
        "print(sorted({'torch', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folders["classify"]], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["in", "[]"]


def test_other_models_are_no_baselines(tmp_path: Path) -> None:
    assert find_baseline(tmp_path) is None and find_baseline("hub:a/b") is None
    (tmp_path / "firth.json").write_text("{broken")
    assert find_baseline(tmp_path) is None
    (tmp_path / "firth.json").write_text('{"system": "bert"}')
    assert find_baseline(tmp_path) is None


def test_a_baseline_has_no_precision_and_no_encoder(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="is a baseline, which runs in NumPy on the CPU: leave out device and prec"):
        firth.load(folders["classify"], device="cuda", precision="bfloat16")
    from firth.folder import read_model

    with pytest.raises(CheckpointError, match="is the baseline tfidf, which has no encoder"):
        read_model(folders["classify"])


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such modes there")
def test_all_files_may_be_read_by_a_server_that_runs_as_somebody_else(folders: dict[str, Path]) -> None:
    umask = os.umask(0)
    os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folders["classify"].rglob("*") if path.is_file()}
    assert set(modes.values()) == {0o666 & ~umask}, modes


def test_items_of_another_task_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="expected a text, a pair of texts"):
        firth.load(folders["classify"]).predict(3)
    with pytest.raises(InputError, match="a pair of texts"):
        firth.load(folders["classify"]).predict(("open it", "shut it"))


def change_about(folder: Path) -> None:
    about = json.loads((folder / "firth.json").read_text())
    about["options"]["labels"].append("third")
    (folder / "firth.json").write_text(json.dumps(about))


def change_vocabulary(folder: Path) -> None:
    words = json.loads((folder / "vocabulary.json").read_text())
    words["words"].pop()
    (folder / "vocabulary.json").write_text(json.dumps(words))


def change_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["weight"] = tensors["weight"] * np.float32("nan")
    save_file(tensors, folder / "model.safetensors")


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("change", [change_about, change_vocabulary, change_weights, cut_weights])
@pytest.mark.parametrize("manifest", [True, False])
def test_damage_is_found(change: Any, manifest: bool, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make_folder(folder, lambda new: write_baseline(new, classifier()))
    change(folder)
    if not manifest:
        (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        read_baseline(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
