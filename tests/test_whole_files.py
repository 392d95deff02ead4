"""Files and folders appear whole or not at all, have one writer, and are not written through links."""

import errno
import fcntl
import importlib
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from firth.errors import CheckpointError, ConfigError, SaveError
from firth.files import (
    append_to,
    check_new,
    check_new_file,
    clear_litter,
    holds_something,
    lock,
    make_folder,
    nearest,
    new_file,
    new_folder,
    recover,
    remove_folder,
    saving,
    temporary_file,
    write_file,
    write_folder,
    write_text,
)
from firth.manifest import covered_files

LITTER = ".{}.0123456789abcdef.tmp"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file outside the folder being written."""
    path = tmp_path / "precious"
    path.write_text("mine")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_source_that_vanishes_is_named_and_not_the_output(out: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.txt: No such file"), new_folder(out / "new"):
        (tmp_path / "gone.txt").read_text()
    with pytest.raises(CheckpointError, match=r"gone\.txt: No such file"):
        make_folder(out / "new", lambda folder: (tmp_path / "gone.txt").read_bytes())
    assert not names(out)


def test_a_file_appears_whole_or_not_at_all(out: Path) -> None:
    write_text(out / "a.txt", "one")
    with pytest.raises(KeyboardInterrupt), write_file(out / "a.txt") as file:
        file.write(b"tw")
        raise KeyboardInterrupt
    assert names(out) == ["a.txt"] and (out / "a.txt").read_text() == "one"
    write_text(out / "a.txt", "글\n")
    assert (out / "a.txt").read_bytes() == "글\n".encode()


def test_a_file_has_the_permissions_of_any_new_file(out: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(out / "a", "one")
        with new_folder(out / "b"):
            pass
    finally:
        os.umask(before)
    assert [(out / name).stat().st_mode & 0o777 for name in "ab"] == [0o640, 0o750]


def test_a_name_in_the_making_cannot_be_guessed(out: Path) -> None:
    with write_file(out / "a") as file, write_file(out / "b") as other:
        first, second = Path(file.name).name, Path(other.name).name
    assert str(os.getpid()) not in first and first.removeprefix(".a") != second.removeprefix(".b")


def test_a_link_is_replaced_and_not_followed(out: Path, precious: Path) -> None:
    for name in ("file", "folder"):
        (out / name).symlink_to(precious)
    write_text(out / "file", "ours")
    write_folder(out / "folder", lambda folder: None if (folder / "a").write_text("ours") else None)
    assert precious.read_text() == "mine"
    assert (out / "file").read_text() == "ours" and not (out / "file").is_symlink()
    assert (out / "folder" / "a").read_text() == "ours" and names(out) == ["file", "folder"]


def test_logs_and_locks_are_not_opened_through_links(out: Path, precious: Path) -> None:
    (out / "log.jsonl").symlink_to(precious)
    with pytest.raises(ConfigError, match=r"log\.jsonl is a link, and nothing is written through links: delete it"):
        append_to(out / "log.jsonl")
    (out / ".lock").symlink_to(precious)
    with pytest.raises(ConfigError, match=r"\.lock is a link"), lock(out):
        pass
    (out / ".lock").unlink()
    os.mkfifo(out / ".lock")
    with pytest.raises(ConfigError, match="cannot be written"), lock(out):
        pass
    assert precious.read_text() == "mine"


def test_a_lock_empties_no_file_that_shares_its_name(out: Path, precious: Path) -> None:
    os.link(precious, out / ".lock")
    with lock(out):
        (out / "a").touch()
    assert precious.read_text() == "mine"


def test_a_log_with_another_name_gets_a_copy_of_its_own(out: Path, precious: Path) -> None:
    """Hard-linked backups share the file: truncating it or appending to it would change them."""
    os.link(precious, out / "log.jsonl")
    with append_to(out / "log.jsonl") as file:
        file.write(b" and more")
        file.truncate(6)
    assert precious.read_text() == "mine" and (out / "log.jsonl").read_text() == "mine a"
    assert names(out) == ["log.jsonl"]


def test_a_run_folder_with_a_link_to_another_folder_is_refused(out: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (out / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="checkpoints is a link"), lock(out):
        pass


def test_the_older_folder_is_no_way_out_of_the_run(out: Path, tmp_path: Path) -> None:
    """The name to which the replaced folder is moved may be a link."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()
    (out / ".x.old").symlink_to(tmp_path / "elsewhere")
    (out / "x").mkdir()
    write_folder(out / "x", lambda folder: (folder / "a").touch())
    assert names(out) == ["x"] and names(tmp_path / "elsewhere") == ["mine"]


