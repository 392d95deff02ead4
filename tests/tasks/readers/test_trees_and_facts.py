"""SST-5's trees and claims with evidence, on hand-made fixtures in the published formats."""

import json
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.tasks.readers.facts import read_facts
from firth.tasks.readers.files import Problems
from firth.tasks.readers.trees import parse_tree, read_sentiment_trees
from firth.tasks.reading import read_dataset

TREES = """\
(3 (2 It) (4 (4 (2 's) (4 (3 (2 a) (4 (3 lovely) (2 film))) (3 (2 with) (4 (3 lovely) (2 performances))))) (2 .)))
(1 (2 -LRB-) (1 (1 dull) (2 2\\/3)))

(2 (2 2) (2 -RRB-))
"""


def test_sentences_and_labels_of_trees(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "trees" / f"{name}.txt").write_text(TREES, "utf-8")
    found = read_dataset("sst5", tmp_path, "train", Problems())
    assert [(r.text, r.label) for r in found] == [
        ("It 's a lovely film with lovely performances .", "3"),
        ("( dull 2/3", "1"),
        ("2 )", "2"),
    ]
    assert found[2].where.endswith("train.txt:4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("It works", "expected a tree such as"),
        ("(3 (2 It) (4 works)", "expected a tree such as"),
        ("(3 (2 It) (4 works)))", "expected a tree such as"),
        ("(3 (2 It)) (4 works)", "expected a tree such as"),
        ("(3)", "expected a tree such as"),
        ("()", "found the label '\\)'"),
        ("(5 (2 It) (4 works))", "found the label '5', expected one of 0, 1, 2, 3, 4"),
    ],
)
def test_no_trees(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        parse_tree(line, "f:7")
    assert str(error.value).startswith("f:7: ")
    (tmp_path / "t").write_text(f"(3 (2 It) (4 works))\n{line}\n")
    with pytest.raises(InputError, match="t:2: "):
        list(read_sentiment_trees(tmp_path / "t", Problems()))


def test_claims_with_evidence(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "claim": "Oslo is in Norway.", "evidence": "Oslo is Norway's capital.", "label": "SUPPORTS"},
        {"claim": "Oslo is in Egypt.", "evidence": ["Oslo lies in the north.", "", "It is cold."], "label": "REFUTES"},
        {"claim": "Oslo is fun.", "evidence": [], "label": "NOT ENOUGH INFO"},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text(json.dumps({"claim": "a", "evidence": "b"}) + "\n")
    found = read_dataset("fact-checking", tmp_path, "train", Problems())
    assert [(r.text, r.second, r.label, r.id) for r in found] == [
        ("Oslo is in Norway.", "Oslo is Norway's capital.", "SUPPORTS", "7"),
        ("Oslo is in Egypt.", "Oslo lies in the north. It is cold.", "REFUTES", ""),
        ("Oslo is fun.", "", "NOT ENOUGH INFO", ""),
    ]
    assert read_dataset("fact-checking", tmp_path, "test", Problems())[0].label is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"claim": "a", "evidence": "b", "label": "TRUE"}, "found the label 'TRUE', expected one of SUPPORTS"),
        ({"claim": "a", "label": "REFUTES"}, 'as "evidence", expected a text or a list of texts'),
        ({"claim": "a", "evidence": [[[1, 2, "Oslo", 0]]], "label": "REFUTES"}, "found a list as"),
        ({"evidence": "b", "label": "REFUTES"}, "found no 'claim'"),
    ],
)
def test_rows_that_are_no_claims(tmp_path: Path, row: dict, message: str) -> None:
    (tmp_path / "f.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match=rf"f\.jsonl:1: .*{message}"):
        list(read_facts(tmp_path / "f.jsonl", Problems()))
