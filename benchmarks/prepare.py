"""P4: preprocessing text for training, Firth beside transformers' masked-LM examples.

.venv/bin/python benchmarks/prepare.py --megabytes 100 --workers 2      # --once for memory at 1000; --quick

Each side is a separate program, started anew each time, with the same number of processes; its memory is that of all
its processes together, sampled every 50 ms.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import measure
import texts as material

from firth.progress import Progress
from firth.workers import cpu_count

FIRTH, PEER = "Firth", "transformers and datasets"
_LOOK_EVERY_S = 0.05
# Tolerance for the number of tokens: both read the same text.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Usage:
    """What a program used and reported. ``anonymous``: its peak memory not backed by files, in bytes."""

    seconds: float
    peak: int
    anonymous: int
    said: dict[str, Any]


def watched(command: Sequence[str]) -> Usage:
    """Run a program to its end and record the memory of it and its processes. Its last line must be JSON."""
    peak = anonymous = 0
    started_at_s = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(command, stdout=out, stderr=errors)
        while program.poll() is None:
            resident, not_in_files = memory_of_tree(program.pid)
            peak, anonymous = max(peak, resident), max(anonymous, not_in_files)
            time.sleep(_LOOK_EVERY_S)
        elapsed_s = time.perf_counter() - started_at_s
        out.seek(0)
        errors.seek(0)
        if program.returncode:
            sys.exit(f"error: {' '.join(command)} ended with {program.returncode}:\n{errors.read()[-2000:]}")
        return Usage(elapsed_s, peak, anonymous, json.loads(out.read().splitlines()[-1]))


def memory_of_tree(pid: int) -> tuple[int, int]:
    """Bytes that a process and all its descendants hold: resident, and the part not backed by files."""
    found = [_memory(each) for each in tree_of(pid)]
    return sum(resident for resident, _ in found), sum(not_in_files for _, not_in_files in found)


def tree_of(pid: int) -> set[int]:
    """A process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in brackets may contain blanks; the parent is the second word after it.
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    tree, size = {pid}, 0
    while len(tree) > size:
        size = len(tree)
        tree |= {child for child, parent in parents.items() if parent in tree}
    return tree


def _memory(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    # In kB; a process that has just ended has none.
    kilobytes = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.strip()}
    return 1024 * int(kilobytes.get("VmRSS", 0)), 1024 * int(kilobytes.get("RssAnon", 0))


def command_of(name: str, text: Path, vocab: Path, out: Path, workers: int, *, count: bool = False) -> list[str]:
    """The command line of a side; ``text`` may be a folder of files for Firth."""
    if name == FIRTH:
        return [
            sys.executable, "-m", "firth", "prepare", str(text), "--tokenizer", str(vocab), "--out", str(out),
            "--hold-out", "0", "--workers", str(workers), "--json",
        ]  # fmt: skip
    program = str(Path(__file__).with_name("peer_prepare.py"))
    return [
        sys.executable, program, str(text), str(vocab), str(out), "--workers", str(workers), *["--count"] * count,
    ]  # fmt: skip


def repeated(text: Path, times: int) -> Path:
    """A folder that contains one file under many names."""
    folder = text.with_name("texts")
    folder.mkdir()
    for number in range(times):
        (folder / f"{number:03}.txt").hardlink_to(text)
    return folder


def disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def checked(names: Sequence[str], options: Namespace, vocab: Path, folder: Path, data: Any) -> list[dict[str, Any]]:
    """Check that both sides read the same number of tokens from a small text."""
    if len(names) < 2:
        return []
    text = folder / "small.txt"
    material.write_text(text, 50_000 if options.quick else 1_000_000, options.data, data)
    tokens = {}
    for name in names:
        out = folder / "small"
        tokens[name] = watched(command_of(name, text, vocab, out, options.workers, count=True)).said["tokens"]
        shutil.rmtree(out)
    return [measure.check("number of tokens", abs(tokens[PEER] / tokens[FIRTH] - 1), TOLERANCE)]


