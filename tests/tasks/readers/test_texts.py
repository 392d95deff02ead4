"""Texts and pairs from TSV, CSV and JSONL, with columns given or detected."""

from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firth.errors import ConfigError, InputError
from firth.tasks.readers.files import Problems
from firth.tasks.readers.texts import Columns, TextFormat, parse_columns, read_texts
from firth.text.records import Text


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8", newline="")
    return path


def read(path: Path, columns: str = "", **options: Any) -> list[Text]:
    labelled = options.pop("labelled", True)
    problems = options.pop("problems", None) or Problems()
    layout = TextFormat(columns=parse_columns(columns) if columns else Columns(), **options)
    return list(read_texts(path, problems, layout, labelled=labelled))


def test_columns_are_parsed() -> None:
    assert parse_columns("text=2,label=0") == Columns(text=2, label=0)
    assert parse_columns(f"text={'9' * 5000}") == Columns(text="9" * 5000)
    assert parse_columns(" text = sentence , second=b,label=gold, id=idx,group=doc") == Columns(
        text="sentence", second="b", label="gold", id="idx", group="doc"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found '', expected part=column"),
        ("text=0,label", "found 'label', expected part=column"),
        ("text=0,tag=1", "unknown part 'tag'"),
        ("text=0,text=1", "'text' is given twice"),
        ("text=0,second=1,label=1", "second and label are both column 1"),
        ("label=1", "the column of the text is missing"),
    ],
)
def test_columns_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_columns(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\n\nhello world\n\n", ["", "", "hello world", ""]),
        ("\ntext\nhello\n\n", ["hello", ""]),  # what comes before the header is no row
        ("id\ttext\n1\tone\n\t\n\n3\tthree\n", ["one", "", "three"]),
        ("\t\n1\tone words here\n", ["", "one words here"]),
    ],
)
def test_what_is_answered_has_an_answer_for_each_row(tmp_path: Path, text: str, found: list[str]) -> None:
    columns = "id=0,text=1" if text.startswith("\t") else ""
    assert [row.text for row in read(file(tmp_path, "a.tsv", text), columns, labelled=False)] == found


