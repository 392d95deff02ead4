"""``report.html`` of the demo: steps, results, and how to read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.config import to_toml
from firth.data.shards import Manifest, ShardInfo
from firth.demo.held_out_text import Alike, MaskedWord
from firth.demo.settings import DOCSTRINGS, REVIEWS, STARTS, DemoSettings, Score
from firth.page import Report, TableCell
from firth.progress import format_duration

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All results of a demo. ``labels``, ``n_test``: by task; ``events``: from the log; ``seconds``: by stage."""

    labels: dict[str, tuple[str, ...]]
    n_train_characters: int
    manifest: Manifest
    n_test: dict[str, int]
    n_parameters: int
    events: list[dict[str, Any]]
    masked: list[MaskedWord]
    commonest: str
    alike: Alike | None
    scores: list[Score]
    machine: str
    seed: int
    seconds: dict[str, float]

    @property
    def last_dev(self) -> dict[str, float]:
        """The last evaluation on held-out text; empty if there is none."""
        dev = [e for e in self.events if e["event"] == "dev"]
        return {k: v for k, v in dev[-1].items() if k != "event"} if dev else {}


def summarised(
    scores: Sequence[Score], start: str, per_class: int, measure: str = "accuracy", task: str = DOCSTRINGS
) -> tuple[float, float]:
    """Mean over the samples of labels, and the standard deviation (n - 1; 0 for a single sample)."""
    values = [getattr(s, measure) for s in scores if (s.task, s.start, s.per_class) == (task, start, per_class)]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def starts_of(scores: Sequence[Score], task: str = DOCSTRINGS) -> list[str]:
    """The models that were compared on a task."""
    return [start for start in STARTS if any((s.task, s.start) == (task, start) for s in scores)]


def write_demo_report(path: Path, found: Findings, settings: DemoSettings) -> Path:
    """Write the report: one file that opens offline."""
    report = Report("From raw text to a classifier, on this machine")
    _summary(report, found, settings)
    _comparison(report, found, settings)
    _curves(report, found)
    _filled_masks(report, found, settings)
    _nearest(report, found, settings)
    _pipeline(report, found, settings)
    return report.write(path)


def _summary(report: Report, found: Findings, settings: DemoSettings) -> None:
    report.text(
        "How much does pre-training help to classify docstrings by the part of Python's library they come from, with "
        "few labels? Firth read the documentation of this Python installation "
        f"({found.n_train_characters / 1e6:.1f} million characters), trained a vocabulary of "
        f"{settings.vocab_size:,} WordPiece tokens on it, and pre-trained a BERT with "
        f"{found.n_parameters / 1e6:.1f} million parameters on it, without labels. It is compared with the same BERT "
        "trained from scratch, with TF-IDF, and with the model that comes with Firth, if it is installed."
    )
    report.text(f"{_in_words(found, DOCSTRINGS, settings)} {_in_words(found, REVIEWS, settings)}")


def _in_words(found: Findings, task: str, settings: DemoSettings) -> str:
    """The means of all starts with the most labels, best first."""
    starts, n = starts_of(found.scores, task), settings.per_class[-1]
    means = {start: summarised(found.scores, start, n, task=task)[0] for start in starts}
    if not means:
        return ""
    best = sorted(means.items(), key=lambda item: -item[1])
    what = f"Part of the library ({len(found.labels[task])} classes)" if task == DOCSTRINGS else "Korean film reviews"
    return (
        f"{what}, accuracy with {n} labels per class: {', '.join(f'{start} {mean:.1%}' for start, mean in best)}; "
        f"chance {1 / len(found.labels[task]):.1%}."
    )


def _comparison(report: Report, found: Findings, settings: DemoSettings) -> None:
    report.heading("What pre-training is worth")
    _scores(report, found, DOCSTRINGS, settings)
    report.text(
        f"The classes: {', '.join(found.labels[DOCSTRINGS])}. Test: {found.n_test[DOCSTRINGS]} docstrings from modules "
        "and classes that no training docstring comes from, removed from the pre-training text. Scores are means over "
        f"{settings.draws} random samples of the labels ± standard deviation; the test set is always the same."
    )
    if starts_of(found.scores, REVIEWS):
        report.heading("Korean film reviews")
        _scores(report, found, REVIEWS, settings)
        report.text(
            f"Positive or negative; test: {found.n_test[REVIEWS]} reviews of the Naver Sentiment Movie Corpus (CC0). "
            "The shipped model was pre-trained on reviews of the same site, without labels, but on none of these."
        )
    report.text(
        f"Every BERT is fine-tuned as by firth finetune, but with one seed, for {settings.tune_steps} steps of "
        f"{settings.tune_texts} texts. So few keep the demo short; the BERT without pre-training may gain from more. "
        "TF-IDF uses words and character n-grams; its regularisation is chosen by cross-validation on the training "
        "examples of each sample."
    )


