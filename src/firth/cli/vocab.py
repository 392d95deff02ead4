"""``firth vocab``."""

from pathlib import Path
from typing import Literal

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


def vocab(
    *texts: Texts,
    out: Path,
    size: int = 30_000,
    lowercase: Flag = False,
    keep_accents: Flag = False,
    kind: Literal["wordpiece", "bpe", "words"] = "wordpiece",
    score: Literal["frequency", "likelihood"] | None = None,
    errors: Errors = "replace",
    workers: AtLeastOne = None,
    as_json: JsonFlag = False,
) -> None:
    """Learn a vocabulary from text.

    Example: firth vocab wiki/*.txt.xz --size 30000 --out vocab/

    Parameters
    ----------
    texts
        Files, folders or patterns: plain text (blank lines between documents) or JSONL, also .gz and .xz.
    out
        The tokenizer folder to make.
    size
        Pieces in the vocabulary, the special ones included (5 of WordPiece, 4 of the others).
    lowercase
        Read A as a, and é as e.
    keep_accents
        With --lowercase: read É as é.
    kind
        WordPiece as in BERT, byte-pair encoding as in GPT and the Transformer, which keeps white space, or whole
        words as in AWD-LSTM.
    score
        Of WordPiece: join the most frequent pair of pieces (the default), or the most telling one (count of the
        pair over both counts).
    errors
        Bytes that are not UTF-8 are replaced and reported, or are an error.
    workers
        Processes that count words; all processors if not given.
    as_json
        Print the report as one JSON object.
    """
    from firth.corpus.vocab import build_vocab

    with on_interrupt("no vocabulary was written; start again with the same command"):
        report = build_vocab(
            texts, out, size=size, lowercase=lowercase, keep_accents=keep_accents, kind=kind, score=score,
            errors=errors, workers=workers,
        )  # fmt: skip
    if as_json:
        print_json(report)
        return
    name = {"wordpiece": "word pieces", "bpe": "BPE pieces", "words": "words"}[kind]
    unknown = "[UNK]" if kind == "wordpiece" else "<unk>"
    print(f"{out}: {report.size:,} {name}")
    documents, words = counted(report.documents, "document"), counted(report.words, "word")
    print_table([
        ("learnt from", f"{documents}, {words}, {report.word_types:,} different"),
        (f"words without {unknown}", f"{report.coverage:.3%}"),
        (f"{unknown} among pieces", f"{report.unk_rate:.3%}"),
        ("pieces per word", f"{report.pieces_per_word:.2f}"),
    ])  # fmt: skip
    print_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents)
    print_next("firth", "prepare", *texts, "--tokenizer", out, "--out", "corpus/")
