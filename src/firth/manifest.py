"""The manifest of a folder: the size and SHA-256 of each file, so that damage is detected before a file is used."""

import hashlib
import json
from pathlib import Path, PurePosixPath

from firth.config import read_json
from firth.errors import CheckpointError, InputError

MANIFEST = "manifest.json"
# What a manifest leaves out: the model card, which its owner may edit, and the record of an int8 evaluation, which is
# written later and contains the checksum of the weights it was made for.
UNCOVERED = ("README.md", "int8.json")

POINTER_ADVICE = "a pointer of Git LFS, not the file itself: fetch it with git lfs pull"


def is_pointer(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a pointer that Git LFS left."""
    return start.startswith(b"version https://git-lfs.github.com/spec/")


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file; CheckpointError if it cannot be read, or Git LFS has not fetched it."""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    if is_pointer(start):
        raise CheckpointError(f"{path}: {POINTER_ADVICE}")
    return start


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Write the sizes and checksums of all files in a folder and its subfolders, except ``UNCOVERED``."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() not in (MANIFEST, *UNCOVERED)
    }
    (folder / MANIFEST).write_text(json.dumps(files, indent=2) + "\n", "utf-8")


def covered_files(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file that the manifest of a folder covers; CheckpointError if it is damaged."""
    path = folder / MANIFEST
    try:
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in read_json(path).items()}
    except InputError as error:
        raise CheckpointError(str(error)) from None
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    if not files:
        raise CheckpointError(f"{path} names no file: it is damaged")
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f"{path} names {name!r}, which is outside its folder: it is damaged")
    return files


def check_folder(folder: Path, skip: str = "", *, whole: bool = True) -> None:
    """Compare a folder's files with its manifest; CheckpointError names the first that differs.

    ``skip``: a subfolder whose files are not checked. ``whole``: no file may be missing.
    """
    for name, (size, digest) in covered_files(folder).items():
        path = folder / name
        if name in UNCOVERED or (skip and name.startswith(f"{skip}/")):
            continue
        if not path.is_file():
            if whole:
                raise CheckpointError(f"{path} is missing")
            continue
        try:
            if path.stat().st_size == size and file_sha256(path) == digest:
                continue
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
        first_bytes(path)  # a pointer of Git LFS has its own message
        raise CheckpointError(f"{path} does not match its checksum: it is damaged or was edited")
