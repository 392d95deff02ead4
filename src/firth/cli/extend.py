"""``firth extend``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from firth.cli.shared import (
    Errors,
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

if TYPE_CHECKING:
    from firth.corpus.extend_report import Change, ExtendReport

_SHOWN = 10  # new tokens; the report has more


def extend(
    model: Annotated[Path, Parameter(name="MODEL")],
    /,
    *texts: Texts,
    out: Path,
    tokens: Annotated[Whole, Parameter(validator=validators.Number(gte=1))] = 2000,
    errors: Errors = "replace",
    as_json: JsonFlag = False,
) -> None:
    """Extend a model's vocabulary with frequent words of a domain.

    Existing tokens keep ids and weights; a new token's embedding is initialised as the mean of
    the tokens it replaces. Continue pre-training afterwards to train the new embeddings.

    Example: firth extend runs/a papers/*.txt --tokens 2000 --out extended/

    Parameters
    ----------
    model
        Run or model folder, also of another tool, or hub:org/name.
    texts
        Files, folders or patterns: plain text (blank lines between documents), JSONL, Parquet, Wikipedia dumps (.xml);
        also packed as .gz, .xz, .bz2 or .zst.
    out
        Output model folder.
    tokens
        Number of tokens to add; fewer if no more are useful.
    errors
        Invalid UTF-8: replace and report, or stop with an error (strict).
    as_json
        Print the report as one JSON object.
    """
    from firth.corpus.extend import extend as extend_model
    from firth.folder import PRETRAINING

    with on_interrupt("no model was written; run the same command again"):
        report = extend_model(model, texts, out, tokens=tokens, errors=errors)
    if as_json:
        print_json(report)
        return
    _print_report(out, report)
    print_warnings(report.bad_bytes, report.bad_places, report.cut_lines, report.cut_documents)
    if report.pruned_words:
        print(f"  warning: {counted(report.pruned_words, 'occurrence')} of rare words not counted, to bound memory")
    folder = f"{out}/"
    if report.task != PRETRAINING:
        print_next("firth", "finetune", "--task", report.task, "--model", folder, "--train", "FILE", "--out", "runs/b")
        return
    print_next("firth", "prepare", *texts, "--tokenizer", folder, "--out", "corpus/")
    print_next("firth", "pretrain", "--model", folder, "--corpus", "corpus/", "--out", "runs/domain")


def _print_report(out: Path, report: "ExtendReport") -> None:
    print(f"{out}: {counted(report.added, 'new token')}, {report.size_after:,} in all")
    words = counted(report.text.before.words, "word")
    print(f"on the text ({counted(report.documents, 'document')}, {words}), before and after:")
    print_table(_change(report.text))
    if report.held_out is not None:
        words = counted(report.held_out.before.words, "word")
        print(f"on held-out text ({counted(report.held_documents, 'document')}, {words}):")
        print_table(_change(report.held_out))
    else:
        print("no held-out documents: too little text")
    print("most frequent new tokens, and their former tokenization:")
    print_table([(new.token, f"{new.count:,} ×  {' '.join(new.before)}") for new in report.frequent[:_SHOWN]])


def _change(change: "Change") -> list[tuple[str, str]]:
    from firth.corpus.extend_report import fit_cells

    after = fit_cells(change.after)
    return [(name, f"{value} → {after[name]}") for name, value in fit_cells(change.before).items()]