@pytest.mark.parametrize("value", ["true", "[1]", "{}"])
def test_an_id_is_text_or_a_number(tmp_path: Path, value: str) -> None:
    good = '{"text": "a", "label": "x", "id": 7}\n'
    assert read(file(tmp_path, "a.jsonl", good))[0].id == "7"
    path = file(tmp_path, "a.jsonl", good + f'{{"text": "b", "label": "x", "id": {value}}}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2: found .* for 'id', expected text or a number"):
        read(path)


def test_quotation_marks_are_text_in_tsv_and_quotes_in_csv(tmp_path: Path) -> None:
    tsv = file(tmp_path, "a.tsv", '"He said\t1\nit"\t0\n')
    assert read(tsv, "text=0,label=1") == [Text('"He said', "1", f"{tsv}:1"), Text('it"', "0", f"{tsv}:2")]
    csv = file(tmp_path, "a.csv", 'label,text\n1,"a, ""b""\nc"\n0,d\n')
    assert read(csv) == [Text('a, "b"\nc', "1", f"{csv}:2"), Text("d", "0", f"{csv}:4")]


def test_columns_by_number_with_and_without_header(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "x\tlabel\ttext\n0\tgood\tfine film\n")
    expected = [Text("fine film", "good", f"{path}:2")]
    assert read(path, "text=2,label=1") == expected  # known names: a header
    assert read(path, "text=2,label=1", header=True) == expected
    assert read(path, "text=text,label=label") == expected
    assert len(read(path, "text=2,label=1", header=False)) == 2


def test_known_names_are_found_whatever_their_case(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "ID\tPremise\tHypothesis\tGold_Label\nn1\tp\th\tneutral\n")
    problems = Problems()
    assert read(path, problems=problems) == [Text("p", "neutral", f"{path}:2", "h", "n1")]
    assert problems.notes == [
        f"{path}: first line is a header; text from 'Premise', second from 'Hypothesis', label from 'Gold_Label', "
        "id from 'ID'"
    ]


def test_what_was_decided_without_header_is_noted(tmp_path: Path) -> None:
    problems = Problems()
    path = file(tmp_path, "a.txt", "one line\nanother\n")
    assert [r.text for r in read(path, labelled=False, problems=problems)] == ["one line", "another"]
    assert problems.notes == [f"{path}: no header; text from column 0"]


def test_labels_of_each_kind(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "a\tx|y\nb\t\nc\tz\n")
    assert [r.label for r in read(path, "text=0,label=1", kind="multilabel")] == [("x", "y"), (), ("z",)]
    assert [r.label for r in read(file(tmp_path, "b.tsv", "a\tx|y\n"), "text=0,label=1")] == ["x|y"]
    path = file(tmp_path, "c.tsv", "a\t2.5\nb\t-1e-1\n")
    assert [r.label for r in read(path, "text=0,label=1", kind="regress")] == [2.5, -0.1]
    path = file(tmp_path, "d.jsonl", '{"text": "a", "labels": ["x", "y"]}\n{"text": "b", "labels": []}\n')
    assert [r.label for r in read(path, kind="multilabel")] == [("x", "y"), ()]
    path = file(tmp_path, "e.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": true}\n')
    assert [r.label for r in read(path)] == ["1", "true"]
    path = file(tmp_path, "f.jsonl", '{"text": "a", "score": 3}\n{"text": "b", "score": "1.5"}\n')
    assert [r.label for r in read(path, kind="regress")] == [3.0, 1.5]


def test_jsonl_keys(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        "a.jsonl",
        '{"text_a": "p", "text_b": "h", "label": "no", "id": 7, "extra": {}}\n'
        '{"premise": "p2", "hypothesis": "h2", "label": "yes"}\n',
    )
    assert read(path) == [Text("p", "no", f"{path}:1", "h", "7"), Text("p2", "yes", f"{path}:2", "h2")]
    path = file(tmp_path, "b.jsonl", '{"q": {"body": "deep"}, "gold": "x"}\n')
    assert read(path, "text=q.body,label=gold") == [Text("deep", "x", f"{path}:1")]
    path = file(tmp_path, "d.jsonl", '{"text": "a", "meta.label": "x", "meta": {"label": "y"}}\n')
    assert read(path, "text=text,label=meta.label") == [Text("a", "x", f"{path}:1")]
    path = file(tmp_path, "c.json", '[{"text": "a", "label": "x"}]')
    assert read(path) == [Text("a", "x", f"{path}: [0]")]


def test_labels_are_not_looked_at_when_they_are_to_be_predicted(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel\na\t\nb\tx\n")
    assert [r.label for r in read(path, labelled=False)] == [None, None]
    path = file(tmp_path, "a.jsonl", '{"text": "a"}\n')
    assert read(path, labelled=False) == [Text("a", None, f"{path}:1")]


BAD_TABLES = [
    ("text\tlabel\na\tb\tc\n", "", {}, r":2: found 3 columns, expected 2 as in line 1"),
    ("text\tlabel\na\n", "", {}, r":2: found 1 column, expected 2"),
    ("text\tlabel\n \tx\n", "", {}, r":2: found an empty text"),
    ("text\tsecond\tlabel\na\t\tx\n", "", {}, r":2: found an empty second text"),
    ("text\tlabel\na\t\n", "", {}, r":2: found no label"),
    ("text\tlabel\na\tx|x\n", "", {"kind": "multilabel"}, r":2: found the labels \['x', 'x'\], expected each once"),
    ("text\tlabel\na\tnan\n", "", {"kind": "regress"}, r":2: found 'nan' as score, expected a finite number"),
    ("text\tlabel\na\tinf\n", "", {"kind": "regress"}, r":2: found 'inf' as score"),
    ("text\tlabel\na\t1_000\n", "", {"kind": "regress"}, r":2: found '1_000' as score, expected a finite number"),
    ("text\tlabel\na\t-1e300\n", "", {"kind": "regress"}, r":2: found '-1e300' as score, expected at most 1e\+15"),
    ("id\tquestion\tlabel\na\tb\tc\n", "", {}, r":1: no column of texts .* for example columns text=question"),
    ("text\tlabel\na\tfour\n", "", {"kind": "regress"}, r":2: found 'four' as score"),
    ("text\tlabel\na\t\n", "", {"kind": "regress"}, r":2: found no score"),
    ("text\tlabel\n", "", {}, r": no usable example"),
    ("\n\n", "", {}, r": found only blank lines"),
    ("good film\tpos\n", "", {}, r":1: found 2 columns without known names \(good film \| pos\); say which"),
    ("one column\n", "", {}, r":1: found 1 column .one column., expected a text and a label"),
    ("text\tx\na\tb\n", "", {}, r":1: no column of labels"),
    ("x\tlabel\na\tb\n", "", {}, r":1: no column of texts"),
    ("text\tsentence\tlabel\na\tb\tc\n", "", {}, r":1: found 'text' and 'sentence', expected one text"),
    ("text\tlabel\tText\na\tb\tc\n", "", {}, r":1: found 2 columns 'text' in the header, expected one text"),
    ("a\tb\n", "text=0,label=2", {}, r":1: found 2 columns \(a \| b\), expected one with the number 2"),
    ("a\tb\n", "text=a,label=c", {}, r":1: found no column 'c' in the header"),
    ("a\ta\tb\n", "text=a,label=b", {}, r":1: found 2 column 'a' in the header"),
    ("a\tb\n", "text=a,label=b", {"header": False}, r":1: the column 'a' is a name, but the file has no header"),
    (
        "id\ttext\tlabel\nn\ta\tx\nn\tb\tx\n",
        "",
        {},
        r":3: found the id 'n' again \(first at .*:2\).*: --columns text=NAME,label=NAME, and second=NAME of",
    ),
    ("i\tt\tl\nn\ta\tx\nn\tb\tx\n", "id=i,text=t,label=l", {}, r":3: found the id 'n' again .*: rename or remove one$"),
]


@pytest.mark.parametrize(("text", "columns", "options", "message"), BAD_TABLES)
def test_bad_tables(tmp_path: Path, text: str, columns: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(file(tmp_path, "a.tsv", text), columns, **options)


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ('{"label": "x"}', {}, r":1: found no 'text' or 'sentence' .*\(keys: 'label'\); add the text"),
        ('{"text": "a"}', {}, r":1: found no 'label' or 'labels'"),
        ('{"text": null, "label": "x"}', {}, r":1: found null for 'text'; add the text, or remove the row"),
        ('{"text": "a", "label": null}', {}, r":1: found null for 'label'; add the label, or remove the row"),
        ('{"text": 5, "label": "x"}', {}, r":1: found a number as text"),
        ('{"text": "a", "label": 1.5}', {}, r":1: found a number as label"),
        ('{"text": "a", "label": ["x"]}', {}, r":1: found a list as label"),
        ('{"text": "a", "label": {"x": 1}}', {"kind": "multilabel"}, r":1: found an object as labels"),
        ('{"text": "a", "label": 1e999}', {"kind": "regress"}, r":1: found inf as score"),
        (
            '{"text": "a", "label": NaN}',
            {"kind": "regress"},
            r":1: not JSON \(it has NaN, which is not a JSON number\)",
        ),
        ('{"text": "a", "label": true}', {"kind": "regress"}, r":1: found True as score"),
        ('{"text": "a", "premise": "b", "label": "x"}', {}, r":1: found 'text' and 'premise'"),
    ],
)
def test_bad_objects(tmp_path: Path, line: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(file(tmp_path, "a.jsonl", line + "\n"), **options)


def test_unknown_format_and_wrong_document(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown format '\.dat'"):
        read(file(tmp_path, "a.dat", "a\n"))
    with pytest.raises(InputError, match=r"found an object, expected a list of objects"):
        read(file(tmp_path, "a.json", "{}"))
    with pytest.raises(InputError, match=r"a\.json: \[1\]: found text, expected an object"):
        read(file(tmp_path, "a.json", '[{"text": "a", "label": "x"}, "b"]'))


def test_skipped_rows_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel\na\tx\n\ty\nc\t\nd\tx\ty\ne\tx\n")
    problems = Problems(skip_bad=True)
    assert [r.text for r in read(path, problems=problems)] == ["a", "e"]
    assert problems.n_bad == 3
    assert [message.split(":")[1] for message in problems.messages] == ["3", "4", "5"]


def test_rules_of_a_data_set_are_counted_apart(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel\na\tx\n\tx\nb\t-\nc\nd\tx\n")
    problems = Problems()
    left_out = ("empty text", "short row", "no gold label")
    assert [r.text for r in read(path, problems=problems, left_out=left_out)] == ["a", "d"]
    assert problems.left_out == {"empty text": 1, "short row": 1, "no gold label": 1}
    with pytest.raises(InputError, match=":3: found an empty text"):
        read(path)


FIELD = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=6))
def test_any_text_comes_back_from_tsv(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    path = file(tmp_path, "a.tsv", "text\tsecond\tlabel\n" + "".join(f"{a}\t{b}\tx\n" for a, b in rows))
    assert [(r.text, r.second) for r in read(path)] == rows


@pytest.mark.parametrize(
    ("name", "columns", "n", "first"),
    [
        ("glue/QQP/dev.tsv", "text=question1,second=question2,label=is_duplicate,id=id", 4914, ("1", "51")),
        ("snli/train.tsv", "", 5436, ("neutral", "")),
        ("snli/dev.tsv", "text=1,second=2,label=0", 959, ("neutral", "")),
        ("kornli/xnli.dev.ko.tsv", "text=sentence1,second=sentence2,label=gold_label", 2490, ("neutral", "")),
        ("sms-spam/dev.tsv", "text=1,label=0", 557, ("spam", "")),
    ],
)
def test_real_rows_by_columns(shared_data: Path, name: str, columns: str, n: int, first: tuple[str, str]) -> None:
    records = read(shared_data / name, columns)
    assert len(records) == n
    assert (records[0].label, records[0].id) == first
    assert all(record.second for record in records) or name.startswith("sms")


@pytest.mark.parametrize(("mark", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_csv_of_a_spreadsheet_in_another_country(tmp_path: Path, mark: str, name: str) -> None:
    path = file(tmp_path, "a.csv", f'label{mark}text\nx{mark}"one{mark} two, and ""three"""\ny{mark}four\n')
    problems = Problems()
    assert [(r.text, r.label) for r in read_texts(path, problems)] == [
        (f'one{mark} two, and "three"', "x"),
        ("four", "y"),
    ]
    assert problems.notes[0] == f"{path}: {name} separate the columns, not commas"
    commas = file(tmp_path, "b.csv", "label,text\nx,one; two\n")
    assert [r.text for r in read(commas)] == ["one; two"]
    # Without a header, commas of the texts alone do not make columns; where both are even, commas do.
    rows = f"one, two{mark}x\nthree{mark}y\nfour, five, six{mark}x\n"
    found = read(file(tmp_path, "c.csv", rows), "text=0,label=1")
    assert [(r.text, r.label) for r in found] == [("one, two", "x"), ("three", "y"), ("four, five, six", "x")]
    assert read(file(tmp_path, "d.csv", f"a{mark} b,x\nc{mark} d,y\n"), "text=0,label=1")[0].label == "x"


def test_a_csv_of_carriage_returns_is_told_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.csv:1: lines end in a carriage return alone"):
        read(file(tmp_path, "a.csv", "text,label\rone,x\rtwo,y\r"))


def test_a_pair_among_single_texts_and_a_single_text_among_pairs_are_errors(tmp_path: Path) -> None:
    single, pair = '{"text": "one", "label": "a"}\n', '{"text": "one", "second": "two", "label": "b"}\n'
    with pytest.raises(InputError, match=r"a\.jsonl:2: found a pair, expected a single text as in .*:1"):
        read(file(tmp_path, "a.jsonl", single + pair))
    with pytest.raises(InputError, match=r"b\.jsonl:3: found a single text, expected a pair as in .*:1"):
        read(file(tmp_path, "b.jsonl", pair + pair + single))
    problems = Problems(skip_bad=True)
    assert len(list(read_texts(file(tmp_path, "c.jsonl", single + pair + single), problems))) == 2 == problems.n_bad + 1


def test_a_header_that_comes_again_is_no_example(tmp_path: Path) -> None:
    table = "text,label\none,a\ntwo,b\n"
    with pytest.raises(InputError, match=r"a\.csv:4: found the header of line 1 again; remove the row"):
        read(file(tmp_path, "a.csv", table * 2))


def test_an_empty_text_is_answered_in_its_place(tmp_path: Path) -> None:
    def texts(name: str, content: str) -> list[str]:
        return [r.text for r in read_texts(file(tmp_path, name, content), Problems(), labelled=False)]

    assert texts("a.csv", 'text\none\n""\ntwo\n') == ["one", "", "two"]
    assert texts("b.tsv", "text\none\n\ntwo\n") == ["one", "", "two"]
    assert texts("c.csv", "id,text\n1,one\n2,\n\n3,two\n") == ["one", "", "two"]
    assert texts("d.jsonl", '{"text": "one"}\n{"text": ""}\n') == ["one", ""]


def test_lines_that_end_in_a_carriage_return_alone_are_said(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(b"text\tlabel\rone\ta\rtwo\tb\r")
    with pytest.raises(InputError, match=r"t\.tsv:1: lines end in a carriage return alone"):
        read(path)


def test_a_csv_without_commas_is_not_asked_for_tabs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a text and a label, separated by a comma$"):
        read(file(tmp_path, "a.csv", "one column\n"))


def test_json_keys_that_are_not_known_can_be_named(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", '{"sentence": "a", "y": "x"}\n')
    with pytest.raises(
        InputError, match=r"add the label, or say which keys are meant, with columns text=KEY,label=KEY"
    ):
        read(path)
    assert [r.label for r in read(path, "text=sentence,label=y")] == ["x"]


def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.xlsx: a spreadsheet; save it as CSV in UTF-8"):
        read(file(tmp_path, "a.xlsx", "PK"))


def test_a_column_is_found_however_its_letters_are_composed(tmp_path: Path) -> None:
    for written, asked in (("NFD", "NFC"), ("NFC", "NFD")):
        header = normalize(written, "본문\t분류")  # type: ignore[arg-type]
        (tmp_path / "t.tsv").write_text(f"{header}\na\tx\n", "utf-8")
        columns = parse_columns(normalize(asked, "text=본문,label=분류"))  # type: ignore[arg-type]
        (record,) = read_texts(tmp_path / "t.tsv", Problems(), layout=TextFormat(columns=columns))
        assert (record.text, record.label) == ("a", "x")
        keys = [normalize(written, key) for key in ("본문", "분류")]  # type: ignore[arg-type]
        (tmp_path / "t.jsonl").write_text(f'{{"{keys[0]}": "a", "{keys[1]}": "x"}}\n', "utf-8")
        (record,) = read_texts(tmp_path / "t.jsonl", Problems(), layout=TextFormat(columns=columns))
        assert (record.text, record.label) == ("a", "x")
