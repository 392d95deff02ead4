"""Choices from SWAG, DREAM, ARC and JSONL."""

import json
from pathlib import Path
from typing import Any

import pytest

from firth.errors import InputError
from firth.tasks.readers.choices import read_arc, read_arc_csv, read_choices_jsonl, read_dream, read_swag
from firth.tasks.readers.files import Problems
from firth.text.records import Choice

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "data"


def test_swag() -> None:
    path = FIXTURES / "swag" / "train.csv"
    first, second = read_swag(path, Problems())
    assert first == Choice(
        "A drum line passes by.",
        "He",
        ("stops, then turns.", "sings.", "sleeps.", "flies."),
        0,
        f"{path}:2",
        group="anetv_a",
    )
    assert second.label == 3 and second.choices[1] == 'says "no".'
    (test,) = read_swag(FIXTURES / "swag" / "test.csv", Problems(), labelled=False)
    assert test.label is None
    with pytest.raises(InputError, match=r"test\.csv:1: found no column label in the header"):
        list(read_swag(FIXTURES / "swag" / "test.csv", Problems()))


def test_swag_rows_that_are_wrong(tmp_path: Path) -> None:
    lines = (FIXTURES / "swag" / "train.csv").read_text("utf-8").splitlines()
    path = tmp_path / "a.csv"
    for old, new, message in [
        (",3", ",4", r":3: found the label 4, expected 0 to 3"),
        (",3", ",x", r":3: found the label 'x', expected the number"),
        (",3", ",", r":3: found no label"),
        ("barks.", "", r":3: found '' as choice 0"),
        ("barks.", "barks.,more", r":3: found 13 columns, expected 12"),
    ]:
        head, last = lines[:-1], lines[-1]
        path.write_text("\n".join([*head, last.replace(old, new) if old != ",3" else last.removesuffix(old) + new]))
        with pytest.raises(InputError, match=message):
            list(read_swag(path, Problems()))


def read_rows(folder: Path, *rows: Any, **options: Any) -> list[Choice]:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_choices_jsonl(path, Problems(), **options))


def test_jsonl_of_choices(tmp_path: Path) -> None:
    where = f"{tmp_path / 'a.jsonl'}:1"
    row = {"context": "c", "question": "q", "choices": ["x", "y", "z"], "label": 2, "id": "i", "group": "g"}
    assert read_rows(tmp_path, row | {"id": None, "group": None}) == [Choice("c", "q", ("x", "y", "z"), 2, where)]
    assert read_rows(tmp_path, row) == [Choice("c", "q", ("x", "y", "z"), 2, where, "i", "g")]
    row = {"text": "c", "endings": ["x", "y"], "label": "1"}
    assert read_rows(tmp_path, row) == [Choice("c", "", ("x", "y"), 1, where)]
    row = {"sent1": "c", "sent2": "q", "ending0": "x", "ending1": "y", "label": 0}
    assert read_rows(tmp_path, row) == [Choice("c", "q", ("x", "y"), 0, where)]
    assert read_rows(tmp_path, {"text": "c", "choices": ["x", "y"]}, labelled=False)[0].label is None
    row = {"sent1": "c", "ending0": "x", "ending2": "y", "label": 1}
    with pytest.raises(InputError, match=":1: ending1 is missing"):
        read_rows(tmp_path, row)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": 2}, r":1: found the label 2, expected 0 to 1"),
        ({"label": -1}, r":1: found the label -1, expected 0 to 1"),
        ({"label": True}, r":1: found the label True"),
        ({"label": "A"}, r":1: found the label 'A'"),
        ({"label": "1" * 5000}, r":1: found the label '1111"),
        ({"label": None}, r":1: found no label"),
        ({"choices": ["x"]}, r":1: found 1 choice\(s\), expected at least two"),
        ({"choices": ["x", ""]}, r":1: found '' as choice 1"),
        ({"choices": ["x", 3]}, r":1: found 3 as choice 1"),
        ({"choices": "xy"}, r":1: found text for 'choices', expected a list"),
        ({"context": "d"}, r":1: found both 'context' and 'text'"),
        ({"text": " "}, r":1: found neither a text nor a question"),
    ],
)
def test_bad_choices(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path, {"text": "c", "choices": ["x", "y"], "label": 0} | changes)


