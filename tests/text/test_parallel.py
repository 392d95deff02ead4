"""Two files of parallel lines as pairs."""

import gzip
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.text.parallel import ParallelReader


def write(folder: Path, name: str, lines: list[str], end: str = "\n") -> Path:
    (folder / name).write_text("\n".join(lines) + end, "utf-8")
    return folder / name


def test_line_i_belongs_to_line_i(tmp_path: Path) -> None:
    ours = write(tmp_path, "a", ["one", " two ", "three"])
    theirs = tmp_path / "b.gz"
    theirs.write_bytes(gzip.compress(b"eins\r\nzwei\r\ndrei"))
    reader = ParallelReader([ours], [theirs])
    for _ in range(2):
        pairs = list(reader)
        assert [p.paragraphs for p in pairs] == [("one", "eins"), ("two", "zwei"), ("three", "drei")]
        assert [p.where for p in pairs] == [f"{ours}:{n}" for n in (1, 2, 3)]
        assert reader.report.documents == 3 and reader.skipped == 0
        assert reader.bytes_consumed == reader.total_bytes
    assert reader.report.characters == 11 + 12


def test_pairs_with_an_empty_side_are_left_out_and_counted(tmp_path: Path) -> None:
    ours = write(tmp_path, "a", ["one", "", "three", "  ", "five"])
    theirs = write(tmp_path, "b", ["eins", "zwei", "", "", "fünf"])
    reader = ParallelReader([ours], [theirs])
    assert [p.paragraphs for p in reader] == [("one", "eins"), ("five", "fünf")]
    assert reader.skipped == 3


def test_files_belong_together_in_their_order(tmp_path: Path) -> None:
    ours = [write(tmp_path, name, [name]) for name in ("b", "a")]
    theirs = [write(tmp_path, name, [name]) for name in ("y", "z")]
    assert [p.paragraphs for p in ParallelReader(ours, theirs)] == [("b", "y"), ("a", "z")]
    with pytest.raises(InputError, match="2 files of one language and 1 of the other"):
        ParallelReader(ours, theirs[:1])


@pytest.mark.parametrize(("n_ours", "n_theirs"), [(5, 3), (2, 1200), (1, 0)])
def test_unequal_numbers_of_lines_name_both(n_ours: int, n_theirs: int, tmp_path: Path) -> None:
    ours = write(tmp_path, "a", ["x"] * n_ours)
    theirs = write(tmp_path, "b", ["y"] * n_theirs, end="\n" if n_theirs else "")
    with pytest.raises(InputError, match=f"a has {n_ours:,} lines and .*b {n_theirs:,}: line i"):
        list(ParallelReader([ours], [theirs]))


def test_lines_that_are_no_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.text.corpus.LINE_LIMIT", 20)
    ours = write(tmp_path, "a", ["short", "word " * 20])
    theirs = write(tmp_path, "b", ["kurz", "lang"])
    with pytest.raises(InputError, match="a:2: found a line of more than 20 characters"):
        list(ParallelReader([ours], [theirs]))
    with pytest.raises(InputError, match="not JSONL"):
        list(ParallelReader([write(tmp_path, "c.jsonl", ['{"text": "x"}'])], [theirs]))


def test_bytes_that_are_not_utf8_are_counted(tmp_path: Path) -> None:
    ours = write(tmp_path, "a", ["one"])
    (tmp_path / "b").write_bytes(b"ein\xffs\n")
    reader = ParallelReader([ours], [tmp_path / "b"])
    assert [p.paragraphs for p in reader] == [("one", "ein\ufffds")]
    assert reader.report.bad_bytes == 1
    with pytest.raises(InputError, match="not UTF-8"):
        list(ParallelReader([ours], [tmp_path / "b"], "strict"))


def test_a_bare_carriage_return_ends_no_line(tmp_path: Path) -> None:
    """As in other files with one answer per line: otherwise pairs become misaligned silently."""
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.write_bytes(b"one\r\ntwo\rtwo\nthree\n")
    theirs.write_bytes(b"eins\nzwei\ndrei\rdrei\r\n")
    assert [p.paragraphs for p in ParallelReader([ours], [theirs])] == [
        ("one", "eins"), ("two\rtwo", "zwei"), ("three", "drei\rdrei")
    ]  # fmt: skip
