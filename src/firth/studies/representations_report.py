"""``report.html`` of the representation study: scores, cost, ELMo's layers, and numbers of labels."""

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from firth.page import Report, TableCell
from firth.studies.cells import Facts
from firth.studies.finetuning import SEEDS
from firth.studies.representations import CPU_SECONDS, LABELS, MIXED, REPRESENTATIONS, TASKS, ULMFIT_STARTS
from firth.studies.score_figure import draw_scores, score_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The score shown for each task.
_SCORES = {**TASKS, "AG News": "accuracy"}


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("Representations")
    report.text(
        "Scores on dev files in percent, mean ± standard deviation over seeds; every model was pre-trained for about "
        f"{CPU_SECONDS // 60} minutes of one core; the table below has the exact times. All choices were made on "
        "held-out training examples; each dev file was scored once per run."
    )
    report.heading("Tasks")
    report.table(*representation_table(facts))
    if any(name.startswith("tasks/") for name in facts):
        report.plot("Each run on its dev file, percent; the line is the mean", score_figure(facts))
    report.heading("Cost")
    report.table(*cost_table(facts))
    if layers := layer_table(facts)[1]:
        report.heading("The scalar mix of ELMo's layers, by task")
        report.table(layer_table(facts)[0], layers)
    if curves := label_curves(facts):
        report.heading("ULMFiT: numbers of labels")
        report.lines_plot("AG News by training examples", curves, "training examples", "error on the dev file, %")
    return report.write(out / "report.html")


def representation_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """A row per representation, a column per task."""
    return score_table(facts, list(REPRESENTATIONS), TASKS, "representation")


def cost_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """For each: parameters, CPU time and memory of pre-training, its held-out loss, and a fine-tuning's share."""
    rows: list[list[TableCell]] = []
    for name in REPRESENTATIONS:
        if cell := facts.get(f"pre-training/{name}"):
            losses = ", ".join(f"{key} {value:.2f}" for key, value in cell["dev"].items() if key.endswith("_loss"))
            tuned = [found for task in TASKS if (found := facts.get(f"tasks/{name}/{task}"))]
            minutes = f"{mean(found['cpu_s'] for found in tuned) / 60 / SEEDS:.1f}" if tuned else "–"
            memory = max((found["peak_mb"] for found in tuned if "peak_mb" in found), default="–")
            size, spent = f"{cell['parameters'] / 1e6:.1f} M", f"{cell['cpu_s'] / 60:.1f}"
            rows.append([name, size, spent, cell.get("peak_mb", "–"), losses, minutes, memory])
    header = ["representation", "parameters", "minutes of one core", "MB", "on held-out text"]
    return [*header, "minutes per fine-tuning", "MB"], rows


def layer_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """The mean weight of each layer by task, and the score of a linear layer on that scalar mix."""
    rows: list[list[TableCell]] = []
    for task in MIXED:
        cells = [cell for seed in range(1, SEEDS + 1) if (cell := facts.get(f"layers/{task}/seed {seed}"))]
        if cells:
            shares = zip(*(cell["shares"] for cell in cells), strict=True)
            score = mean(cell["dev"]["dev"][_SCORES[task]]["mean"] for cell in cells)
            rows.append([task, *(_spread(values) for values in shares), f"{100 * score:.1f}"])
    return ["task", "words", "first LSTM", "second LSTM", "score"], rows


def _spread(values: tuple[float, ...]) -> str:
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def label_curves(facts: Facts) -> dict[str, tuple[list[float], list[float]]]:
    """Error in percent over the number of training examples, by start."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for start in ULMFIT_STARTS:
        known = [
            (
                cell["examples"]["train"] + cell["examples"]["held_out"],
                100 * (1 - cell["dev"]["dev"]["accuracy"]["mean"]),
            )
            for n in LABELS
            if (cell := facts.get(f"labels/{n or 'all'}/{start}"))
        ]
        if known:
            curves[start] = ([float(n) for n, _ in known], [error for _, error in known])
    return curves


def score_figure(facts: Facts) -> "Figure":
    """Plot each run's score, by model and task. ConfigError without matplotlib."""
    return draw_scores(facts, list(REPRESENTATIONS), TASKS)