@pytest.mark.parametrize("resume", ["", "firth pretrain --resume out"])
def test_what_is_there_already_is_refused_in_the_same_words(out: Path, resume: str) -> None:
    check_new(out)
    for name in (".lock", LITTER.format("recipe.toml"), "identity.json"):
        (out / name).touch()
    check_new(out, but="identity.json")
    also = f"resume it with: {resume}; or " if resume else ""
    with pytest.raises(ConfigError) as caught:
        check_new(out, resume=resume)
    assert str(caught.value) == f"{out} exists already: {also}choose another name, or delete it"


def test_a_link_is_not_new_wherever_it_leads(out: Path, tmp_path: Path) -> None:
    for target in (out, tmp_path / "nowhere"):
        link = tmp_path / f"to-{target.name}"
        link.symlink_to(target)
        with pytest.raises(ConfigError, match="exists already"):
            check_new(link)


def test_a_new_folder_appears_whole_or_not_at_all(out: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_folder(out / "x") as folder:
        (folder / "a").touch()
        raise ZeroDivisionError
    assert names(out) == []
    make_folder(out / "x", lambda folder: (folder / "a").touch())
    assert names(out) == ["x"] and list(covered_files(out / "x")) == ["a"]
    with pytest.raises(ConfigError, match="exists already"):
        make_folder(out / "x", lambda folder: (folder / "b").touch())
    assert names(out / "x") == ["a", "manifest.json"]


def test_an_empty_folder_becomes_the_new_one(out: Path) -> None:
    (out / ".lock").touch()
    make_folder(out, lambda folder: (folder / "a").touch())
    assert names(out) == ["a", "manifest.json"]


def test_two_writers_of_one_folder(out: Path) -> None:
    """The second writer fails at its start; a folder that appears meanwhile by other means is not overwritten."""
    with new_folder(out / "x") as folder:
        (folder / "a").touch()
        with pytest.raises(ConfigError, match="is being written by another firth process"), new_folder(out / "x"):
            pass
    assert names(out) == ["x"]
    with pytest.raises(ConfigError, match="exists already"), new_folder(out / "y") as folder:
        (out / "y").mkdir()
        (out / "y" / "mine").touch()
    assert names(out) == ["x", "y"] and names(out / "y") == ["mine"]


def test_two_writers_of_one_file(out: Path) -> None:
    with new_file(out / "x") as file:
        file.write(b"first")
        with pytest.raises(ConfigError, match="is being written by another"), new_file(out / "x"):
            pass
    assert (out / "x").read_text() == "first"
    with pytest.raises(ConfigError, match="exists already"), new_file(out / "y") as file:
        (out / "y").write_text("mine")
    assert (out / "y").read_text() == "mine" and names(out) == ["x", "y"]


@pytest.mark.parametrize("make", [new_folder, new_file])
def test_a_place_that_cannot_be_written_is_named(make, out: Path) -> None:  # type: ignore[no-untyped-def]
    (out / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"file.x cannot be written: (Not a directory|.* is a file)"),
        make(out / "file" / "x"),
    ):
        pass


