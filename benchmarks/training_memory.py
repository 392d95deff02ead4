"""The memory of a training step, against the estimate that ``firth pretrain`` prints before it starts.

Each row is a separate process: its peak memory over two steps, less its memory before the model was made.

.venv/bin/python benchmarks/training_memory.py
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import measure

PROGRAM = """
import dataclasses, json, sys
from pathlib import Path
import torch
from firth.data.loader import Place
from firth.bench.run import bench_recipe
from firth.memory import estimate_memory
from firth.pretraining.assembly import assemble
from firth.bench.synthetic import plain_corpus, plain_tokenizer
from firth.machine import find_machine, reuse_memory
from firth.training.collectives import World

name, tokens, precision, recompute, folder = *sys.argv[1:4], sys.argv[4] == "True", Path(sys.argv[5])
reuse_memory()
tokens = int(tokens)
tokenizer = plain_tokenizer(30_522)
corpus = plain_corpus(folder / "corpus", tokenizer, 8 * tokens)
recipe = bench_recipe(name, corpus, tokens)
train = dataclasses.replace(recipe.train, precision=precision, recompute=recompute)
recipe = dataclasses.replace(recipe, train=train)
machine = find_machine(precision)

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def peak():
    return torch.cuda.max_memory_allocated() if machine.device.type == "cuda" else resident("VmHWM:")

before = 0 if machine.device.type == "cuda" else resident("VmRSS:")
trainer, loader = assemble(recipe, folder / "run", machine, World(), lambda text: None)
steps = loader.steps(Place(), step=0)
for _ in range(2):
    trainer.train_step(next(steps)[0])
need = estimate_memory(
    trainer.objective, recipe.row, recipe.encoder, machine.dtype, tokens, recompute=recompute
)
print(json.dumps({"estimate_bytes": need.total, "measured_bytes": peak() - before, "machine": machine.path}))
"""
ROWS = (
    ("bert-mini", 4096, "float32", False),
    ("bert-mini", 4096, "auto", False),
    ("bert-mini", 16384, "auto", False),
    ("bert-mini", 16384, "auto", True),
    ("bert-base", 2048, "auto", False),
    ("bert-base", 4096, "float32", False),
    ("bert-base", 4096, "auto", False),
    ("bert-base", 4096, "auto", True),
    ("lstm-small", 4096, "float32", False),
)
QUICK = (("bert-tiny", 1024, "float32", False),)


COLUMNS: measure.Columns = (
    ("name", "model", "{}"),
    ("tokens", "tokens", "{:,}"),
    ("precision", "precision", "{}"),
    ("recompute", "recomputed", "{}"),
    ("estimate_mb", "estimate, MB", "{:,.0f}"),
    ("measured_mb", "measured, MB", "{:,.0f}"),
    ("ratio", "estimate / measured", "{:.2f}"),
)


def measured(name: str, tokens: int, precision: str, recompute: bool) -> dict[str, Any]:
    """One row, in a process of its own."""
    with TemporaryDirectory(prefix="firth-memory-") as folder:
        words = [name, str(tokens), precision, str(recompute), folder]
        done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "name": name, "tokens": tokens, "precision": precision, "recompute": recompute, **found,
        "estimate_mb": found["estimate_bytes"] / 1e6, "measured_mb": found["measured_bytes"] / 1e6,
        "ratio": found["estimate_bytes"] / found["measured_bytes"],
    }  # fmt: skip


def main(given: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), given)
    rows = [measured(*row) for row in (QUICK if options.quick else ROWS)]
    return measure.write(
        "training-memory",
        title="Memory of a training step",
        target="",
        about="Two steps of pre-training with dropout; what `firth pretrain` says before it starts, and the peak.",
        arguments=options,
        settings={},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
