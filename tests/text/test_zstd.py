""".zst files: consecutive frames, and a truncated frame."""

import tracemalloc
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.text.corpus import CorpusReader, read_text_lines
from firth.text.zstd import open_zstd

zstandard = pytest.importorskip("zstandard")
TEXT = "".join(f"Line {i} of the text.\n" + "\n" * (i % 5 == 0) for i in range(20_000))


def test_frames_are_read_to_the_last(tmp_path: Path) -> None:
    data = TEXT.encode()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(data[:100_001]) + zstandard.compress(data[100_001:]))
    assert "\n".join(read_text_lines(path)) + "\n" == TEXT
    plain = tmp_path / "a.txt"
    plain.write_text(TEXT)
    assert [d.paragraphs for d in CorpusReader([path])] == [d.paragraphs for d in CorpusReader([plain])]


def test_what_repeats_a_thousandfold_is_read_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"a line\n" * 30_000_000))
    with path.open("rb") as packed, open_zstd(packed) as source:
        tracemalloc.start()
        assert source.read(1 << 18) == (b"a line\n" * 40_000)[: 1 << 18]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 60e6 < 7 * 30e6 and path.stat().st_size < 1e5


def test_a_frame_with_the_largest_window_is_read(tmp_path: Path) -> None:
    """As in dumps made by zstd --long=31. The frame is written by hand: compressing one takes gigabytes of memory."""
    n, repeated = 100_000, 0b010  # the bytes of a block, and the block type that repeats one byte
    window, size = bytes([(31 - 10) << 3]), (2 * n).to_bytes(4, "little")
    blocks = b"".join((n << 3 | repeated | last).to_bytes(3, "little") + b"a" for last in (0, 1))
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"\x80" + window + size + blocks)
    assert list(read_text_lines(path)) == ["a" * 2 * n]


@pytest.mark.parametrize("cut", [1, 1000, -3])
def test_a_frame_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(TEXT.encode())[:cut])
    with pytest.raises(InputError, match="broken or truncated .zst"):
        list(CorpusReader([path]))


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"this is no archive")
    with pytest.raises(InputError, match="broken or truncated .zst"):
        list(CorpusReader([path]))
