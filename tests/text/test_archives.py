"""Compressed files, and the difference between a damaged one and an empty one."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from firth.convert.word_vectors import open_vectors
from firth.corpus.prepare import prepare
from firth.errors import InputError
from firth.tasks.readers.files import read_lines
from firth.text.archives import BROKEN_ARCHIVE, open_packed
from firth.text.corpus import CorpusReader

TEXT = "한 줄\nan other line\n".encode()


def packed(path: Path) -> bytes:
    return gzip.compress(TEXT) if path.suffix == ".gz" else lzma.compress(TEXT)


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz", "A.TXT.GZ"])
def test_contents_come_unpacked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(TEXT if name == "a.txt" else packed(path.with_suffix(path.suffix.lower())))
    with open_packed(path) as file:
        assert file.read() == TEXT


def test_an_archive_of_the_older_kind_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.xz").write_bytes(lzma.compress(TEXT, lzma.FORMAT_ALONE))
    with open_packed(tmp_path / "a.xz") as file:
        assert file.read() == TEXT


PACKERS: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".bz2": bz2.compress, ".gz": gzip.compress}


@pytest.mark.parametrize("suffix", PACKERS)
def test_all_streams_of_a_file_are_read_or_it_is_damaged(tmp_path: Path, suffix: str) -> None:
    """The standard library's readers of .xz and .bz2 take a damaged stream, or padding, for the end of the file."""
    path = tmp_path / f"a.txt{suffix}"
    pack, parts = PACKERS[suffix], [f"text number {n}\n".encode() * 500 for n in range(4)]
    streams = [pack(part) for part in parts]
    for padding in (b"", bytes(4)):
        path.write_bytes(padding.join([*streams, b""]))
        with open_packed(path) as file:
            assert file.read() == b"".join(parts)
    flipped = bytearray(streams[1])
    flipped[len(flipped) // 2] ^= 1
    for bad in ([streams[0], bytes(flipped), streams[2]], [*streams, streams[0][:-3]], [streams[0], b"xz or not"]):
        path.write_bytes(b"".join(bad))
        with pytest.raises(BROKEN_ARCHIVE), open_packed(path) as file:
            file.read()


DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda data: b"",
    lambda data: bytes(100) + data,
    lambda data: bytes(100),
    lambda data: data[: len(data) // 2],
    lambda data: TEXT,
]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_not_an_empty_one(
    tmp_path: Path, tiny_vocab: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(damage(packed(path)))
    with pytest.raises(BROKEN_ARCHIVE), open_packed(path) as file:
        file.read()
    with pytest.raises(InputError, match="broken or truncated"):
        list(CorpusReader([path]))
    with pytest.raises(InputError, match="broken or truncated"):
        prepare([path], tiny_vocab, tmp_path / "corpus", workers=1)
    with pytest.raises(InputError, match="broken or truncated"):
        list(read_lines(path))
    vectors = path.rename(tmp_path / f"a.vec{suffix}")
    with pytest.raises(InputError, match="broken or truncated"):
        open_vectors(vectors)


@pytest.mark.parametrize("name", ["a.txt", "a.tsv.xz", "a.jsonl.gz"])
def test_a_pointer_of_git_lfs_is_not_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1000\n")
    for read in (lambda: CorpusReader([path]), lambda: read_lines(path)):
        with pytest.raises(InputError, match="a pointer of Git LFS, not the file itself: fetch it with git lfs pull"):
            list(read())
