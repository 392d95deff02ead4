"""Record the translation study in docs/results/: numbers as JSON, the training curve as an image.

    .venv/bin/python scripts/record_translation.py runs/study-translation

Remarks (interpretations written by hand) are kept from the previous record.
"""

import math
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from recorded import made_on

from firth.config import read_json
from firth.files import write_json
from firth.folder import read_model
from firth.inference.model import load_model
from firth.studies.translation import MEAN, TRAINING, model_folder
from firth.tasks.readers.files import read_lines

OUT = Path("docs/results")
EXAMPLES = 8


def main(study: Path) -> None:
    run = study / "cells" / TRAINING / "run"
    cell = read_json(study / "cells" / TRAINING / "cell.json")
    options = read_json(next((study / "cells" / "scores" / MEAN).glob("*/cell.json")))["options"]
    file = OUT / "translation.json"
    remarks: list[str] = read_json(file)["remarks"] if file.is_file() else []
    facts = read_json(study / "study.json")
    write_json(
        file,
        {
            "facts": facts,
            "remarks": remarks,
            "recipe": cell["options"]["recipe"],
            "parameters": sum(p.numel() for p in read_model(run).objective.parameters()),
            "examples": examples(run, Path(options["data"]), Path(options["gold"])),
            **made_on(),
        },
    )
    plot(facts[TRAINING])


def examples(run: Path, data: Path, gold: Path) -> list[dict[str, str]]:
    """The first captions, with their human translations and the averaged model's translations by beam search."""
    sources, references = ([line for _, line in read_lines(path)][:EXAMPLES] for path in (data, gold))
    found = load_model(model_folder(run, MEAN)).translate(sources)
    return [
        {"source": source, "reference": reference, "found": translation}
        for source, reference, translation in zip(sources, references, found, strict=True)
    ]


def plot(training: dict[str, Any]) -> None:
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    steps, values = [step for step, *_ in training["dev"]], [math.exp(loss) for _, loss, _ in training["dev"]]
    axes.plot(steps, values, color="#0072b2")
    axes.annotate(f"{values[-1]:.2f}", (steps[-1], values[-1]), (6, 0), textcoords="offset points", va="center")
    axes.set_yscale("log")
    ticks = [tick for tick in (2, 3, 5, 10, 20, 50, 100, 200, 500) if min(values) / 1.5 < tick < max(values) * 1.5]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("steps")
    axes.set_title("Multi30k, English to German: perplexity of held-out captions, a piece", fontsize=10, loc="left")
    axes.grid(color="#e4e4ea", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(OUT / "translation.png", dpi=120, facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
