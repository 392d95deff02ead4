"""Finding data sets by name, checking their labels, writing submissions."""

from pathlib import Path

import pytest

from firth.errors import ConfigError, InputError
from firth.tasks.readers.files import Problems
from firth.tasks.reading import check_labels, labels_of, note_constant, read_dataset, write_glue_submission
from firth.text.records import Tagged, Text


def test_missing_files_name_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected KorQuAD_v1\.0_train\.json, train\.json \(plain, \.gz or \.xz\)"):
        read_dataset("korquad1", tmp_path, "train", Problems())
    (tmp_path / "snli_1.0_train.ko.tsv").write_text("x\n")  # one of two that belong together
    with pytest.raises(InputError, match=r"multinli\.train\.ko\.tsv with snli_1\.0_train\.ko\.tsv, train\.tsv"):
        read_dataset("kornli", tmp_path, "train", Problems())
    with pytest.raises(InputError, match="no such folder; expected the folder that holds the files of snli, dev"):
        read_dataset("snli", tmp_path / "none", "dev", Problems())
    with pytest.raises(ConfigError, match=r"glue/cola has no split 'dev_mismatched'; expected one of train, dev, test"):
        read_dataset("glue/cola", tmp_path, "dev_mismatched", Problems())
    with pytest.raises(ConfigError, match=r"glue/ax has no split 'train'; .*dev, test \(test only"):
        read_dataset("glue/ax", tmp_path, "train", Problems())
    with pytest.raises(ConfigError, match="unknown data set 'glue/sst-2': did you mean 'glue/sst2'"):
        read_dataset("glue/sst-2", tmp_path, "dev", Problems())


# -- labels -----------------------------------------------------------------------------------------------


def test_labels_of_records() -> None:
    records = [Text("a", "x"), Text("b", ("y", "z")), Text("c", 1.5), Text("d"), Tagged("e", ((0, 1),), ("O",))]
    assert labels_of(records) == ("O", "x", "y", "z")


def test_a_label_that_training_lacks_is_named_with_its_row() -> None:
    dev = [Text("a", "x", "d:1"), Text("b", ("x", "z"), "d:2"), Tagged("e", ((0, 1),), ("Q",), "d:3"), Text("c", 2.0)]
    with pytest.raises(InputError, match=r"d:2: found the label 'z', expected one of the 1 known \(x\); correct it"):
        check_labels(dev, ["x"], Problems())
    problems = Problems(skip_bad=True)
    assert check_labels(dev, ["x"], problems) == [dev[0], dev[3]]
    assert problems.n_bad == 2
    with pytest.raises(InputError, match=r"d:3: found the tag 'Q', .*; a tagger's files have a word and its tag on"):
        check_labels(dev[2:], ["x"], Problems())


# -- submissions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "n", "label"),
    [
        ("glue/wnli", "WNLI.tsv", 146, "1"),
        ("glue/ax", "AX.tsv", 1104, "neutral"),
        ("glue/mnli-mismatched", "MNLI-mm.tsv", 9847, "entailment"),
        ("glue/rte", "RTE.tsv", 3000, "not_entailment"),
    ],
)
def test_submission_files(tmp_path: Path, name: str, file: str, n: int, label: str) -> None:
    path = write_glue_submission(name, [label] * n, tmp_path / "new")
    assert path == tmp_path / "new" / file
    lines = path.read_text().split("\n")
    assert lines[:2] == ["index\tprediction", f"0\t{label}"]
    assert lines[-2:] == [f"{n - 1}\t{label}", ""] and len(lines) == n + 2
    assert [p.name for p in path.parent.iterdir()] == [file]


def test_scores_of_a_submission_are_cut_to_their_range(tmp_path: Path) -> None:
    path = write_glue_submission("glue/stsb", [5.3, -0.1, 2.5, *[1.0] * 1376], tmp_path)
    assert path.read_text().split("\n")[1:5] == ["0\t5.0000", "1\t0.0000", "2\t2.5000", "3\t1.0000"]


@pytest.mark.parametrize(
    ("name", "predictions", "message"),
    [
        ("glue/sst", ["0"], "unknown GLUE task 'glue/sst'; expected one of glue/cola"),
        ("glue/wnli", ["0"] * 145, "glue/wnli: found 145 predictions, expected one for each of the 146"),
        ("glue/wnli", ["0"] * 145 + ["2"], "glue/wnli: found '2' for row 145, expected one of 0, 1"),
        ("glue/wnli", [0.0] * 146, r"glue/wnli: found 0\.0 for row 0"),
        ("glue/stsb", [float("nan")] * 1379, "glue/stsb: found nan for row 0, expected a finite number"),
        ("glue/stsb", ["5"] * 1379, "glue/stsb: found '5' for row 0"),
    ],
)
def test_submissions_that_are_wrong(tmp_path: Path, name: str, predictions: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_glue_submission(name, predictions, tmp_path)
    assert not list(tmp_path.iterdir())


def test_examples_on_which_no_model_can_score_are_noted() -> None:
    problems = Problems()
    note_constant("dev", [Text("a", 2.0), Text("b", 2.0)], (), problems)
    note_constant("test", [Text("a", 2.0), Text("b", 3.0)], (), problems)
    outside, entity = Tagged("a", ((0, 1),), ("O",)), Tagged("a", ((0, 1),), ("B-X",))
    note_constant("news", [outside, outside], ("O", "B-X", "I-X"), problems)
    note_constant("both", [outside, entity], ("O", "B-X", "I-X"), problems)
    note_constant("plain", [outside], ("O", "X"), problems)
    assert problems.report() == [
        "dev: all 2 examples have the value 2: correlations are 0",
        "news: all words have the tag O: scores of entities are 0",
    ]
