"""``report.html`` of the directionality study: the table of scores, a figure by task, and pre-training."""

from pathlib import Path
from typing import TYPE_CHECKING

from firth.page import Report, TableCell
from firth.studies.cells import Facts
from firth.studies.directionality import PUBLISHED, TASKS, VARIANTS
from firth.studies.score_figure import draw_scores, score_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("Left to right against both directions")
    report.text(
        "Scores on dev files in percent, mean ± standard deviation over seeds; every model saw as many tokens of "
        "the same text. All choices were made on held-out training examples; each dev file was scored once per run."
    )
    report.heading("Fine-tuned")
    report.table(*direction_table(facts))
    if any(name.startswith("tasks/") for name in facts):
        report.plot("Each run on its dev file, percent; the line is the mean", score_figure(facts))
    report.heading("The paper, base size")
    report.table(*published_table())
    report.heading("Pre-training")
    report.table(*pretraining_table(facts))
    return report.write(out / "report.html")


def direction_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """A row per model, a column per task."""
    return score_table(facts, list(VARIANTS), TASKS, "model")


def published_table() -> tuple[list[str], list[list[TableCell]]]:
    """The paper's scores of the same models and tasks."""
    tasks = [task for task in TASKS if any(task in scores for scores in PUBLISHED.values())]
    rows: list[list[TableCell]] = [
        [name, *(str(scores.get(task, "–")) for task in tasks)] for name, scores in PUBLISHED.items()
    ]
    return ["model", *(f"{task}, {TASKS[task]}" for task in tasks)], rows


def pretraining_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """The cost of each pre-training, and its loss on held-out text (per token; models predict different tokens)."""
    rows: list[list[TableCell]] = []
    for name in VARIANTS:
        if cell := facts.get(f"pre-training/{name}"):
            losses = ", ".join(f"{key} {value:.3f}" for key, value in cell["dev"].items() if key != "loss")
            rows.append([name, f"{cell['parameters'] / 1e6:.1f} M", f"{cell['seconds'] / 60:.1f}", losses])
    return ["model", "parameters", "minutes", "on held-out text"], rows


def score_figure(facts: Facts) -> "Figure":
    """Plot each run's score, by model and task. ConfigError without matplotlib."""
    return draw_scores(facts, list(VARIANTS), TASKS)
