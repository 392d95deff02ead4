"""Write docs/benchmarks.md from the JSON files of benchmarks/results/, so that no number is typed by hand.

.venv/bin/python benchmarks/report.py
"""

import json
from pathlib import Path

from measure import RESULTS, ROOT, markdown

# The order of the page; what has no place in it comes last, by name.
ORDER = (
    "encode-sentences", "encode-mixed", "pretrain-step-mini", "pretrain-step-base", "same-minutes",
    "finetune-step-mini", "finetune-step-base", "attention", "products", "prepare", "loader",
    "training-memory", "startup", "serve", "serve-memory", "gpu-pretrain-step", "gpu-encode",
)  # fmt: skip

HEAD = """# Benchmarks

Side by side with other libraries, each table from one run on one machine, contestants in turn, the median of the
timings (*least* and *most* beside it). *Firth is* says how many times faster Firth did the same work. *Of the limit*
is the share of the fastest matrix product that was measured in the same run. What counts, and how to repeat it:
[benchmarks/](../benchmarks/README.md). This page is written by `benchmarks/report.py` from
[the records](../benchmarks/results), which have every single time.
"""


def place(path: Path) -> tuple[int, str]:
    """Where a record comes on the page."""
    found = [number for number, name in enumerate(ORDER) if path.stem.startswith(name)]
    return (found[0] if found else len(ORDER), path.stem)


def page(results: Path) -> str:
    """The whole page."""
    paths = sorted(results.glob("*.json"), key=place)
    sections = [markdown(json.loads(path.read_text("utf-8"))) for path in paths]
    return "\n".join([HEAD, *(sections or ["Nothing is recorded yet: `make bench`.\n"])])


if __name__ == "__main__":
    (ROOT / "docs" / "benchmarks.md").write_text(page(RESULTS), "utf-8")
