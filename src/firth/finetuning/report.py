"""``report.html`` of a fine-tuning: scores over seeds, every run's curve, calibration."""

from pathlib import Path
from typing import Any

from firth.config import to_toml
from firth.finetuning.recipe import Finetune
from firth.page import Cell, Report
from firth.training.log import read_log


def write_finetune_report(out: Path, recipe: Finetune, results: dict[str, Any]) -> Path:
    """Write the report of a fine-tuning; needs the extra ``report`` (ConfigError without it)."""
    report = Report(f"{recipe.task} fine-tuned: {out.name}")
    examples = results["examples"]
    on_dev = results["chosen_on"] == "the dev file"
    report.text(
        f"{examples['train']:,} examples to learn from. All choices were made on {results['chosen_on']}"
        + (", as papers do: its scores flatter." if on_dev else "; the dev file was scored once for each run of the "
           "chosen settings.")
    )  # fmt: skip
    for name, scores in results["dev"].items():
        report.heading(f"{name}: {examples[name]:,} examples")
        report.table(["score", "mean ± sd", "95 % interval", "best"], [_row(m, s) for m, s in scores.items()])
    if not on_dev:
        report.heading(f"Held out: {examples['held_out']:,} examples")
        report.table(
            ["score", "mean ± sd", "95 % interval", "best"], [_row(m, s) for m, s in results["held_out"].items()]
        )
    report.heading("Runs")
    report.table(["run", results["metric"], "best step", "of", "minutes", ""], [_run(run) for run in results["runs"]])
    _curves(report, out, results)
    _calibration(report, results["calibration"])
    if results["notes"]:
        report.heading("Reading the data")
        report.pre("\n".join(results["notes"]))
    report.heading("Recipe")
    report.pre(to_toml(recipe))
    path = out / "report.html"
    report.write(path)
    return path


def _row(metric: str, scores: dict[str, Any]) -> list[Cell]:
    interval = scores["interval"]
    return [
        metric,
        f"{scores['mean']:.4f} ± {scores['sd']:.4f}",
        "" if interval is None else f"{scores['mean'] - interval:.4f} – {scores['mean'] + interval:.4f}",
        f"{scores['best']:.4f}",
    ]


def _run(run: dict[str, Any]) -> list[Cell]:
    name = ", ".join([*run["settings"], f"seed {run['seed']}"])
    flag = "collapsed" if run["collapsed"] else ""
    return [name, f"{run['best']:.4f}", run["best_step"], run["steps"], f"{run['elapsed_s'] / 60:.1f}", flag]


def _curves(report: Report, out: Path, results: dict[str, Any]) -> None:
    """Loss in training and score on held-out examples, a curve each run."""
    losses, scores = {}, {}
    for run in results["runs"]:
        name = ", ".join([*run["settings"], f"seed {run['seed']}"])
        events = read_log(out / run["folder"] / "log.jsonl")
        train = [e for e in events if e["event"] == "train"]
        dev = [e for e in events if e["event"] == "dev"]
        losses[name] = ([e["step"] for e in train], [e["loss"] for e in train])
        scores[name] = ([e["step"] for e in dev], [e[results["metric"]] for e in dev])
    report.lines_plot("Training loss", losses, "step", "loss per prediction, nats")
    report.lines_plot(f"Held out: {results['metric']}", scores, "step", results["metric"])


def _calibration(report: Report, figures: dict[str, Any]) -> None:
    if "temperature" not in figures:
        return
    report.heading("Are probabilities believable?")
    report.text(
        f"Outputs are divided by a temperature of {figures['temperature']:.3f}. On held-out examples the expected "
        f"calibration error is {figures['error_before']:.4f} before and {figures['error_after']:.4f} after, each "
        "example's temperature being fitted on the others."
    )
    curves = {"as they should be": ([0.0, 1.0], [0.0, 1.0])}
    for when in ("before", "after"):
        rows = figures[f"reliability_{when}"]
        curves[when] = ([row[0] for row in rows], [row[1] for row in rows])
    report.lines_plot("Reliability", curves, "probability of the predicted label", "share right")
