"""Plot the demo's comparisons as docs/images/demo.png, and write their numbers to docs/results/demo.json.

.venv/bin/python scripts/demo_picture.py demo
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from recorded import made_on

from firth.demo.settings import DOCSTRINGS, REVIEWS, STARTS

COLOURS = dict(zip(STARTS, ("#0072b2", "#009e73", "#cc79a7", "#d55e00"), strict=True))
TITLES = {
    DOCSTRINGS: "part of Python's library, of eight",
    REVIEWS: "Korean film reviews, positive or negative",
}


def main(demo: Path) -> None:
    scores = [json.loads(line) for line in (demo / "scores.jsonl").read_text("utf-8").splitlines()]
    sizes = sorted({s["per_class"] for s in scores})
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    numbers: dict[str, dict[str, dict[str, list[float]]]] = {}
    for axes, (task, title) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
        for start in (start for start in STARTS if any((s["task"], s["start"]) == (task, start) for s in scores)):
            values = [
                [s["accuracy"] for s in scores if (s["task"], s["start"], s["per_class"]) == (task, start, n)]
                for n in sizes
            ]
            means, spreads = [float(np.mean(x)) for x in values], [float(np.std(x, ddof=1)) for x in values]
            percents = [100 * m for m in means], [100 * s for s in spreads]
            axes.errorbar(sizes, *percents, color=COLOURS[start], capsize=3, marker="o", ms=4, label=start)
            numbers.setdefault(task, {})[start] = {
                str(n): [round(m, 4), round(s, 4)] for n, m, s in zip(sizes, means, spreads, strict=True)
            }
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.set_xlabel("labelled examples of each class")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(color="#e4e4ea", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test accuracy, %")
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_legend_handles_labels()[0]}
    labels = [str(label) for label in lines]
    figure.legend([*lines.values()], labels, loc="outside lower center", ncols=len(lines), frameon=False, fontsize=9)
    out = Path("docs/images")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "demo.png", dpi=120, facecolor="white")
    settings = json.loads((demo / "settings.json").read_text())
    facts = {
        **made_on(settings["settings"]["precision"]),
        "settings": settings,
        "accuracy": numbers,
        "seconds": json.loads((demo / "seconds.json").read_text()),
    }
    (Path("docs/results") / "demo.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/demo_picture.py DEMO-FOLDER")
    main(Path(sys.argv[1]))
