"""Readers: what is a document, what is broken, what is counted, and how much memory they take."""

import gzip
import json
import lzma
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import InputError
from firth.text import corpus
from firth.text.corpus import CorpusReader


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def paragraphs(*paths: Path) -> list[tuple[str, ...]]:
    return [document.paragraphs for document in CorpusReader(paths)]


def test_plain_text(tmp_path: Path) -> None:
    text = "\ufeffTitle\r\n  first line \r\n\r\n\r\n \t\nSecond\rmore\u2028same\x0bline\n\nlast"
    path = write(tmp_path / "a.txt", text)
    reader = CorpusReader([path, write(tmp_path / "b.txt", "own document\n")])
    documents = list(reader)
    assert [document.paragraphs for document in documents] == [
        ("Title", "first line"),
        ("Second", "more\u2028same\x0bline"),
        ("last",),
        ("own document",),
    ]
    assert [document.where for document in documents] == [
        f"{path}:1",
        f"{path}:6",
        f"{path}:9",
        f"{tmp_path / 'b.txt'}:1",
    ]
    assert (reader.report.files, reader.report.documents, reader.report.paragraphs) == (2, 4, 6)
    assert reader.report.characters == sum(len(p) for d in documents for p in d.paragraphs)
    assert reader.bytes_consumed == reader.total_bytes == len(text.encode()) + len("own document\n")
    assert list(reader) == documents and reader.report.documents == 4


def test_jsonl(tmp_path: Path) -> None:
    lines = [{"text": "one\n\n two \r\nthree"}, {"id": 2, "text": "한국"}, {"text": " \n"}]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps(line) for line in lines) + "\n\n")
    documents = list(CorpusReader([path]))
    assert [document.paragraphs for document in documents] == [("one", "two", "three"), ("한국",)]
    assert documents[1].where == f"{path}:2"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("text", "not JSON"),
        ("[1]", "expected an object"),
        ('{"body": "x"}', r"no \"text\" \(keys: 'body'\)"),
        ('{"text": 3}', "must be a string, got int"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_broken_jsonl_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(InputError, match=message) as raised:
        list(CorpusReader([path]))
    assert str(raised.value).startswith(f"{path}:3: ") and "\n" not in str(raised.value)


def test_jsonl_under_other_names(tmp_path: Path) -> None:
    """As C4 is distributed; a plain .json in a folder is usually not text."""
    line = json.dumps({"text": "One.\nTwo."}) + "\n"
    write(tmp_path / "a.json", f"\n{line}")
    assert paragraphs(tmp_path / "a.json") == [("One.", "Two.")]
    write(tmp_path / "b.json.gz", gzip.compress(line.encode()))
    write(tmp_path / "c.ndjson", line * 2)
    write(tmp_path / "package.json", '{\n "name": "x"\n}')
    (tmp_path / "a.json").unlink()
    assert paragraphs(tmp_path) == [("One.", "Two.")] * 3


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (
            json.dumps([{"text": "a"}]),
            r"; write one object per line, such as by: jq -c '\.\[\]' \S*a.json > \S*a.jsonl$",
        ),
        (json.dumps({"text": "a"}, indent=1), "; write one object per line$"),
        ("Plain text.\n", "; write one object per line$"),
    ],
)
def test_a_json_document_is_no_text(tmp_path: Path, text: str, how: str) -> None:
    path = write(tmp_path / "a.json", text)
    with pytest.raises(InputError, match='expected JSON lines such as {"text": "..."}, .*' + how):
        paragraphs(path)


