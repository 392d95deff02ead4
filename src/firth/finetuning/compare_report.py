"""``report.html`` of a comparison: recommendation, scores and costs, learning curve, labels that may be wrong."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.page import Report

_SHOWN = 50
_LONGEST = 160


def write_compare_report(out: Path, results: Mapping[str, Any]) -> Path:
    """Write the report; needs the extra ``report`` (ConfigError without it)."""
    metric, examples = results["metric"], results["examples"]
    report = Report(f"{results['task']}: which way learns it best from these labels")
    report.text(results["recommendation"])
    report.text(
        f"{examples['train']:,} labelled examples; every way is scored on the same {examples[results['split']]:,} of "
        f"{results['split']}. Intervals cover 95 % of {results['draws']:,} bootstrap samples."
    )
    report.heading("Scores and costs")
    beside = results["beside"]
    rows = [_row(results["names"][name], row, beside) for name, row in results["ways"].items()]
    if majority := results["majority"]:
        shown = {name: f"{majority['scores'][name]:.4f}" for name in (metric, *beside)}
        constant = ["", shown[metric], "", *(shown[name] for name in beside), "", "", "", "", "", ""]
        rows.append([f"majority baseline: always {majority['answer']}", *constant])
    report.table(
        [
            "way",
            "labels",
            metric,
            "95 % interval",
            *beside,
            "difference from the baseline",
            "interval of the difference",
            "calibration error",
            "fit, s",
            "predict, ms",
            "MB",
        ],
        rows,
    )
    curves = {name: ([p[0] for p in points], [p[1] for p in points]) for name, points in results["curve"].items()}
    report.lines_plot(f"{metric} by number of labels", {k: v for k, v in curves.items() if v[0]}, "labels", metric)
    if results["skipped"]:
        report.heading("Skipped")
        report.pre("\n".join(results["skipped"]))
        if results["minutes_for_all"] is not None:
            minutes = f"--minutes {results['minutes_for_all']}"
            report.text(f"With {minutes} the same command does these as well; what is done is kept.")
    _labels(report, results)
    if results["notes"]:
        report.heading("Notes on the data")
        report.pre("\n".join(results["notes"]))
    return report.write(out / "report.html")


def _row(name: str, row: Mapping[str, Any], beside: Sequence[str]) -> list[Any]:
    low, high = row["interval"]
    error = row["calibration_error"]
    is_baseline = name == "baseline"
    below, above = row["over_baseline_interval"]
    return [
        name,
        row["labels"],
        f"{row['score']:.4f}",
        f"{low:.4f} – {high:.4f}",
        *(f"{row['scores'][other]:.4f}" for other in beside),
        "" if is_baseline else f"{row['over_baseline']:+.4f}",
        "" if is_baseline else f"{below:+.4f} to {above:+.4f}",
        "" if error is None else f"{error:.4f}",
        f"{row['seconds']:.0f}",
        f"{row['predict_ms']:.2f}",
        f"{row['megabytes']:.1f}",
    ]


def _labels(report: Report, results: Mapping[str, Any]) -> None:
    if results["suspects"]:
        report.heading("Labels that may be wrong")
        report.text(
            "A baseline fitted without these training examples gives their labels a low probability; the likeliest "
            "errors come first. Not all are errors: check each."
        )
        report.table(
            ["where", "text", "label", "predicted", "probability of the label"],
            [
                [_place(s["where"]), _cut(s["text"]), s["label"], s["predicted"], f"{s['probability']:.3f}"]
                for s in results["suspects"][:_SHOWN]
            ],
        )
    if results["conflicts"]:
        report.heading("Equal texts with different labels")
        report.table(
            ["text", "labels", "where"],
            [
                [_cut(c["text"]), ", ".join(c["labels"]), ", ".join(map(_place, c["where"]))]
                for c in results["conflicts"][:_SHOWN]
            ],
        )


def _place(where: str) -> str:
    return where.rsplit("/", 1)[-1]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
