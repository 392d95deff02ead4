"""``firth prepare``: turn text into shards, in parallel, in constant memory, resumable.

With cleaning, the text is read twice: a survey decides what to remove, then the rest is split into blocks of
documents, each of which a worker process turns into one shard. A shard depends only on the text and the
options, never on the number of workers. Finished shards are recorded in ``progress.jsonl``, so that the same
command resumes after a kill.
"""

import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from firth.config import from_dict, to_dict
from firth.corpus.blocks import Blocks, Lines, make_shard, start_worker
from firth.corpus.card import NAME as CARD
from firth.corpus.card import CorpusFacts, licences_of, write_card
from firth.corpus.clean import Cleaning
from firth.corpus.contamination import SUFFIXES as EVALUATION
from firth.corpus.contamination import Found
from firth.corpus.hold_out import threshold
from firth.corpus.selection import DocumentReader, Selection, weights_of
from firth.corpus.survey import Verdict, survey
from firth.data.shards import (
    FORMAT,
    PARTS,
    VERSION,
    Manifest,
    ShardInfo,
    SourceFile,
    Split,
    part_path,
    write_manifest,
)
from firth.errors import ConfigError, FirthError, InputError
from firth.files import append_to, check_new, lock, remove_folder, saving, write_text
from firth.manifest import file_sha256
from firth.progress import Progress
from firth.text.corpus import CorpusReader
from firth.text.finding import find_files
from firth.text.parallel import ParallelReader
from firth.text.published import load_tokenizer
from firth.text.tokenizer import Tokenizer
from firth.workers import WORKERS_EACH, check_processors, cpu_count, make_pool_for_text, submit

