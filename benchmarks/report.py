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
how many times faster Firth did the same work. *% of peak* is speed as a share of the fastest matrix product measured in
the same run. [benchmarks/](../benchmarks/README.md) says what counts and how to repeat the measurements.
`benchmarks/report.py` writes this page from [the records](../benchmarks/results), which contain every timing.
"""

# Terms of older records, and those of the page.
TERMS = {
    "% of the limit": "% of peak",
    "| of the limit |": "| % of peak |",
    "The limit is": "Peak is",
    "| words right |": "| masked-LM accuracy |",
    "| deviation |": "| standard deviation |",
    "the same new weights": "the same random initialisation",
    "weights and rows": "weights and sequences",
    "making rows": "making sequences",
    "of all rows": "of all sequences",
    "plan of the rows": "plan of the sequences",
    "so many rows": "so many sequences",
    "rows of": "sequences of",
    "| rows |": "| sequences |",
    "rectangles, 1 rows": "rectangles, 1 sequence",
    "rectangles, 8 rows": "rectangles, 8 sequences",
    "rectangles, 32 rows": "rectangles, 32 sequences",
    "pieces": "tokens",
    "a processor": "a CPU",
    "on a card": "on a GPU",
}


def place(path: Path) -> tuple[int, str]:
    """The position of a record on the page."""
    found = [number for number, name in enumerate(ORDER) if path.stem.startswith(name)]
    return (found[0] if found else len(ORDER), path.stem)


def in_terms(section: str) -> str:
    """A section in the terms of the page."""
    for old, new in TERMS.items():
        section = section.replace(old, new)
    return section


def page(results: Path) -> str:
    """The whole page."""
    paths = sorted(results.glob("*.json"), key=place)
    sections = [in_terms(markdown(json.loads(path.read_text("utf-8")))) for path in paths]
    return "\n".join([HEAD, *(sections or ["Nothing is recorded yet: `make bench`.\n"])])


if __name__ == "__main__":
    (ROOT / "docs" / "benchmarks.md").write_text(page(RESULTS), "utf-8")
