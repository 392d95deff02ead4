"""Train a vocabulary on text files and write the tokenizer folder."""

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firth.corpus.smoothing import smoothed_languages, told, weights_by_file
from firth.errors import ConfigError, FirthError, InputError
from firth.files import new_folder, write_json
from firth.progress import Progress, say
from firth.text.bpe import train_bpe
from firth.text.corpus import CorpusReader
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import BPE, WORDPIECE, WORDS
from firth.text.word_list import choose_words
from firth.text.wordpiece import MAX_TYPES, Score, WordCounts, WordSplitter, text_blocks, train_wordpiece
from firth.workers import WORKERS_EACH, check_processors, cpu_count, make_pool_for_text, submit

VocabKind = Literal["wordpiece", "bpe", "words"]

_KINDS = {"wordpiece": WORDPIECE, "bpe": BPE, "words": WORDS}
_ENCODE_AT_ONCE = 50_000  # words


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabReport:
    """The sources of a vocabulary and how well it fits them. Written as ``report.json``.

    ``coverage`` is the share of word occurrences without unknown tokens, ``unk_rate`` the share of unknown tokens,
    ``tokens_per_word`` the number of tokens per word occurrence; all are over the counted words.
    ``bad_places`` holds the first invalid bytes as (file, byte offset).
    """

    kind: VocabKind
    size: int
    alphabet: int
    documents: int
    words: int
    word_types: int
    pruned_types: int
    pruned_words: int
    coverage: float
    unk_rate: float
    tokens_per_word: float
    bad_bytes: int
    bad_places: tuple[tuple[str, int], ...]
    cut_lines: int
    cut_documents: int
    fingerprint: str


def build_vocab(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    size: int = 30_000,
    lowercase: bool = False,
    keep_accents: bool = False,
    kind: VocabKind = "wordpiece",
    score: Score | None = None,
    errors: Literal["replace", "strict"] = "replace",
    workers: int | None = None,
    max_types: int = MAX_TYPES,
    smooth: float | None = None,
    tell: Callable[[str], None] = say,
) -> VocabReport:
    """Train ``size`` tokens on text and write the tokenizer folder ``out``.

    ``score`` (WordPiece only; default "frequency"): which pair of tokens to merge next.
    The same text and options give the same bytes for any ``workers`` (default: the number of CPUs).
    ``max_types`` bounds memory: beyond it the rarest words are dropped. ``smooth``: each of ``paths`` is a language,
    and its words are counted as if its share of the text were raised to this power (see ``smoothing``). Raises
    ConfigError if ``out`` is not empty, InputError for text that cannot be read.
    """
    out = Path(out)
    _check_options(size, kind, score, workers, max_types)
    if keep_accents and not lowercase:
        raise ConfigError("keep_accents=True is for lowercase=True, which removes them: leave it out, or give both")
    reader = CorpusReader(paths, errors)
    with new_folder(out) as folder:
        splitter = WordSplitter(lowercase=lowercase, keep_accents=keep_accents, marked=kind == "bpe")
        weights = dict[Path, float]()
        if smooth is not None:
            languages = smoothed_languages(paths, smooth)
            told(languages, tell)
            weights = weights_by_file(languages)
        words = _count(reader, splitter, max_types, workers or cpu_count(), weights)
        if not words.counts:
            raise InputError(f"no words in {reader.named} ({reader.report.documents} documents); give text to train on")
        with Progress("train vocabulary", size, "tokens") as progress:
            tokenizer = _train(kind, splitter, words.counts, size, score, lambda n: progress.advance(n - progress.done))
            progress.advance(tokenizer.size - progress.done)
        report = _report(kind, tokenizer, words, reader)
        tokenizer.save(folder)
        write_json(folder / "report.json", dataclasses.asdict(report))
    return report


def _train(
    kind: VocabKind,
    splitter: WordSplitter,
    counts: Mapping[str, int],
    size: int,
    score: Score | None,
    on_progress: Callable[[int], None],
) -> Tokenizer:
    lowercase, keep_accents = splitter.lowercase, splitter.keep_accents
    if kind == "bpe":
        pieces, merges = train_bpe(counts, size, on_progress=on_progress)
        return Tokenizer.from_merges(pieces, merges, lowercase=lowercase, keep_accents=keep_accents)
    if kind == "words":
        return Tokenizer.from_words(choose_words(counts, size), lowercase=lowercase, keep_accents=keep_accents)
    pieces = train_wordpiece(counts, size, score=score or "frequency", on_progress=on_progress)
    return Tokenizer.from_vocab(pieces, lowercase=lowercase, keep_accents=keep_accents)


