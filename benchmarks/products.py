"""The matrix products of an encoder's layers by number of rows, with weights that come from memory.

.venv/bin/python benchmarks/products.py

The forms: PyTorch's layer, and those of ``firth.inference.fast`` in each precision of this CPU. The choice of
``--precision auto`` without bfloat16 units is based on these results.
"""

import copy
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
import torch
from torch import nn

from firth.bench.measure import in_turn
from firth.inference.fast import HalfLinear, Int8Linear, PackedLinear
from firth.machine import has_fast_bfloat16

N_LAYERS, WIDTH = 12, 768
# Inputs and outputs of one layer's products, in multiples of the hidden size.
SHAPES = ((1, 3), (1, 1), (1, 4), (4, 1))
ROWS = (8, 24, 28, 64, 256, 1024)


def forms() -> Mapping[str, Callable[[nn.Linear], nn.Module]]:
    found: dict[str, Callable[[nn.Linear], nn.Module]] = {
        "float32, PyTorch's layer": lambda linear: linear,
        "float32, packed (oneDNN)": PackedLinear,
        "int8 (oneDNN)": Int8Linear,
    }
    if "AVX" in torch.backends.cpu.get_cpu_capability():
        found["float16 weights (FBGEMM)"] = HalfLinear
    if has_fast_bfloat16():
        found["bfloat16, packed (oneDNN)"] = lambda linear: PackedLinear(copy.deepcopy(linear).bfloat16())
    return found


def compared(n_layers: int, width: int, options: Namespace) -> list[dict[str, Any]]:
    """A row of the table for each form: milliseconds of all layers at each number of rows."""
    torch.manual_seed(0)
    linears = [nn.Linear(a * width, b * width) for _ in range(n_layers) for a, b in SHAPES]
    layers = {name: [make(linear) for linear in linears] for name, make in forms().items()}
    table: dict[str, dict[str, Any]] = {name: {"name": name} for name in layers}
    for n in ROWS:
        inputs = [torch.randn(n, linear.in_features) for linear in linears[: len(SHAPES)]]

        def run(some: Sequence[nn.Module], inputs: Sequence[torch.Tensor] = inputs) -> None:
            with torch.inference_mode():
                for number, layer in enumerate(some):
                    layer(inputs[number % len(inputs)])

        works = {name: (lambda some=some: run(some)) for name, some in layers.items()}  # type: ignore[misc]  # bound
        for name, spread in in_turn(works, options.repeats).items():
            table[name][str(n)] = 1e3 * spread.median
    return list(table.values())


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    n_layers, width = (2, 32) if options.quick else (N_LAYERS, WIDTH)
    columns: measure.Columns = (("name", "", "{}"), *((str(n), f"{n:,} rows", "{:.1f}") for n in ROWS))
    return measure.write(
        f"products{'' if has_fast_bfloat16() else '-float32'}",
        title=f"Products of an encoder's layers{'' if has_fast_bfloat16() else ', a CPU without bfloat16'}",
        target="",
        about=f"{n_layers} layers of width {width}, four products each (of query, key and value; after attention; and "
        "the two of the feed-forward part), one after the other, so that weights come from memory. Milliseconds of "
        "all of them.",
        arguments=options,
        settings={"layers": n_layers, "width": width},
        checks=[],
        tables=[measure.table("By number of rows", columns, compared(n_layers, width, options))],
    )


if __name__ == "__main__":
    main()
