"""``report.html`` of a baseline: scores, what was tried, calibration, and the n-grams that speak for each label."""

from pathlib import Path
from typing import Any

from firth.config import to_toml
from firth.finetuning.report import add_calibration, add_scores
from firth.page import Report


def write_baseline_report(folder: Path, recipe: Any, results: dict[str, Any], *, name: str) -> Path:
    """Write the report of a baseline; needs the extra ``report`` (ConfigError without it)."""
    report = Report(f"{recipe.task}, the baseline {recipe.model}: {name}")
    examples = results["examples"]
    report.text(
        f"{examples['train']:,} examples to learn from. All choices were made by {results['chosen_on']}, then all were "
        "fitted; the dev file was scored once."
    )
    for split, scores in results["dev"].items():
        report.heading(f"{split}: {examples[split]:,} examples")
        add_scores(report, scores, results, split)
    report.heading(f"Held out: {examples['held_out']:,} examples")
    add_scores(report, results["held_out"], results, "held_out")
    if results["tried"]:
        report.heading("What was tried")
        rows = [
            [*setting, f"{score:.4f}", "chosen" if number == results["chosen"] else ""]
            for number, (setting, score) in enumerate(zip(results["settings"], results["tried"], strict=True))
        ]
        report.table(["n-grams", "strength", results["metric"], ""], rows)
    if results["weightiest"]:
        report.heading("What speaks for each label")
        report.table(
            ["label", "n-grams with the largest weights"],
            [[label, "  ".join(gram for gram, _ in grams)] for label, grams in results["weightiest"].items()],
        )
    add_calibration(report, results["calibration"])
    if results["notes"]:
        report.heading("Reading the data")
        report.pre("\n".join(results["notes"]))
    report.heading("Recipe")
    report.pre(to_toml(recipe))
    path = folder / "report.html"
    report.write(path)
    return path
