"""Checkpoints as folders that appear whole or not at all, and are read strictly.

checkpoints/step-1000/
├── …                     a model folder (written by the ``save_model`` that the job passes in)
├── train/
│   ├── state.json            step, place in the data, log offset, best score, evaluation history
│   ├── optimizer.safetensors
│   └── rank-0.safetensors    recurrent state of each micro-batch slot of that process
└── manifest.json         size and SHA-256 of every file
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from firth.config import file_sha256
from firth.errors import CheckpointError, FirthError

MANIFEST = "manifest.json"


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder by ``fill(temporary)``; it appears at ``path`` whole, on disk, with a manifest.

    An older folder at ``path`` stands until the new one is whole. A failure (disk full, no permission)
    is a CheckpointError; what stood there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        _write_manifest(temporary)
        for entry in [*temporary.rglob("*"), temporary]:
            _sync(entry)
        _swap(temporary, path)
    except OSError as error:
        raise CheckpointError(_why(path, error)) from None
    except SafetensorError as error:
        # The library reports a failing disk as an error of its own.
        raise CheckpointError(f"{path} could not be written: {error}. What was saved before is untouched") from None
    finally:
        # Nothing is there any more if all went well.
        shutil.rmtree(temporary, ignore_errors=True)


def _why(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free
        return (
            f"{path} could not be written: the disk is full ({free / 1e6:.0f} MB free). What was saved before is "
            f"untouched: make room, then resume"
        )
    return f"{path} could not be written: {error.strerror or error}. What was saved before is untouched"


def _swap(new: Path, path: Path) -> None:
    """Put ``new`` in the place of ``path``. Between the two renames only ``path.old`` exists: see ``recover``."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.rename(path, old)
    os.rename(new, path)
    # On disk before the older one goes, or a power cut could take both.
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(path: Path) -> None:
    """Bring back the older folder if a kill fell between the two renames of ``_swap``."""
    old = path.with_name(f".{path.name}.old")
    if not path.exists() and old.exists():
        os.rename(old, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_manifest(folder: Path) -> None:
    files = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps(files, indent=2) + "\n", "utf-8")


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and digest of each file; a damaged manifest may well be JSON still."""
    path = folder / MANIFEST
    try:
        entries = json.loads(path.read_text("utf-8"))
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in entries.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not files:
        raise CheckpointError(f"{path} names no file: it is damaged")
    return files


def check_folder(folder: Path, only: Sequence[str] = ()) -> None:
    """Compare files (all, or ``only`` these) with the manifest; CheckpointError names the first that differs."""
    for name, (size, digest) in _read_manifest(folder).items():
        path = folder / name
        if only and name not in only:
            continue
        if not path.is_file():
            raise CheckpointError(f"{path} is missing")
        if path.stat().st_size != size or file_sha256(path) != digest:
            raise CheckpointError(f"{path} does not match its checksum: it is damaged")


def save_checkpoint(
    checkpoints: Path,
    step: int,
    *,
    save_model: Callable[[Path], None],
    state: dict[str, Any],
    optimizer: dict[str, Tensor],
    carry: dict[str, Tensor],
    keep: int,
) -> Path:
    """Write ``step-N`` whole, then delete the oldest beyond ``keep``.

    Checkpoints of later steps go too: they are of a course that the run has left (they were damaged).
    ``carry``: recurrent state, ``<micro-batch of a step>/<name>``.
    """

    def fill(folder: Path) -> None:
        save_model(folder)
        train = folder / "train"
        train.mkdir()
        (train / "state.json").write_text(json.dumps(state, indent=2) + "\n", "utf-8")
        save_tensors(train / "optimizer.safetensors", optimizer)
        save_tensors(train / "carry.safetensors", carry)

    path = checkpoints / f"step-{step}"
    write_folder(path, fill)
    kept = [old for number, old in list_checkpoints(checkpoints) if number <= step][-keep:]
    for _, old in list_checkpoints(checkpoints):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)
    return path


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors to a safetensors file, with the permissions of any new file."""
    # The library's file is for its owner alone: it begins as a temporary one.
    path.touch()
    mode = path.stat().st_mode
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)
    path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors of a safetensors file; CheckpointError if it is not one."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def list_checkpoints(checkpoints: Path) -> list[tuple[int, Path]]:
    """Whole checkpoints, oldest first. Folders with another name, and unfinished ones, are not counted."""
    found = []
    if checkpoints.is_dir():
        for path in checkpoints.iterdir():
            number = path.name.removeprefix("step-")
            if path.is_dir() and path.name.startswith("step-") and number.isdigit():
                found.append((int(number), path))
    return sorted(found)


def newest_checkpoint(checkpoints: Path, tell: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is undamaged; ``tell`` hears of each that is not."""
    for _, path in reversed(list_checkpoints(checkpoints)):
        try:
            check_folder(path)
            return path
        except FirthError as error:
            tell(f"{error}; looking for an older checkpoint")
    return None
