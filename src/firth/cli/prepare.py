"""``firth prepare``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from firth.cli.shared import (
    AtLeastOne,
    Errors,
    JsonFlag,
    Texts,
    counted,
    on_interrupt,
    print_json,
    print_next,
    print_table,
    print_warnings,
)
from firth.progress import format_count


def prepare(
    *texts: Texts,
    tokenizer: Path,
    out: Path,
    lines: Literal["paragraph", "sentence"] = "paragraph",
    holdout: float = 0.005,
    dev: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    second: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    dev_second: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
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
        Files, folders or patterns: plain text (blank lines between documents) or JSONL, also .gz and .xz.
    tokenizer
        The folder made by firth vocab, or any model folder.
    out
        The corpus folder to make.
    lines
        A line of the text is a paragraph, which is split into sentences, or one sentence.
    holdout
        Share of the documents kept for evaluation.
    dev
        Text for evaluation; then nothing is held out of the rest.
    second
        Translations: line i of these files is the translation of line i of TEXT.
    dev_second
        Translations of --dev.
    errors
        Bytes that are not UTF-8 are replaced and reported, or are an error.
    workers
        Processes that make shards; all processors if not given.
    as_json
        Print the report as one JSON object.
    """
    from firth.corpus.prepare import prepare as make_corpus

    with on_interrupt("what is finished is kept; the same command resumes"):
        report = make_corpus(
            texts, tokenizer, out, lines=lines, holdout=holdout, dev=dev or (), second=second or (),
            dev_second=dev_second or (), errors=errors, workers=workers,
        )  # fmt: skip
    if as_json:
        print_json(report)
        return
    noun = "pair" if second else "document"
    documents, sentences = counted(report.documents, noun), counted(report.sentences, "sentence")
    print(f"{out}: {documents}, {sentences}, {counted(report.tokens, 'token')}")
    held_out = f"{counted(report.dev_documents, noun)}, {counted(report.dev_tokens, 'token')}"
    print_table([
        ("held out", held_out if report.dev_documents else "none; a larger --holdout or --dev FILE gives some"),
        ("on disk", f"{format_count(report.disk_bytes)}B, from {format_count(report.text_bytes)}B of text"),
    ])  # fmt: skip
    print_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents)
    if report.skipped_pairs:
        print(f"  left out: {counted(report.skipped_pairs, 'pair')} with nothing on one side")
    print_next("firth", "pretrain", "--model", _size_for(tokenizer, bool(second)), "--corpus", out, "--out", "runs/a")


def _size_for(tokenizer: Path, translations: bool) -> str:
    """A small model that learns from such a corpus: BERT masks word pieces, and has no use for other vocabularies."""
    from firth.text.published import load_tokenizer
    from firth.text.tokenizer import WORDPIECE, WORDS

    if translations:
        return "transformer-mini"
    kind = load_tokenizer(tokenizer).kind
    return "bert-mini" if kind is WORDPIECE else "lstm-small" if kind is WORDS else "gpt-mini"
