"""Opening labelled files: compression, encodings, line numbers, tables; and the collection of bad rows."""

import gzip
import lzma
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firth.errors import InputError
from firth.tasks.readers.files import (
    Problems,
    check_records,
    make_each,
    read_csv,
    read_json_document,
    read_jsonl,
    read_lines,
    read_tsv,
)
from firth.text.records import Text

Pack = Callable[[bytes], bytes]


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_keep_their_numbers(tmp_path: Path, suffix: str, pack: Pack, mark: bytes) -> None:
    path = tmp_path / f"a.tsv{suffix}"
    path.write_bytes(pack(mark + "a\tb\r\n\n두\u2028\x0c줄\r\nlast".encode()))
    # Only line feeds end lines: other Unicode line separators are text.
    assert list(read_lines(path)) == [(1, "a\tb"), (2, ""), (3, "두\u2028\x0c줄"), (4, "last")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tsv", b"", r"a\.tsv: the file is empty"),
        ("a.tsv", b"ok\nb\xe4d\n", r"a\.tsv:2: found the byte 0xe4 at column 2, expected UTF-8"),
        ("a.tsv", "a".encode("utf-16"), r"a\.tsv:1: found UTF-16"),
        ("a.tsv", "a".encode("utf-32"), r"a\.tsv:1: found UTF-32"),
        ("a.tsv", b"\x1f\x8b\x08\x00a", r"a\.tsv: a compressed file; decompress it, or name it"),
        ("a.tsv", "ham\ta\n".encode("utf-16-le"), r"a\.tsv:1: found bytes of 0 between letters, .* iconv -f UTF-16LE"),
        ("a.gz", b"plain", r"a\.gz: broken or truncated \.gz"),
        ("a.gz", gzip.compress(b"text\n" * 999, mtime=0)[:-9], r"a\.gz: broken or truncated \.gz"),
        ("a.xz", lzma.compress(b"text\n" * 999)[:-9], r"a\.xz: broken or truncated \.xz"),
        ("a.zip", b"PK", r"a\.zip: \.zip cannot be read; decompress it"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_lines(tmp_path / name))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_pipe_is_no_file_of_examples(tmp_path: Path, name: str) -> None:
    """Reading a pipe would wait for a writer; and columns are guessed in one pass and read in another."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=r"cannot be read: not a regular file \(a pipe\?\); write what it gives"):
        list(read_lines(tmp_path / name))


def test_a_line_that_no_text_has_is_not_read(tmp_path: Path) -> None:
    """A few kilobytes can decompress to one line of any length."""
    longest = b"a" * 2**24
    for name, pack in (("a.tsv", bytes), ("a.tsv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b"ok\n" + longest))
        assert [len(line) for _, line in read_lines(tmp_path / name)] == [2, 2**24]
        (tmp_path / name).write_bytes(pack(b"ok\n" + longest + b"a"))
        with pytest.raises(InputError, match=r":2: found a line of more than 16,777,216 bytes; split it"):
            list(read_lines(tmp_path / name))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; check the path"):
        list(read_lines(tmp_path / "none.tsv"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


def test_a_line_that_cannot_be_decoded_is_a_bad_row_of_line_formats(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\t1\n\xff\t2\nc\t3\n")
    problems = Problems(skip_bad=True)
    assert list(read_tsv(path, problems)) == [(1, ["a", "1"]), (3, ["c", "3"])]
    assert problems.n_bad == 1
    with pytest.raises(InputError, match=r"a\.tsv:2"):
        list(read_tsv(path, Problems()))


def test_reading_is_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"fine\n" + b"\xff\n")
    lines = read_lines(path)
    assert next(lines) == (1, "fine")
    with pytest.raises(InputError):
        next(lines)


def test_csv_fields_and_the_lines_they_begin_at(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"a, b",1\r\n\r\n"two\r\nlines ""q""",2\r\nc,3\r\n')
    assert list(read_csv(path)) == [(1, ["a, b", "1"]), (2, [""]), (3, ['two\nlines "q"', "2"]), (5, ["c", "3"])]
    path.write_text("x" * 200_000 + ",1\n")
    assert len(next(read_csv(path))[1][0]) == 200_000
    path.write_text('a,1\n"open,2\n')
    with pytest.raises(InputError, match=r"a\.csv:2: not valid CSV"):
        list(read_csv(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text("ab\",\n\t 가'", max_size=5), min_size=2, max_size=2), min_size=1, max_size=5))
