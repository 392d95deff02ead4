"""What every benchmark shares: arguments, checks that both sides compute the same, the record, its tables.

The timing itself is ``firth.bench.measure``, which ``firth bench`` uses too.
"""

import argparse
import json
import logging
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.bench.measure import MATRIX, Rate, machine_facts, version_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PEERS = ("transformers", "tokenizers", "sentence-transformers", "onnxruntime", "onnx", "datasets", "accelerate")

# Environment variables that peers read on import.
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error", "DATASETS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1",
}  # fmt: skip

# Columns of a table: key in a row, heading, format.
Columns = Sequence[tuple[str, str, str]]
RATE_COLUMNS: Columns = (
    ("name", "", "{}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("share", "% of peak", "{:.0%}"),
    ("seconds", "seconds", "{:.3g}"),
    ("least_s", "least", "{:.3g}"),
    ("most_s", "most", "{:.3g}"),
    ("times", "Firth is", "{:.1f}×"),
)


def arguments(description: str) -> argparse.ArgumentParser:
    """The options of all benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it works, not how fast")
    parser.add_argument("--repeats", type=int, help="times each contestant runs, in turn with the others: 5; quick 1")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("DATA", "../shared/data")), help="folder of real texts"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


def parsed(parser: argparse.ArgumentParser, given: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, with the consequences of ``--quick`` filled in."""
    options = parser.parse_args(given)
    options.repeats = options.repeats or (1 if options.quick else 5)
    quiet()
    return options


def check(what: str, difference: float, tolerance: float) -> dict[str, Any]:
    """Check that two sides compute the same; a fact to record. Ends the program if they do not."""
    if not difference <= tolerance:
        sys.exit(f"error: {what}: differs by {difference:.3g}, at most {tolerance:g} may be: nothing was measured")
    return {"what": what, "difference": difference, "tolerance": tolerance}


def rate_table(title: str, rates: Sequence[Rate], ours: str) -> dict[str, Any]:
    """Rates as a table; ``times``: how many times faster the contestant ``ours`` does the same work."""
    seconds = next(rate.spread.median for rate in rates if rate.name == ours)
    rows = []
    for rate in rates:
        row = rate.facts()
        if rate.name != ours and not rate.name.startswith(MATRIX):
            row["times"] = rate.spread.median / seconds
        rows.append(row)
    return table(title, RATE_COLUMNS, rows)


def table(title: str, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A table as plain data; rows may have more keys than it has columns."""
    return {"title": title, "columns": [list(column) for column in columns], "rows": [dict(row) for row in rows]}


def write(
    name: str, *, title: str, target: str, about: str, arguments: argparse.Namespace, settings: Mapping[str, Any],
    checks: Sequence[Mapping[str, Any]], tables: Sequence[Mapping[str, Any]], notes: Sequence[str] = (),
    device: str = "cpu", peers: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """Record a benchmark as ``<name>.json``, with everything that its figures depend on; returns the file.

    ``peers``: versions of peers that ran in environments of their own, replacing the versions installed here.
    """
    facts = machine_facts(device) | source_facts() | ({} if peers is None else {"peers": dict(peers)})
    record = {
        "name": name, "title": title, "target": target, "about": about, "quick": arguments.quick,
        "command": shlex.join(["python", *sys.argv]), "settings": dict(settings), "checks": list(checks),
        "notes": list(notes), "machine": facts, "tables": list(tables),
    }  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    path: Path = arguments.out / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(markdown(record))
    print(f"{path}", file=sys.stderr)
    return path


def source_facts() -> dict[str, Any]:
    """The versions of the peers, and the commit of this tree (``dirty``: with uncommitted changes)."""
    peers = {name: version for name in PEERS if (version := version_of(name)) is not None}
    commit = _git("rev-parse", "--short", "HEAD")
    changes = _git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return {"peers": peers, "commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def markdown(record: Mapping[str, Any]) -> str:
    """A record as a section of docs/benchmarks.md."""
    lines = [f"## {record['title']}", "", f"```\n{record['command']}\n```", "", record["about"], "", _machine(record)]
    for each in record["tables"]:
        lines += ["", *([f"{each['title']}:", ""] if each["title"] else []), *_markdown_table(each)]
    if record["target"]:
        lines += ["", f"Target: {record['target']}."]
    if record["checks"]:
        said = "; ".join(f"{c['what']}: {c['difference']:.1e} (at most {c['tolerance']:g})" for c in record["checks"])
        lines += ["", f"Checked before timing: {said}."]
    lines += [part for note in record["notes"] for part in ("", note)] + [""]
    return "\n".join(lines)


def _machine(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    place = machine["card"] or f"{machine['processor']} ({', '.join(machine['flags'])})"
    peers = "".join(f", {name} {version}" for name, version in machine["peers"].items())
    dirty = " with changes" if machine["dirty"] else ""
    quick = "**A quick run: its figures mean nothing.** " if record["quick"] else ""
    return (
        f"{quick}{place}, {machine['threads']} threads, load {machine['load']}; torch {machine['torch']}{peers}; "
        f"commit {machine['commit']}{dirty}; {machine['date']}."
    )


def _markdown_table(each: Mapping[str, Any]) -> list[str]:
    shown = [c for c in each["columns"] if any(row.get(c[0]) is not None for row in each["rows"])]
    lines = ["| " + " | ".join(heading for _, heading, _ in shown) + " |", "|---" * len(shown) + "|"]
    for row in each["rows"]:
        cells = ["" if (value := row.get(key)) is None else form.format(value) for key, _, form in shown]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def quiet() -> None:
    """Silence progress bars, reports and warnings of peers, which are not yet imported: stderr is for ours."""
    os.environ |= QUIET
    warnings.filterwarnings("ignore", module=r"(torch|transformers|sentence_transformers|onnx|onnxruntime|copyreg)\b")
    # The root logger too: onnxruntime's quantiser warns there.
    for name in ("torch.onnx", "sentence_transformers", ""):
        logging.getLogger(name).setLevel(logging.ERROR)


def bert_flops(config: Any, lengths: Sequence[int], predictions: int = 0) -> float:
    """Forward operations of a BERT encoder on rows of these lengths, and of its vocabulary head at ``predictions``.

    Two per weight and token, plus attention: a third of the count in the table of systems. Repeated here so that a
    machine with few packages can use it.
    """
    tokens, squares = float(sum(lengths)), float(sum(n * n for n in lengths))
    block = 4 * config.width**2 + 2 * config.width * config.feed_forward_width
    vocabulary = config.width**2 + config.width * config.vocab_size
    weights = config.n_layers * (block * tokens + 2 * config.width * squares) + vocabulary * predictions
    return 2.0 * float(weights)