def test_the_swag_sample(shared_data: Path) -> None:
    records = list(read_choices_jsonl(shared_data / "swag-sample" / "sample.jsonl", Problems()))
    assert len(records) == 10
    assert records[0].question == "A drum line" and len(records[0].choices) == 4


def test_dream(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    row = {"question": "Who?", "choice": ["he", "she"], "answer": "she"}
    path.write_text(json.dumps([[["M: Hi.", "W: Ho."], [row, row | {"answer": "he"}], "5-1"]]))
    first, second = read_dream(path, Problems())
    assert first == Choice("M: Hi.\nW: Ho.", "Who?", ("he", "she"), 1, f"{path}: [0][1][0]", "5-1/0", "5-1")
    assert (second.label, second.id, second.group) == (0, "5-1/1", "5-1")
    for rows, message in [
        ([[["M"], [row | {"answer": "it"}], "1"]], r"\[0\]\[1\]\[0\]: found the answer 'it' 0 times"),
        ([[["M"], [row | {"choice": ["she", "she"]}], "1"]], r"found the answer 'she' 2 times"),
        ([[["M"], [3], "1"]], r"\[0\]\[1\]\[0\]: found a number"),
        ([[["M"], [row], "1"], [["M"], [row], "1"]], r"\[1\]\[1\]\[0\]: found the id '1/0' again"),
        ([["M", [row], "1"]], r"\[0\]: expected \[\[turns\], \[questions\], id\]"),
        ({"a": 1}, r"found an object, expected a list of dialogues"),
    ]:
        path.write_text(json.dumps(rows))
        with pytest.raises(InputError, match=message):
            list(read_dream(path, Problems()))


def test_arc_as_published(tmp_path: Path) -> None:
    path = FIXTURES / "arc" / "ARC-Challenge-Train.jsonl"
    first, second = read_arc(path, Problems())
    assert first == Choice("", "What heats the Earth?", ("the Moon", "the Sun", "wind"), 1, f"{path}:1", "Mercury_1")
    assert (second.choices, second.label) == (("rain", "light"), 0)
    bad = tmp_path / "a.jsonl"
    bad.write_text(path.read_text("utf-8").replace('"answerKey": "B"', '"answerKey": "D"'))
    with pytest.raises(InputError, match=r":1: found the answer 'D', expected one of A, B, C"):
        list(read_arc(bad, Problems()))


def test_arc_as_csv(tmp_path: Path) -> None:
    problems = Problems()
    records = list(read_arc_csv(FIXTURES / "arc-csv" / "dev.csv", problems))
    assert [(r.label, len(r.choices)) for r in records] == [(1, 4), (0, 4), (2, 3)]
    assert records[0].question == "When a switch is on, the lamp"
    assert problems.left_out == {"the file has lost the choices": 1, "the file has lost the fifth choice": 1}
    path = tmp_path / "a.csv"
    for line, message in [
        ("q,a,b,c,d,F", r":1: found the answer 'F'"),
        ("q,a,b,c,d,AB", r":1: found the answer 'AB'"),
        ("q,a,b,c,d,", r":1: found the answer ''"),
        ("q,a,b,c,,D", r":1: found the label 3, expected 0 to 2"),
        ("q,a,,c,d,A", r":1: found '' as choice 1"),
        ("q,a,b,c,A", r":1: found 5 columns, expected 6"),
    ]:
        path.write_text(line + "\n")
        with pytest.raises(InputError, match=message):
            list(read_arc_csv(path, Problems()))