def run(options: Namespace, folder: Path) -> Path:
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    text, vocab = folder / "text.txt", folder / "vocab"
    tokenizer.save(vocab, max_length=512)
    wanted = 100_000 if options.quick else options.megabytes * 10**6
    n_bytes = material.write_text(text, wanted, options.data, tokenizer)
    if options.times > 1:
        text, n_bytes = repeated(text, options.times), options.times * n_bytes
    peers = [PEER] if all(map(importlib.util.find_spec, ("datasets", "transformers"))) else []
    names = [FIRTH, *([] if options.alone or options.times > 1 else peers)]
    checks = checked(names, options, vocab, folder, tokenizer)
    usages: dict[str, list[Usage]] = {name: [] for name in names}
    sizes: dict[str, dict[str, float]] = {}
    # One warm-up round, unless only one round is requested.
    rounds = 1 if options.once else options.repeats + 1
    with Progress("measuring", rounds * len(names), "runs") as progress:
        for number in range(rounds):
            for name in names:
                out = folder / "out"
                usage = watched(command_of(name, text, vocab, out, options.workers))
                if number or options.once:
                    usages[name].append(usage)
                training = usage.said["disk_bytes" if name == FIRTH else "training_bytes"]
                sizes[name] = {"disk": training / n_bytes, "all_disk": disk(out) / n_bytes}
                shutil.rmtree(out)
                progress.advance(1, name)
    rows = [row(name, usages[name], n_bytes) | sizes[name] for name in names]
    for each in rows[1:]:
        each["times"] = each["seconds"] / rows[0]["seconds"]
    source = "English articles and novels" if material.real(options.data) else "made-up words"
    return measure.write(
        "prepare-quick" if options.quick else f"prepare-{options.megabytes * options.times}mb",
        title=f"Text to what training reads, {n_bytes / 1e6:,.0f} MB",
        target="at least 3 times transformers' preprocessing; memory that does not grow with the text; at most 0.6 "
        "of its size on disk",
        about=f"{source}, {n_bytes / 1e6:,.1f} MB, {options.workers} processes each side. Firth splits sentences, "
        "tokenises and writes shards; the other side tokenises lines, marks special pieces and cuts blocks of 512. "
        "Starting the programs is inside the timing. Memory is of all processes together (pages that several share "
        "count for each of them), *own* the part that no file backs; disk is what training reads, over the size of the "
        "text, *all disk* with what was written on the way.",
        arguments=options,
        settings={"bytes": n_bytes, "workers": options.workers, "once": options.once,
                  "times": options.times, "real": material.real(options.data)},
        checks=checks,
        tables=[measure.table("", COLUMNS, rows)],
        notes=[] if peers else ["datasets or transformers is not installed: nothing was compared."],
    )  # fmt: skip


COLUMNS: measure.Columns = (
    ("name", "", "{}"),
    ("mb_per_s", "MB/s", "{:.2f}"),
    ("seconds", "seconds", "{:.3g}"),
    ("least_s", "least", "{:.3g}"),
    ("most_s", "most", "{:.3g}"),
    ("peak_mb", "memory, MB", "{:,.0f}"),
    ("own_mb", "own, MB", "{:,.0f}"),
    ("disk", "disk", "{:.2f}"),
    ("all_disk", "all disk", "{:.2f}"),
    ("times", "Firth is", "{:.1f}×"),
)


def row(name: str, usages: Sequence[Usage], n_bytes: int) -> dict[str, Any]:
    """A side's row: median times, peak memory."""
    seconds = [usage.seconds for usage in usages]
    return {
        "name": name, "mb_per_s": n_bytes / 1e6 / median(seconds), "seconds": median(seconds), "least_s": min(seconds),
        "most_s": max(seconds), "all_s": seconds, "peak_mb": max(usage.peak for usage in usages) / 1e6,
        "own_mb": max(usage.anonymous for usage in usages) / 1e6,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100, help="of text")
    parser.add_argument("--times", type=int, default=1, help="the text is read so often, by Firth only")
    parser.add_argument("--workers", type=int, default=cpu_count(), help="processes of each side")
    parser.add_argument("--once", action="store_true", help="one run each, not warmed up: for memory, not for speed")
    parser.add_argument("--alone", action="store_true", help="Firth only")
    options = measure.parsed(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firth-prepare-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
