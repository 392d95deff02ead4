"""Find the text files of a corpus: by name, in folders, by pattern, at addresses such as s3://…"""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from firth.errors import InputError
from firth.files import check_regular, nearest
from firth.progress import say
from firth.remote import RemotePath, is_address, place_of

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".text", ".md", ".xml", ".parquet")
PACKED = (".gz", ".xz", ".bz2", ".zst")
# Files that mark a model, tokenizer, corpus, search index or run of Firth: such folders hold no training text.
_MADE = ("firth.json", "tokenizer.json", "progress.jsonl", "tokenizer/tokenizer.json", "vectors.f32", "recipe.toml")
# Surrogates stand for undecodable bytes of a file name, or are unpaired halves of a character in a text.
SURROGATE = re.compile("[\ud800-\udfff]")


def find_files(paths: str | Path | Sequence[str | Path], suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """Expand files, folders and glob patterns, also at addresses such as s3://…, to text files, each once, in order.

    Folders are searched recursively in sorted order, following links; hidden names and names without one of the
    ``suffixes`` are skipped. A file given by name may have any suffix. Raises InputError for a path or pattern that
    matches no file, for a name that is not UTF-8, and for a pipe, which cannot be read twice.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    if not paths:
        raise InputError("no text files given; name at least one file, folder or glob pattern")
    found: dict[str, Path] = {}
    for given in paths:
        for path in _files_of(str(given), suffixes):
            _check_name(path)
            if not isinstance(path, RemotePath):
                _check_regular(path)
            found.setdefault(os.path.realpath(path), path)
    if not found:
        raise InputError(f"{paths[0]}: Firth has written this folder; expected text, such as it was made from")
    return list(found.values())


def _check_name(path: Path) -> None:
    """Raise InputError for a name that is not UTF-8: a vocabulary or corpus could not record its source."""
    if SURROGATE.search(str(path)):
        raise InputError(f"{path}: a name that is not UTF-8; rename it")


def _check_regular(path: Path) -> None:
    try:
        check_regular(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason_of(error)}") from None


def _files_of(given: str, suffixes: tuple[str, ...]) -> list[Path]:
    path = place_of(given)
    if isinstance(path, RemotePath):
        return _files_at(path, suffixes)
    if is_address(given):
        given = str(path)
    try:
        if path.is_dir():
            files = _files_in(path, suffixes)
            if not files and not _is_made(str(path), own_recipe=True):
                raise _no_text(path, "no text file in this folder", suffixes)
            return files
        if path.exists():
            return [path]
    except (OSError, ValueError) as error:
        raise InputError(f"{given!r}: cannot be read: {reason_of(error)}") from None
    if not glob.has_magic(given):
        raise InputError(f"{given}: no such file or folder; {nearest(path) or 'check the path'}")
    files = []
    for match in sorted(glob.glob(given, recursive=True)):
        files += _files_in(Path(match), suffixes) if os.path.isdir(match) else [Path(match)]
    if not files:
        raise InputError(f"{given}: no file matches this pattern; check it or name the files")
    return files


def _files_in(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """List the text files of a folder, sorted. A folder is read once, under its own name rather than that of a link.

    Folders that Firth has written are skipped, with a message; ``folder`` itself with only a recipe may be the user's.
    """

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read: {reason_of(error)}")

    files, seen, starts = list[Path](), set[str](), [str(folder)]
    for start in starts:
        for root, folders, names in os.walk(start, onerror=fail):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if (real := os.path.realpath(root)) in seen:
                folders.clear()
                continue
            seen.add(real)
            if _is_made(root, own_recipe=root == str(folder)):
                say(f"{root}: skipped: Firth wrote it")
                folders.clear()
                continue
            # os.walk does not follow links; they are read last.
            starts += [link for name in folders if os.path.islink(link := os.path.join(root, name))]
            files += [Path(root, name) for name in names if _is_text_name(name, suffixes)]
    return sorted(files)


def _is_made(folder: str, *, own_recipe: bool) -> bool:
    """Whether Firth has written a folder. ``own_recipe``: a recipe counts only next to a log."""
    has = {name for name in (*_MADE, "log.jsonl") if os.path.isfile(os.path.join(folder, name))}
    return bool(has - {"log.jsonl", "recipe.toml"}) or ("recipe.toml" in has and ("log.jsonl" in has or not own_recipe))


def _no_text(folder: Path, what: str, suffixes: tuple[str, ...]) -> InputError:
    return InputError(
        f"{folder}: {what}; expected names ending in {' '.join(suffixes)}, plain or with {' or '.join(PACKED)}"
    )


def _files_at(path: RemotePath, suffixes: tuple[str, ...]) -> list[Path]:
    """List the text files of a remote file, folder or pattern."""
    if glob.has_magic(str(path)):
        found = path.matches()
        if not found:
            raise InputError(f"{path}: no file matches this pattern; check it or name the files")
        return [*found]
    if path.is_file():
        return [path]
    depth = len(path.parts)
    inside = (file for file in path.files() if not any(part.startswith(".") for part in file.parts[depth:]))
    files: list[Path] = [file for file in inside if _is_text_name(file.name, suffixes)]
    if not files:
        raise _no_text(path, "no such file, and no folder with text files", suffixes)
    return files


def _is_text_name(name: str, suffixes: tuple[str, ...]) -> bool:
    if name.startswith("."):
        return False
    # A plain .json in a folder usually describes the other files; C4 and similar corpora are .json.gz.
    return bare_name(name).endswith(suffixes) or name.lower().endswith(tuple(f".json{packed}" for packed in PACKED))


def bare_name(name: str) -> str:
    """Return a file name in lower case, without its compression suffix."""
    lower = name.lower()
    return lower.rpartition(".")[0] if lower.endswith(PACKED) else lower


def reason_of(error: Exception) -> str:
    """Return why a file could not be opened or read, in the system's words if it has any."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
