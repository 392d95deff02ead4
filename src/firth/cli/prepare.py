"""``firth prepare``."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import (
    AtLeastOne,
    Errors,
    Flag,
    JsonFlag,
    Texts,
    counted,
    on_interrupt,
    print_json,
    print_next,
    print_table,
    print_warnings,
)
from firth.errors import ConfigError
from firth.progress import format_count, say

if TYPE_CHECKING:
    from firth.corpus.prepare import PrepareReport

Several = Annotated[list[str] | None, Parameter(consume_multiple=True)]
_VALUES = {"--weight": "2", "--licence": "CC BY-SA 4.0"}
# Number of tokens below which 40 epochs read less than the first point of firth-mini-en's curve.
_LITTLE_TEXT = 200_000
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def prepare(
    *texts: Texts,
    tokenizer: Path,
    out: Path,
    lines: Annotated[Literal["paragraph", "sentence", "book"] | None, Parameter(show_default=False)] = None,
    hold_out: Annotated[float | None, Parameter(show_default=False)] = None,
    dev: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    second: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    dev_second: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    clean: Flag = False,
    keep: Several = None,
    similarity: Annotated[float | None, Parameter(show_default=False)] = None,
    script: Several = None,
    language: Several = None,
    against: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    remove_overlap: Flag = False,
    weight: Several = None,
    smooth: float | None = None,
    licence: Several = None,
    lowercase: float = 0.0,
    memory: Annotated[str | None, Parameter(show_default=False)] = None,
    errors: Errors = "replace",
    workers: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Preprocess text into a corpus of token shards for pre-training.

    After an interruption the same command resumes.

    Example: firth prepare wiki/*.txt.xz --tokenizer vocab/ --out corpus/

    Parameters
    ----------
    texts
        Files, folders or patterns: plain text (blank lines between documents), JSONL, Parquet, Wikipedia dumps (.xml);
        also packed as .gz, .xz, .bz2 or .zst.
    tokenizer
        The folder made by firth vocab, or any model folder.
    out
        Output corpus folder.
    lines
        paragraph (default): each line is split into sentences; sentence: each line is one; book: each file is one
        document, and blank lines separate its paragraphs, as in BooksCorpus and Project Gutenberg.
    hold_out
        Share of the documents kept for evaluation, chosen by a hash of their text (default 0.01); at least ten of a
        hundred or more. 0: none.
    dev
        Text for evaluation; then nothing is held out from the rest.
    second
        Translations: line i of these files is the translation of line i of TEXT.
    dev_second
        Translations of --dev.
    clean
        Remove duplicates, near-duplicates, repeated paragraphs, lists, tables and other non-prose. The data card
        (README.md of the corpus) says what was removed and why.
    keep
        With --clean, what to keep: damaged, duplicates, near-duplicates, tables, numbers, symbols, lists, repeated.
    similarity
        With --clean: minimum share of five-word windows in common for near-duplicate documents (default 0.8).
    script
        Keep only documents mainly in these scripts, such as hangul or latin.
    language
        Keep only documents in these languages, such as en or ko.
    against
        Evaluation files or folders to search for in the text (contamination): lines, .tsv, .csv, JSON.
    remove_overlap
        Remove the paragraphs in which texts of --against are found.
    weight
        PATTERN=NUMBER: how often the documents of a file are used, by its path, name or folder.
    smooth
        Several languages, one per TEXT: the share of each is raised to this power (0.7 for multilingual BERT), so that
        documents of small languages are repeated and those of large ones sampled.
    licence
        PATTERN=TEXT: the licence of a file, for the data card.
    lowercase
        Share of the training documents to lower-case, so that a cased model also reads text without capitals, such as
        queries and chats.
    memory
        With --clean, --against, --script and --language: memory for hashes and signatures before they move to disk
        (default 1GB).
    errors
        Invalid UTF-8: replace and report, or stop with an error (strict).
    workers
        Worker processes; default: all CPU cores.
    as_json
        Print the report as one JSON object.
    """
    from firth.corpus.clean import OPTIONAL, Cleaning
    from firth.corpus.prepare import HOLD_OUT
    from firth.corpus.prepare import prepare as make_corpus
    from firth.text.tokenizer import MUCH_UNKNOWN

    if keep and not clean:
        raise ConfigError("--keep says what --clean leaves alone: give --clean as well")
    for name in keep or ():
        if name not in OPTIONAL:
            raise ConfigError(f"--keep {name}: expected of {', '.join(OPTIONAL)}")
    if similarity is not None and not clean:
        raise ConfigError("--similarity says what --clean takes for a near-duplicate: give --clean as well")
    if memory is not None and not (clean or against or script or language):
        raise ConfigError(
            "--memory bounds what --clean, --against, --script and --language hold: give one of them, or leave it out"
        )
    cleaning = Cleaning(
        rules=tuple(name for name in OPTIONAL if name not in (keep or ())) if clean else (),
        similarity=0.8 if similarity is None else similarity,
        scripts=tuple(script or ()),
        languages=tuple(language or ()),
        against=tuple(against or ()),
        remove_overlap=remove_overlap,
        memory=_bytes("--memory", memory or "1GB"),
    )
    if dev and hold_out is not None:
        raise ConfigError("--hold-out takes text for evaluation from TEXT, --dev from files: give one of them")
    if second and lines is not None:
        raise ConfigError("--lines: in parallel text each line is a sentence: leave it out with --second")
    if smooth is not None and (weight or second):
        raise ConfigError("--smooth computes the weights: leave out --weight and --second")
    weights: dict[str, float] | dict[Path, float]
    if smooth is None:
        weights = {pattern: _number(f"--weight {pattern}", value) for pattern, value in _pairs("--weight", weight)}
    else:
        weights = _smoothed(texts, smooth)
    with on_interrupt("what is finished is kept; the same command resumes"):
        report = make_corpus(
            texts,
            tokenizer,
            out,
            lines=lines or "paragraph",
            hold_out=HOLD_OUT if hold_out is None else hold_out,
            dev=dev or (),
            second=second or (),
            dev_second=dev_second or (),
            cleaning=cleaning,
            weights=weights,
            lowercase=lowercase,
            errors=errors,
            workers=workers,
            licences=dict(_pairs("--licence", licence)),
        )
    if as_json:
        print_json(report)
        return
    noun = "pair" if second else "document"
    documents, sentences = counted(report.documents, noun), counted(report.sentences, "sentence")
    print(f"{out}: {documents}, {sentences}, {counted(report.tokens, 'token')}")
    held_out = f"{counted(report.dev_documents, noun)}, {counted(report.dev_tokens, 'token')}"
    nothing = "none; a larger --hold-out or --dev FILE gives some"
    if report.documents - report.repeated_documents == 1:
        nothing = f"none of a single {noun}; a blank line begins another, and --dev FILE gives text for evaluation"
    print_table(
        [
            ("held out", held_out if report.dev_documents else nothing),
            ("on disk", f"{format_count(report.disk_bytes)}B, from {format_count(report.text_bytes)}B of text"),
        ]
    )
    if report.unknown >= MUCH_UNKNOWN * report.tokens:
        print(
            f"  warning: {report.unknown / report.tokens:.1%} of the tokens are unknown to {tokenizer}: a larger "
            "vocabulary of this text (firth vocab --size) would know more"
        )
    print_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents)
    if report.skipped_pairs:
        print(f"  left out: {counted(report.skipped_pairs, 'pair')} with nothing on one side")
    _print_removed(report, noun)
    if report.tokens < _LITTLE_TEXT and not second:
        _print_little(report.tokens)
    size = _size_without_plan(tokenizer, bool(second))
    if size is None:
        print_next("firth", "plan", out, "--minutes", "30", why="names a size, and the command that pre-trains it")
    else:
        print_next("firth", "pretrain", "--model", size, "--corpus", out, "--out", "runs/a", "--minutes", "30")