def _scores(report: Report, found: Findings, task: str, settings: DemoSettings) -> None:
    """A task's table and plots."""
    starts = starts_of(found.scores, task)

    def of(start: str, n: int, measure: str = "accuracy") -> tuple[float, float]:
        return summarised(found.scores, start, n, measure, task)

    rows: list[list[TableCell]] = [
        [n, start, *(_percent(*of(start, n, measure)) for measure in ("accuracy", "macro_f1"))]
        for n in settings.per_class
        for start in starts
    ]
    report.table(["labels per class", "", "accuracy", "macro F1"], rows)
    n = settings.per_class[-1]
    means, spreads = zip(*(of(start, n) for start in starts), strict=True)
    shown = [round(100 * mean, 1) for mean in means], [100 * spread for spread in spreads]
    report.bars_plot(f"Test accuracy with {n} labels per class", starts, *shown, "accuracy, %")
    if len(settings.per_class) > 1:
        curves = {start: (settings.per_class, [100 * of(start, n)[0] for n in settings.per_class]) for start in starts}
        report.lines_plot("Test accuracy by number of labels", curves, "labels per class", "accuracy, %")


def _percent(mean: float, spread: float) -> str:
    return f"{100 * mean:.1f} ± {100 * spread:.1f} %"


def _curves(report: Report, found: Findings) -> None:
    report.heading("Pre-training")
    last = found.last_dev
    if last:
        report.text(
            "Predict masked tokens. On held-out text the final masked-LM loss is "
            f"{last['mlm_loss']:.2f} nats per masked token (accuracy {last['mlm_accuracy']:.1%})."
        )
    report.text(
        "The recipe is small: token embeddings begin at vectors counted in the text, so that the loss falls from the "
        "first steps on."
    )
    curves = {}
    for name, event in (("training", "train"), ("held-out", "dev")):
        points = [e for e in found.events if e["event"] == event]
        if len(points) > 1:
            curves[name] = ([e["step"] for e in points], [e["mlm_loss"] for e in points])
    if curves:
        report.lines_plot("Masked-LM loss", curves, "step", "nats")


def _filled_masks(report: Report, found: Findings, settings: DemoSettings) -> None:
    report.heading("Filling masks")
    if not found.masked:
        report.text("There was no held-out sentence of a suitable length.")
        return
    masked = found.masked
    right = float(np.mean([m.right for m in masked]))
    among = float(np.mean([m.truth in [c.token for c in m.candidates] for m in masked]))
    constant = float(np.mean([m.truth == found.commonest for m in masked]))
    report.text(
        f"One word is masked in each of {len(masked)} held-out sentences that are not in the training text. Top-1 "
        f"accuracy {right:.1%}, top-{settings.top_k} accuracy {among:.1%}; always predicting the most frequent word "
        f"(“{found.commonest}”) {constant:.1%}. A hash chooses and orders sentences and words; the first "
        f"{settings.n_masks}:"
    )
    rows: list[list[TableCell]] = []
    for one in masked[: settings.n_masks]:
        candidates = " · ".join(f"{c.token} {c.probability:.0%}" for c in one.candidates)
        rows.append([one.text, one.truth, candidates, "yes" if one.right else "no"])
    report.table(["sentence", "word", "candidates", "correct"], rows)


def _nearest(report: Report, found: Findings, settings: DemoSettings) -> None:
    if found.alike is None:
        return
    report.heading("Nearest sentences")
    alike = found.alike
    report.text(
        f"Each held-out sentence as a vector (mean of the top layer, centred over all sentences): the nearest other "
        f"sentence is from the same document for {alike.same_document:.1%} of them (chance {alike.chance:.1%}). The "
        f"first {settings.n_queries} in an order by hash, with cosine similarities:"
    )
    rows: list[list[TableCell]] = []
    for item in alike.neighbours[: settings.n_queries]:
        for number, (sentence, cosine) in enumerate(item.nearest):
            query = f"{item.query.text} ({item.query.where})" if number == 0 else ""
            rows.append([query, f"{sentence.text} ({sentence.where})", round(cosine, 2)])
    report.table(["sentence", "nearest", "cosine"], rows)


def _sizes(infos: Sequence[ShardInfo]) -> str:
    documents, sentences, tokens = (sum(getattr(i, n) for i in infos) for n in ("documents", "sentences", "tokens"))
    return f"{documents:,} documents, {sentences:,} sentences, {tokens:,} tokens"


def _pipeline(report: Report, found: Findings, settings: DemoSettings) -> None:
    report.heading("The pipeline, and how long it took")
    train, held = found.manifest.train, found.manifest.dev
    report.table(
        ["", ""],
        [
            ["training text", _sizes(train)],
            ["held-out text", _sizes(held)],
            ["model", f"{settings.n_layers} layers, hidden size {settings.width}, {found.n_parameters:,} parameters"],
            ["pre-training", f"{settings.steps:,} steps of up to {settings.batch_tokens:,} tokens"],
            ["machine and dtype", found.machine],
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
        "Loss is cross-entropy in nats: the mean negative natural logarithm of the probability of the true token. One "
        "nat less makes the true token 2.7 times as likely. The text is small and the model tiny: expect predictions "
        "that fit the grammar rather than the facts. On one machine the same seed, Python and dtype give the same "
        "results; run other seeds to see how much they vary."
    )
    report.pre(to_toml(settings))
