"""SQuAD files: what is read, and every way in which an answer can be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from firth.errors import InputError
from firth.tasks.readers.files import Problems
from firth.tasks.readers.questions import read_squad
from firth.text.records import Answer, Question

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "data"
CONTEXT = "Café Normandy 🙂 is in France."


def file(folder: Path, *questions: Any, context: Any = CONTEXT) -> Path:
    path = folder / "a.json"
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": context, "qas": questions}]}]}))
    return path


def question(**changes: Any) -> dict[str, Any]:
    row = {"id": "q", "question": "Where?", "answers": [{"text": "France", "answer_start": 22}], **changes}
    return {key: value for key, value in row.items() if value is not ...}


def test_squad2_with_and_without_answer() -> None:
    path = FIXTURES / "squad2.json"
    first, second = read_squad(path, Problems())
    assert first == Question(
        "Where is it?",
        CONTEXT,
        (Answer("France", 22), Answer("in France", 19)),
        f"{path}: data[0].paragraphs[0].qas[0]",
        "q1",
        "Normandy",
    )
    assert second.answers == () and second.id == "q2"  # plausible answers do not count as answers
    assert [r.answers for r in read_squad(path, Problems(), labelled=False)] == [None, None]


def test_files_without_is_impossible(tmp_path: Path) -> None:
    path = file(tmp_path, question(), question(id="r", answers=[]))
    assert [len(r.answers or ()) for r in read_squad(path, Problems())] == [1, 0]
    with pytest.raises(InputError, match=r"qas\[1\]: found a question without answer, but in this data set every"):
        list(read_squad(path, Problems(), unanswerable=False))


def test_articles_without_title_are_groups_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    articles = [{"paragraphs": [{"context": CONTEXT, "qas": [question(id=i)]}]} for i in range(2)]
    path.write_text(json.dumps({"data": articles}))
    assert [r.group for r in read_squad(path, Problems())] == ["a.json[0]", "a.json[1]"]
    assert [r.id for r in read_squad(path, Problems())] == ["0", "1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": [{"text": "France", "answer_start": 21}]}, r"answers\[0\]: found ' Franc' at character 21"),
        ({"answers": [{"text": "France", "answer_start": 25}]}, r"found the answer at characters 25 to 31"),
        ({"answers": [{"text": "France", "answer_start": -1}]}, r"found the answer at characters -1 to 5"),
        ({"answers": [{"text": "France", "answer_start": "23"}]}, r"found '23' for 'answer_start'"),
        ({"answers": [{"text": "France"}]}, r"found None for 'answer_start'"),
        ({"answers": [{"text": "", "answer_start": 0}]}, r"found an empty 'text'"),
        ({"answers": ["France"]}, r"answers\[0\]: found text, expected an object"),
        ({"answers": ...}, r"found no 'answers' \(keys: 'id', 'question'\)"),
        ({"answers": [], "is_impossible": False}, r"found no answer, expected at least one"),
        ({"is_impossible": True}, r"found answers to a question marked impossible"),
        ({"is_impossible": "no"}, r"found 'no' for 'is_impossible'"),
        ({"question": " "}, r"found an empty 'question'"),
        ({"id": ...}, r"found no 'id'"),
    ],
)
def test_bad_questions(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = file(tmp_path, question(id="ok"), question(**changes))
    with pytest.raises(InputError, match=r"a\.json: data\[0\]\.paragraphs\[0\]\.qas\[1\].*" + message):
        list(read_squad(path, Problems()))
    problems = Problems(skip_bad=True)
    assert [r.id for r in read_squad(path, problems)] == ["ok"]
    assert problems.n_bad == 1


def test_bad_documents(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"paragraphs\[0\]: found an empty 'context'"):
        list(read_squad(file(tmp_path, question(), context=""), Problems()))
    with pytest.raises(InputError, match=r"qas\[1\]: found the id 'q' again \(first at .*qas\[0\]\)"):
        list(read_squad(file(tmp_path, question(), question()), Problems()))
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(InputError, match=r"b\.json: found a list, expected an object with 'data'"):
        read_squad(tmp_path / "b.json", Problems())
    (tmp_path / "b.json").write_text('{"data": [{"title": "x"}, 3]}')
    problems = Problems(skip_bad=True)
    with pytest.raises(InputError, match="no usable example"):
        list(read_squad(tmp_path / "b.json", problems))
    assert [m.partition(": ")[2].partition(" (")[0] for m in problems.messages] == [
        "data[0]: found no 'paragraphs'",
        "data[1]: found a number, expected an object",
    ]
