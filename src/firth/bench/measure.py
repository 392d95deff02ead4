"""Time alternatives fairly: interleaved measurements, the machine's peak, and facts about the machine.

Absolute times on a shared CPU mean little from one hour to the next; ratios, and shares of a peak that was measured in
the same minutes, are reliable. Nothing here imports a system, so that a machine with little installed can measure.
"""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from firth.machine import has_bfloat16_units, has_fast_bfloat16
from firth.progress import Progress
from firth.workers import cpu_count

# A product of BERT-base: 4096 tokens through the first matrix of the feed-forward layer.
PRODUCT = (4096, 768, 3072)
# A GPU needs more work at once to be busy.
CARD_PRODUCT = (8192, 8192, 8192)
_PRODUCTS_AT_ONCE = 4
MATRIX = "matrix product, "
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


@dataclass(frozen=True, slots=True)
class Spread:
    """The seconds of repeated measurements."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def least(self) -> float:
        return min(self.seconds)

    @property
    def most(self) -> float:
        return max(self.seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """A contender to time: ``run()`` runs it once. ``tokens``: how many it reads; ``flops``: the model's operations."""

    run: Callable[[], object]
    tokens: int = 0
    flops: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """The speed of some work. ``share``: of peak, the fastest matrix product of the same run."""

    name: str
    spread: Spread
    tokens_per_s: float | None
    flops_per_s: float | None
    share: float | None

    def facts(self) -> dict[str, Any]:
        """Convert to plain data."""
        s = self.spread
        return {
            "name": self.name,
            "tokens_per_s": self.tokens_per_s,
            "flops_per_s": self.flops_per_s,
            "share": self.share,
            "seconds": s.median,
            "least_s": s.least,
            "most_s": s.most,
            "all_s": list(s.seconds),
        }


def in_turn(
    contestants: Mapping[str, Callable[[], object]], repeats: int = 5, *, device: str = "cpu"
) -> dict[str, Spread]:
    """Time each contender ``repeats`` times, one after the other in each round, after one untimed run each."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    with Progress("measuring", (repeats + 1) * len(contestants), "runs") as progress:
        for number in range(repeats + 1):
            for name, run in contestants.items():
                _settle(device)
                started_at_s = time.perf_counter()
                run()
                _settle(device)
                if number:
                    seconds[name].append(time.perf_counter() - started_at_s)
                progress.advance(1, name)
    return {name: Spread(tuple(values)) for name, values in seconds.items()}


def _settle(device: str) -> None:
    """Wait for a GPU's queued work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def rates(works: Mapping[str, Work], repeats: int = 5, *, device: str = "cpu") -> list[Rate]:
    """Time works in turn, together with the machine's matrix products."""
    every = {**matrix_products(device), **works}
    spreads = in_turn({name: work.run for name, work in every.items()}, repeats, device=device)
    limit = max(work.flops / spreads[name].median for name, work in every.items() if name.startswith(MATRIX))
    return [_rate(name, work, spreads[name], limit) for name, work in every.items()]


def _rate(name: str, work: Work, spread: Spread, limit: float) -> Rate:
    flops_per_s = work.flops / spread.median if work.flops else None
    return Rate(
        name=name,
        spread=spread,
        tokens_per_s=work.tokens / spread.median if work.tokens else None,
        flops_per_s=flops_per_s,
        share=None if flops_per_s is None else flops_per_s / limit,
    )


def matrix_products(device: str = "cpu") -> dict[str, Work]:
    """The work that measures the peak: products of two large matrices, in each dtype that the hardware supports."""
    on_card = device.startswith("cuda")
    dtypes = [torch.float32]
    if has_bfloat16_units(torch.device(device)) if on_card else has_fast_bfloat16():
        dtypes.append(torch.bfloat16)
    shape = CARD_PRODUCT if on_card else PRODUCT
    return {f"{MATRIX}{str(dtype).removeprefix('torch.')}": _product(shape, dtype, device) for dtype in dtypes}


def _product(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> Work:
    rows, inner, columns = shape
    x = torch.randn(rows, inner, device=device).to(dtype)
    weight = torch.randn(columns, inner, device=device).to(dtype)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(_PRODUCTS_AT_ONCE):
            F.linear(x, weight)

    return Work(run, flops=2.0 * rows * inner * columns * _PRODUCTS_AT_ONCE)


def machine_facts(device: str = "cpu") -> dict[str, Any]:
    """Facts about the machine that figures depend on. ``load``: average over the last minute."""
    name, flags = _processor()
    return {
        "processor": name,
        "flags": [flag for flag in _FLAGS if flag in flags],
        "cores": cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None,
        "card": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "firth": version_of("firth"),
        "waiting": os.environ.get("OMP_WAIT_POLICY"),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> tuple[str, set[str]]:
    """The CPU's name and instruction sets, as far as the system reports them."""
    found: dict[str, str] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or platform.processor() or platform.machine()
    return name, set(found.get("flags", found.get("Features", "")).split())