@pytest.mark.parametrize("make", [new_folder, new_file])
def test_a_full_disk_is_no_wrong_usage(make, out: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CheckpointError, match="the disk is full"), make(out / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(out) == []


@pytest.mark.parametrize("make", [temporary_file, new_folder, new_file])
def test_a_signal_as_soon_as_the_file_is_there_leaves_nothing(make, out: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def interrupted(descriptor: int) -> bool:
        assert names(out)
        raise KeyboardInterrupt

    monkeypatch.setattr("firth.files._hold", interrupted)
    with pytest.raises(KeyboardInterrupt), make(out / "x"):
        pass
    assert names(out) == []


def test_a_signal_as_a_temporary_file_is_removed_does_not_keep_it(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, asked = Path.unlink, list[Path]()

    def interrupted(path: Path) -> None:
        asked.append(path)
        if len(asked) == 1:
            raise KeyboardInterrupt
        unlink(path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), temporary_file(out / "x"):
        patch.setattr(Path, "unlink", interrupted)
    assert names(out) == [] and len(asked) == 2


def test_of_two_writers_that_finish_at_once_one_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end = False

    def check(path: Path) -> None:
        check_new_file(path)
        if at_the_end:
            path.write_text("the other's")

    monkeypatch.setattr("firth.files.check_new_file", check)
    with pytest.raises(ConfigError, match="exists already"), new_file(out / "x") as file:
        file.write(b"ours")
        at_the_end = True
    assert (out / "x").read_text() == "the other's" and names(out) == ["x"]


KILLED = """
import os, signal, sys
from pathlib import Path
from firth.files import new_folder, temporary_file, write_file, write_folder
out = Path(sys.argv[1])
with write_file(out / "a") as file, temporary_file(out / "b"), new_folder(out / "c") as folder:
    (folder / "inner").mkdir()
    file.write(b"x")
    file.flush()
    write_folder(out / "d", lambda folder: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_the_next_writer_of_a_target_removes_what_a_kill_left_of_it(out: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert [name.split(".")[1] for name in names(out)] == ["a", "b", "c", "d"]
    write_text(out / "a", "whole")
    with temporary_file(out / "b"):
        pass
    make_folder(out / "c", lambda folder: None if (folder / "x").write_text("x") else None)
    assert [name.split(".")[1] for name in names(out) if name.startswith(".")] == ["d"]
    write_folder(out / "d", lambda folder: None if (folder / "x").write_text("x") else None)
    assert names(out) == ["a", "c", "d"]


def test_a_locked_folder_is_cleared_of_all_that_was_half_written(out: Path) -> None:
    (out / LITTER.format("recipe.toml")).touch()
    (out / LITTER.format("model")).mkdir()
    (out / "kept").touch()
    with lock(out):
        assert names(out) == [".lock", "kept"]


def test_what_only_looks_like_litter_stays(out: Path, precious: Path) -> None:
    for name in (".a.tmp", ".a.123.tmp", ".a.0123456789abcdeg.tmp", "a.0123456789abcdef.tmp", "a.tmp"):
        (out / name).touch()
    (out / LITTER.format("a")).symlink_to(precious)
    before = names(out)
    assert not clear_litter(out)
    assert names(out) == before and precious.exists()


def test_what_another_process_is_writing_stays(out: Path) -> None:
    living = out / LITTER.format("a")
    living.touch()
    with open(living) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert clear_litter(out) and clear_litter(out, "a") and not clear_litter(out, "b")
        assert living.exists()
    assert not clear_litter(out) and not living.exists()


def test_a_folder_is_deleted_under_another_name(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill midway leaves no partial folder under a name that counts."""
    (out / "step-1").mkdir()
    (out / "step-1" / "a").touch()
    with monkeypatch.context() as patch:
        patch.setattr("firth.files.shutil.rmtree", lambda *args, **more: None)
        remove_folder(out / "step-1")
    assert not (out / "step-1").exists() and len(names(out)) == 1
    assert not holds_something(out)
    clear_litter(out)
    assert names(out) == []


def test_what_an_earlier_removal_left_is_deleted_with_it(out: Path) -> None:
    """Nothing else would delete it: a finished run no longer has a writer."""
    for name in (LITTER.format("step-1"), LITTER.format("step-2")):
        (out / name).mkdir()
    remove_folder(out / "step-1")
    assert names(out) == [LITTER.format("step-2")]


class AskedOnce:
    """Wraps a function so that the first call is interrupted, before or after it runs."""

    def __init__(self, function: Any, late: bool):
        self.function, self.late, self.n_calls = function, late, 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.n_calls += 1
        if self.n_calls > 1 or self.late:
            self.function(*arguments, **named)
        if self.n_calls == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["shutil.rmtree", "os.rename"])
def test_who_is_asked_to_stop_while_deleting_leaves_no_half_of_it(
    out: Path, monkeypatch: pytest.MonkeyPatch, what: str, late: bool
) -> None:
    (out / "step-1").mkdir()
    (out / "step-1" / "a").touch()
    module, name = what.split(".")
    asked = AskedOnce(getattr(importlib.import_module(module), name), late)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"firth.files.{what}", asked)
        remove_folder(out / "step-1")
    assert asked.n_calls and names(out) in ([], ["step-1"])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["shutil.rmtree", "os.rename"])
