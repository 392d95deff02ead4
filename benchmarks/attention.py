"""Attention on a CPU: the fastest implementation for each kind of rows, forward and backward.

.venv/bin/python benchmarks/attention.py

The forms: the fused kernel, or two products around a softmax written out; on groups of rows of one length, of lengths
that round up to the same multiple (with a key mask), or on one padded rectangle; and as the package groups them. The
package's constants (``firth.layers.attention._FUSED_FROM``, ``firth.packed.RECTANGLE_COST``, ``SLOT_COST``,
``SHORT_ROW`` and ``GROUP_MULTIPLE``) are chosen from these results.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch

from firth import packed
from firth.bench.measure import in_turn
from firth.layers import attention
from firth.machine import has_fast_bfloat16
from firth.packed import Rows

HEADS, FEW_HEADS, WIDTH = 12, 4, 64
# Tokens in all rows of a table, and in one micro-batch of fine-tuning.
TOKENS, FEW_TOKENS = 4096, 640
SENTENCES = "review sentences, about 25"
NEVER = 2**31
ONE_RECTANGLE = 2**20
AS_IT_IS = 0
MULTIPLES = {"one length": 1, "multiple of 8": 8, "multiple of 16": 16, "multiple of 32": 32, "padded": ONE_RECTANGLE}
MULTIPLES |= {"least cost": AS_IT_IS}
BEFORE = packed.SHORT_ROW, packed.GROUP_MULTIPLE, attention._BFLOAT16_FROM
COLUMNS: measure.Columns = (
    ("name", "sequences", "{}"),
    ("dtype", "type", "{}"),
    ("form", "form", "{}"),
    ("forward_ms", "forward, ms", "{:.1f}"),
    ("both_ms", "forward and backward, ms", "{:.1f}"),
)


def lengths_of(kind: str, tokens: int) -> np.ndarray:
    """Row lengths that sum to about ``tokens``."""
    rng = np.random.default_rng(0)
    draw: dict[str, Callable[[], int]] = {
        "about 10": lambda: int(rng.integers(5, 16)),
        SENTENCES: lambda: int(np.clip(rng.lognormal(3.1, 0.5), 4, 64)),
        "paragraphs, about 160": lambda: int(np.clip(rng.normal(160, 50), 60, 384)),
        **{f"all {n}": (lambda n=n: n) for n in (16, 32, 64, 128, 256, 512)},  # type: ignore[misc]  # bound at once
    }
    found: list[int] = []
    while sum(found) < tokens:
        found.append(draw[kind]())
    return np.array(found)


def work(
    lengths: np.ndarray, dtype: torch.dtype, heads: int, *, multiple: int, fused: bool, backward: bool
) -> Callable[[], None]:
    """One call (and its backward pass) on rows in the given layout and implementation."""
    packed.SHORT_ROW, packed.GROUP_MULTIPLE = BEFORE[:2] if multiple == AS_IT_IS else (0, multiple)
    rows = Rows.from_lengths(lengths)
    torch.manual_seed(0)
    joint = torch.randn(rows.n_tokens, 3, heads, WIDTH, dtype=dtype, requires_grad=backward)
    grad = torch.randn(rows.n_tokens, heads, WIDTH, dtype=dtype)
    seed = torch.zeros(1, dtype=torch.int64)

    def run() -> None:
        # Each form in the requested dtype, at every length.
        attention._BFLOAT16_FROM = 1
        attention._FUSED_FROM[dtype] = (1, 1) if fused else (NEVER, NEVER)
        out = attention.attend(*joint.unbind(1), rows, rows, causal=False, dropout=0.0, seed=seed)
        if backward:
            out.backward(grad)
            joint.grad = None

    return run


def compared(
    kind: str,
    dtype: torch.dtype,
    forms: dict[str, tuple[int, bool]],
    options: Namespace,
    *,
    tokens: int = TOKENS,
    heads: int = HEADS,
) -> list[Any]:
    """A table's rows: each form on rows of one kind."""
    lengths = lengths_of(kind, 256 if options.quick else tokens)
    spreads = {}
    for backward in (False, True):
        works = {
            name: work(lengths, dtype, heads, multiple=multiple, fused=fused, backward=backward)
            for name, (multiple, fused) in forms.items()
        }
        spreads[backward] = in_turn(works, options.repeats)
    return [
        {"name": kind, "dtype": str(dtype).removeprefix("torch."), "form": name,
         "forward_ms": 1e3 * spreads[False][name].median, "both_ms": 1e3 * spreads[True][name].median}
        for name in forms
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    types = [torch.bfloat16, torch.float32] if has_fast_bfloat16() else [torch.float32]
    kinds = ("about 10", SENTENCES, "paragraphs, about 160")
    equal = ("all 16", "all 64") if options.quick else tuple(f"all {n}" for n in (16, 32, 64, 128, 256, 512))
    fused_from = dict(attention._FUSED_FROM)
    try:
        kernels, layouts, few = [], [], []
        for dtype in types:
            for kind in equal:
                kernels += compared(kind, dtype, {"fused": (1, True), "written out": (1, False)}, options)
            forms = {name: (multiple, dtype == torch.float32) for name, multiple in MULTIPLES.items()}
            for kind in kinds:
                layouts += compared(kind, dtype, forms, options)
            # Written out, as in training with dropout.
            written_out = {name: (multiple, False) for name, (multiple, _) in forms.items()}
            few += compared(SENTENCES, dtype, written_out, options, tokens=FEW_TOKENS, heads=FEW_HEADS)
    finally:
        packed.SHORT_ROW, packed.GROUP_MULTIPLE, attention._BFLOAT16_FROM = BEFORE
        attention._FUSED_FROM.update(fused_from)
    return measure.write(
        f"attention{'' if has_fast_bfloat16() else '-float32'}",
        title=f"Forms of attention on a CPU{'' if has_fast_bfloat16() else ' without bfloat16'}",
        target="",
        about=f"About {TOKENS:,} tokens, {HEADS} heads of {WIDTH}, no dropout; last about {FEW_TOKENS} tokens, "
        f"{FEW_HEADS} heads, written out. The layouts are compared with the kernel "
        "that is faster at their lengths (bfloat16: written out; float32: fused). Copies into rectangles and out of "
        "them are inside the timing.",
        arguments=options,
        settings={"heads": HEADS, "width": WIDTH},
        checks=[],
        tables=[
            measure.table("Kernels, sequences of one length", COLUMNS, kernels),
            measure.table("Layouts, sequences of several lengths", COLUMNS, layouts),
            measure.table("Layouts, a small model's micro-batch", COLUMNS, few),
        ],
    )


if __name__ == "__main__":
    main()
