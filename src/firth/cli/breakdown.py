"""An evaluation in parts, for the terminal: scores per label, the majority baseline, and a warning."""

from collections.abc import Mapping
from typing import Any

from firth.cli.shared import print_table

# Maximum number of labels to show: the most frequent ones.
_MOST_LABELS = 20


def print_breakdown(found: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Print a ``firth.tasks.breakdown.Breakdown``, given as plain data, of ``scores`` by name."""
    labels = found["labels"]
    if labels:
        shown = sorted(labels, key=lambda label: -labels[label]["examples"])[:_MOST_LABELS]
        rows = [("label", _cells(found["unit"], "predicted", "precision", "recall", "F1"))]
        for label in (label for label in labels if label in shown):
            of = labels[label]
            shares = (f"{of[name]:.4f}" for name in ("precision", "recall", "f1"))
            rows.append((label, _cells(f"{of['examples']:,}", f"{of['predicted']:,}", *shares)))
        print_table(rows)
        if len(labels) > len(shown):
            print(f"  … and {len(labels) - len(shown):,} rarer labels: --json has them all")
    if "f1" in scores and len(found["confusion_labels"]) == 2:
        print(f"  f1 is that of the second label, {found['confusion_labels'][1]}")
    if majority := found["majority"]:
        print(f"  majority baseline: always {majority['answer']}: {majority['metric']} {majority['score']:.4f}")
    if found["always"] is not None:
        print(f"  warning: the model gives the same answer to every example: {found['always']}")
    elif majority and _is_worse(scores.get(majority["metric"]), majority):
        print("  warning: the model does worse than the majority baseline")


def _is_worse(score: Any, majority: Mapping[str, Any]) -> bool:
    """Whether a score, or the mean over seeds if it has some, is worse than the baseline's; False if there is none."""
    if score is None:
        return False
    mean = float(score["mean"] if isinstance(score, Mapping) else score)
    return mean > majority["score"] if majority["metric"] == "mean_absolute_error" else mean < majority["score"]


def _cells(*texts: str) -> str:
    return "  ".join(f"{text:>9}" for text in texts)