def test_csv_gives_back_what_was_quoted(tmp_path: Path, rows: list[list[str]]) -> None:
    path = tmp_path / "a.csv"
    quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    path.write_bytes(("\n".join(quoted) + "\n").encode())
    assert [row for _, row in read_csv(path)] == rows


def test_jsonl_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n[1]\n{"a": 2}\n')
    problems = Problems(skip_bad=True)
    assert list(read_jsonl(path, problems)) == [(1, {"a": 1}), (5, {"a": 2})]
    assert [message.partition("; ")[0] for message in problems.messages] == [
        f"{path}:3: not JSON (Expecting value)",
        f"{path}:4: found a list, expected a JSON object",
    ]


def test_json_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a":\n 1,}\n')
    with pytest.raises(InputError, match=r"a\.json:2: not valid JSON"):
        read_json_document(path)


# Damage that is not reported as a JSON syntax error.
NO_JSON = {
    '{"a": "\\ud800"}': "half of a surrogate pair",
    '{"a": 1, "b": {"c": 2, "c": 3}}': "it has the key 'c' twice in one object",
    '{"a": [NaN]}': "it has NaN, which is not a JSON number",
    '{"a": -Infinity}': "it has -Infinity, which is not a JSON number",
    '{"a": ' + "1" * 5000 + "}": "cannot be parsed",
    '{"a": ' + "[" * 100_000: "cannot be parsed",
}


@pytest.mark.parametrize(
    ("text", "why"), NO_JSON.items(), ids=["surrogate", "twice", "nan", "infinity", "digits", "nested"]
)
def test_json_that_python_cannot_hold(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"a\.json: not valid JSON \({why}\)"):
        read_json_document(path)
    with pytest.raises(InputError, match=rf"a\.json:1: not JSON \({why}\)"):
        list(read_jsonl(path, Problems()))
    path.write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json_document(path) == {"a": "\U0001f600"}


def test_bad_rows_stop_or_are_counted() -> None:
    def make(number: int) -> int:
        if number % 2:
            raise InputError(f"row {number}")
        return number

    with pytest.raises(InputError, match="row 1"):
        list(make_each(range(100), make, Problems()))
    problems = Problems(skip_bad=True)
    assert list(make_each(range(100), make, problems)) == list(range(0, 100, 2))
    assert problems.n_bad == 50
    assert problems.messages == [f"row {number}" for number in range(1, 40, 2)]


def test_report_tells_everything_met() -> None:
    problems = Problems(skip_bad=True)
    problems.note("a header")
    problems.note("a header")
    problems.leave_out("no gold label")
    problems.add(InputError("f:1: bad"))
    assert problems.report() == [
        "a header",
        "skipped by the rules of the data set: 1 (no gold label)",
        "malformed rows skipped: 1; the first 1:",
        "  f:1: bad",
    ]
    assert Problems().report() == []


def test_without_a_look_at_ids_none_is_kept() -> None:
    class Name(str):
        """A string that can be weakly referenced."""

    last: list[weakref.ref[Name]] = []

    def rows() -> Iterator[Text]:
        for number in range(4):
            name = Name(number)
            last.append(weakref.ref(name))
            yield Text("a", id=name)

    n_alive = [
        sum(ref() is not None for ref in last) for _ in check_records(Path("f"), rows(), Problems(unique_ids=False))
    ]
    assert max(n_alive) <= 2


def test_ids_occur_once_and_there_is_an_example() -> None:
    rows = [Text("a", where="f:1", id="x"), Text("b"), Text("c"), Text("d", where="f:4", id="x")]
    with pytest.raises(InputError, match=r"f:4: found the id 'x' again \(first at f:1\)"):
        list(check_records(Path("f"), rows, Problems()))
    assert [r.text for r in check_records(Path("f"), rows, Problems(skip_bad=True))] == ["a", "b", "c"]
    assert [r.text for r in check_records(Path("f"), rows, Problems(unique_ids=False))] == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="f: no usable example"):
        list(check_records(Path("f"), [], Problems()))


def test_the_line_that_only_excel_reads_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\nlabel;text\nham;hello\n", "utf-8")
    with pytest.raises(InputError, match=r"a\.csv:1: only Excel reads this line \(sep=;\): delete it"):
        list(read_csv(tmp_path / "a.csv"))
