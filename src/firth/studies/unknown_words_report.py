"""``report.html`` of the unknown-word study: one row per rule."""

from pathlib import Path

from firth.page import Report, TableCell
from firth.studies.cells import Facts
from firth.studies.finetuning_report import percent
from firth.studies.unknown_words import MOST_EXAMPLES, RULES, TRAINING, VECTORS


def write_study_report(out: Path, facts: Facts) -> Path:
    """Write the report of the cells done so far; needs the extra ``report`` (ConfigError without it)."""
    report = Report("Unknown words")
    report.text(
        f"Named entities of CoNLL-2003, {MOST_EXAMPLES:,} training sentences; a BiLSTM with a CRF on frozen word "
        "vectors. Scores on the dev file in percent; every choice was made on held-out training examples."
    )
    report.heading("Rules for words outside the vocabulary")
    report.table(*rule_table(facts))
    report.heading("Word vectors")
    report.table(*vector_table(facts))
    return report.write(out / "report.html")


def rule_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """One row per rule: the share of words of the dev file that are in the vocabulary, and the score."""
    rows: list[list[TableCell]] = []
    for name in RULES:
        if cell := facts.get(f"rules/{name}"):
            share = f"{100 * cell['known_words']:.1f}"
            rows.append([name, share, percent(cell, "entity_f1"), round(cell["seconds_a_run"])])
    return ["unknown words", "words known, %", "entity F1", "seconds per run"], rows


def vector_table(facts: Facts) -> tuple[list[str], list[list[TableCell]]]:
    """Describe the vectors."""
    rows: list[list[TableCell]] = []
    for name in VECTORS:
        if cell := facts.get(f"{TRAINING}/{name}"):
            training = cell["training"]
            rows.append([name, cell["words"], training["width"], training["epochs"]])
    return ["vectors", "words", "size", "epochs"], rows
