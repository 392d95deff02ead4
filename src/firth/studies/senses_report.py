"""``report.html`` of the sense study: accuracies by vectors and by word, and plots of a word's vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from firth.errors import ConfigError
from firth.metrics.bootstrap import paired_bootstrap, percentile_interval
from firth.page import COLOURS, FAINT, INK, Report, TableCell
from firth.studies.cells import Facts
from firth.studies.senses import BASELINES, MEAN, MODELS, PICTURED, SenseRules

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ONE_VECTOR = "one vector per word (word2vec, GloVe)"
_MARKERS = "os"


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("Senses of words in context")
    report.text(
        f"The sense of each occurrence is predicted by its {SenseRules().neighbours} nearest occurrences of the same "
        "word in other articles. Senses are labelled by cue words of the article outside the sentence, as many of each."
    )
    report.heading("Accuracy over words, %")
    report.table(*accuracy_table(facts))
    report.heading("By word, %")
    report.table(*word_table(facts))
    if done_models(facts):
        report.plot("Occurrences, two principal components of their vectors", sense_figure(facts))
    return report.write(out / "report.html")


def done_models(facts: Facts) -> dict[str, Any]:
    """The facts of each model that is done, by name."""
    return {name: facts[f"scores/{name}"] for name in MODELS if f"scores/{name}" in facts}


def accuracies_of(facts: Facts) -> dict[str, dict[str, float]]:
    """Every row's accuracies by word."""
    found = dict[str, dict[str, float]](facts.get(f"scores/{BASELINES}", {"accuracy": {}})["accuracy"])
    for name, scores in done_models(facts).items():
        found |= {f"{name}, {layer}": by_word for layer, by_word in scores["accuracy"].items()}
    # Both senses have equally many occurrences, here all with the same vector.
    return {ONE_VECTOR: dict.fromkeys(next(iter(found.values())), 0.5), **found} if found else {}


def accuracy_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """One row per kind of vectors: the mean over words, and its gain over the mean of word vectors, with intervals.

    The 95 % intervals are from a bootstrap over words, with the same words for all rows.
    """
    found = accuracies_of(facts)
    x = 100 * np.array([list(by_word.values()) for by_word in found.values()]).T
    rows: list[list[TableCell]] = []
    if not found:
        return ["vectors", "accuracy", "95 % interval", "gain", "95 % interval"], rows
    draws = paired_bootstrap(lambda numbers: x[numbers].mean(0), len(x), seed=1)
    base = list(found).index(MEAN) if MEAN in found else 0
    for i, name in enumerate(found):
        spreads = [percentile_interval(values) for values in (draws[:, i], draws[:, i] - draws[:, base])]
        own, gain = (f"{low:.1f} – {high:.1f}" for low, high in spreads)
        fixed = name == ONE_VECTOR
        difference = f"{x[:, i].mean() - x[:, base].mean():+.1f}"
        rows.append([name, f"{x[:, i].mean():.1f}", None if fixed else own, difference, None if i == base else gain])
    return ["vectors", "accuracy", "95 % interval", "gain", "95 % interval"], rows


def word_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """One row per word: the number of occurrences of each sense, and the accuracies of baselines and best layers."""
    left_out = {f"{name}, {layer}" for name, of in done_models(facts).items() for layer in of["accuracy"]}
    left_out -= {f"{name}, {of['best']}" for name, of in done_models(facts).items()}
    shown = {name: by_word for name, by_word in accuracies_of(facts).items() if name not in {ONE_VECTOR, *left_out}}
    counts, every = (facts.get("occurrences", {key: {}})[key] for key in ("counts", "found"))
    rows: list[list[TableCell]] = []
    for word, count in counts.items():
        senses = ", ".join(name.split("/")[1] for name in every if name.startswith(f"{word}/"))
        rows.append([word, senses, count, *(f"{100 * by_word[word]:.1f}" for by_word in shown.values())])
    return ["word", "senses", "of each", *shown], rows


def sense_figure(facts: Facts) -> "Figure":
    """Plot one column per word and one row per model: each occurrence as a point, below the single point of word2vec.

    The titles show the accuracies. ConfigError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'firth[report]'") from None
    models = done_models(facts)
    # Models are stacked: four side by side would be too small to read on a page.
    figure = Figure(figsize=(4.6 * len(PICTURED), 1.2 + 3.5 * len(models)), layout="constrained")
    grid = figure.subplots(1 + len(models), len(PICTURED), squeeze=False, height_ratios=[1, *[4] * len(models)])
    for axes, word in zip(grid[0], PICTURED, strict=True):
        _frame(axes, f"{word}: word2vec, 50%")
        axes.plot([0], [0], "D", ms=7, color=INK)
        axes.annotate("every occurrence", (0, 0), (9, 0), textcoords="offset points", va="center", color=FAINT)
    for row, (name, scores) in zip(grid[1:], models.items(), strict=True):
        for axes, word in zip(row, PICTURED, strict=True):
            _frame(axes, f"{word}: {name}, {scores['best']}, {scores['accuracy'][scores['best']][word]:.0%}")
            _draw(axes, scores["points"][word])
    return figure


def _frame(axes: "Axes", title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color(FAINT)
    axes.margins(0.12)


def _draw(axes: "Axes", senses: Mapping[str, Any]) -> None:
    letters, lines = iter("abcdefgh"), list[str]()
    for (sense, drawn), (colour, _), marker in zip(senses.items(), COLOURS[:2], _MARKERS, strict=True):
        axes.plot(drawn["x"], drawn["y"], marker, ms=5, color=colour, alpha=0.6, label=sense, markeredgewidth=0)
        for text, i in drawn["labels"].items():
            letter, place = next(letters), (drawn["x"][i], drawn["y"][i])
            axes.plot(*place, marker, ms=12, color=colour, markeredgecolor=INK)
            axes.annotate(letter, place, ha="center", va="center", fontsize=8, color="white", weight="bold")
            lines.append(f"{letter}  {sense}: {text}")
    # Sentences go below the plot: next to their points they would cover others.
    axes.set_xlabel("\n".join(lines), loc="left", fontsize=8, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="best")
