"""Pre-training in two processes on one machine (gloo), beside one: the same work a process, a thread each.

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
import dataclasses, json, os, sys, time
from pathlib import Path
from firth.data.loader import Place
from firth.bench.run import bench_recipe, step
from firth.pretraining.run import assemble
from firth.machine import find_machine, reuse_memory
from firth.training.distributed import barrier, join_world, leave_world

name, tokens, steps, corpus, run = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5])
reuse_memory()
world = join_world()
recipe = bench_recipe(name, corpus, tokens)
recipe = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, micro_batches=2 * world.size))
trainer, loader = assemble(recipe, run, find_machine("auto"), world, lambda text: None)
trainer.objective.train()
ready = loader.steps(Place(), step=0, rank=world.rank, world=world.size)
batches = [next(ready)[0] for _ in range(steps)]
step(trainer, batches[0])
seconds = []
for some in batches:
    barrier(world)
    began_at_s = time.perf_counter()
    step(trainer, some)
    barrier(world)
    seconds.append(time.perf_counter() - began_at_s)
seen = sum(batch.tokens.rows.n_tokens for some in batches for batch in some)
# One write: the lines of two processes would run into each other.
sys.stdout.write(json.dumps({"tokens": seen, "seconds": seconds}) + "\\n")
sys.stdout.flush()
leave_world()
"""
COLUMNS: measure.Columns = (
    ("name", "model, processes", "{}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
    ("seconds", "seconds a step", "{:.3g}"),
    ("least_s", "least", "{:.3g}"),
    ("most_s", "most", "{:.3g}"),
    ("share", "of so many times one", "{:.0%}"),
)
SIZES = {"bert-mini": 4096, "bert-base": 1024}


def run(n: int, name: str, tokens: int, steps: int, folder: Path, corpus: Path) -> list[dict[str, Any]]:
    """What each of ``n`` processes saw: tokens in all steps, and the seconds of each."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    words = [str(program), name, str(tokens), str(steps), str(corpus), str(folder / "run")]
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"] if n > 1 else []
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *several, *words], capture_output=True, text=True, env=one_thread)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == n, done.stdout
    return found


def compared(name: str, tokens: int, options: Any, folder: Path) -> list[dict[str, Any]]:
    """A row for one process and one for two; they have turns."""
    from firth.bench.synthetic import plain_corpus, plain_tokenizer

    corpus = plain_corpus(folder / "corpus", plain_tokenizer(100 if options.quick else 30_522), 24 * tokens)
    steps = 2 if options.quick else 4
    seconds: dict[int, list[float]] = {1: [], 2: []}
    seen: dict[int, float] = {}
    for _ in range(options.repeats):
        for n, times in seconds.items():
            found = run(n, name, tokens, steps, folder, corpus)
            # A step ends when the slowest has ended.
            times += map(max, zip(*(each["seconds"] for each in found), strict=True))
            seen[n] = sum(each["tokens"] for each in found) / steps
    rates = {n: seen[n] / median(times) for n, times in seconds.items()}
    return [
        {
            "name": f"{name}, {n}", "tokens_per_s": rates[n], "seconds": median(times), "least_s": min(times),
            "most_s": max(times), "all_s": times, "share": rates[n] / (n * rates[1]),
        }
        for n, times in seconds.items()
    ]  # fmt: skip


def main(given: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), given)
    rows = []
    for name, tokens in ({"bert-tiny": 256} if options.quick else SIZES).items():
        with TemporaryDirectory(prefix="firth-processes-") as folder:
            rows += compared(name, tokens, options, Path(folder))
    return measure.write(
        "processes",
        title="Two processes",
        target="P10, two processes at 90 % of twice one",
        about="Updates of pre-training as `firth pretrain` makes them, two micro-batches a process and update, one "
        "thread a process, under torchrun with gloo; each process reads as much whether it is alone or not. Programs "
        "of one and of two processes have turns.",
        arguments=options,
        settings={"sizes": SIZES},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
