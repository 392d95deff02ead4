"""``report.html`` of the demo: steps, results, and how to read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firth.config import to_toml
from firth.data.shards import Manifest, ShardInfo
from firth.demo.held_out_text import Alike, FilledBlank
from firth.page import Report, TableCell
from firth.progress import format_duration

if TYPE_CHECKING:
    from firth.demo.run import DemoSettings

SHIPPED_START, PRETRAINED = "shipped BERT", "BERT pre-trained here"
FRESH, TFIDF = "BERT without pre-training", "TF-IDF + logistic regression"
STARTS = (SHIPPED_START, PRETRAINED, FRESH, TFIDF)
DOCSTRINGS, REVIEWS = "docstrings", "reviews"
_STAGE_TITLES = {
    "read": "read the documentation",
    "first": "fine-tune the shipped models",
    "text": "write the text",
    "vocab": "train the vocabulary",
    "corpus": "prepare the corpus",
    "pretrain": "pre-train",
    "compare": "fine-tune and compare",
    "look": "look inside",
}


@dataclass(frozen=True, slots=True)
class Score:
    """How one way of learning (``start``) did on a task's test set, from ``per_class`` labels of draw ``draw``."""

    task: str
    start: str
    per_class: int
    draw: int
    accuracy: float
    macro_f1: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All that a demo found out. ``labels``, ``n_test``: by task; ``events``: of the log; ``seconds``: by stage."""

    labels: dict[str, tuple[str, ...]]
    n_train_characters: int
    manifest: Manifest
    n_test: dict[str, int]
    n_parameters: int
    events: list[dict[str, Any]]
    blanks: list[FilledBlank]
    commonest: str
    alike: Alike | None
    scores: list[Score]
    machine: str
    seed: int
    seconds: dict[str, float]

    @property
    def last_dev(self) -> dict[str, float]:
        """The last look at held-out text; empty if there is none."""
        dev = [e for e in self.events if e["event"] == "dev"]
        return {k: v for k, v in dev[-1].items() if k != "event"} if dev else {}


def summarised(
    scores: Sequence[Score], start: str, per_class: int, measure: str = "accuracy", task: str = DOCSTRINGS
) -> tuple[float, float]:
    """Mean over the draws, and their standard deviation (n - 1; 0 for a single draw)."""
    values = [getattr(s, measure) for s in scores if (s.task, s.start, s.per_class) == (task, start, per_class)]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def starts_of(scores: Sequence[Score], task: str = DOCSTRINGS) -> list[str]:
    """The ways of learning that were tried on a task."""
    return [start for start in STARTS if any((s.task, s.start) == (task, start) for s in scores)]


def write_demo_report(path: Path, found: Findings, settings: "DemoSettings") -> Path:
    """Write the report; one file that opens offline."""
    report = Report("From raw text to a classifier, on this machine")
    _summary(report, found, settings)
    _comparison(report, found, settings)
    _curves(report, found, settings)
    _blanks(report, found, settings)
    _nearest(report, found, settings)
    _road(report, found, settings)
    report.write(path)
    return path


def _summary(report: Report, found: Findings, settings: "DemoSettings") -> None:
    report.text(
        "How much does pre-training help to tell, from few labelled examples, which part of Python's library a "
        "docstring comes from? Firth read the documentation that this Python carries "
        f"({found.n_train_characters / 1e6:.1f} million characters), learned a vocabulary of "
        f"{settings.vocab_size:,} word pieces from it, and pre-trained a BERT of "
        f"{found.n_parameters / 1e6:.1f} million weights on it without any labels. It is compared with the same BERT "
        "without pre-training, with TF-IDF, and with the model that comes with Firth, where the installation has it."
    )
    report.text(f"{_in_words(found, DOCSTRINGS, settings)} {_in_words(found, REVIEWS, settings)}")


def _in_words(found: Findings, task: str, settings: "DemoSettings") -> str:
    """The means of all starts with the most labels, best first."""
    starts, n = starts_of(found.scores, task), settings.per_class[-1]
    means = {start: summarised(found.scores, start, n, task=task)[0] for start in starts}
    if not means:
        return ""
    best = sorted(means.items(), key=lambda item: -item[1])
    what = f"Part of the library ({len(found.labels[task])} classes)" if task == DOCSTRINGS else "Korean film reviews"
    return (
        f"{what}, from {n} labels a class: {', '.join(f'{start} {mean:.1%}' for start, mean in best)}; guessing "
        f"{1 / len(found.labels[task]):.1%}."
    )


def _comparison(report: Report, found: Findings, settings: "DemoSettings") -> None:
    report.heading("What pre-training is worth")
    _scores(report, found, DOCSTRINGS, settings)
    report.text(
        f"The classes: {', '.join(found.labels[DOCSTRINGS])}. Test: {found.n_test[DOCSTRINGS]} docstrings from modules "
        "and classes that no training docstring comes from, and taken out of the pre-training text. Numbers are means "
        f"over {settings.draws} draws of the labelled examples, ± their standard deviation; the test set is always the "
        "same."
    )
    if starts_of(found.scores, REVIEWS):
        report.heading("Korean film reviews")
        _scores(report, found, REVIEWS, settings)
        report.text(
            f"Positive or negative; test: {found.n_test[REVIEWS]} reviews of the Naver Sentiment Movie Corpus (CC0). "
            "The shipped model has seen reviews of the same site in pre-training, without labels and none of these."
        )
    report.text(
        f"Every BERT learns for {settings.tune_steps} updates of {settings.tune_texts} texts, with a highest rate of "
        f"{settings.tune_rate:g} (the shipped models: {settings.shipped_rate:g}). Weights of the demo's own size "
        f"without pre-training are drawn with BERT's deviation of {settings.fresh_init_range:g}. Rates and deviation "
        "were compared on docstrings of the training side; the number of updates is set by the time, and the BERT "
        "without pre-training may gain from more. TF-IDF counts words and characters; the strength of its penalty is "
        "chosen by cross-validation on each draw's training examples."
    )


def _scores(report: Report, found: Findings, task: str, settings: "DemoSettings") -> None:
    """A task's table and plots."""
    starts = starts_of(found.scores, task)

    def of(start: str, n: int, measure: str = "accuracy") -> tuple[float, float]:
        return summarised(found.scores, start, n, measure, task)

    rows: list[list[TableCell]] = [
        [n, start, *(_percent(*of(start, n, measure)) for measure in ("accuracy", "macro_f1"))]
        for n in settings.per_class
        for start in starts
    ]
    report.table(["labels a class", "", "accuracy", "macro F1"], rows)
    n = settings.per_class[-1]
    means, spreads = zip(*(of(start, n) for start in starts), strict=True)
    shown = [round(100 * mean, 1) for mean in means], [100 * spread for spread in spreads]
    report.bars_plot(f"Test accuracy from {n} labels a class", starts, *shown, "% right")
    if len(settings.per_class) > 1:
        curves = {start: (settings.per_class, [100 * of(start, n)[0] for n in settings.per_class]) for start in starts}
        report.lines_plot("Test accuracy and number of labels", curves, "labels a class", "% right")


