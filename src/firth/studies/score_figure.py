"""The scores of many models on a few tasks: a table, and a plot of every seed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from firth.errors import ConfigError
from firth.page import COLOURS, FAINT, INK, TableCell
from firth.studies.cells import Facts
from firth.studies.finetuning_report import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def score_table(
    facts: Facts, names: Sequence[str], tasks: Mapping[str, str], title: str
) -> tuple[list[str], list[list[TableCell]]]:
    """A row per model, a column per task, in percent. ``facts``, ``tasks``: as in ``draw_scores``."""
    rows: list[list[TableCell]] = []
    for name in names:
        found = {task: facts.get(f"tasks/{name}/{task}") for task in tasks}
        if any(found.values()):
            rows.append([name, *(percent(cell, tasks[task]) for task, cell in found.items())])
    return [title, *(f"{task}, {score}" for task, score in tasks.items())], rows


def draw_scores(facts: Facts, names: Sequence[str], tasks: Mapping[str, str]) -> "Figure":
    """Draw one panel per task and one line per model, in percent.

    ``facts``: of the cells ``tasks/MODEL/TASK``. ``tasks``: the score of each task. ConfigError without matplotlib.
    """
    cells = {task: {name: facts.get(f"tasks/{name}/{task}") for name in names} for task in tasks}
    return draw_seeds(
        names,
        {
            task: {
                name: [100 * value for value in cell["dev"]["dev"][tasks[task]]["values"]]
                for name, cell in found.items()
                if cell
            }
            for task, found in cells.items()
        },
    )


def draw_seeds(names: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """Draw one panel per key and one line per name: each seed's value as a dot, and their mean as a stroke.

    ``panels``: the values of each seed by name; names without values have an empty line. ConfigError without
    matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'firth[report]'") from None
    figure = Figure(figsize=(7.4, 1.1 + 0.3 * len(names)), layout="constrained")
    for panel, (title, found) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        panel.set_title(title, fontsize=10, loc="left", color=INK)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(length=0, labelsize=9, labelcolor=FAINT)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.grid(axis="y", linewidth=0.5, color=FAINT, alpha=0.4)
        for place, name in enumerate(names):
            if values := found.get(name):
                panel.plot(values, [place] * len(values), "o", ms=4, color=COLOURS[0][0], alpha=0.7)
                panel.plot([sum(values) / len(values)] * 2, [place - 0.3, place + 0.3], color=INK, linewidth=1.5)
    return figure
