"""The corpus on disk: memory-mapped shards of token ids, and a manifest.

corpus/
├── manifest.json          format, tokenizer hash, sources, counts, checksum of every file
├── tokenizer/             the tokenizer that made the ids
├── train-00000.ids.npy        uint16 (or uint32) token ids, without special tokens
├── train-00000.sentences.npy  uint32, index of each sentence's first id, and the end
├── train-00000.documents.npy  uint32, index of each document's first sentence, and the end
└── dev-00000.…                held-out documents
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from firth.config import from_dict, read_json, to_dict
from firth.data.config import CACHE_GB
from firth.errors import ConfigError, CorpusError, FirthError, InputError
from firth.files import nearest, write_file, write_json
from firth.manifest import file_sha256
from firth.remote import Cache, RemotePath, place_of
from firth.text.tokenizer import Tokenizer

FORMAT = "firth-corpus"
VERSION = 1
PARTS = ("ids", "sentences", "documents")
Split = Literal["train", "dev"]
# Names of files in the corpus folder.
_MANIFEST = "manifest.json"
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardInfo:
    """One shard in the manifest. ``sha256``: of its files, in the order of PARTS."""

    name: str
    tokens: int
    sentences: int
    documents: int
    bytes: tuple[int, ...]
    sha256: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A source text file of the corpus, for training or (``split="dev"``) held out."""

    path: str
    bytes: int
    sha256: str
    split: Split = "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The contents and sources of a corpus folder."""

    format: str
    version: int
    tokenizer: str
    sources: tuple[SourceFile, ...]
    options: str
    train: tuple[ShardInfo, ...]
    dev: tuple[ShardInfo, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """An open shard: memory-mapped arrays, converted to ``int64`` for arithmetic."""

    name: str
    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    @property
    def document_tokens(self) -> np.ndarray:
        """The index of each document's first token, and the end."""
        return self.sentences[self.documents]


def part_path(folder: Path, name: str, part: str) -> Path:
    return folder / f"{name}.{part}.npy"


def write_shard(folder: Path, name: str, ids: np.ndarray, sentences: np.ndarray, documents: np.ndarray) -> ShardInfo:
    """Write one shard, each file atomically; returns its manifest entry."""
    sizes, hashes = [], []
    arrays = (ids, sentences.astype(np.uint32), documents.astype(np.uint32))
    for part, array in zip(PARTS, arrays, strict=True):
        path = part_path(folder, name, part)
        with write_file(path) as file:
            np.save(file, array, allow_pickle=False)
        sizes.append(path.stat().st_size)
        hashes.append(file_sha256(path))
    return ShardInfo(
        name=name,
        tokens=len(ids),
        sentences=len(sentences) - 1,
        documents=len(documents) - 1,
        bytes=tuple(sizes),
        sha256=tuple(hashes),
    )


class Corpus:
    """An open corpus folder. Each shard is verified against its checksums on first use.

    The shards of a remote folder (s3://…) are copied when they are needed; up to ``cache_gb`` gigabytes are kept.
    """

    def __init__(self, folder: str | Path, *, cache_gb: float = CACHE_GB):
        self.folder = place_of(folder)
        self._cache = Cache(cache_gb * 1e9) if isinstance(self.folder, RemotePath) else None
        if isinstance(self.folder, RemotePath):
            self.manifest, self.tokenizer = _read_remote(self.folder)
        else:
            self.manifest = read_manifest(self.folder)
            self.tokenizer = Tokenizer.load(self.folder / "tokenizer")
        self.check_tokenizer(self.tokenizer, "the tokenizer beside it")
        self._checked: set[str] = set()

    def check_tokenizer(self, tokenizer: Tokenizer, whose: str) -> None:
        """Refuse a tokenizer other than the one that built this corpus."""
        if tokenizer.fingerprint != self.manifest.tokenizer:
            raise CorpusError(
                f"{self.folder} was made with tokenizer {self.manifest.tokenizer[:12]}, but {whose} is "
                f"{tokenizer.fingerprint[:12]}: prepare the corpus again with the tokenizer you want to use"
            )

    @property
    def is_parallel(self) -> bool:
        """Whether each document is a sentence and its translation (``firth prepare --second``)."""
        try:
            options = json.loads(self.manifest.options)
        except (ValueError, RecursionError):
            options = None
        if not isinstance(options, dict):
            raise CorpusError(f"{self.folder / _MANIFEST} is damaged: its options are no JSON object")
        return options.get("lines") == "pair"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the checksums of all shards: equal for the same text, tokenizer and options."""
        infos = (*self.manifest.train, *self.manifest.dev)
        parts = [self.manifest.tokenizer, *(part for info in infos for part in (info.name, *info.sha256))]
        return hashlib.sha256("/".join(parts).encode()).hexdigest()

    def shards(self, split: Split) -> tuple[ShardInfo, ...]:
        return self.manifest.train if split == "train" else self.manifest.dev

    def open(self, info: ShardInfo) -> Shard:
        """Memory-map a shard; CorpusError names a damaged file."""
        arrays = []
        for part, size, digest in zip(PARTS, info.bytes, info.sha256, strict=True):
            path = part_path(self.folder, info.name, part)
            if isinstance(path, RemotePath):
                path = self._copy(path, size, digest)
            else:
                self._check(path, size, digest)
            try:
                arrays.append(np.load(path, mmap_mode="r", allow_pickle=False))
            except (OSError, ValueError) as error:
                raise CorpusError(f"{path} cannot be read: {error}") from None
        if info.name not in self._checked and info.tokens and arrays[0].max() >= self.tokenizer.size:
            raise CorpusError(
                f"{part_path(self.folder, info.name, 'ids')} holds token id {arrays[0].max():,}, but its "
                f"tokenizer has {self.tokenizer.size:,} tokens: prepare the corpus again"
            )
        self._checked.add(info.name)
        return Shard(info.name, arrays[0], arrays[1].astype(np.int64), arrays[2].astype(np.int64))

    def read_ahead(self, infos: Sequence[ShardInfo]) -> None:
        """Start to copy the files of shards that will be opened next; does nothing for a local folder."""
        if self._cache is not None:
            self._cache.read_ahead(
                [
                    (RemotePath(part_path(self.folder, info.name, part)), size, digest)
                    for info in infos
                    for part, size, digest in zip(PARTS, info.bytes, info.sha256, strict=True)
                ]
            )

    def _copy(self, path: RemotePath, size: int, digest: str) -> Path:
        assert self._cache is not None
        try:
            return self._cache.get(path, size, digest)
        except InputError as error:
            raise CorpusError(str(error)) from None

    def _check(self, path: Path, size: int, digest: str) -> None:
        again = "prepare the corpus again, or copy this file again"
        try:
            found = path.stat().st_size
        except OSError:
            raise CorpusError(f"{path} is missing: {again}") from None
        if found != size:
            raise CorpusError(f"{path} has {found:,} bytes, expected {size:,}: it is truncated or changed; {again}")
        if path.name.split(".")[0] not in self._checked and file_sha256(path) != digest:
            raise CorpusError(f"{path} does not match its checksum: it is damaged; {again}")


def _read_remote(folder: RemotePath) -> tuple[Manifest, Tokenizer]:
    """The manifest and the tokenizer of a remote corpus folder."""
    if not (folder / _MANIFEST).is_file():
        raise ConfigError(f"{folder}: no corpus folder there: copy a whole one, made by firth prepare, to this address")
    with tempfile.TemporaryDirectory(prefix="firth-corpus-") as made:
        copy = Path(made)
        (copy / "tokenizer").mkdir()
        for file in (folder / _MANIFEST, *(folder / "tokenizer").files()):
            with file.open("rb") as source:
                (copy.joinpath(*file.parts[len(folder.parts) :])).write_bytes(source.read())
        try:
            return read_manifest(copy), Tokenizer.load(copy / "tokenizer")
        except FirthError as error:
            raise type(error)(str(error).replace(made, str(folder))) from None


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a corpus folder; refuses an older layout or another kind of folder."""
    path = folder / _MANIFEST
    if folder.is_file():
        raise ConfigError(
            f"{folder} is a file: make a corpus folder of it with firth vocab {folder} --out vocab, and then firth "
            f"prepare {folder} --tokenizer vocab --out corpus"
        )
    if not folder.is_dir():
        hint = nearest(folder) or f"make one with: firth prepare TEXT --tokenizer VOCAB --out {folder}"
        raise ConfigError(f"{folder}: no such corpus folder; {hint}")
    if not path.is_file():
        unfinished = (folder / "progress.jsonl").is_file()
        raise CorpusError(
            f"{folder} holds an unfinished corpus: run the same firth prepare command again to resume"
            if unfinished
            else f"{folder} has no {_MANIFEST}: it is not a corpus folder made by firth prepare"
        )
    try:
        data: dict[str, Any] = read_json(path)
    except InputError as error:
        raise CorpusError(str(error)) from None
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise CorpusError(
            f"{folder} has layout {data.get('format')!r} version {data.get('version')!r}, this Firth reads "
            f"{FORMAT!r} version {VERSION}: prepare the corpus again"
        )
    try:
        manifest = from_dict(Manifest, data, str(path))
    except ConfigError as error:
        raise CorpusError(str(error)) from None
    for info in (*manifest.train, *manifest.dev):
        if not _SHARD_NAME.fullmatch(info.name):
            raise CorpusError(f"{path}: a shard is named {info.name[:60]!r}: expected one such as train-00000")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / _MANIFEST, to_dict(manifest))
