"""``report.html`` of the ablation study: a table for each, with the paper's number next to ours."""

from pathlib import Path

from firth.page import Report, TableCell
from firth.studies.ablation_tables import ABLATIONS, MODELS, SCORES
from firth.studies.cells import Facts
from firth.studies.finetuning_report import percent


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("Ablations of the models before BERT")
    report.text(
        "Scores on dev files in percent, mean ± standard deviation over seeds, of small models; in the paper's columns "
        "those of its models, on its data: only the order of the rows compares. All choices were made on held-out "
        "training examples; each dev file was scored once per run."
    )
    for name, ablation in ABLATIONS.items():
        header, rows = ablation_table(facts, name)
        if rows:
            report.heading(name)
            report.table(header, rows)
            report.text(f"Paper: {ablation.source}.")
    if rows := model_table(facts)[1]:
        report.heading("Pre-training")
        report.table(model_table(facts)[0], rows)
    return report.write(out / "report.html")


def ablation_table(facts: Facts, name: str) -> tuple[list[str], list[list[TableCell]]]:
    """One row per completed variation; for each task our score, and the paper's if it has one for any row."""
    ablation, header = ABLATIONS[name], ["variation"]
    rows: list[list[TableCell]] = [
        [row] for row in ablation.rows if any(f"{name}/{row}/{task}" in facts for task in ablation.tasks)
    ]
    for task in ablation.tasks:
        header.append(f"{task}, {SCORES[task]}")
        printed = any(task in one.published for one in ablation.rows.values())
        header += ["paper"] * printed
        for row in rows:
            row.append(percent(facts.get(f"{name}/{row[0]}/{task}"), SCORES[task]))
            if printed:
                score = ablation.rows[str(row[0])].published.get(task)
                row.append(None if score is None else f"{score:g}")
    return header, rows


def model_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """The cost of each pre-training, and its losses on held-out text."""
    rows: list[list[TableCell]] = []
    for name in MODELS:
        if cell := facts.get(f"models/{name}"):
            losses = ", ".join(f"{key} {value:.2f}" for key, value in cell["dev"].items() if key.endswith("_loss"))
            size, spent = f"{cell['parameters'] / 1e6:.1f} M", f"{cell['seconds'] / 60:.1f}"
            rows.append([name, size, cell["steps"], spent, losses])
    return ["model", "parameters", "steps", "minutes", "on held-out text"], rows
