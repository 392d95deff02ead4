"""Report of ``firth extend``: tokenization before and after, and ``report.html``."""

from dataclasses import dataclass
from pathlib import Path

from firth.page import Report, TableCell
from firth.text.added_tokens import Fit


@dataclass(frozen=True, slots=True)
class Change:
    """How a text fits the old and the new vocabulary."""

    before: Fit
    after: Fit


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token, its count in the text that it was chosen from, and its former tokens."""

    token: str
    count: int
    before: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtendReport:
    """What was added to a model, and the effect.

    ``text``: the documents that tokens were chosen from; ``held_out``: the others, None if there are none.
    ``frequent``: the most frequent new tokens. ``bad_*`` and ``cut_*``: as reported by the reader.
    ``pruned_words``: occurrences of rare words dropped to bound memory; no other figure includes them.
    """

    system: str
    task: str
    size_before: int
    size_after: int
    asked: int
    documents: int
    held_documents: int
    text: Change
    held_out: Change | None
    frequent: tuple[NewToken, ...]
    pruned_words: int
    bad_bytes: int
    bad_places: tuple[tuple[str, int], ...]
    cut_lines: int
    cut_documents: int

    @property
    def added(self) -> int:
        return self.size_after - self.size_before


def fit_cells(fit: Fit) -> dict[str, str]:
    """The figures of a fit, by column name."""
    words = max(fit.words, 1)
    return {
        "tokens per word": f"{fit.tokens_per_word:.3f}",
        "words kept whole": f"{fit.whole / words:.2%}",
        "words that are [UNK]": f"{fit.unknown / words:.3%}",
        "tokens in total": f"{fit.tokens:,}",
    }


def write_extend_report(path: Path, report: ExtendReport, name: str) -> None:
    """Write ``report.html``; needs the extra ``report`` (ConfigError without it)."""
    page = Report(f"A vocabulary extended: {name}")
    page.text(
        f"{report.added:,} tokens were added to the {report.size_before:,} of the {report.system} model. Old tokens "
        f"keep their ids and weights; a new one is initialised with the mean of the tokens that it replaces."
    )
    parts = [("text", report.text)] + ([("held-out", report.held_out)] if report.held_out else [])
    fits = {f"{part}, {when}": fit for part, change in parts for when, fit in _moments(change)}
    page.bars_plot(
        "Tokens per word",
        list(fits),
        [fit.tokens_per_word for fit in fits.values()],
        [0.0] * len(fits),
        "tokens per word",
    )
    cells = {title: fit_cells(fit) for title, fit in fits.items()}
    names = list(fit_cells(report.text.before))
    page.table(["", *cells], [[row, *(column[row] for column in cells.values())] for row in names])
    page.text(_parts_in_words(report))
    page.heading("The most frequent new tokens")
    rows: list[list[TableCell]] = [[new.token, new.count, " ".join(new.before)] for new in report.frequent]
    page.table(["token", "occurrences", "before"], rows)
    page.write(path)


def _moments(change: Change) -> tuple[tuple[str, Fit], tuple[str, Fit]]:
    return ("before", change.before), ("after", change.after)


def _parts_in_words(report: ExtendReport) -> str:
    text = f"{report.documents:,} documents of {report.text.before.words:,} words: tokens were chosen from these."
    if report.held_out is None:
        return f"{text} No document was held out: the text has too few."
    held = f"{report.held_documents:,} documents of {report.held_out.before.words:,} words"
    return f"{text} {held} were held out: the tokens saved there are an estimate for new text."