def test_who_is_asked_to_stop_while_replacing_leaves_one_of_the_two(
    out: Path, monkeypatch: pytest.MonkeyPatch, what: str, late: bool
) -> None:
    def write(text: str) -> None:
        write_folder(out / "x", lambda folder: (folder / "a").write_text(text) and None)

    write("old")
    module, name = what.split(".")
    asked = AskedOnce(getattr(importlib.import_module(module), name), late)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"firth.files.{what}", asked)
        write("new")
    assert names(out) == ["x"] and (out / "x" / "a").read_text() == ("new" if name == "rmtree" else "old")


def test_recovery_removes_an_older_folder_that_was_replaced(out: Path) -> None:
    for name in ("x", ".x.old"):
        (out / name).mkdir()
    recover(out / "x")
    assert names(out) == ["x"]


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../evil"])
def test_a_manifest_names_nothing_outside_its_folder(out: Path, name: str) -> None:
    (out / "manifest.json").write_text(f'{{"{name}": {{"bytes": 1, "sha256": "0"}}}}')
    with pytest.raises(CheckpointError, match="outside its folder"):
        covered_files(out)


def test_the_model_card_is_for_its_owner_to_edit(out: Path) -> None:
    from firth.manifest import check_folder

    def fill(folder: Path) -> None:
        for name in ("README.md", "config.json"):
            (folder / name).write_text("{}")

    make_folder(out / "x", fill)
    (out / "x" / "README.md").write_text("What it is for.")
    check_folder(out / "x")
    (out / "x" / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="damaged or was edited"):
        check_folder(out / "x")


def test_a_disk_that_becomes_read_only_after_the_rename_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    with new_file(tmp_path / "out") as file:
        file.write(b"whole")
    assert (tmp_path / "out").read_bytes() == b"whole"


def test_a_full_disk_names_the_folder_that_was_asked_for(out: Path) -> None:
    def full(new: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SaveError) as error, new_folder(out / "x") as folder:
        make_folder(folder / "model", full)
    assert str(error.value).startswith(f"{out / 'x' / 'model'} could not be written: the disk is full")


def test_a_limit_on_the_size_of_files_names_what_was_written(out: Path) -> None:
    with pytest.raises(SaveError) as error, saving(out / "vectors"):
        raise OSError(errno.EFBIG, "File too large")
    assert str(error.value).startswith(f"{out / 'vectors'} could not be written: File too large.")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("data/trian.tsv", "did you mean {}/data/train.tsv?"),
        ("dta/sst/train.tsv", "did you mean {}/data?"),
        ("data/nothing-like-it", ""),
        ("data/train.tsv/inside", ""),
    ],
)
def test_a_missing_path_is_compared_with_what_lies_beside_its_first_missing_part(
    tmp_path: Path, given: str, hint: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tsv").touch()
    assert nearest(tmp_path / given) == hint.format(tmp_path)


@pytest.mark.parametrize(("kept", "asked", "form"), [("NFD", "NFC", "decomposed"), ("NFC", "NFD", "composed")])
def test_a_name_in_the_other_unicode_form_is_described(tmp_path: Path, kept: str, asked: str, form: str) -> None:
    (tmp_path / unicodedata.normalize(kept, "감성 분석")).mkdir()
    missing = tmp_path / unicodedata.normalize(asked, "감성 분석") / "학습.tsv"
    if missing.parent.exists():
        pytest.skip("this file system compares names by their letters")
    assert nearest(missing) == f"{tmp_path} has this name in {form} letters: copy it from there"
    assert nearest(tmp_path / unicodedata.normalize(asked, "감성 본석")).startswith("did you mean")


def test_an_error_of_writing_names_the_file(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system names a file only if it cannot be opened."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(out / "a.txt", "x")
    assert caught.value.filename == str(out / "a.txt") and names(out) == []