BLOCK_CHARACTERS = 8_000_000
PROGRESS = "progress.jsonl"
SURVEY = "survey"
HOLD_OUT = 0.01


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """The sources and contents of a corpus; ``bad_*`` and ``cut_*``: as reported by the reader.

    ``skipped_pairs``: parallel pairs with an empty side. ``removed``: for each reason its name,
    documents, paragraphs and characters. ``repeated_documents``: exact duplicates of earlier ones, if no survey
    removed them. ``evaluation_texts``: the overlap with evaluation files. ``unknown``: the number of unknown tokens in
    the training text.
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
    removed: tuple[tuple[str, int, int, int], ...] = ()
    repeated_documents: int = 0
    evaluation_texts: tuple[Found, ...] = ()
    unknown: int = 0


def prepare(
    paths: Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    lines: Literal["paragraph", "sentence", "book"] = "paragraph",
    hold_out: float = HOLD_OUT,
    dev: Sequence[str | Path] = (),
    second: Sequence[str | Path] = (),
    dev_second: Sequence[str | Path] = (),
    cleaning: Cleaning | None = None,
    weights: Mapping[str, float] | Mapping[Path, float] | None = None,
    licences: Mapping[str, str] | None = None,
    lowercase: float = 0.0,
    errors: Literal["replace", "strict"] = "replace",
    workers: int | None = None,
) -> PrepareReport:
    """Build corpus folder ``out`` from text files, folders or globs.

    ``lines``: each line is a paragraph, which is split into sentences, or one sentence, or part of a ``book``: a file
    that is one document, with blank lines between paragraphs. ``hold_out``: share of documents (sampled by a hash of
    their text; at least a few) held out for evaluation, unless ``dev`` files are given. ``second`` (and
    ``dev_second``) builds parallel text: line i there is the translation of line i of ``paths``, and each pair is a
    document of two sentences. ``weights``: how often to repeat the documents of a file, by patterns of its path or
    name, or by its Path; ``licences``: for the data card, by patterns. ``lowercase``: share of the training documents
    (sampled by a hash of their text) that are lower-cased, so that a cased model can read such text too.
    """
    out = Path(out)
    check_processors("workers", 1 if workers is None else workers, WORKERS_EACH)
    if lines not in ("paragraph", "sentence", "book"):
        raise ConfigError(f"lines={lines!r}: expected 'paragraph', 'sentence' or 'book'")
    if bool(dev_second) != bool(dev and second):
        raise ConfigError("held-out parallel text needs both sides: give both --dev and --dev-second, or neither")
    cleaning = cleaning or Cleaning()
    if second and (cleaning.wanted or weights):
        raise ConfigError("parallel text is not cleaned: leave out --clean, --against and --weight with --second")
    unit: Lines = "pair" if second else lines
    if not 0 <= hold_out < 1:
        raise ConfigError(f"hold_out={hold_out}: expected at least 0 and less than 1")
    if not 0 <= lowercase <= 1:
        raise ConfigError(f"lowercase={lowercase}: expected a share from 0 to 1")
    if not (out / PROGRESS).is_file():
        check_new(out)
    read = partial(CorpusReader, errors=errors, books=lines == "book")
    reader: DocumentReader = ParallelReader(paths, second, errors) if second else read(paths)
    dev_reader: DocumentReader | None = None
    if dev:
        dev_reader = ParallelReader(dev, dev_second, errors) if second else read(dev)
        _check_apart(reader.files, dev_reader.files)
    made = load_tokenizer(tokenizer)
    if lowercase and made.lowercase:
        raise ConfigError(f"lowercase={lowercase}: {tokenizer} lower-cases all text already")
    share = 0.0 if dev else float(hold_out)
    if cleaning.against:
        cleaning = replace(cleaning, against=tuple(find_files(cleaning.against, EVALUATION)))
    factors = weights_of(reader.files, weights or {})
    named = licences_of(reader.files, licences or {})
    if not all(factors):
        # Nothing of such a file is taken, so it must not count as an earlier copy of another's documents either.
        reader = read([file for file, factor in zip(reader.files, factors, strict=True) if factor])
        named = [licence for licence, factor in zip(named, factors, strict=True) if factor]
        factors = [factor for factor in factors if factor]
    sources = [*_sources(reader.files, "train"), *(_sources(dev_reader.files, "dev") if dev_reader else [])]
    options = _options(unit, share, cleaning, factors, lowercase)
    header = {"version": VERSION, "tokenizer": made.fingerprint, "options": options, "sources": sources}
    workers = workers or cpu_count()
    with saving(out), lock(out):
        if not (out / PROGRESS).is_file():
            check_new(out)  # another process may have finished one since
        done = _open_folder(out, header, made)
        with _tidy(out):
            verdict = survey(reader, dev_reader, cleaning, out / SURVEY, workers) if cleaning.wanted else None
            text = Selection(reader, verdict, factors, read)
            held_out = Selection(dev_reader) if dev_reader else None
            blocks = Blocks(text, held_out, threshold(text, share), BLOCK_CHARACTERS)
            with Progress("preparing", blocks.total_bytes, "B") as progress:
                infos = _make_all(blocks, done, out, unit, lowercase, workers, progress)
        train = tuple(info for info in infos if info.name.startswith("train"))
        held = tuple(info for info in infos if info.name.startswith("dev"))
        card = write_card(
            CorpusFacts(
                sources=[SourceFile(**source) for source in sources],
                train=train,
                dev=held,
                files=text.files,
                weights=factors,
                licences=named,
                lowercase=lowercase,
                lines=unit,
                tokenizer=made.fingerprint,
                hold_out=share,
                cleaning=cleaning,
                verdict=verdict,
                removed=text.removed,
            )
        )
        readers = [reader, *([dev_reader] if dev_reader else [])]
        repeated = 0 if "duplicates" in cleaning.rules else blocks.repeated()
        report = _report(train, held, readers, text, verdict, repeated)
        _finish(out, header, train, held, card)
        return replace(report, unknown=_count_unknown(out, train, made))


def _count_unknown(out: Path, train: Sequence[ShardInfo], tokenizer: Tokenizer) -> int:
    """Count the unknown tokens in the training text."""
    files = (part_path(out, info.name, "ids") for info in train)
    return sum(int(np.count_nonzero(np.load(file, mmap_mode="r") == tokenizer.unk_id)) for file in files)


def _options(lines: Lines, share: float, cleaning: Cleaning, weights: Sequence[float], lowercase: float) -> str:
    """The options that, along with text and tokenizer, determine a corpus, as JSON."""
    options: dict[str, Any] = {"lines": lines, "hold_out": share, "block": BLOCK_CHARACTERS}
    if any(weight != 1 for weight in weights):
        options["weights"] = list(weights)
    if lowercase:
        options["lowercase"] = lowercase
    if cleaning.wanted:
        options["cleaning"] = {
            "rules": list(cleaning.rules),
            "similarity": cleaning.similarity,
            "scripts": list(cleaning.scripts),
            "languages": list(cleaning.languages),
            "against": [file_sha256(path) for path in cleaning.against],
            "remove_overlap": cleaning.remove_overlap,
        }
    return json.dumps(options, sort_keys=True)


def _check_apart(train: Sequence[Path], dev: Sequence[Path]) -> None:
    """Raise ConfigError if a file is both to be trained on and held out."""
    held = {os.path.realpath(path) for path in dev}
    both = next((path for path in train if os.path.realpath(path) in held), None)
    if both is not None:
        raise ConfigError(
            f"{both} is in TEXT and in --dev: leave it out of one of them, such as by naming the files of TEXT"
        )


@contextmanager
def _tidy(out: Path) -> Iterator[None]:
    """Remove the folder if the text cannot be read and no shard is finished: there is nothing to resume."""
    try:
        yield
    except InputError:
        if not list(out.glob("*.npy")):
            shutil.rmtree(out)
        raise


def _sources(files: Sequence[Path], split: Split) -> list[dict[str, Any]]:
    """Describe each file with its checksum."""
    sources = []
    with Progress("hashing", sum(path.stat().st_size for path in files), "B") as progress:
        for path in files:
            try:
                digest = file_sha256(path)
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror}") from None
            sources.append(asdict(SourceFile(path=str(path), bytes=path.stat().st_size, sha256=digest, split=split)))
            progress.advance(path.stat().st_size)
    return sources


def _open_folder(out: Path, header: dict[str, Any], tokenizer: Tokenizer) -> dict[str, ShardInfo]:
    """Create the folder, or find the finished shards of an earlier run of the same command."""
    progress = out / PROGRESS
    if progress.is_file():
        first, *rest = progress.read_text("utf-8").splitlines() or [""]
        if first != json.dumps(header):
            raise ConfigError(
                f"{out} holds an unfinished corpus of other text, options or tokenizer: delete it or choose another"
            )
        # A kill may have cut the last line short: drop it, so that the next line does not continue it.
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


def _make_all(
    blocks: Blocks,
    done: dict[str, ShardInfo],
    out: Path,
    lines: Lines,
    lowercase: float,
    workers: int,
    progress: Progress,
) -> list[ShardInfo]:
    """Build every shard, in order; finished ones are kept."""
    infos: list[ShardInfo] = []

    def finish(future: "Future[ShardInfo]") -> None:
        infos.append(info := future.result())
        with append_to(out / PROGRESS) as file:
            file.write(json.dumps(to_dict(info)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    pool = make_pool_for_text(blocks.total_bytes, workers, start_worker, str(out / "tokenizer"))
    waiting: deque[Future[ShardInfo]] = deque()
    seen = 0
    try:
        for block in blocks:
            consumed = blocks.bytes_consumed
            progress.advance(consumed - seen, f"{len(infos)} shards")
            seen = consumed
            if block.name in done:
                infos.append(done[block.name])
                continue
            share = lowercase if block.name.startswith("train") else 0.0
            waiting.append(submit(pool, make_shard, out, block.name, block.documents, lines, share))
            # Few blocks are in flight, so memory stays constant for any amount of text.
            while len(waiting) > workers + 1 or (waiting and waiting[0].done()):
                finish(waiting[0])
                waiting.popleft()
        while waiting:
            finish(waiting[0])
            waiting.popleft()
            progress.advance(0, f"{len(infos)} shards")
        progress.advance(max((progress.total or 0) - progress.done, 0))
    except KeyboardInterrupt:
        # Wait for the shards in progress and keep them.
        progress.message("stopping after the shards in progress")
        pool.shutdown(wait=True, cancel_futures=True)
        for future in waiting:
            if not future.cancelled() and future.exception() is None:
                finish(future)
        raise
    except BrokenProcessPool:
        raise FirthError(
            f"a worker process of firth prepare was killed (out of memory?): run the same command again to resume, "
            f"with fewer --workers than {workers}"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return sorted(infos, key=lambda info: info.name)


def _finish(
    out: Path, header: dict[str, Any], train: tuple[ShardInfo, ...], held: tuple[ShardInfo, ...], card: str
) -> None:
    """Write the manifest and the card; InputError if there is nothing to train on, or nothing in the --dev files."""
    if not sum(info.tokens for info in train):
        n_held = sum(info.documents for info in held)
        shutil.rmtree(out)
        if n_held:
            raise InputError(f"all {n_held} documents were held out: lower --hold-out, or give --dev files")
        names = ", ".join(s["path"] for s in header["sources"][:3])
        cleaning = json.loads(header["options"]).get("cleaning", {})
        removing = {
            "rules": "--clean, which --keep excludes rules from",
            "scripts": "--script",
            "languages": "--language",
            "remove_overlap": "--remove-overlap",
        }
        if removed_by := [flag for key, flag in removing.items() if cleaning.get(key)]:
            raise InputError(f"{names}: all text was removed, by {' or '.join(removed_by)}")
        raise InputError(f"{names}: no text found: all files are empty or blank")
    dev = [source["path"] for source in header["sources"] if source["split"] == "dev"]
    if dev and not sum(info.tokens for info in held):
        shutil.rmtree(out)
        raise InputError(f"{', '.join(dev[:3])}: no text found to hold out: leave out --dev, or give text")
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        tokenizer=header["tokenizer"],
        options=header["options"],
        sources=tuple(SourceFile(**s) for s in header["sources"]),
        train=train,
        dev=held,
    )
    write_text(out / CARD, card)
    write_manifest(out, manifest)
    remove_folder(out / SURVEY)
    (out / PROGRESS).unlink()


def _report(
    train: Sequence[ShardInfo],
    held: Sequence[ShardInfo],
    readers: Sequence[DocumentReader],
    text: Selection,
    verdict: Verdict | None,
    repeated: int,
) -> PrepareReport:
    reports = [reader.report for reader in readers]
    infos = [*train, *held]
    return PrepareReport(
        documents=sum(i.documents for i in train),
        sentences=sum(i.sentences for i in train),
        tokens=sum(i.tokens for i in train),
        dev_documents=sum(i.documents for i in held),
        dev_tokens=sum(i.tokens for i in held),
        text_bytes=sum(r.bytes_read for r in reports),
        disk_bytes=sum(sum(i.bytes) for i in infos),
        bad_bytes=sum(r.bad_bytes for r in reports),
        bad_places=tuple(place for r in reports for place in r.bad_places)[:5],
        cut_lines=sum(r.cut_lines for r in reports),
        cut_documents=sum(r.cut_documents for r in reports),
        skipped_pairs=_skipped(readers, infos),
        removed=tuple((name, r.documents, r.paragraphs, r.characters) for name, r in sorted(text.removed.items())),
        repeated_documents=repeated,
        evaluation_texts=verdict.found if verdict is not None else (),
    )


def _skipped(readers: Sequence[DocumentReader], infos: Sequence[ShardInfo]) -> int:
    """Number of parallel pairs with an empty side: no line, or none with tokens."""
    parallel = [reader for reader in readers if isinstance(reader, ParallelReader)]
    read = sum(reader.skipped + reader.report.documents for reader in parallel)
    return read - sum(info.documents for info in infos) if parallel else 0