def _percent(mean: float, spread: float) -> str:
    return f"{100 * mean:.1f} ± {100 * spread:.1f} %"


def _curves(report: Report, found: Findings, settings: "DemoSettings") -> None:
    report.heading("Pre-training")
    last = found.last_dev
    if last:
        report.text(
            f"Two tasks at once: find the words that were blanked out, and tell whether the second sentence "
            f"follows the first. On held-out text the model ends with a loss of {last['mlm_loss']:.2f} nats a blank "
            f"({last['mlm_accuracy']:.1%} right) and tells the next sentence in {last['nsp_accuracy']:.1%} of the "
            "cases (half of them are true)."
        )
    report.text(
        f"The last {settings.long_share:.0%} of the updates read rows of up to {settings.length} pieces, the others "
        f"of up to {settings.short_length}: places beyond are new to the model then, and the training loss jumps."
    )
    for term, title in (("mlm", "Blanked-out pieces: loss"), ("nsp", "Next sentence: loss")):
        curves = {}
        for name, event in (("training", "train"), ("held-out", "dev")):
            points = [e for e in found.events if e["event"] == event]
            if len(points) > 1:
                curves[name] = ([e["step"] for e in points], [e[f"{term}_loss"] for e in points])
        if curves:
            report.lines_plot(title, curves, "update", "nats")


