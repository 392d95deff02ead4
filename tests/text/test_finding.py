"""Which files a path, a folder or a pattern selects, and which names are refused."""

import os
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.text.finding import find_files


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_find_files_in_folders_globs_and_by_name(tmp_path: Path) -> None:
    text_names = ("b.txt", "a.jsonl", "sub/c.txt.gz", "sub/d.MD")
    for name in (*text_names, ".hidden.txt", ".git/e.txt", "f.png", "odd.dat"):
        write(tmp_path / name, "x")

    def names(*given: Path) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in find_files(given)]

    assert names(tmp_path) == ["a.jsonl", "b.txt", "sub/c.txt.gz", "sub/d.MD"]
    assert names(tmp_path / "odd.dat", tmp_path / "b.txt", tmp_path) == [
        "odd.dat",
        "b.txt",
        "a.jsonl",
        "sub/c.txt.gz",
        "sub/d.MD",
    ]
    assert names(tmp_path / "*.txt") == ["b.txt"]
    assert names(tmp_path / "**" / "*.gz") == ["sub/c.txt.gz"]


def test_one_path_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One.")
    assert find_files(path) == find_files(str(path)) == find_files([path]) == [path]


def test_find_files_names_what_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for given_path, message in [
        ("missing.txt", "no such file"),
        ("empty", "no text file in this folder"),
        ("*.txt", "no file matches"),
    ]:
        with pytest.raises(InputError, match=message) as raised:
            find_files([tmp_path / given_path])
        assert given_path in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(InputError, match="no text files given"):
        find_files([])


def test_linked_folders_and_folders_of_a_pattern_are_read(tmp_path: Path) -> None:
    for name in ("data/b/x.txt", "data/c.dat", "elsewhere/y.txt"):
        write(tmp_path / name, "x")
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "d")
    os.symlink(tmp_path / "data" / "b", tmp_path / "data" / "a")  # a second name
    os.symlink(tmp_path / "data", tmp_path / "elsewhere" / "back")  # a cycle

    def names(given: Path) -> list[str]:
        return [str(path.relative_to(tmp_path / "data")) for path in find_files([given])]

    assert names(tmp_path / "data") == ["b/x.txt", "d/y.txt"]
    assert sorted(names(tmp_path / "data" / "*")) == ["a/x.txt", "c.dat", "d/y.txt"]


def test_a_name_that_is_not_utf8_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path / os.fsdecode(b"bad\xff.txt"), "x")
    with pytest.raises(InputError, match="a name that is not UTF-8; rename it"):
        find_files([tmp_path])


def test_a_pipe_or_a_device_is_no_text(tmp_path: Path) -> None:
    """Opening a named pipe waits for its writer, and text is read more than once."""
    os.mkfifo(tmp_path / "pipe.txt")
    for text in (tmp_path / "pipe.txt", tmp_path, f"{tmp_path}/*.txt", "/dev/zero"):
        with pytest.raises(InputError, match=r"cannot be read: not a regular file \(a pipe\?\); write what it gives"):
            find_files([text])


@pytest.mark.parametrize(
    "made", ["firth.json", "tokenizer.json", "progress.jsonl", "vectors.f32", "tokenizer/tokenizer.json"]
)
def test_what_firth_has_written_is_no_text(made: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even if its folder is given, as with ``data/*``."""
    for name in (f"data/ours/{made}", "data/ours/vocab.txt", "data/a.txt"):
        write(tmp_path / name, "x")
    every = [tmp_path / "data" / "a.txt", tmp_path / "data" / "ours"]
    for given in ([tmp_path / "data"], [tmp_path / "data" / "*"], every):
        assert find_files(given) == [every[0]]
        assert "ours: skipped: Firth wrote it" in capsys.readouterr().err
    with pytest.raises(InputError, match="ours: Firth has written this folder; expected text"):
        find_files([every[1]])


def test_a_recipe_beside_ones_text_is_ones_own(tmp_path: Path) -> None:
    for name in ("mine/recipe.toml", "mine/a.txt", "mine/run/recipe.toml", "mine/run/b.txt"):
        write(tmp_path / name, "x")
    assert find_files([tmp_path / "mine"]) == [tmp_path / "mine" / "a.txt"]
    write(tmp_path / "mine" / "log.jsonl", "x")
    with pytest.raises(InputError, match="Firth has written this folder"):
        find_files([tmp_path / "mine"])
