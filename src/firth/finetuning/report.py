"""``report.html`` of a fine-tuning: scores over seeds, training curves, calibration."""

from pathlib import Path
from typing import Any

from firth.config import to_toml
from firth.explain.markup import Mark, token_row
from firth.finetuning.recipe import Finetune
from firth.finetuning.results import run_name, seed_name
from firth.page import Report, TableCell
from firth.tasks.breakdown import MOST_LABELS
from firth.training.log import read_log

# Share of the largest weight from which on a word is shown as speaking against the label; opacity of the largest.
_AGAINST = 0.2
_STRONGEST = 0.7


def write_finetune_report(out: Path, recipe: Finetune, results: dict[str, Any]) -> Path:
    """Write the report of a fine-tuning; needs the extra ``report`` (ConfigError without it)."""
    report = Report(f"{recipe.task} fine-tuned: {out.name}")
    examples = results["examples"]
    on_dev = results["chosen_on"] == "the dev file"
    report.text(
        f"{examples['train']:,} training examples. All choices were made on {results['chosen_on']}"
        + (
            ", as papers do: its scores are optimistic."
            if on_dev
            else "; the dev file was scored once for each model of the chosen settings."
        )
    )
    for name, scores in results["dev"].items():
        report.heading(f"{name}: {examples[name]:,} examples")
        add_scores(report, scores, results, name)
    if not on_dev:
        report.heading(f"Held out: {examples['held_out']:,} examples")
        add_scores(report, results["held_out"], results, "held_out")
    add_mistakes(report, results.get("mistakes", {}))
    report.heading("Runs")
    report.table(["run", results["metric"], "best step", "of", "minutes", ""], [_run(run) for run in results["runs"]])
    _curves(report, out, results)
    return finish_report(report, out, recipe, results)


def finish_report(report: Report, folder: Path, recipe: Any, results: dict[str, Any]) -> Path:
    """Add calibration, notes and recipe, and write ``report.html``; returns its path."""
    add_calibration(report, results["calibration"])
    if results["notes"]:
        report.heading("Notes on the data")
        report.pre("\n".join(results["notes"]))
    report.heading("Recipe")
    report.pre(to_toml(recipe))
    return report.write(folder / "report.html")


def add_scores(report: Report, scores: dict[str, Any], results: dict[str, Any], split: str) -> None:
    """Add the scores, over the seeds if there are several, and the best run's breakdown."""
    if any(len(score["values"]) > 1 for score in scores.values()):
        report.table(["score", "mean ± sd", "95 % interval", "best"], [_row(m, s) for m, s in scores.items()])
    else:  # one run has no standard deviation
        report.table(["score", "value"], [[metric, f"{score['mean']:.4f}"] for metric, score in scores.items()])
    found = results.get("breakdown", {}).get(split)
    if found is not None:
        if found["labels"] and results["best_seed"] is not None:  # a baseline has no seed
            report.text(f"Label by label, of one model ({seed_name(results['best_seed'])}):")
        add_breakdown(report, found)


def add_breakdown(report: Report, found: dict[str, Any]) -> None:
    """Add scores per label, majority baseline and confusion matrix; a warning if all predictions are equal.

    ``found``: a ``Breakdown`` as plain data.
    """
    if found["always"] is not None:
        report.text(f"Warning: the model predicts the same for every example: {found['always']}")
    if majority := found["majority"]:
        report.text(f"Always predicting {majority['answer']}: {majority['metric']} {majority['score']:.4f}.")
    if found["labels"]:
        report.table(
            ["label", found["unit"], "predicted", "precision", "recall", "F1"],
            [
                [label, s["examples"], s["predicted"], f"{s['precision']:.4f}", f"{s['recall']:.4f}", f"{s['f1']:.4f}"]
                for label, s in found["labels"].items()
            ],
        )
    labels = found["confusion_labels"]
    if 1 < len(labels) <= MOST_LABELS:
        report.text("Confusion matrix: gold labels in rows, predictions in columns.")
        report.table(["gold", *labels], [[label, *row] for label, row in zip(labels, found["confusion"], strict=True)])
    elif labels:
        report.text(f"Which of the {len(labels):,} labels are predicted as which others is in results.json.")


