"""``report.html`` of the fine-tuning study: a table of tasks, frozen features, and the curve over labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firth.page import Report, TableCell
from firth.studies.finetuning import BASELINE, FEATURES, LABELS, PRETRAINED, ROWS, SCRATCH

Facts = Mapping[str, Any]


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of what is done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("What pre-training is worth")
    report.text(
        "Scores on dev files in percent, mean ± standard deviation over seeds. All choices were made on held-out "
        "training examples; each dev file was scored once per run."
    )
    report.heading("Tasks")
    report.table(*task_table(facts))
    report.text(baselines(facts))
    if features := feature_table(facts):
        report.heading("Named entities: frozen features and fine-tuning")
        report.table(["features, head", "entity F1", "seconds per run"], features)
    if curves := label_curves(facts):
        report.heading("Numbers of labels")
        report.lines_plot("Sentiment (SST-2) by training examples", curves, "training examples", "accuracy, %")
    path = out / "report.html"
    report.write(path)
    return path


def task_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """Header and rows: each task's first score for each start, and seconds per run."""
    rows: list[list[TableCell]] = []
    for row in ROWS:
        found = {start: facts.get(f"tasks/{row.name}/{start}") for start in (PRETRAINED, SCRATCH, BASELINE)}
        known = next((cell for cell in found.values() if cell), None)
        if known is None:
            continue
        metric = known["metric"]
        cells: list[TableCell] = [percent(cell, metric) for cell in found.values()]
        seconds = (found[PRETRAINED] or {}).get("seconds_a_run")
        rows.append([row.name, metric, *cells, None if seconds is None else round(seconds)])
    return ["task", "score", PRETRAINED, SCRATCH, BASELINE, "seconds per run"], rows


def baselines(facts: Facts) -> str:
    """What the baseline is in each task."""
    tasks: dict[str, list[str]] = {}
    for row in ROWS:
        if cell := facts.get(f"tasks/{row.name}/{BASELINE}"):
            tasks.setdefault(cell["what"], []).append(row.name)
    return "Baselines: " + "; ".join(f"{what} ({', '.join(names)})" for what, names in tasks.items()) + "."


def feature_table(facts: Facts) -> list[list[TableCell]]:
    """A row for each way to read the frozen encoder, and the fine-tuned one."""
    rows: list[list[TableCell]] = []
    for name in FEATURES:
        if cell := facts.get(f"features/{name}"):
            rows.append([name, percent(cell, cell["metric"]), round(cell["seconds_a_run"])])
    if cell := facts.get(f"tasks/CoNLL-2003/{PRETRAINED}"):
        rows.append(["fine-tuned, linear", percent(cell, cell["metric"]), round(cell["seconds_a_run"])])
    return rows


def label_curves(facts: Facts) -> dict[str, tuple[list[float], list[float]]]:
    """Accuracy in percent over the number of training examples, by start."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for start in (PRETRAINED, SCRATCH, BASELINE):
        points = [(n, facts.get(f"labels/{n}/{start}")) for n in LABELS]
        points.append((8000, facts.get(f"tasks/SST-2/{start}")))
        known = [(n, 100 * cell["dev"]["dev"]["accuracy"]["mean"]) for n, cell in points if cell]
        if known:
            curves[start] = ([float(n) for n, _ in known], [score for _, score in known])
    return curves


def percent(cell: Facts | None, metric: str) -> str:
    """``71.2 ± 0.4``, or a dash for what is not done or not possible."""
    if not cell:
        return "–"
    score = cell["dev"]["dev"][metric]
    spread = f" ± {100 * score['sd']:.1f}" if len(score["values"]) > 1 else ""
    return f"{100 * score['mean']:.1f}{spread}"
