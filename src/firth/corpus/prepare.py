"""``firth prepare``: text to shards, in parallel, in constant memory, resumable.

The text is cut into blocks of documents; each block becomes one shard, made by a worker process. What
a shard holds depends on the text and the options alone, never on the number of workers. Finished
shards are noted in ``progress.jsonl``, so that the same command goes on after a kill.
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from firth.config import from_dict, to_dict
from firth.data.shards import (
    FORMAT,
    PARTS,
    VERSION,
    Manifest,
    ShardInfo,
    Source,
    Split,
    part_path,
    write_manifest,
    write_shard,
)
from firth.errors import ConfigError, FirthError, InputError
from firth.files import append_to, check_new, file_sha256, lock, write_text
from firth.progress import Progress
from firth.text.corpus import CorpusReader
from firth.text.id_cache import IdCache
from firth.text.parallel import ParallelReader
from firth.text.published import load_tokenizer
from firth.text.records import Document
from firth.text.sentences import split_sentences
from firth.text.tokenizer import Tokenizer
from firth.workers import WORKERS_EACH, check_processors, cpu_count, make_pool, submit

BLOCK_CHARACTERS = 8_000_000
_SENTENCES_AT_ONCE = 2000
PROGRESS = "progress.jsonl"
Lines = Literal["paragraph", "sentence", "pair"]
Reader = CorpusReader | ParallelReader


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """What a corpus was made from and what it holds; ``bad_*`` and ``cut_*`` as the reader found them.

    ``skipped_pairs``: of parallel text, those with nothing on one side.
    """

    documents: int
    sentences: int
    tokens: int
    dev_documents: int
    dev_tokens: int
    text_bytes: int
    disk_bytes: int
    bad_bytes: int
    bad_places: tuple[tuple[str, int], ...]
    cut_lines: int
    cut_documents: int
    skipped_pairs: int


@dataclass(slots=True)
class _Block:
    """Documents that become one shard."""

    name: str
    documents: list[tuple[str, ...]]
    characters: int = 0


def prepare(
    paths: Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    lines: Literal["paragraph", "sentence"] = "paragraph",
    holdout: float = 0.005,
    dev: Sequence[str | Path] = (),
    second: Sequence[str | Path] = (),
    dev_second: Sequence[str | Path] = (),
    errors: Literal["replace", "strict"] = "replace",
    workers: int | None = None,
) -> PrepareReport:
    """Make corpus folder ``out`` from text files, folders or globs.

    ``lines``: paragraphs are split into sentences, or each line is one. ``holdout``: share of documents
    (chosen by a hash of their text) kept for evaluation, unless ``dev`` files are given. ``second`` (and
    ``dev_second``) makes parallel text of it: line i there is the translation of line i of ``paths``, and each pair
    is a document of two sentences.
    """
    out = Path(out)
    check_processors("workers", workers or 1, WORKERS_EACH)
    if bool(dev_second) != bool(dev and second):
        raise ConfigError("held-out parallel text is two sides as well: give both --dev and --dev-second, or neither")
    unit: Lines = "pair" if second else lines
    if not 0 <= holdout < 1:
        raise ConfigError(f"holdout={holdout}: expected at least 0 and less than 1")
    if not (out / PROGRESS).is_file():
        check_new(out)
    reader = _reader(paths, second, errors)
    dev_reader = _reader(dev, dev_second, errors) if dev else None
    made = load_tokenizer(tokenizer)
    share = 0.0 if dev else float(holdout)
    options = json.dumps({"lines": unit, "holdout": share, "block": BLOCK_CHARACTERS}, sort_keys=True)
    sources = [*_sources(reader.files, "train"), *(_sources(dev_reader.files, "dev") if dev_reader else [])]
    header = {"version": VERSION, "tokenizer": made.fingerprint, "options": options, "sources": sources}
    with lock(out):
        done = _open_folder(out, header, made)
        return _fill(out, header, done, made, unit, workers or cpu_count(), reader, dev_reader, share)


def _reader(paths: Sequence[str | Path], second: Sequence[str | Path], errors: Literal["replace", "strict"]) -> Reader:
    return ParallelReader(paths, second, errors) if second else CorpusReader(paths, errors)


def _sources(files: Sequence[Path], split: Split) -> list[dict[str, Any]]:
    """What each file is, by its checksum; InputError for what is not a file that stays."""
    sources = []
    with Progress("hashing", sum(path.stat().st_size for path in files), "B") as progress:
        for path in files:
            if not path.is_file():
                raise InputError(f"{path} is not a regular file (a pipe?): write the text to a file first")
            try:
                digest = file_sha256(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from None
            sources.append(asdict(Source(path=str(path), bytes=path.stat().st_size, sha256=digest, split=split)))
            progress.advance(path.stat().st_size)
    return sources


def _fill(
    out: Path,
    header: dict[str, Any],
    done: dict[str, ShardInfo],
    made: Tokenizer,
    lines: Lines,
    workers: int,
    reader: Reader,
    dev_reader: Reader | None,
    share: float,
) -> PrepareReport:
    """Make every shard that is not done, then the manifest."""
    blocks = _blocks(reader, "train", share)
    if dev_reader:
        blocks = _chain(blocks, _blocks(dev_reader, "dev", 0.0))
    total = reader.total_bytes + (dev_reader.total_bytes if dev_reader else 0)
    try:
        with Progress("preparing", total, "B") as progress:
            infos = _make_all(blocks, done, out, lines, workers, (reader, dev_reader), progress)
    except InputError:
        # With no shard finished there is nothing to go on from, only to be in the way.
        if not list(out.glob("*.npy")):
            shutil.rmtree(out)
        raise
    return _finish(out, header, infos, reader, dev_reader)


def _chain(*parts: Iterator[_Block]) -> Iterator[_Block]:
    for part in parts:
        yield from part


def _open_folder(out: Path, header: dict[str, Any], tokenizer: Tokenizer) -> dict[str, ShardInfo]:
    """Make the folder, or find the finished shards of an earlier run of the same command."""
    progress = out / PROGRESS
    if progress.is_file():
        first, *rest = progress.read_text("utf-8").splitlines() or [""]
        if first != json.dumps(header):
            raise ConfigError(
                f"{out} holds an unfinished corpus of other text, options or tokenizer: delete it or choose another"
            )
        # A kill may have cut the last line short: written anew, so that the next one does not continue it.
        whole = [line for line in rest if line.endswith("}")]
        write_text(progress, "\n".join([first, *whole]) + "\n")
        infos = [from_dict(ShardInfo, json.loads(line), str(progress)) for line in whole]
        tokenizer.save(out / "tokenizer")
        return {info.name: info for info in infos if _is_whole(out, info)}
    try:
        write_text(progress, json.dumps(header) + "\n")
        tokenizer.save(out / "tokenizer")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}") from None
    return {}


def _is_whole(out: Path, info: ShardInfo) -> bool:
    paths = [part_path(out, info.name, part) for part in PARTS]
    return all(p.is_file() and p.stat().st_size == size for p, size in zip(paths, info.bytes, strict=True))


def is_held_out(document: Document, share: float) -> bool:
    """Whether a document belongs to the held-out text: by a hash of what it says."""
    text = "\n".join(document.paragraphs).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") < share * 2**64


def _blocks(reader: Reader, split: str, holdout: float) -> Iterator[_Block]:
    """The documents in blocks of about BLOCK_CHARACTERS, the held-out ones in blocks of their own."""
    counts = {"train": 0, "dev": 0}
    open_blocks: dict[str, _Block] = {}
    for document in reader:
        kind = "dev" if holdout and is_held_out(document, holdout) else split
        block = open_blocks.setdefault(kind, _Block(f"{kind}-{counts[kind]:05}", []))
        block.documents.append(document.paragraphs)
        block.characters += sum(map(len, document.paragraphs))
        if block.characters >= BLOCK_CHARACTERS:
            counts[kind] += 1
            yield open_blocks.pop(kind)
    yield from open_blocks.values()


def _make_all(
    blocks: Iterator[_Block],
    done: dict[str, ShardInfo],
    out: Path,
    lines: Lines,
    workers: int,
    readers: tuple[Reader, Reader | None],
    progress: Progress,
) -> list[ShardInfo]:
    """Every shard, in order; those that are done already are taken as they are."""
    infos: list[ShardInfo] = []

    def finish(future: "Future[ShardInfo]") -> None:
        infos.append(info := future.result())
        with append_to(out / PROGRESS) as file:
            file.write(json.dumps(to_dict(info)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    pool = make_pool(workers, _start_worker, str(out / "tokenizer"), workers)
    waiting: deque[Future[ShardInfo]] = deque()
    seen = 0
    try:
        for block in blocks:
            consumed = sum(r.bytes_consumed for r in readers if r is not None)
            progress.advance(consumed - seen, f"{len(infos)} shards")
            seen = consumed
            if block.name in done:
                infos.append(done[block.name])
                continue
            waiting.append(submit(pool, make_shard, out, block.name, block.documents, lines))
            # Few blocks in flight: memory stays constant however large the text.
            while len(waiting) > workers + 1 or (waiting and waiting[0].done()):
                finish(waiting[0])
                waiting.popleft()
        while waiting:
            finish(waiting[0])
            waiting.popleft()
            progress.advance(0, f"{len(infos)} shards")
        progress.advance(max((progress.total or 0) - progress.done, 0))
    except KeyboardInterrupt:
        # What the workers are at would have to be made again: wait for it, and keep it.
        progress.message("stopping when the shards in hand are written")
        pool.shutdown(wait=True, cancel_futures=True)
        for future in waiting:
            if not future.cancelled() and future.exception() is None:
                finish(future)
        raise
    except BrokenProcessPool:
        raise FirthError(
            f"a worker process of firth prepare was killed (out of memory?): run the same command again to go on, "
            f"with fewer --workers than {workers}"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return sorted(infos, key=lambda info: info.name)


_worker_ids: IdCache | None = None


def _start_worker(tokenizer: str, workers: int) -> None:
    """In each worker: its own tokenizer."""
    global _worker_ids
    if workers > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker_ids = IdCache(Tokenizer.load(tokenizer))


def make_shard(out: Path, name: str, documents: list[tuple[str, ...]], lines: Lines) -> ShardInfo:
    """Split, tokenise and write one block; runs in a worker."""
    assert _worker_ids is not None
    sentences, ends = list[str](), list[int]()
    for paragraphs in documents:
        for paragraph in paragraphs:
            sentences += split_sentences(paragraph) if lines == "paragraph" else [paragraph]
        ends.append(len(sentences))
    blocks = [
        _worker_ids.ids_many(sentences[begin : begin + _SENTENCES_AT_ONCE])
        for begin in range(0, max(len(sentences), 1), _SENTENCES_AT_ONCE)
    ]
    ids = np.concatenate([block for block, _ in blocks])
    sizes = np.concatenate([block for _, block in blocks])
    # Sentences of no pieces (control characters only) and documents of no sentences fall away; of a pair, both sides.
    if lines == "pair":
        empty = np.repeat((sizes.reshape(-1, 2) == 0).any(1), 2)
        ids = ids[~np.repeat(empty, sizes)]
        sizes[empty] = 0
    kept = np.concatenate(([0], np.cumsum(sizes > 0)))
    document_ends = np.unique(kept[np.array([0, *ends])])
    sentence_starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    return write_shard(out, name, ids, sentence_starts, document_ends)


def _finish(
    out: Path,
    header: dict[str, Any],
    infos: list[ShardInfo],
    reader: Reader,
    dev_reader: Reader | None,
) -> PrepareReport:
    train = tuple(info for info in infos if info.name.startswith("train"))
    held = tuple(info for info in infos if info.name.startswith("dev"))
    readers = [r for r in (reader, dev_reader) if r is not None]
    reports = [r.report for r in readers]
    if not sum(info.tokens for info in train):
        n_held = sum(info.documents for info in held)
        shutil.rmtree(out)
        if n_held:
            raise InputError(f"all {n_held} documents were held out: lower --holdout, or give --dev files")
        raise InputError(
            f"{', '.join(s['path'] for s in header['sources'][:3])}: no text found: only blanks or empty files"
        )
    manifest = Manifest(
        format=FORMAT, version=VERSION, tokenizer=header["tokenizer"], options=header["options"],
        sources=tuple(Source(**s) for s in header["sources"]), train=train, dev=held,
    )  # fmt: skip
    write_manifest(out, manifest)
    (out / PROGRESS).unlink()
    return PrepareReport(
        documents=sum(i.documents for i in train), sentences=sum(i.sentences for i in train),
        tokens=sum(i.tokens for i in train), dev_documents=sum(i.documents for i in held),
        dev_tokens=sum(i.tokens for i in held), text_bytes=sum(r.bytes_read for r in reports),
        disk_bytes=sum(sum(i.bytes) for i in infos), bad_bytes=sum(r.bad_bytes for r in reports),
        bad_places=tuple(place for r in reports for place in r.bad_places)[:5],
        cut_lines=sum(r.cut_lines for r in reports), cut_documents=sum(r.cut_documents for r in reports),
        skipped_pairs=_skipped(readers, infos),
    )  # fmt: skip


def _skipped(readers: Sequence[Reader], infos: Sequence[ShardInfo]) -> int:
    """Pairs of parallel text with nothing on one side: no line, or none that makes pieces."""
    parallel = [reader for reader in readers if isinstance(reader, ParallelReader)]
    read = sum(reader.skipped + reader.report.documents for reader in parallel)
    return read - sum(info.documents for info in infos) if parallel else 0
