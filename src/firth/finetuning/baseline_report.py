"""``report.html`` of a baseline: scores, settings tried, calibration, and the top n-grams of each label."""

from pathlib import Path
from typing import Any

from firth.finetuning.report import add_scores, finish_report
from firth.page import Report


def write_baseline_report(folder: Path, recipe: Any, results: dict[str, Any], *, name: str) -> Path:
    """Write the report of a baseline; needs the extra ``report`` (ConfigError without it)."""
    report = Report(f"{recipe.task}, the baseline {recipe.model}: {name}")
    examples = results["examples"]
    report.text(
        f"{examples['train']:,} training examples. All choices were made by {results['chosen_on']}, then the "
        "baseline was fitted to all of them; the dev file was scored once."
    )
    for split, scores in results["dev"].items():
        report.heading(f"{split}: {examples[split]:,} examples")
        add_scores(report, scores, results, split)
    by_folds = results["chosen_on"].startswith("cross-validation")
    report.heading(f"{'Cross-validation' if by_folds else 'Held out'}: {examples['held_out']:,} examples")
    add_scores(report, results["held_out"], results, "held_out")
    if results["tried"]:
        report.heading("Settings tried")
        rows = [
            [*setting, f"{score:.4f}", "chosen" if number == results["chosen"] else ""]
            for number, (setting, score) in enumerate(zip(results["settings"], results["tried"], strict=True))
        ]
        report.table(["n-grams", "strength", results["metric"], ""], rows)
    if results["weightiest"]:
        report.heading("Top n-grams of each label")
        report.table(
            ["label", "n-grams with the largest weights"],
            [[label, "  ".join(gram for gram, _ in grams)] for label, grams in results["weightiest"].items()],
        )
    return finish_report(report, folder, recipe, results)
