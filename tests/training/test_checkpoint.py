"""Folders that appear completely or not at all, are read strictly, and survive disk failures."""

import errno
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth import files, manifest
from firth.errors import CheckpointError, TokenizerError
from firth.files import recover, write_folder
from firth.manifest import MANIFEST, check_folder, file_sha256
from firth.training.checkpoint import (
    has_begun,
    list_checkpoints,
    load_tensors,
    newest_checkpoint,
    recover_checkpoints,
    save_checkpoint,
    save_tensors,
)


def fill_with(text: str) -> Any:
    def fill(folder: Path) -> None:
        (folder / "a.txt").write_text(text)
        (folder / "inner").mkdir()
        (folder / "inner" / "b.txt").write_text(text * 2)

    return fill


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_folder_is_written_with_its_manifest(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x"
    write_folder(path, fill_with("one"))
    check_folder(path)
    manifest = json.loads((path / MANIFEST).read_text())
    assert sorted(manifest) == ["a.txt", "inner/b.txt"]
    assert [entry["bytes"] for entry in manifest.values()] == [3, 6]
    assert names(path.parent) == ["x"]


def test_tensors_have_the_permissions_of_the_files_beside_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(2)})
        (tmp_path / "x.json").touch()
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in sorted(tmp_path.iterdir())]
    assert modes == [0o644, 0o644]


def test_a_new_folder_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_folder(path, fill_with("one"))
    (path / "left over").touch()
    write_folder(path, fill_with("two"))
    check_folder(path)
    assert (path / "a.txt").read_text() == "two"
    assert not (path / "left over").exists()
    assert names(tmp_path) == ["x"]


