"""Record a study in docs/results/: numbers as JSON, and an image.

    .venv/bin/python scripts/record_study.py finetuning runs/study
    .venv/bin/python scripts/record_study.py directionality runs/directionality

and so on for ablations, learning, representations, senses and unknown-words.

Cells that the folder lacks keep their recorded values, and so do remarks (interpretations written by hand). The hours
and the machine are then those of the first recording, and the commit of each later cell follows that of the first.
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from recorded import commit, made_on

from firth.config import read_json
from firth.files import write_json
from firth.studies import directionality_report, learning_report, representations_report, senses_report
from firth.studies.finetuning import BASELINE
from firth.studies.finetuning_report import label_curves
from firth.studies.learning import PREDICTED_FOR

OUT = Path("docs/results")
COLOURS = ("#cc79a7", "#0072b2", "#d55e00", "#009e73")


def main(name: str, study: Path) -> None:
    facts = read_json(study / "study.json")
    seconds = [json.loads(path.read_text("utf-8"))["elapsed_s"] for path in study.glob("cells/**/cell.json")]
    file = OUT / f"{name}.json"
    before: dict[str, Any] = read_json(file) if file.is_file() else {"facts": {}, "remarks": {}}
    if before["facts"].keys() <= facts.keys():
        before |= {
            "hours": sum(seconds) / 3600,
            **made_on(),
        }
    else:
        before["commit"] += f"; {', '.join(facts)}: {commit()}"
    facts = before["facts"] | facts
    write_json(file, before | {"facts": facts})
    if name in PICTURES:
        picture, draw = PICTURES[name]
        draw(facts).savefig(OUT / picture, dpi=120, facecolor="white")


def label_figure(facts: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for (start, (sizes, scores)), colour in zip(label_curves(facts).items(), COLOURS, strict=False):
        axes.plot(sizes, scores, color=colour, marker="o", ms=4, label=start, ls="--" if start == BASELINE else "-")
    axes.legend(frameon=False, loc="lower right")
    axes.set_xscale("log")
    axes.set_xlim(90, 100_000)
    axes.set_xticks([100, 1000, 10_000], ["100", "1,000", "10,000"])
    axes.minorticks_off()
    axes.set_xlabel("training examples")
    axes.set_title("SST-2: accuracy on the dev file, %", fontsize=10, loc="left")
    axes.grid(color="#e4e4ea", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


PICTURES = {
    "finetuning": ("finetuning-labels.png", label_figure),
    "directionality": ("directionality.png", directionality_report.score_figure),
    "learning": ("learning.png", lambda facts: learning_report.seed_figure(facts, PREDICTED_FOR)),
    "representations": ("representations.png", representations_report.score_figure),
    "senses": ("senses.png", senses_report.sense_figure),
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
