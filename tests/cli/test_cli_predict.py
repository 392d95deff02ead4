"""``firth predict``: inputs, outputs, their order, and what is refused."""

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firth.cli import main
from firth.cli.predict import predict
from firth.inference.model import load_model

ROWS = [(f"{text} {i}", label) for i in range(8) for text, label in (("the river", "a"), ("winter", "b"))]


def squad(n: int) -> str:
    articles = []
    for i in range(n):
        context = f"The old farmer walked to the river in {i}."
        answer = {"text": "the river", "answer_start": context.index("the river")}
        asked = [{"id": f"q{i}", "question": "Where?", "answers": [answer], "is_impossible": False}]
        asked += [{"id": f"n{i}", "question": "Who sang?", "answers": [], "is_impossible": True}] * (i % 2)
        articles.append({"title": f"t{i}", "paragraphs": [{"context": context, "qas": asked}]})
    return json.dumps({"data": articles})


def choices(n: int) -> str:
    rows = ({"id": f"c{i}", "text": f"x {i}", "question": "how?", "choices": ["p", "q"], "label": 0} for i in range(n))
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "classify": ("t.tsv", "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS)),
    "multilabel": ("m.tsv", "text\tlabels\n" + "".join(f"w {i}\t{['a', 'b', 'a|b', ''][i % 4]}\n" for i in range(16))),
    "regress": ("r.tsv", "sentence1\tsentence2\tscore\n" + "".join(f"w {i}\tv {i}\t{i % 5}\n" for i in range(16))),
    "tag": ("t.conll", "\n".join(f"Ann B-PER\nLee I-PER\nwalked{i} O\n" for i in range(16))),
    "answer": ("t.json", squad(12)),
    "choose": ("c.jsonl", choices(16)),
}
# For a classifier of pairs.
PAIRS = ("p.tsv", "text\tsecond\tlabel\n" + "".join(f"{text}\t{label} {text}\t{label}\n" for text, label in ROWS))