def _blanks(report: Report, found: Findings, settings: "DemoSettings") -> None:
    report.heading("Filling blanks")
    if not found.blanks:
        report.text("There was no held-out sentence of a suitable length.")
        return
    blanks = found.blanks
    right = float(np.mean([b.right for b in blanks]))
    among = float(np.mean([b.truth in [c.token for c in b.candidates] for b in blanks]))
    constant = float(np.mean([b.truth == found.commonest for b in blanks]))
    report.text(
        f"One word in each of {len(blanks)} held-out sentences that do not stand in the training text: {right:.1%} "
        f"right, and in {among:.1%} the word is among the first {settings.top_k}. Always guessing the commonest word "
        f"(“{found.commonest}”) would be right in {constant:.1%}. Sentence and word are chosen by a hash; "
        f"the first {settings.n_blanks} of that order:"
    )
    rows: list[list[TableCell]] = []
    for blank in blanks[: settings.n_blanks]:
        candidates = " · ".join(f"{c.token} {c.probability:.0%}" for c in blank.candidates)
        rows.append([blank.text, blank.truth, candidates, "yes" if blank.right else "no"])
    report.table(["sentence", "word", "the model's candidates", "right"], rows)


def _nearest(report: Report, found: Findings, settings: "DemoSettings") -> None:
    if found.alike is None:
        return
    report.heading("Nearest sentences")
    alike = found.alike
    report.text(
        f"Each held-out sentence as one vector (the mean of the top layer, less the mean of all): the nearest other "
        f"one is from the same document in {alike.same_document:.1%} of the cases; by chance it would be in "
        f"{alike.chance:.1%}. The first {settings.n_queries} in an order by hash, with cosines:"
    )
    rows: list[list[TableCell]] = []
    for item in alike.neighbours[: settings.n_queries]:
        for number, (sentence, cosine) in enumerate(item.nearest):
            query = f"{item.query.text} ({item.query.where})" if number == 0 else ""
            rows.append([query, f"{sentence.text} ({sentence.where})", round(cosine, 2)])
    report.table(["sentence", "nearest", "cosine"], rows)


def _sizes(infos: Sequence[ShardInfo]) -> str:
    documents, sentences, tokens = (sum(getattr(i, n) for i in infos) for n in ("documents", "sentences", "tokens"))
    return f"{documents:,} documents, {sentences:,} sentences, {tokens:,} pieces"


def _road(report: Report, found: Findings, settings: "DemoSettings") -> None:
    report.heading("What was done, and how long it took")
    train, held = found.manifest.train, found.manifest.dev
    report.table(
        ["", ""],
        [
            ["text to train on", _sizes(train)],
            ["text held out", _sizes(held)],
            ["model", f"{settings.n_layers} layers of width {settings.width}, {found.n_parameters:,} weights"],
            ["pre-training", f"{settings.steps:,} updates of up to {settings.batch_tokens:,} pieces"],
            ["machine and numbers", found.machine],
            ["seed", str(found.seed)],
        ],
    )
    times: list[list[TableCell]] = [
        [title, round(found.seconds[name], 1)] for name, title in _STAGE_TITLES.items() if name in found.seconds
    ]
    total_s = sum(found.seconds.values())
    report.table(["stage", "seconds"], [*times, [f"all ({format_duration(total_s)} minutes)", round(total_s, 1)]])
    report.heading("How to read this")
    report.text(
        "Loss is the mean surprise in nats, the natural logarithm of one over the probability that the model gave to "
        "what was true: 0 is certainty, and each nat less makes the truth 2.7 times as likely to the model. The text "
        "is small and the model tiny: expect blanks that fit the grammar rather than the fact. On one machine the same "
        "seed, Python and type of numbers give the same results; another seed shows how far they are luck."
    )
    report.pre(to_toml(settings))
