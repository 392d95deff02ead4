"""Draw the demo's comparison for the README: docs/images/demo.png, and its numbers beside it as JSON.

.venv/bin/python scripts/demo_picture.py demo
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from firth.demo.report import DOCSTRINGS

COLOURS = ("#0072b2", "#009e73", "#d55e00", "#cc79a7")


def main(demo: Path) -> None:
    every = [json.loads(line) for line in (demo / "scores.jsonl").read_text("utf-8").splitlines()]
    scores = [score for score in every if score["task"] == DOCSTRINGS]
    sizes = sorted({s["per_class"] for s in scores})
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    numbers: dict[str, dict[str, list[float]]] = {}
    starts = sorted(
        {s["start"] for s in scores}, key=lambda name: -np.mean([s["accuracy"] for s in scores if s["start"] == name])
    )
    for start, colour in zip(starts, COLOURS, strict=False):
        per_size = [[s["accuracy"] for s in scores if (s["start"], s["per_class"]) == (start, n)] for n in sizes]
        means, spreads = [float(np.mean(x)) for x in per_size], [float(np.std(x, ddof=1)) for x in per_size]
        axes.errorbar(
            sizes, [100 * m for m in means], [100 * s for s in spreads], color=colour, capsize=3, marker="o", ms=4
        )
        axes.annotate(
            start, (sizes[-1], 100 * means[-1]), (8, 0), textcoords="offset points", color=colour, va="center"
        )
        numbers[start] = {str(n): [round(m, 4), round(s, 4)] for n, m, s in zip(sizes, means, spreads, strict=True)}
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_xlim(sizes[0] * 0.9, sizes[-1] * 3.2)
    axes.set_xlabel("labelled examples of each of eight classes")
    axes.set_title(
        "which part of the standard library is this docstring from?  test accuracy, %", fontsize=10, loc="left"
    )
    axes.grid(color="#e4e4ea", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    out = Path("docs/images")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "demo.png", dpi=120, facecolor="white")
    facts = {
        "settings": json.loads((demo / "settings.json").read_text()),
        "accuracy": numbers,
        "seconds": json.loads((demo / "seconds.json").read_text()),
    }
    (Path("docs/results") / "demo.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/demo_picture.py DEMO-FOLDER")
    main(Path(sys.argv[1]))