def _check_options(size: int, kind: str, score: str | None, workers: int | None, max_types: int) -> None:
    if kind not in _KINDS:
        raise ConfigError(f"kind={kind!r} is not known; choose 'wordpiece', 'bpe' or 'words'")
    n_special = len(_KINDS[kind].specials)
    if size <= n_special:
        raise ConfigError(f"size={size} leaves no room beside the {n_special} special tokens; pass a larger one")
    if score is not None and kind != "wordpiece":
        does = "byte-pair encoding merges" if kind == "bpe" else "a vocabulary of words takes"
        raise ConfigError(f"score={score!r} applies to WordPiece only: {does} what is most frequent; leave it out")
    if score not in (None, "frequency", "likelihood"):
        raise ConfigError(f"score={score!r} is not known; choose 'frequency' or 'likelihood'")
    check_processors("workers", 1 if workers is None else workers, WORKERS_EACH)
    if max_types < 1:
        raise ConfigError(f"max_types={max_types} is not possible; pass 1 or more")


def _count(
    reader: CorpusReader, splitter: WordSplitter, max_types: int, workers: int, weights: Mapping[Path, float]
) -> WordCounts:
    """Count words; counts from files with weights are multiplied by these, but are at least 1."""
    total, language, weight = WordCounts(max_types), WordCounts(max_types), 1.0

    def finish() -> None:
        total.add({word: max(round(weight * count), 1) for word, count in language.counts.items()})
        total.pruned_types += language.pruned_types
        total.pruned_occurrences += language.pruned_occurrences

    with Progress("count words", reader.total_bytes, "bytes") as progress:
        for changed, files in itertools.groupby(reader.by_file(), lambda file: weights.get(file[0], 1.0)):
            blocks = text_blocks(p for _, documents in files for document in documents for p in document.paragraphs)
            if changed != weight:
                finish()
                language, weight = WordCounts(max_types), changed
            for counts in _count_blocks(blocks, splitter, workers, reader.total_bytes):
                language.add(counts)
                progress.advance(reader.bytes_consumed - progress.done, f"{len(language.counts)} word types")
    finish()
    return total


def _count_blocks(
    blocks: Iterator[list[str]], splitter: WordSplitter, workers: int, n_bytes: int
) -> Iterator[Counter[str]]:
    """Yield the counts of each block, in order; few blocks are held at a time."""
    options = splitter.lowercase, splitter.keep_accents, splitter.marked
    pool = make_pool_for_text(n_bytes, workers, _start_worker, *options)
    waiting: deque[Future[Counter[str]]] = deque()
    try:
        for block in blocks:
            waiting.append(submit(pool, _count_block, block))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise FirthError(
            "a worker process stopped or could not start; in a script put the call under "
            "'if __name__ == \"__main__\":', or pass workers=1"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_splitter: WordSplitter | None = None


def _start_worker(lowercase: bool, keep_accents: bool, marked: bool) -> None:
    global _splitter
    _splitter = WordSplitter(lowercase=lowercase, keep_accents=keep_accents, marked=marked)


def _count_block(block: list[str]) -> Counter[str]:
    assert _splitter is not None
    return _splitter.count(block)


def _report(kind: VocabKind, tokenizer: Tokenizer, words: WordCounts, reader: CorpusReader) -> VocabReport:
    types = list(words.counts)
    n_words = n_pieces = n_unknown_pieces = n_unknown_words = 0
    for first in range(0, len(types), _ENCODE_AT_ONCE):
        some = types[first : first + _ENCODE_AT_ONCE]
        for word, ids in zip(some, tokenizer.ids_of_words(some), strict=True):
            count = words.counts[word]
            unknown = ids.count(tokenizer.unk_id)
            n_words += count
            n_pieces += count * len(ids)
            n_unknown_pieces += count * unknown
            n_unknown_words += count * (unknown > 0)
    read = reader.report
    return VocabReport(
        kind=kind,
        size=tokenizer.size,
        alphabet=sum(len(p) == 1 or len(p) == 3 and p[:2] == "##" for p in tokenizer.pieces),
        documents=read.documents,
        words=n_words + words.pruned_occurrences,
        word_types=len(types) + words.pruned_types,
        pruned_types=words.pruned_types,
        pruned_words=words.pruned_occurrences,
        coverage=1 - n_unknown_words / n_words,
        unk_rate=n_unknown_pieces / max(n_pieces, 1),
        tokens_per_word=n_pieces / n_words,
        bad_bytes=read.bad_bytes,
        bad_places=tuple(read.bad_places),
        cut_lines=read.cut_lines,
        cut_documents=read.cut_documents,
        fingerprint=tokenizer.fingerprint,
    )
