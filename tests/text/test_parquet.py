"""Parquet as text."""

from pathlib import Path

import pytest

from firth.errors import InputError
from firth.text.corpus import CorpusReader

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_rows_are_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = ["One.\nTwo.", None, "", "강이 흐른다."] + [f"Document {i}." for i in range(3000)]
    parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "text": texts}), path, row_group_size=700)
    reader = CorpusReader([tmp_path])  # Parquet files in a folder are read
    read = list(reader)
    assert [document.paragraphs for document in read[:2]] == [("One.", "Two."), ("강이 흐른다.",)]
    assert [document.where for document in read[:2]] == [f"{path}:1", f"{path}:4"]
    assert len(read) == 3002 and reader.bytes_consumed == reader.total_bytes


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"body": ["a"]}, 'no column "text" .columns: body'), ({"text": [1]}, '"text" must hold strings, not int64')],
)
def test_other_columns(tmp_path: Path, columns: dict, message: str) -> None:
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        list(CorpusReader([tmp_path / "a.parquet"]))


@pytest.mark.parametrize("data", [b"", b"PAR1 and not more", b"text"])
def test_what_is_no_parquet(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(InputError, match="a.parquet: cannot be read as Parquet"):
        list(CorpusReader([tmp_path / "a.parquet"]))


def test_progress_is_made_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["One text."] * 900}), path)
    reader = CorpusReader([path])
    documents = iter(reader)
    for _ in range(450):
        next(documents)
    assert 0.4 < reader.bytes_consumed / reader.total_bytes < 0.6


def test_strings_that_are_not_utf8(tmp_path: Path) -> None:
    column = pyarrow.array([b"fine", b"caf\xe9"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: row 2: not UTF-8"):
        list(CorpusReader([tmp_path / "a.parquet"]))