def _print_little(n_tokens: int) -> None:
    """Warn how little so short a text can teach, compared with a recorded run."""
    from firth.plan import CURVE
    from firth.pretraining.length import MOST_EPOCHS

    millions, _, accuracy = CURVE[0]
    print(
        f"  warning: a text of {counted(n_tokens, 'token')} is little to pre-train on: {MOST_EPOCHS:g} epochs, more "
        f"gain little, read {format_count(MOST_EPOCHS * n_tokens)}, and firth-mini-en had read "
        f"{format_count(1e6 * millions)} when it filled {accuracy:.0%} of its masks: add text, or start from a trained "
        "model (firth models)"
    )


def _print_removed(report: "PrepareReport", noun: str) -> None:
    """Print what cleaning removed, and what else the user should know about the text."""
    for name, documents, paragraphs, characters in report.removed:
        parts = [counted(n, noun) for n, noun in ((documents, "document"), (paragraphs, "paragraph")) if n]
        print(f"  removed as {name}: {', '.join(parts)}, {format_count(characters)} characters")
    for found in report.evaluation_texts:
        compared = found.examples - found.short
        print(
            f"  {found.file}: {found.found:,} of {compared:,} examples share {found.n} words in a row with the text "
            f"({found.short:,} too short to compare)"
        )
    if report.repeated_documents:
        repeated = f"{counted(report.repeated_documents, noun)} equal to an earlier one"
        # Parallel text is not cleaned.
        print(f"  note: {repeated}{'' if noun == 'pair' else '; --clean removes them'}")


def _pairs(flag: str, given: Iterable[str] | None) -> list[tuple[str, str]]:
    """Split each ``PATTERN=VALUE`` into a pair; ConfigError for anything else."""
    pairs = []
    for item in given or ():
        # A licence may be a URL that contains =; a weight is a number.
        pattern, mark, value = item.partition("=") if flag == "--licence" else item.rpartition("=")
        if not (pattern and mark and value):
            raise ConfigError(f"{flag} {item}: expected PATTERN=VALUE, such as {flag} 'books*={_VALUES[flag]}'")
        pairs.append((pattern, value))
    return pairs


def _number(flag: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag}={text}: expected a number") from None


def _bytes(flag: str, text: str) -> int:
    """Parse ``500MB``, ``2GB`` or a number of bytes."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?) *([kMGT]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise ConfigError(f"{flag} {text}: expected a size such as 500MB or 2GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _size_without_plan(tokenizer: Path, translations: bool) -> str | None:
    """A small model size for a corpus that ``firth plan`` does not support; None for WordPiece, which it supports."""
    from firth.text.published import load_tokenizer
    from firth.text.tokenizer_kinds import WORDPIECE, WORDS

    if translations:
        return "transformer-mini"
    kind = load_tokenizer(tokenizer).kind
    return None if kind is WORDPIECE else "lstm-small" if kind is WORDS else "gpt-mini"


def _smoothed(texts: Sequence[str], exponent: float) -> dict[Path, float]:
    """The weight of each file by the languages' shares, which are reported."""
    from firth.corpus.smoothing import smoothed_languages, told, weights_by_file

    languages = smoothed_languages(texts, exponent)
    told(languages, say)
    return weights_by_file(languages)
