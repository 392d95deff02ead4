"""What the GPU benchmarks share: the device, the memory of each contestant, where a step's time goes."""

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import measure
import torch
from torch.profiler import ProfilerActivity, profile

from firth.bench.measure import Rate, Work

_PROFILED_RUNS = 3
_TOP = 10
_NAME = 90
KERNEL_COLUMNS: measure.Columns = (
    ("name", "kernel", "`{}`"),
    ("ms", "ms a run", "{:.2f}"),
    ("share", "of the time", "{:.0%}"),
    ("calls", "calls", "{}"),
)


def arguments(description: str) -> argparse.ArgumentParser:
    """The options of a GPU benchmark."""
    parser = measure.arguments(description)
    parser.add_argument("--device", default="cuda", help="cuda; cpu only to see whether it works")
    parser.add_argument("--sizes", nargs="+", default=["base", "large"], help="of BERT")
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512], help="of rows")
    parser.add_argument("--batch-tokens", type=int, default=32_768, help="of each batch")
    parser.add_argument("--eager", action="store_true", help="nothing with torch.compile")
    return parser


def parsed(parser: argparse.ArgumentParser, given: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; ends the program with one line where there is no GPU."""
    options = measure.parsed(parser, given)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA card here: this benchmark measures one (--device cpu --quick tries its logic)", file=sys.stderr)
        sys.exit(2)
    if options.quick:
        options.sizes, options.lengths, options.batch_tokens, options.eager = ["tiny"], [32], 128, True
    return options


class Field:
    """The contestants of one table: those that run, the memory of each, and why the others do not run."""

    def __init__(self, device: str):
        self.device = device
        self.works: dict[str, Work] = {}
        self.memory: dict[str, int | None] = {}
        self.notes: list[str] = []

    def add(self, name: str, make: Callable[[], Work]) -> None:
        """Make a contestant and run it twice; one that fails is noted with the reason."""
        on_card = self.device.startswith("cuda")
        gc.collect()
        if on_card:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if on_card else 0
        try:
            work = make()
            work.run()
            work.run()
        # Out of memory, or a failing compiler: the other rows are still worth having.
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.notes.append(f"{name}: left out, {type(error).__name__}: {reason[:200]}.")
            return
        self.works[name] = work
        self.memory[name] = torch.cuda.max_memory_allocated() - before if on_card else None

    def table(self, title: str, measured: Sequence[Rate], ours: str) -> dict[str, Any]:
        """The rates with the memory of each."""
        made = measure.rate_table(title, measured, ours)
        for row in made["rows"]:
            memory = self.memory.get(row["name"])
            row["memory_gb"] = None if memory is None else memory / 1e9
        made["columns"].append(["memory_gb", "memory, GB", "{:.1f}"])
        return made


def top_kernels(title: str, run: Callable[[], object], device: str) -> dict[str, Any]:
    """Where the time of a run goes on the device: the ten kernels (on a CPU: operations) that take most."""
    on_card = device.startswith("cuda")
    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU] if on_card else [ProfilerActivity.CPU]
    with profile(activities=activities, acc_events=True) as profiler:
        for _ in range(_PROFILED_RUNS):
            run()
        if on_card:
            torch.cuda.synchronize()
    events = profiler.key_averages()
    if on_card:
        # Kernels alone: an operator's row repeats the time of the kernels that it launches.
        events = [event for event in events if str(event.device_type).endswith("CUDA")]
    took = [(event, event.self_device_time_total if on_card else event.self_cpu_time_total) for event in events]
    total_us = sum(us for _, us in took) or 1.0
    rows = [
        {"name": event.key[:_NAME].replace("|", " "), "ms": us / 1e3 / _PROFILED_RUNS, "share": us / total_us,
         "calls": event.count // _PROFILED_RUNS}
        for event, us in sorted(took, key=lambda pair: -pair[1])[:_TOP]
    ]  # fmt: skip
    return measure.table(title, KERNEL_COLUMNS, rows)