def test_a_disk_that_fails_while_weights_are_written_says_why(tmp_path: Path) -> None:
    """The library's own error gives the reason only as text: a full disk was reported as "Error while serializing"."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            save_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG and caught.value.strerror == os.strerror(errno.EFBIG)


FAILURES: list[tuple[Exception, str]] = [
    (
        OSError(errno.ENOSPC, "No space left on device"),
        r"x could not be written: the disk is full \(\d+ MB free at /.*\)",
    ),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
    (PermissionError(errno.EACCES, "Permission denied"), "x could not be written: Permission denied"),
    (OSError("I/O error"), "x could not be written: I/O error"),
]


@pytest.mark.parametrize(("failure", "message"), FAILURES)
@pytest.mark.parametrize("stood_before", [True, False])
def test_a_failure_leaves_what_stood_before(
    tmp_path: Path, failure: Exception, message: str, stood_before: bool
) -> None:
    path = tmp_path / "x"
    if stood_before:
        write_folder(path, fill_with("one"))

    def fill(folder: Path) -> None:
        fill_with("half")(folder)
        raise failure

    with pytest.raises(CheckpointError, match=message) as caught:
        write_folder(path, fill)
    assert "What was saved before is untouched" in str(caught.value)
    assert names(tmp_path) == (["x"] if stood_before else [])
    if stood_before:
        check_folder(path)
        assert (path / "a.txt").read_text() == "one"


@pytest.mark.parametrize("failure", [TokenizerError("x"), KeyboardInterrupt(), ZeroDivisionError()])
def test_other_failures_pass_through_and_leave_nothing_half_done(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "x"
    write_folder(path, fill_with("one"))

    def fill(folder: Path) -> None:
        fill_with("half")(folder)
        raise failure

    with pytest.raises(type(failure)):
        write_folder(path, fill)
    assert names(tmp_path) == ["x"]
    assert (path / "a.txt").read_text() == "one"


def test_the_disk_can_fail_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_folder(path, fill_with("one"))

    def fail(entry: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "_sync", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write_folder(path, fill_with("two"))
    assert (path / "a.txt").read_text() == "one"


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / ".x.0123456789abcdef.tmp"
    left.mkdir()
    (left / "junk").touch()
    write_folder(tmp_path / "x", fill_with("one"))
    assert names(tmp_path) == ["x"]
    assert not (tmp_path / "x" / "junk").exists()


class _KilledError(BaseException):
    """Simulates a process killed at this point."""


def test_recovery_after_a_kill_between_the_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_folder(path, fill_with("one"))
    rename = os.rename

    def killed_at_the_second(source: Path, target: Path) -> None:
        if target == path:
            raise _KilledError
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed_at_the_second)
        with pytest.raises(_KilledError):
            write_folder(path, fill_with("two"))
    assert not path.exists()
    recover(path)
    check_folder(path)
    assert (path / "a.txt").read_text() == "one"
    recover(path)  # a second recovery is harmless
    write_folder(path, fill_with("three"))
    assert (path / "a.txt").read_text() == "three"
    assert names(tmp_path) == ["x"]


def test_recovery_leaves_a_whole_folder_alone(tmp_path: Path) -> None:
    """Killed after the second rename: the new folder is valid, the old one is garbage."""
    path = tmp_path / "x"
    write_folder(path, fill_with("two"))
    write_folder(tmp_path / ".x.old", fill_with("one"))
    recover(path)
    assert (path / "a.txt").read_text() == "two"
    write_folder(path, fill_with("three"))
    assert names(tmp_path) == ["x"]


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_folder(path, fill_with("one"))
    for file in (path / "a.txt", path / "inner" / "b.txt", path / MANIFEST):
        whole = file.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 0x10
            file.write_bytes(damaged)
            try:
                same = file.name == MANIFEST and json.loads(damaged) == json.loads(whole)
            except ValueError:
                same = False
            if same:
                continue
            with pytest.raises(CheckpointError):
                check_folder(path)
        file.write_bytes(whole)
    check_folder(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a.txt": 3}', "null"])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path / "x", fill_with("one"))
    (tmp_path / "x" / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        check_folder(tmp_path / "x")


def save(folder: Path, step: int, keep: int = 2, carry: dict[str, Tensor] | None = None) -> Path:
    def save_model(target: Path) -> None:
        (target / "config.json").write_text("{}")

    return save_checkpoint(
        folder,
        step,
        save_model=save_model,
        state={"step": step},
        optimizer={"w/exp_avg": torch.arange(4.0)},
        carry=carry or {},
        keep=keep,
    )


def test_a_checkpoint_holds_all_that_was_given(tmp_path: Path) -> None:
    carry = {"0/hidden": torch.ones(2, 3), "1/hidden": torch.zeros(2, 3)}
    path = save(tmp_path, 7, carry=carry)
    assert path == tmp_path / "step-7"
    check_folder(path)
    assert json.loads((path / "train" / "state.json").read_text()) == {"step": 7}
    assert load_tensors(path / "train" / "optimizer.safetensors")["w/exp_avg"].tolist() == [0, 1, 2, 3]
    found = load_tensors(path / "train" / "carry.safetensors")
    assert found.keys() == carry.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in carry.items())


def test_checkpoints_of_a_course_that_was_left_go(tmp_path: Path) -> None:
    """After damage, a run resumes from an older step; the checkpoints that it then saves replace the later ones."""
    for step in (5, 10, 15):
        save(tmp_path, step, keep=5)
    save(tmp_path, 7, keep=2)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [5, 7]


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_newest_are_kept_by_number(tmp_path: Path, keep: int) -> None:
    for step in (8, 9, 10, 100):
        save(tmp_path, step, keep)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [8, 9, 10, 100][-keep:]


def test_a_failed_save_costs_no_older_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1, keep=1)

    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match="disk is full"):
        save_checkpoint(tmp_path, 2, save_model=fail, state={}, optimizer={}, carry={}, keep=1)
    assert names(tmp_path) == ["step-1"]
    check_folder(tmp_path / "step-1")


def test_other_names_are_not_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 3)
    for name in ("step-x", "step-²", ".step-4.tmp", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-9").touch()
    assert list_checkpoints(tmp_path) == [(3, tmp_path / "step-3")]
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_the_newest_undamaged_checkpoint_is_found(tmp_path: Path) -> None:
    told: list[str] = []
    assert newest_checkpoint(tmp_path, told.append) is None
    for step in (1, 2, 3):
        save(tmp_path, step, keep=5)
    assert newest_checkpoint(tmp_path, told.append) == tmp_path / "step-3"
    assert told == []
    (tmp_path / "step-3" / "train" / "optimizer.safetensors").write_bytes(b"")
    (tmp_path / "step-2" / MANIFEST).write_text("[1, 2]")
    assert newest_checkpoint(tmp_path, told.append) == tmp_path / "step-1"
    assert len(told) == 2 and "optimizer.safetensors does not match its checksum" in told[0]
    (tmp_path / "step-1" / "config.json").unlink()
    assert newest_checkpoint(tmp_path, told.append) is None
    assert "config.json is missing" in told[-1]


def test_tensors_there_and_back(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(3, 4)
    tensors = {
        "t": table.T,
        "half": table[1:].bfloat16(),
        "step": torch.tensor(3.0),
        "grad": torch.ones(2, requires_grad=True),
    }
    save_tensors(tmp_path / "x.safetensors", tensors)
    again = load_tensors(tmp_path / "x.safetensors")
    assert {n: t.tolist() for n, t in again.items()} == {n: t.tolist() for n, t in tensors.items()}
    assert again["half"].dtype == torch.bfloat16


@pytest.mark.parametrize("data", [None, b"", b"\x08\0\0\0\0\0\0\0notjson!", b"\x80\x04K\x01."])
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "x.safetensors"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"x\.safetensors cannot be read"):
        load_tensors(path)


def test_what_a_kill_has_left_half_deleted_goes_with_a_resume(tmp_path: Path) -> None:
    """A finished run saves no further checkpoint, so nothing else would delete the remains."""
    save(tmp_path, 4)
    half = tmp_path / ".step-2.0123456789abcdef.tmp"
    (half / "train").mkdir(parents=True)
    recover_checkpoints(tmp_path)
    assert not half.exists() and [step for step, _ in list_checkpoints(tmp_path)] == [4]


def test_a_file_that_cannot_be_read_is_named_and_an_older_checkpoint_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write_folder(tmp_path / f"step-{step}", fill_with("x"))

    def broken(path: Path) -> str:
        if "step-2" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return file_sha256(path)

    monkeypatch.setattr(manifest, "file_sha256", broken)
    told: list[str] = []
    assert newest_checkpoint(tmp_path, told.append) == tmp_path / "step-1"
    assert len(told) == 1 and "step-2/a.txt cannot be read: Input/output error; trying an older" in told[0]


def test_a_checkpoint_under_its_older_name_is_something_to_resume_from(tmp_path: Path) -> None:
    assert not has_begun(tmp_path)
    (tmp_path / "checkpoints" / ".step-2.old").mkdir(parents=True)
    assert has_begun(tmp_path)


def test_a_pointer_of_git_lfs_is_not_called_damaged(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", fill_with("x"))
    (tmp_path / "m" / "a.txt").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="a.txt: a pointer of Git LFS"):
        check_folder(tmp_path / "m")