def add_mistakes(report: Report, found: dict[str, Any]) -> None:
    """Add the most confident mistakes, each word coloured by its weight. ``found``: ``split`` and ``examples``."""
    if not found.get("examples"):
        return
    report.heading("Most confident mistakes")
    report.text(
        f"Of {found['split']}, by the model that is kept. The stronger a word's colour, the more of the predicted "
        "label's log-odds is lost without it; words with a dashed outline speak against that label."
    )
    for mistake in found["examples"]:
        where, sure = Path(mistake["where"]).name, f"{mistake['probability']:.0%}"
        title = f"{where}: {mistake['gold']}, predicted {mistake['predicted']} ({sure})"
        largest = max((abs(weight or 0.0) for _, weight in mistake["words"]), default=0.0)
        report.drawing(token_row([_word(word, weight, largest) for word, weight in mistake["words"]]), title)


def _word(word: str, weight: float | None, largest: float) -> Mark:
    if weight is None or not largest:
        return Mark(word)
    share = weight / largest
    hint = f"log-odds {weight:+.2f}"
    return Mark(word, amount=_STRONGEST * abs(share), colour=int(share < 0), hint=hint, dashed=share < -_AGAINST)


def _row(metric: str, scores: dict[str, Any]) -> list[TableCell]:
    interval = scores["interval"]
    return [
        metric,
        f"{scores['mean']:.4f} ± {scores['sd']:.4f}",
        "" if interval is None else f"{scores['mean'] - interval:.4f} – {scores['mean'] + interval:.4f}",
        f"{scores['best']:.4f}",
    ]


def _run(run: dict[str, Any]) -> list[TableCell]:
    flag = "collapsed" if run["collapsed"] else ""
    return [run_name(run), f"{run['best']:.4f}", run["best_step"], run["steps"], f"{run['elapsed_s'] / 60:.1f}", flag]


def _curves(report: Report, out: Path, results: dict[str, Any]) -> None:
    """Plot training loss and held-out score, one curve per run."""
    losses, scores = {}, {}
    for run in results["runs"]:
        name = run_name(run)
        events = read_log(out / run["folder"] / "log.jsonl")
        train = [e for e in events if e["event"] == "train"]
        dev = [e for e in events if e["event"] == "dev"]
        losses[name] = ([e["step"] for e in train], [e["loss"] for e in train])
        scores[name] = ([e["step"] for e in dev], [e[results["metric"]] for e in dev])
    report.lines_plot("Training loss", losses, "step", "loss per prediction")
    report.lines_plot(f"Held out: {results['metric']}", scores, "step", results["metric"])


def add_calibration(report: Report, figures: dict[str, Any]) -> None:
    """Add calibration error before and after temperature scaling, and the reliability diagram, if it was fitted."""
    if "temperature" not in figures:
        return
    report.heading("Calibration")
    report.text(
        f"Logits are divided by a temperature of {figures['temperature']:.3f}. On held-out examples the expected "
        f"calibration error is {figures['error_before']:.4f} before and {figures['error_after']:.4f} after, each "
        "example's temperature being fitted on the others."
    )
    curves = {"perfectly calibrated": ([0.0, 1.0], [0.0, 1.0])}
    for when in ("before", "after"):
        rows = figures[f"reliability_{when}"]
        curves[when] = ([row[0] for row in rows], [row[1] for row in rows])
    report.lines_plot("Reliability", curves, "probability of the predicted label", "accuracy")
    report.table(
        ["temperature scaling", "mean probability", "accuracy", "examples"],
        [
            [when, f"{confidence:.4f}", f"{accuracy:.4f}", count]
            for when in ("before", "after")
            for confidence, accuracy, count in figures[f"reliability_{when}"]
        ],
    )
