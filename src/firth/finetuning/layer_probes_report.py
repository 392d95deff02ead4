"""``report.html`` of the probes of all layers: every model in one figure, a panel per task, and its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.errors import ConfigError
from firth.page import COLOURS, FAINT, INK, Report, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Probes = Mapping[str, Any]
_MARKERS = "os^Dv*"


def write_probe_report(folder: Path, models: Sequence[Probes]) -> None:
    """Write the report of each model's ``probe.json`` results; needs the extra ``report`` (ConfigError without it)."""
    report = Report(f"{', '.join(one['model'] for one in models)}: which layer carries what?")
    report.text(
        "A logistic regression on the frozen vectors of each layer; words and sentences are the mean of their tokens. "
        "In a control task (dashed) each word has a random label of its own: what a probe gets right there it has "
        "memorised. "
        "Layer 0 is the embedding output. Bands are 95 % intervals of the bootstrap over test sentences."
    )
    report.plot("Accuracy by depth of the layer", probe_figure(models))
    for one in models:
        report.heading(one["model"])
        layers = [f"layer {n}" for n in range(one["layers"] + 1)]
        report.table(
            ["task", "majority", *layers, "best", "95 % interval"],
            [
                [
                    task["task"],
                    task["majority"],
                    *task["accuracy"],
                    str(task["best"]),
                    f"{task['best_interval'][0]:.0f} – {task['best_interval'][1]:.0f}",
                ]
                for task in one["tasks"]
            ],
        )
        report.text("Selectivity: accuracy less that of the control task.")
        selective = [task for task in one["tasks"] if task["selectivity"] is not None]
        report.table(["task", *layers], [[task["task"], *task["selectivity"]] for task in selective])
        for found in one["differences"]:
            low, high = found["interval"]
            report.text(
                f"Over the samples of the bootstrap, the best layer of {found['task']} is on average "
                f"{found['mean']:+.1f} layers from that of {found['against']} (95 % interval {low:+.0f} to "
                f"{high:+.0f})."
            )
    report.write(folder / "report.html")


def probe_figure(models: Sequence[Probes]) -> "Figure":
    """A panel per task, a line per model from its embedding output to its top layer; dashed, the control task.

    ConfigError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'firth[report]'") from None
    tasks = list(dict.fromkeys(task["task"] for one in models for task in one["tasks"]))
    n_rows = -(-len(tasks) // 2)
    figure = Figure(figsize=(7.4, 0.5 + 2.6 * n_rows), layout="constrained")
    panels = list(figure.subplots(n_rows, 2, squeeze=False).flat)
    for panel in panels:
        panel.set_visible(False)
    for panel, name in zip(panels, tasks, strict=False):
        panel.set_visible(True)
        panel.set_title(plain(name), fontsize=10, loc="left", color=INK)
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["bottom", "left"]].set_color(FAINT)
        panel.tick_params(length=0, labelsize=9, labelcolor=FAINT)
        panel.set_xticks([0, 1], ["embeddings", "top layer"])
        for number, one in enumerate(models):
            _draw(panel, one, name, number)
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper left", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _draw(panel: Any, one: Probes, name: str, number: int) -> None:
    """Draw a model's accuracies in one task; colour, marker and order distinguish models."""
    task = next((task for task in one["tasks"] if task["task"] == name), None)
    if task is None:
        return
    # Models differ in their number of layers; the last of each is its top.
    depth = [n / max(one["layers"], 1) for n in range(one["layers"] + 1)]
    colour, marker = COLOURS[number % len(COLOURS)][0], _MARKERS[number % len(_MARKERS)]
    low, high = zip(*task["interval"], strict=True)
    panel.fill_between(depth, low, high, color=colour, alpha=0.15, linewidth=0)
    panel.plot(depth, task["accuracy"], marker, ls="-", ms=5, color=colour, label=plain(one["model"]))
    if task["control"] is not None:
        panel.plot(depth, task["control"], marker, ls="--", ms=4, mfc="none", color=colour)