@pytest.fixture(scope="module")
def models(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a barely trained model for each kind of task, with its training file beside it."""
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firth.finetuning.runs.write_finetune_report", lambda out, recipe, results: out)
        for kind, (name, text) in (FILES | {"pairs": PAIRS}).items():
            (folder / name).write_text(text, "utf-8")
            task = "classify" if kind == "pairs" else kind
            tokens = ["finetune", "--task", task, "--model", tiny_run, "--train", folder / name, "--out", folder / kind]
            tokens += ["--epochs", "0.1", "--set", "train.precision=float32"]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                assert main([*map(str, tokens)]) == 0
    return {kind: folder / kind for kind in (*FILES, "pairs")}


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


# -- lines ---------------------------------------------------------------------------------------------------


def test_lines_are_answered_in_order_and_an_empty_one_like_any_other(firth, models: dict[str, Path]) -> None:
    lines = ["winter", "", "the river", "an empty house " * 300, "  "]
    result = firth("predict", models["classify"], stdin="\n".join(lines).encode())
    assert result.code == 0 and result.err.splitlines() == [
        "read in windows: 1 example",
        "stdin:2: no token in the text: the answer means nothing: 2 examples",
    ]
    answers = rows(result.out)
    expected = load_model(models["classify"]).predict(lines)
    assert [list(answer) for answer in answers] == [["label", "probability", "probabilities", "windows", "cut"]] * 5
    assert [answer["windows"] > 1 for answer in answers] == [False, False, False, True, False]
    for answer, one in zip(answers, expected, strict=True):
        assert answer["label"] == one.label and answer["probabilities"] == pytest.approx(one.probabilities, abs=1e-5)
    # The same texts as arguments.
    assert rows(firth("predict", models["classify"], *lines).out) == answers


def test_a_file_of_lines_is_read_like_stdin(firth, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes("\ufeffwinter\r\n\r\nthe river".encode())
    found = firth("predict", models["classify"], "--input", tmp_path / "lines.txt").out
    (tmp_path / "LINES.TXT").write_bytes((tmp_path / "lines.txt").read_bytes())
    assert firth("predict", models["classify"], "--input", tmp_path / "LINES.TXT").out == found
    assert rows(found) == rows(firth("predict", models["classify"], stdin=b"winter\n\nthe river\n").out)
    assert rows(found) == rows(firth("predict", models["classify"], "winter", "", "the river").out)


@pytest.mark.parametrize("given", ["stdin", "lines.txt"])
def test_an_empty_input_is_an_error_and_an_empty_line_is_none(
    firth, models: dict[str, Path], tmp_path: Path, given: str
) -> None:
    def result(text: bytes) -> Any:
        if given == "stdin":
            return firth("predict", models["tag"], "--out", tmp_path / "a.jsonl", stdin=text)
        (tmp_path / given).write_bytes(text)
        return firth("predict", models["tag"], "--input", tmp_path / given, "--out", tmp_path / "a.jsonl")

    empty = result(b"")
    expected = "no input" if given == "stdin" else "the file is empty"
    assert empty.code == 2 and given in empty.complaint and expected in empty.complaint
    assert not (tmp_path / "a.jsonl").exists()
    assert result(b"\n").code == 0
    parts: dict[str, Any] = {name: [] for name in ("tags", "probabilities", "entities", "words", "offsets")}
    nothing = parts | {"windows": 0, "cut": False}
    assert rows((tmp_path / "a.jsonl").read_text()) == [nothing]


def test_entities_carry_characters_of_the_raw_text(firth, models: dict[str, Path]) -> None:
    lines = ["  Ann Lee,\tAnn (강가에서) walked 😀 Ann Lee… to\u00a0Ann!", "\u200b Ann \u2060"]
    answers = rows(firth("predict", models["tag"], stdin="\n".join(lines).encode()).out)
    found = [(line, entity) for line, answer in zip(lines, answers, strict=True) for entity in answer["entities"]]
    assert found
    assert all(line[entity["start"] : entity["end"]] == entity["text"] for line, entity in found)


def test_texts_that_the_model_does_not_know_are_told(firth, models: dict[str, Path]) -> None:
    result = firth("predict", models["pairs"], "--format", "jsonl", stdin=b'{"text": "a", "second": "b"}')
    assert "[UNK]" not in result.err
    result = firth("predict", models["tag"], "Жук и жаба", "Ann", "Жук", "")
    assert len(rows(result.out)) == 4
    half = "half of the tokens or more are [UNK] to the model: the answer means little"
    assert f"TEXT:1: {half}: 2 examples" in result.err
    assert "TEXT:4: no token in the text: the answer means nothing: 1 example" in result.err
    asked = [{"question": q, "context": c} for q, c in (("", "Ann"), ("Ann?", ""), ("Ann?", "Ann"))]
    result = firth("predict", models["answer"], stdin="\n".join(map(json.dumps, asked)).encode())
    assert "stdin:1: no token in the question or in its context: the answer means nothing: 2 examples" in result.err


def test_objects_among_lines_are_told(firth, models: dict[str, Path]) -> None:
    result = firth("predict", models["classify"], stdin=b'{"text": "winter"}\n{ no object }\n')
    assert "stdin:1: looks like JSON, but is read as a text: --format jsonl reads objects" in result.err
    assert "looks like JSON" not in firth("predict", models["classify"], stdin=b"{ no object }\n").err
    table = firth("predict", models["classify"], stdin=b"spam\tcall now\n")
    assert "stdin:1: has tabs, but is read as one text: for a table give its file, with --input" in table.err


def test_600_words_have_600_tags(firth, models: dict[str, Path]) -> None:
    (answer,) = rows(firth("predict", models["tag"], " ".join(["Ann"] * 600)).out)
    assert len(answer["tags"]) == len(answer["probabilities"]) == 600


# -- objects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "items", "keys"),
    [
        (
            "pairs",
            [{"text": "a", "second": ""}, {"text": "a", "second": "b", "id": 7}],
            ["label", "probability", "probabilities"],
        ),
        ("multilabel", [{"text": ""}, {"text": "a", "id": "x"}], ["labels", "probabilities"]),
        ("regress", [{"text": "a", "second": "b"}, {"text": "a", "second": "", "id": "x", "score": 3}], ["value"]),
        (
            "tag",
            [{"text": "Ann Lee"}, {"tokens": ["Ann", "Lee"], "id": "x"}],
            ["tags", "probabilities", "entities", "words", "offsets"],
        ),
        (
            "answer",
            [{"question": "who?", "context": "the river " * 40}, {"question": "Who?", "context": "", "id": "x"}],
            ["text", "start", "end", "probability", "no_answer_score", "n_best"],
        ),
        (
            "choose",
            [
                {"text": "x", "question": "how?", "choices": ["p", "q"]},
                {"context": "x", "choices": ["p", "q", "r"], "id": 7},
            ],
            ["choice", "text", "probabilities"],
        ),
    ],
)
def test_objects_are_answered_with_their_ids(
    firth, models: dict[str, Path], kind: str, items: list[dict[str, Any]], keys: list[str]
) -> None:
    text = "\n\n".join(json.dumps(item) for item in items)
    form = [] if kind in ("answer", "choose") else ["--format", "jsonl"]
    result = firth("predict", models[kind], *form, stdin=text.encode())
    assert result.code == 0, result.err
    answers = rows(result.out)
    keys = [*keys, "windows", "cut"]
    assert [list(answer) for answer in answers] == [keys, ["id", *keys]]
    assert answers[1]["id"] == str(items[1]["id"])
    assert rows(firth("predict", models[kind], *form, *map(json.dumps, items)).out) == answers


def test_answers_are_no_table(firth, models: dict[str, Path], tmp_path: Path) -> None:
    result = firth("predict", models["classify"], "a text", "--out", tmp_path / "a.csv")
    assert result.code == 2 and "written as JSON lines, expected a name such as answers.jsonl" in result.complaint
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_said_before_its_format(firth, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n")
    result = firth("predict", models["classify"], "--input", tmp_path / "lines.tx")
    assert result.code == 2 and f"no such file; did you mean {tmp_path / 'lines.txt'}?" in result.complaint


def test_words_that_are_given_are_taken_as_they_are(firth, models: dict[str, Path]) -> None:
    (answer,) = rows(firth("predict", models["tag"], "--format", "jsonl", '{"tokens": ["Ann-Lee!", "walked"]}').out)
    assert len(answer["tags"]) == 2
    assert answer["words"] == ["Ann-Lee!", "walked"] and answer["offsets"] == [[0, 8], [9, 15]]


def test_each_tag_comes_with_its_word_and_where_it_stands(firth, models: dict[str, Path]) -> None:
    (answer,) = rows(firth("predict", models["tag"], "Ann-Lee  walked.").out)
    assert answer["words"] == ["Ann", "-", "Lee", "walked", "."]
    assert answer["offsets"] == [[0, 3], [3, 4], [4, 7], [9, 15], [15, 16]]
    assert len(answer["tags"]) == len(answer["probabilities"]) == 5


def test_a_pair_is_not_its_first_text(firth, models: dict[str, Path]) -> None:
    items = [json.dumps({"text": "winter", "second": second}) for second in ("", "the river")]
    answers = rows(firth("predict", models["pairs"], "--format", "jsonl", *items).out)
    assert answers[0] != answers[1]
    refused = firth("predict", models["pairs"], "--format", "jsonl", items[1], '{"text": "winter"}')
    assert refused.code == 2 and "TEXT:2: a single text, and the model has learnt from pairs" in refused.complaint


def test_a_context_without_a_piece_is_valid_json(firth, models: dict[str, Path]) -> None:
    (answer,) = rows(firth("predict", models["answer"], '{"question": "Who?", "context": ""}').out)
    assert answer["text"] == "" and answer["no_answer_score"] is None


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("answer", '{"question": "a", "context": "b"}\nno json\n', "stdin:2: not JSON"),
        ("answer", '{"question": "a", "context": "b"}\n[1]\n', "stdin:2: found a list, expected a JSON object"),
        ("answer", '{"question": "a", "context": "\\ud800"}\n', "stdin:1: not JSON (half of a surrogate pair)"),
        ("choose", '{"id": "\\udc00", "text": "a", "choices": ["b", "c"]}\n', "stdin:1: not JSON (half of a surr"),
        ("answer", '{"question": "a"}\n', "stdin:1: {'question': 'a'}: expected {\"question\": …, \"context\": …}"),
        ("choose", '{"text": "a", "choices": ["only"]}\n', "stdin:1: expected at least two choices, found 1"),
        ("choose", '\n{"text": "a", "choices": 5}\n', "stdin:2: {'text': 'a', 'choices': 5}: expected {\"text\""),
    ],
)
def test_a_line_that_is_no_object_of_the_task(
    firth, models: dict[str, Path], tmp_path: Path, kind: str, text: str, message: str
) -> None:
    result = firth("predict", models[kind], "--out", tmp_path / "a.jsonl", stdin=text.encode())
    assert result.code == 2 and message in result.complaint
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_a_file_that_is_no_json_is_named(firth, models: dict[str, Path], tmp_path: Path) -> None:
    for kind, good in (("answer", '{"question": "a", "context": "b"}'), ("classify", '{"text": "a"}')):
        for bad in ("{", '{"id": "\\ud800", ' + good[1:]):
            (tmp_path / "t.jsonl").write_text(f"{good}\n{bad}\n")
            result = firth("predict", models[kind], "--input", tmp_path / "t.jsonl")
            assert result.code == 2 and f"{tmp_path / 't.jsonl'}:2: not JSON" in result.complaint


def test_a_line_that_is_not_utf8(firth, models: dict[str, Path]) -> None:
    result = firth("predict", models["classify"], stdin=b"good\nb\xffd\n")
    assert result.code == 2 and "stdin, line 2: not UTF-8" in result.complaint


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILES))
def test_the_answers_to_a_labelled_file_are_those_that_evaluate_scores(
    firth, models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    file, out = models[kind].parent / FILES[kind][0], tmp_path / "answers.jsonl"
    result = firth("predict", models[kind], "--input", file, "--out", out)
    assert result.code == 0 and result.out.startswith(f"{out}: ") and result.out.endswith(" answers\n")
    assert list(tmp_path.iterdir()) == [out]
    said = firth("score", "--predictions", out, "--gold", file, "--task", kind, "--json")
    asked = firth("evaluate", models[kind], "--data", file, "--json")
    scores = json.loads(asked.out)["scores"]
    assert json.loads(said.out)["scores"] == pytest.approx(scores)
    if kind in ("answer", "choose"):
        first = rows(out.read_text())[0]["id"]
        assert first in ("q0", "c0")


def test_columns_and_headers(firth, models: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    file.write_text("7\twinter\tsummer\n")
    by_number = firth("predict", models["pairs"], "--input", file, "--columns", "id=0,text=1,second=2")
    assert rows(by_number.out)[0]["id"] == "7" and "no header; text from column 1" in by_number.err
    pair = json.dumps({"text": "winter", "second": "summer", "id": "7"})
    assert rows(firth("predict", models["pairs"], "--format", "jsonl", pair).out) == rows(by_number.out)
    file.write_text("a\tb\nwinter\tsummer\n")
    assert len(rows(firth("predict", models["classify"], "--input", file, "--columns", "text=a").out)) == 1
    both = firth("predict", models["classify"], "--input", file, "--columns", "text=0", "--no-header")
    assert len(rows(both.out)) == 2
    refused = firth("predict", models["classify"], "--input", file, "--columns", "text=c")
    assert refused.code == 2 and "no column 'c'" in refused.complaint


def test_a_table_with_the_ends_of_another_system_and_a_lone_quotation_mark(
    firth, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "t.tsv").write_bytes('\ufeffid\ttext\r\n1\ta "river\r\n2\twinter\r\n'.encode())
    answers = rows(firth("predict", models["classify"], "--input", tmp_path / "t.tsv").out)
    expected = rows(firth("predict", models["classify"], 'a "river', "winter").out)
    assert answers == [{"id": str(i), **answer} for i, answer in enumerate(expected, start=1)]


def test_ids_are_handed_on_however_often_they_come(firth, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\ttext\n1\ta\n1\tb\n")
    answers = rows(firth("predict", models["classify"], "--input", tmp_path / "t.tsv").out)
    assert [answer["id"] for answer in answers] == ["1", "1"] and answers[0] != answers[1]


def test_a_bad_row_is_an_error(firth, models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\ttext\n1\ta\n2\n")
    result = firth("predict", models["classify"], "--input", tmp_path / "t.tsv", "--out", tmp_path / "a.jsonl")
    assert result.code == 2 and "t.tsv:3: " in result.complaint
    assert [path.name for path in tmp_path.iterdir()] == ["t.tsv"]


# -- out -----------------------------------------------------------------------------------------------------


def test_out_is_whole_or_not_there(
    firth, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.jsonl"
    assert firth("predict", models["classify"], "winter", "--out", out).out == f"{out}: 1 answer\n"
    again = firth("predict", models["classify"], "winter", "--out", out)
    assert again.code == 2 and "exists already" in again.complaint
    out.unlink()
    nowhere = firth("predict", models["classify"], "winter", "--out", tmp_path / "no" / "a.jsonl")
    assert nowhere.code == 2 and "cannot be written" in nowhere.complaint

    def broken(*arguments: object, **options: object) -> Iterator[Any]:
        yield from original(*arguments, **options)
        raise KeyboardInterrupt

    from firth.inference import model as opened

    original = opened.answer_stream
    monkeypatch.setattr(opened, "answer_stream", broken)
    result = firth("predict", models["classify"], "winter", "--out", out)
    assert result.code == 130 and result.complaint == "interrupted: no answers were written"
    assert list(tmp_path.iterdir()) == []
    result = firth("predict", models["classify"], "winter")
    assert result.code == 130 and result.complaint == "interrupted: the answers so far are complete"
    assert len(rows(result.out)) == 1


def test_a_person_who_types_is_answered_at_once(models: dict[str, Path], typing) -> None:
    # Each line is answered before the next is read.
    assert typing(lambda: predict(models["classify"]), "winter", "the river", "winter", "x") == [0, 1, 2, 3]


def test_memory_does_not_grow_with_the_input(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from firth.inference import model as opened
    from firth.tasks import items

    monkeypatch.setattr(items, "AT_ONCE", 8)
    ahead = []

    def lines(path: Path | None) -> Iterator[str]:
        for number in range(40):
            ahead.append(number - answered())
            yield f"line {number}"

    def answered() -> int:
        return total[0]

    total = [0]
    original = opened.answer_stream

    def counted(*arguments: object, **options: object) -> Iterator[Any]:
        for pair in original(*arguments, **options):
            total[0] += 1
            yield pair

    monkeypatch.setattr(opened, "answer_stream", counted)
    monkeypatch.setattr("firth.cli.predict.lines_from", lines)
    predict(models["classify"])
    assert capsys.readouterr().out.count("\n") == 40
    assert max(ahead) <= 9


# -- several models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classify", "tag", "choose"])
def test_models_that_are_averaged_answer_as_one(firth, models: dict[str, Path], kind: str) -> None:
    lines = b'{"text": "x", "choices": ["p", "q"]}\n' * 2 if kind == "choose" else b"the river\n\nAnn Lee walked\n"
    alone = rows(firth("predict", models[kind], stdin=lines).out)
    both = firth("predict", models[kind], "--with", models[kind], "--with", models[kind], stdin=lines)
    assert both.code == 0
    for one, mean in zip(alone, rows(both.out), strict=True):
        assert list(mean) == list(one)
        assert mean["probabilities"] == pytest.approx(one["probabilities"], abs=1e-6)


# -- GLUE ----------------------------------------------------------------------------------------------------

N_WNLI = 146


@pytest.fixture(scope="module")
def wnli(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model for WNLI, and the folder of its files."""
    folder = tmp_path_factory.mktemp("glue")
    labelled = "".join(f"{i}\tw {i}\tv {i}\t{i % 2}\n" for i in range(24))
    (folder / "WNLI").mkdir()
    for name in ("train", "dev"):
        (folder / "WNLI" / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + labelled)
    test = "".join(f"{i}\tx {i}\tv {i}\n" for i in range(N_WNLI))
    (folder / "WNLI" / "test.tsv").write_text("index\tsentence1\tsentence2\n" + test)
    tokens = ["finetune", "--task", "glue/wnli", "--model", tiny_run, "--data", folder, "--out", folder / "run"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main([*map(str, tokens), "--epochs", "0.1", "--set", "train.precision=float32"]) == 0
    return folder / "run", folder


def test_a_published_data_set_is_scored_by_its_name(firth, wnli: tuple[Path, Path]) -> None:
    run, folder = wnli
    found = json.loads(firth("evaluate", run, "--data", folder, "--task", "glue/wnli", "--json").out)
    results = json.loads((run / "results.json").read_text())
    assert found["scores"] == pytest.approx(results["scored"][0]["dev"]["dev"])
    result = firth("evaluate", run, "--data", folder, "--task", "glue/wnli")
    assert result.out.startswith(f"{folder}, dev: glue/wnli, 24 examples\n  accuracy")
    result = firth("evaluate", run, "--data", folder, "--task", "glue/wnli", "--split", "test")
    assert result.code == 2 and "expected a labelled example" in result.complaint


def test_a_submission_has_every_test_row_in_order(firth, wnli: tuple[Path, Path], tmp_path: Path) -> None:
    run, folder = wnli
    test = folder / "WNLI" / "test.tsv"
    result = firth("predict", run, "--input", test, "--submission", tmp_path / "s")
    assert result.code == 0 and result.out == f"{tmp_path / 's' / 'WNLI.tsv'}: {N_WNLI} answers\n"
    lines = (tmp_path / "s" / "WNLI.tsv").read_text().splitlines()
    answers = rows(firth("predict", run, "--input", test, "--task", "glue/wnli").out)
    assert [answer["id"] for answer in answers] == [str(i) for i in range(N_WNLI)]
    assert lines == ["index\tprediction", *(f"{i}\t{answer['label']}" for i, answer in enumerate(answers))]
    said = firth("score", "--predictions", tmp_path / "s" / "WNLI.tsv", "--gold", test, "--task", "glue/wnli")
    assert said.code == 2, "the test file has no labels"


def test_the_diagnostic_set_is_read_as_published(firth, models: dict[str, Path]) -> None:
    file = Path(__file__).resolve().parents[1] / "fixtures" / "data" / "glue" / "diagnostic" / "diagnostic.tsv"
    answers = rows(firth("predict", models["pairs"], "--input", file, "--task", "glue/ax").out)
    assert [answer["id"] for answer in answers] == ["0", "1"]
    expected = load_model(models["pairs"]).predict(('The cat "sat.', "The cat did not sit."))
    assert answers[0]["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)


def test_submissions_that_cannot_be(firth, wnli: tuple[Path, Path], models: dict[str, Path], tmp_path: Path) -> None:
    run, folder = wnli
    short, out = folder / "WNLI" / "dev.tsv", tmp_path / "s"
    for tokens, message in [
        ([run, "--input", short, "--submission", out], "found 24 predictions, expected one for each of the 146"),
        ([models["classify"], "--input", short, "--submission", out], "not for 'classify': say which"),
        ([models["tag"], "--input", short, "--submission", out, "--task", "glue/wnli"], "this is a model for tag"),
        ([run, "--input", short, "--submission", out, "--task", "glue/wnly"], "did you mean 'glue/wnli'"),
        ([run, "--input", short, "--submission", out, "--out", out], "leave out --out"),
        ([run, "--submission", out], "--submission: only with a file"),
    ]:
        result = firth("predict", *tokens)
        assert result.code == 2 and message in result.complaint, result.complaint
    assert list(tmp_path.iterdir()) == []


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["RUN", "x"], ["is not fine-tuned for a task", "firth finetune"]),
        (["nowhere", "x"], ["nowhere: no such model folder"]),
        (["MODEL", "x", "--input", "y"], ["TEXT", "--input"]),
        (["MODEL", "x", "--columns", "text=0"], ["--columns: only with a file"]),
        (["MODEL", "x", "--header", "--task", "glue/sst2"], ["--header and --task: only with a file"]),
        (["MODEL", "x", "--format", "tsv"], ["--format tsv", "lines or jsonl", "--input"]),
        (["ANSWER", "x", "--format", "lines"], ["--format lines", "JSON objects"]),
        (["MODEL", "--input", "nowhere.txt"], ["nowhere.txt: no such file"]),
        (["MODEL", "--input", "nowhere.tsv"], ["nowhere.tsv: no such file"]),
        (["MODEL", "--input", "t.pdf"], ["t.pdf: unknown format '.pdf'"]),
        (["MODEL", "--input", "t.tsv", "--format", "conll"], ["--format conll", "tsv, csv, jsonl"]),
        (["MODEL", "--input", "t.tsv", "--task", "squad1"], ["--task squad1 is of kind answer", "classify"]),
        (["MODEL", "x", "--with", "nowhere"], ["nowhere: no such model folder"]),
        (
            ["MODEL", "x", "--with", "RUN"],
            ["is a model for pretraining", "classify: an ensemble needs models of one task"],
        ),
        (
            ["MODEL", "x", "--with", "ANSWER"],
            ["is a model for answer", "classify: an ensemble needs models of one task"],
        ),
        ([], ["MODEL", "firth predict --help"]),
    ],
)
def test_refusals_are_one_line(
    firth: Callable[..., Any],
    models: dict[str, Path],
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    there = [tmp_path / token for token in tokens if token.startswith("t.")]
    for path in there:
        path.write_text("a text\n")
    places = {"MODEL": models["classify"], "RUN": tiny_run, "ANSWER": models["answer"]}
    result = firth("predict", *(places.get(token, token) for token in tokens))
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == [], result.complaint
    assert list(tmp_path.iterdir()) == there


def test_answer_texts_as_the_published_code_recovers_them(firth, models: dict[str, Path], tmp_path: Path) -> None:
    """The spans are the same; their texts are whole words of the context where the tokens are not found in these."""
    file = models["answer"].parent / FILES["answer"][0]
    exact, published = (
        rows(firth("predict", models["answer"], "--input", file, *flags).out)
        for flags in ((), ("--recover-text", "published"))
    )
    assert [row["no_answer_score"] for row in exact] == [row["no_answer_score"] for row in published]
    gold = {row["id"]: row for row in exact}
    assert all(gold[row["id"]]["probability"] == row["probability"] for row in published)
    out = tmp_path / "p.jsonl"
    firth("predict", models["answer"], "--input", file, "--recover-text", "published", "--out", out)
    said = firth("score", "--predictions", out, "--gold", file, "--task", "answer", "--json")
    asked = firth("evaluate", models["answer"], "--data", file, "--recover-text", "published", "--json")
    assert json.loads(said.out)["scores"] == pytest.approx(json.loads(asked.out)["scores"])
    for verb in (("predict", models["classify"], "x"), ("evaluate", models["classify"], "--data", file)):
        refused = firth(*verb, "--recover-text", "published")
        assert refused.code == 2 and "--recover-text is for question answering" in refused.complaint


def test_a_pair_for_a_model_of_single_texts_is_refused(firth, tmp_path: Path) -> None:
    lines = [f"{word} {n}\t{label}" for n in range(12) for word, label in (("river", "a"), ("winter", "b"))]
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", "utf-8")
    run = tmp_path / "run"
    firth("finetune", "--task", "classify", "--model", "tfidf", "--train", tmp_path / "t.tsv", "--out", run)
    items = tmp_path / "items.jsonl"
    items.write_text('{"text": "river"}\n{"text": "river", "second": "winter"}\n', "utf-8")
    found = firth("predict", run, "--input", items)
    assert found.code == 2 and "items.jsonl:2: a pair of texts, and the model has learnt from single" in found.complaint
