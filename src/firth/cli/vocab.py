"""``firth vocab``."""

from pathlib import Path
from typing import Literal

from firth.cli.shared import (
    AtLeastOne,
    Errors,
    Flag,
    JsonFlag,
    Texts,
    Whole,
    counted,
    on_interrupt,
    print_json,
    print_next,
    print_table,
    print_warnings,
)


def vocab(
    *texts: Texts,
    out: Path,
    size: Whole = 30_000,
    lowercase: Flag = False,
    keep_accents: Flag = False,
    kind: Literal["wordpiece", "bpe", "words"] = "wordpiece",
    score: Literal["frequency", "likelihood"] | None = None,
    smooth: float | None = None,
    errors: Errors = "replace",
    workers: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a tokenizer on text: WordPiece, BPE or whole words.

    Example: firth vocab wiki/*.txt.xz --size 30000 --out vocab/

    Parameters
    ----------
    texts
        Files, folders or patterns: plain text (blank lines between documents), JSONL, Parquet, Wikipedia dumps (.xml);
        also packed as .gz, .xz, .bz2 or .zst.
    out
        Output folder for the tokenizer.
    size
        Vocabulary size, special tokens included (5 for WordPiece, 4 for the others).
    lowercase
        Lower-case text and strip accents (É becomes e).
    keep_accents
        With --lowercase: keep accents (É becomes é).
    kind
        wordpiece (BERT); bpe: byte-pair encoding that keeps white space (GPT, Transformer); words: whole words (LSTM,
        AWD-LSTM, CoVe).
    score
        WordPiece merge criterion: frequency of the pair (default), or likelihood (count of the pair over both
        counts).
    smooth
        Several languages, one per TEXT: count their words as if each had its share of the text to this power (0.7 for
        multilingual BERT), so that small languages get more tokens.
    errors
        Invalid UTF-8: replace and report, or stop with an error (strict).
    workers
        Worker processes; default: all CPU cores.
    as_json
        Print the report as one JSON object.
    """
    from firth.corpus.vocab import build_vocab

    with on_interrupt("no vocabulary was written; run the same command again"):
        report = build_vocab(
            texts,
            out,
            size=size,
            lowercase=lowercase,
            keep_accents=keep_accents,
            kind=kind,
            score=score,
            errors=errors,
            workers=workers,
            smooth=smooth,
        )
    if as_json:
        print_json(report)
        return
    name = {"wordpiece": "WordPiece tokens", "bpe": "BPE tokens", "words": "words"}[kind]
    unknown = "[UNK]" if kind == "wordpiece" else "<unk>"
    print(f"{out}: {report.size:,} {name}")
    documents, words = counted(report.documents, "document"), counted(report.words, "word")
    print_table(
        [
            ("trained on", f"{documents}, {words}, {report.word_types:,} distinct"),
            (f"words without {unknown}", f"{report.coverage:.3%}"),
            (f"{unknown} rate among tokens", f"{report.unk_rate:.3%}"),
            ("tokens per word", f"{report.tokens_per_word:.2f}"),
        ]
    )
    print_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents)
    print_next("firth", "prepare", *texts, "--tokenizer", out, "--out", "corpus/")
