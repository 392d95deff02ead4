"""Write docs/benchmarks.md from the JSON files of benchmarks/results/, so that no number is typed by hand.

.venv/bin/python benchmarks/report.py
"""

import json
from pathlib import Path

from measure import RESULTS, ROOT, markdown

# The order of the page; records that are not listed come last, by name.
ORDER = (
    "encode-sentences", "encode-mixed", "pretrain-step-mini", "pretrain-step-base", "same-minutes",
    "finetune-step-mini", "finetune-step-base", "attention", "products", "prepare", "loader",
    "training-memory", "startup", "serve", "serve-memory", "gpu-pretrain-step", "gpu-encode",
)  # fmt: skip

HEAD = """# Benchmarks

Firth side by side with other libraries. Each table comes from one run on one machine, in which the contestants took
turns; it shows the median of the timings, with the shortest (*least*) and longest (*most*) beside it. *Firth is* says
how many times faster Firth did the same work. *Of the limit* is speed as a share of the fastest matrix product measured
in the same run. [benchmarks/](../benchmarks/README.md) says what counts and how to repeat the measurements.
`benchmarks/report.py` writes this page from [the records](../benchmarks/results), which contain every timing.
"""


def place(path: Path) -> tuple[int, str]:
    """The position of a record on the page."""
    found = [number for number, name in enumerate(ORDER) if path.stem.startswith(name)]
    return (found[0] if found else len(ORDER), path.stem)


def page(results: Path) -> str:
    """The whole page."""
    paths = sorted(results.glob("*.json"), key=place)
    sections = [markdown(json.loads(path.read_text("utf-8"))) for path in paths]
    return "\n".join([HEAD, *(sections or ["Nothing is recorded yet: `make bench`.\n"])])


if __name__ == "__main__":
    (ROOT / "docs" / "benchmarks.md").write_text(page(RESULTS), "utf-8")
