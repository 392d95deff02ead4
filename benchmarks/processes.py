"""Pre-training by one process per core, beside one process: the same tokens per core and update.

.venv/bin/python benchmarks/processes.py
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import measure

PROGRAM = """
import dataclasses, json, sys
from pathlib import Path
import torch
from firth.bench.run import bench_recipe
from firth.pretraining.run import pretrain
from firth.training.log import read_log

name, tokens, steps, corpus, run = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5])
processes, threads, cores = map(int, sys.argv[6:])
torch.set_num_threads(threads)
recipe = bench_recipe(name, corpus, tokens)
train = dataclasses.replace(
    recipe.train, micro_batches=2 * cores, steps=steps + 1, log_every=1, save_every=0, eval_every=0, eval_batches=cores
)
pretrain(dataclasses.replace(recipe, train=train), run, lambda text: None, processes=processes)
events = [event for event in read_log(run / "log.jsonl") if event["event"] == "train"]
# The first update makes what the others have.
print(json.dumps([event["tokens_per_s"] for event in events[1:]]))
"""
COLUMNS: measure.Columns = (
    ("name", "model, processes", "{}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("least", "least", "{:,.0f}"),
    ("most", "most", "{:,.0f}"),
    ("share", "of so many times one", "{:.0%}"),
)
SIZES = {"bert-mini": 4096, "bert-base": 1024}


def run(
    processes: int, threads: int, cores: int, name: str, tokens: int, steps: int, folder: Path, corpus: Path
) -> list[float]:
    """Tokens/s of each update of a run with this many processes, which share this many threads."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    with TemporaryDirectory(dir=folder) as place:
        words = [str(program), name, str(tokens), str(steps), str(corpus), str(Path(place) / "run")]
        words += map(str, (processes, threads, cores))
        all_threads = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=all_threads)
    if done.returncode:
        raise SystemExit(done.stderr)
    rates: list[float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def compared(name: str, tokens: int, options: Any, folder: Path) -> list[dict[str, Any]]:
    """Rows for one process with one thread, a process on each core, and one process on all cores; measured in turn."""
    from firth.bench.synthetic import plain_corpus, plain_tokenizer
    from firth.workers import cpu_count

    cores = max(cpu_count(), 2)
    corpus = plain_corpus(folder / "corpus", plain_tokenizer(100 if options.quick else 30_522), 24 * cores * tokens)
    steps = 2 if options.quick else 4
    # Processes, threads, and the number of cores' worth of tokens in an update.
    ways = {"1": (1, 1, 1), str(cores): (cores, cores, cores), f"1 with {cores} threads": (1, cores, cores)}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.repeats):
        for way, (processes, threads, worth) in ways.items():
            rates[way] += run(processes, threads, worth, name, tokens, steps, folder, corpus)
    alone = median(rates["1"])
    return [
        {
            "name": f"{name}, {way}", "tokens_per_s": median(found), "least": min(found), "most": max(found),
            "all": found, "share": median(found) / (alone * ways[way][1]),
        }
        for way, found in rates.items()
    ]  # fmt: skip


def main(given: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), given)
    rows = []
    for name, tokens in ({"bert-tiny": 256} if options.quick else SIZES).items():
        with TemporaryDirectory(prefix="firth-processes-") as folder:
            rows += compared(name, tokens, options, Path(folder))
    return measure.write(
        "processes",
        title="A process on each core",
        target="two processes at 92 % of twice one",
        about="Updates of `firth pretrain --processes 2`, two micro-batches a core and update: one process of one "
        "thread alone, a process of one thread on each core, and one process with a thread on each core. Rates are "
        "those of the run's own log. Runs have turns.",
        arguments=options,
        settings={"sizes": SIZES},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