def test_half_a_surrogate_pair_in_jsonl(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a\\ud800b"}\n')
    reader = CorpusReader([path])
    assert [d.paragraphs for d in reader] == [("a\ufffdb",)]
    assert reader.report.bad_bytes == 1
    with pytest.raises(InputError, match="a.jsonl:1: .*surrogate"):
        list(CorpusReader([path], errors="strict"))


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_archives(tmp_path: Path, suffix: str, pack) -> None:  # type: ignore[no-untyped-def]
    text = "one\n\ntwo 한국\n" * 1000
    packed = pack(text.encode())
    good = write(tmp_path / f"a.txt{suffix}", packed + pack(b"\nmore\n"))
    assert paragraphs(good) == [("one",), ("two 한국", "one")] + [("two 한국", "one")] * 998 + [
        ("two 한국",),
        ("more",),
    ]
    jsonl = write(tmp_path / f"b.jsonl{suffix}", pack(b'{"text": "x"}\n'))
    assert paragraphs(jsonl) == [("x",)]
    for name, data in [
        ("cut", packed[:-9]),
        ("cut2", packed[: len(packed) // 2]),
        ("no", b"plain text\n"),
        ("mid", packed[:40] + b"\xff\x00\xff" + packed[43:]),
    ]:
        path = write(tmp_path / f"{name}.txt{suffix}", data)
        with pytest.raises(InputError, match="broken or truncated") as raised:
            list(CorpusReader([path]))
        assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\xff", "not a text file"),
        ("b", b"\x7fELF\x02\x01\x01" + b"\x00" * 9 + b"\xf0\x90", "not a text file"),
        ("c.txt", gzip.compress(b"text" * 100, mtime=0), "not a text file"),
        ("d.txt", "text".encode("utf-16"), "UTF-16"),
        ("e.txt", "text".encode("utf-16-le"), "looks like UTF-16 text; .* iconv -f UTF-16LE"),
        ("be.txt", "세 texts".encode("utf-16-be"), "looks like UTF-16 text; .* iconv -f UTF-16BE"),
        ("f.zst", b"(\xb5/\xfd", "broken or truncated"),
        ("f.7z", b"7z", "not supported"),
        ("g.txt.gz", gzip.compress(b"\x00\x01\xff\xfe" * 10, mtime=0), "not a text file"),
    ],
)
def test_files_that_are_not_text(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        list(CorpusReader([write(tmp_path / name, data)]))
    assert name in str(raised.value)


def test_a_stray_nul_is_text(tmp_path: Path) -> None:
    text = "long enough 한 text " * 10 + "with one \x00 in it."
    assert paragraphs(write(tmp_path / "a.txt", text)) == [(text,)]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x")
    reader = CorpusReader([path])
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.unlink()  # this user may read everything; a deleted file takes the same code path
    with pytest.raises(InputError, match="a.txt: cannot be read"):
        list(reader)


def test_bad_bytes_are_counted_with_their_places(tmp_path: Path) -> None:
    data = b"ok \xff bad\n" + "\ufffd 한".encode() + b"\xed\x95\n\n\xe9t\xe9 " + b"\x80" * 4 + b" end\xf0\x9f"
    path = write(tmp_path / "a.txt.gz", gzip.compress(data))
    reader = CorpusReader([path])
    text = "\n".join("\n".join(document.paragraphs) for document in reader)
    assert text == "ok \ufffd bad\n\ufffd 한\ufffd\n\ufffdt\ufffd \ufffd\ufffd\ufffd\ufffd end\ufffd"
    assert reader.report.bad_bytes == 9
    assert [place for _, place in reader.report.bad_places] == [3, 16, 20, 22, 24]
    assert reader.report.bad_places[0][0] == str(path)
    with pytest.raises(InputError, match=r"a\.txt\.gz: not UTF-8 at byte 3;"):
        list(CorpusReader([path], errors="strict"))


def test_a_file_of_another_encoding_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    korean = write(tmp_path / "k.txt", ("배송이 빨라서 좋아요.\n" * 100).encode("cp949"))
    with pytest.raises(
        InputError, match=r"k\.txt: \d\d% of its bytes are not UTF-8; .* iconv -f CP949 -t UTF-8 .*k\.txt > "
    ):
        list(CorpusReader([korean]))
    excel = write(tmp_path / "e.txt", "words\n".encode("utf-16"))
    with pytest.raises(InputError, match=r"UTF-16 text; .* iconv -f UTF-16 -t UTF-8 "):
        list(CorpusReader([excel]))
    # Only some of the letters: replaced, and reported.
    french = write(tmp_path / "f.txt", ("Un café et du thé.\n" * 100).encode("latin-1"))
    reader = CorpusReader([french])
    assert len(list(reader)) == 1 and reader.report.bad_bytes == 200


@settings(max_examples=200)
@given(st.binary(max_size=40) | st.text(max_size=30).map(str.encode), st.integers(1, 7))
def test_blocks_do_not_matter(tmp_path_factory: pytest.TempPathFactory, data: bytes, block: int) -> None:
    data = data.replace(b"\x00", b"").replace(b"\xff\xfe", b"").replace(b"\xfe\xff", b"")
    path = write(tmp_path_factory.getbasetemp() / "blocks.txt", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_BLOCK", block)
        reader = CorpusReader([path])
        documents = [document.paragraphs for document in reader]
    text = data.decode(errors="replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    expected: list[tuple[str, ...]] = []
    run: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            run.append(line.strip())
        elif run:
            expected.append(tuple(run))
            run = []
    assert documents == expected
    n_replaced = data.decode(errors="replace").count("\ufffd") - data.count("\ufffd".encode())
    assert reader.report.bad_bytes == n_replaced


def test_long_lines_and_documents_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "LINE_LIMIT", 10)
    monkeypatch.setattr(corpus, "DOCUMENT_LIMIT", 25)
    path = write(tmp_path / "a.txt", "aaaa bbbb cccc dddd\n" + "x" * 21 + "          \nshort\n\nlast one\n")
    reader = CorpusReader([path])
    assert [d.paragraphs for d in reader] == [
        ("aaaa bbbb", "cccc dddd"),
        ("x" * 10, "x" * 10, "x"),
        ("short",),
        ("last one",),
    ]
    assert (reader.report.cut_lines, reader.report.cut_documents) == (2, 1)
    jsonl = write(tmp_path / "b.jsonl", json.dumps({"text": "aaaa bbbb cccc\nd"}) + "\n")
    reader = CorpusReader([jsonl])
    assert [d.paragraphs for d in reader] == [("aaaa bbbb", "cccc", "d")]
    assert reader.report.cut_lines == 1


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "one-line.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(30):
            stream.write(b"some words on one line " * 50_000)
    reader = CorpusReader([path])
    tracemalloc.start()
    try:
        n = sum(len(document.paragraphs) for document in reader)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n >= 34 and reader.report.characters > 34_000_000
    assert peak < 20_000_000


def test_progress_follows_the_packed_file(shared_data: Path) -> None:
    reader = CorpusReader([shared_data / "en-wiki" / "dev.txt.xz", shared_data / "ko-wiki" / "dev.txt.xz"])
    seen = []
    for _ in reader:
        seen.append(reader.bytes_consumed)
    assert seen == sorted(seen) and 0 < seen[0] < seen[-1] <= reader.total_bytes == reader.bytes_consumed
    assert reader.report.documents == 198 + 675
    assert reader.report.bytes_read == 2465551 + 1039831
    assert reader.report.bad_bytes == 0


def test_no_documents(tmp_path: Path) -> None:
    for name, data in (("a.txt", ""), ("b.txt", " \n\n\t\n"), ("c.jsonl", "\n"), ("d.txt", "\ufeff")):
        reader = CorpusReader([write(tmp_path / name, data)])
        assert list(reader) == [] and reader.report.documents == 0


def test_a_book_is_one_document_with_joined_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = tmp_path / "book.txt"
    book.write_text("\n\nCHAPTER I\n\nIt was a dark\nand stormy night.\n \n\nThe rain fell.\n", "utf-8")
    (tmp_path / "empty.txt").write_text("\n \n", "utf-8")
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"text": "One.\\nTwo."}\n{"text": "Three."}\n', "utf-8")
    reader = CorpusReader([tmp_path], books=True)
    found = [(one.paragraphs, one.where) for one in reader]
    assert found[0] == (("CHAPTER I", "It was a dark and stormy night.", "The rain fell."), f"{book}:3")
    assert [paragraphs for paragraphs, _ in found[1:]] == [("One.", "Two."), ("Three.",)], "JSONL is as it is"
    assert reader.report.documents == 3 and reader.report.paragraphs == 6
    assert [len(one.paragraphs) for one in CorpusReader([book])] == [1, 2, 1]
    monkeypatch.setattr(corpus, "LINE_LIMIT", 20)
    (one,) = CorpusReader([book], books=True)
    assert one.paragraphs == ("CHAPTER I", "It was a dark", "and stormy night.", "The rain fell.")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar", "a.tar.xz", "a.zip"])
def test_archives_of_several_files_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=f"{name}: {name[1:]} is not supported; decompress it"):
        list(CorpusReader([tmp_path / name]))
