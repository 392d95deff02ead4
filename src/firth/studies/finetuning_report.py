"""``report.html`` of the fine-tuning study: a table of tasks, frozen features, and the curve over numbers of labels."""

from pathlib import Path

from firth.metrics.bootstrap import mean_interval
from firth.page import Report, TableCell
from firth.studies.cells import Facts
from firth.studies.finetuning import ADAPTED, BASELINE, FEATURES, PRETRAINED, ROWS, SCRATCH


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
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
    header, rows = label_table(facts)
    if rows:
        report.heading("Numbers of labels")
        report.text(
            "Few labels: mean ± standard deviation over draws of training examples, the same for all starts; the last "
            "column has the mean of the differences and half of its 95 % interval."
        )
        report.table(header, rows)
    if curves := label_curves(facts):
        report.lines_plot("Sentiment (SST-2) by training examples", curves, "training examples", "accuracy, %")
    return report.write(out / "report.html")


def task_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """Header and rows: each task's first score for each start, and seconds per run."""
    rows: list[list[TableCell]] = []
    for row in ROWS:
        found = {start: facts.get(f"tasks/{row.name}/{start}") for start in (PRETRAINED, ADAPTED, SCRATCH, BASELINE)}
        known = next((cell for cell in found.values() if cell), None)
        if known is None:
            continue
        metric = known["metric"]
        cells: list[TableCell] = [percent(cell, metric) for cell in found.values()]
        seconds = (found[PRETRAINED] or {}).get("seconds_a_run")
        rows.append([row.name, metric, *cells, None if seconds is None else round(seconds)])
    return ["task", "score", PRETRAINED, ADAPTED, SCRATCH, BASELINE, "seconds per run"], rows


def baselines(facts: Facts) -> str:
    """Name the baseline of each task."""
    tasks: dict[str, list[str]] = {}
    for row in ROWS:
        if cell := facts.get(f"tasks/{row.name}/{BASELINE}"):
            tasks.setdefault(cell["what"], []).append(row.name)
    return "Baselines: " + "; ".join(f"{what} ({', '.join(names)})" for what, names in tasks.items()) + "."


def feature_table(facts: Facts) -> list[list[TableCell]]:
    """One row for each way to read the frozen encoder, and one for the fine-tuned encoder."""
    rows: list[list[TableCell]] = []
    for name in FEATURES:
        if cell := facts.get(f"features/{name}"):
            rows.append([name, percent(cell, cell["metric"]), round(cell["seconds_a_run"])])
    if cell := facts.get(f"tasks/CoNLL-2003/{PRETRAINED}"):
        rows.append(["fine-tuned, linear", percent(cell, cell["metric"]), round(cell["seconds_a_run"])])
    return rows


def label_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """Header and rows: each text task with each number of labels, by start; how far the pre-trained one leads."""
    starts = (ADAPTED, PRETRAINED, SCRATCH, BASELINE)
    rows: list[list[TableCell]] = []
    for row in ROWS:
        for n in (*row.labels, 0) if row.labels else ():
            found = [with_labels(facts, row.name, n, start) for start in starts]
            if known := next((cell for cell in found if cell), None):
                labels = f"{n:,}" if n else "all"
                metric = known["metric"]
                cells = [percent(cell, metric) for cell in found]
                rows.append([row.name, metric, labels, *cells, lead(found[1], found[3], metric)])
    return ["task", "score", "labels", *starts, "pre-trained − baseline"], rows


def label_curves(facts: Facts) -> dict[str, tuple[list[float], list[float]]]:
    """The accuracy on SST-2 in percent over the number of training examples, by start."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    row = next(row for row in ROWS if row.name == "SST-2")
    for start in (ADAPTED, PRETRAINED, SCRATCH, BASELINE):
        cells = [with_labels(facts, row.name, n, start) for n in (*row.labels, 0)]
        known = [cell for cell in cells if cell]
        if known:
            sizes = [float(cell["examples"]["train"] + cell["examples"]["held_out"]) for cell in known]
            curves[start] = (sizes, [100 * cell["dev"]["dev"][cell["metric"]]["mean"] for cell in known])
    return curves


def with_labels(facts: Facts, task: str, n: int, start: str) -> Facts | None:
    """Return the cell of a task with ``n`` labels; 0: all."""
    found: Facts | None = facts.get(f"labels/{task}/{n}/{start}" if n else f"tasks/{task}/{start}")
    return found


def lead(ours: Facts | None, other: Facts | None, metric: str) -> str:
    """``+1.2 ± 0.7``: by how many points the first leads over the same samples, and half its 95 % interval."""
    if not ours or not other:
        return "–"
    a, b = (cell["dev"]["dev"][metric] for cell in (ours, other))
    alike = len(a["values"]) == len(b["values"])
    pairs = zip(a["values"], b["values"], strict=True) if alike else [(a["mean"], b["mean"])]
    mean, _, half = mean_interval([100 * (x - y) for x, y in pairs])
    # Avoid -0.0.
    return f"{round(mean, 1) + 0.0:+.1f}" + ("" if half is None else f" ± {half:.1f}")


def percent(cell: Facts | None, metric: str) -> str:
    """``71.2 ± 0.4``, or a dash if it is not done or not possible."""
    if not cell:
        return "–"
    score = cell["dev"]["dev"][metric]
    spread = f" ± {100 * score['sd']:.1f}" if len(score["values"]) > 1 else ""
    return f"{100 * score['mean']:.1f}{spread}"
