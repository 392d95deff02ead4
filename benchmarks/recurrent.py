"""The BiLSTM on a CPU: rows in rectangles, few wide ones or many narrow ones.

.venv/bin/python benchmarks/recurrent.py

The package's constant (``firth.layers.recurrent._STEP_ROWS``) is chosen from these results. Also compared: PyTorch's
``nn.LSTM`` as users run it: padded, then packed by ``pack_padded_sequence``, which runs step by step.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
from torch import Tensor, nn

from firth.bench.measure import in_turn
from firth.layers import recurrent
from firth.layers.recurrent import BiRNN
from firth.machine import has_fast_bfloat16
from firth.packed import Rows, like_lengths, to_padded

WIDTH, LAYERS = 256, 2
COLUMNS: measure.Columns = (
    ("name", "sequences", "{}"),
    ("dtype", "type", "{}"),
    ("form", "form", "{}"),
    ("slots", "slots a token", "{:.2f}"),
    ("tokens_per_s", "tokens/s, forward and backward", "{:,.0f}"),
)
KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "32 of 64": lambda rng: np.full(32, 64),
    "16 windows of documents": lambda rng: np.clip(rng.normal(100, 35, 16), 10, 128).astype(int),
    "6 sentences": lambda rng: np.clip(rng.lognormal(2.9, 0.5, 6), 4, 64).astype(int),
    "64 sentences": lambda rng: np.clip(rng.lognormal(2.9, 0.4, 64), 4, 64).astype(int),
    "32 reviews": lambda rng: np.clip(rng.lognormal(2.2, 0.8, 32), 2, 50).astype(int),
}
PADDED = "nn.LSTM, padded and packed"


def with_steps_of(n_rows: float, layer: BiRNN) -> Callable[[Tensor, Rows], Tensor]:
    """The layer, with the optimal rectangles if a step costs this many rows; infinity: one rectangle."""

    def run(x: Tensor, rows: Rows) -> Tensor:
        before, recurrent._STEP_ROWS = recurrent._STEP_ROWS, n_rows
        try:
            return layer(x, rows)
        finally:
            recurrent._STEP_ROWS = before

    return run


def step(form: Callable[[Tensor, Rows], Tensor], x: Tensor, rows: Rows, dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        out = form(x, rows)
    out.float().sum().backward()


def as_users_run_it(layer: BiRNN) -> Callable[[Tensor, Rows], Tensor]:
    """The same weights in one nn.LSTM."""
    first = layer.layers[0]
    assert isinstance(first, nn.LSTM)
    whole = nn.LSTM(first.input_size, WIDTH, LAYERS, bidirectional=True, batch_first=True)
    state = {
        name.replace("_l0", f"_l{number}"): value
        for number, part in enumerate(layer.layers)
        for name, value in part.state_dict().items()
    }
    whole.load_state_dict(state)

    def run(x: Tensor, rows: Rows) -> Tensor:
        padded, mask = to_padded(x, rows)
        packed = nn.utils.rnn.pack_padded_sequence(padded, rows.lengths, batch_first=True, enforce_sorted=False)
        out, _ = nn.utils.rnn.pad_packed_sequence(whole(packed)[0], batch_first=True)
        return out[mask]

    return run


def compared(kind: str, dtype: torch.dtype, options: Namespace) -> tuple[list[Any], dict[str, Any]]:
    """The rows of the table for one kind of rows, and the differences between the forms."""
    lengths = KINDS[kind](np.random.default_rng(0))[: 2 if options.quick else None]
    rows = Rows.from_lengths(lengths)
    torch.manual_seed(0)
    layer, x = BiRNN(WIDTH, WIDTH, LAYERS, 0.0), torch.randn(rows.n_tokens, WIDTH)
    chosen = recurrent._STEP_ROWS
    steps = {f"rectangles, {n:g} rows": n for n in (1.0, chosen, 32.0)} | {"one rectangle": np.inf}
    forms = {name: with_steps_of(n, layer) for name, n in steps.items()} | {PADDED: as_users_run_it(layer)}
    outs = [form(x, rows) for form in forms.values()]
    difference = max(float((out - outs[0]).detach().abs().max()) for out in outs)
    spreads = in_turn({name: partial(step, form, x, rows, dtype) for name, form in forms.items()}, options.repeats)
    slots = {
        name: sum(len(group) * lengths[group].max() for group in like_lengths(lengths, lengths, n * lengths))
        / rows.n_tokens
        for name, n in steps.items()
    }
    table = [
        {"name": kind, "dtype": str(dtype).removeprefix("torch."), "form": name, "slots": slots.get(name),
         "tokens_per_s": rows.n_tokens / spreads[name].median}
        for name in forms
    ]  # fmt: skip
    return table, {"what": f"{kind}: the forms", "difference": difference, "tolerance": 1e-5}


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    types = [torch.float32, torch.bfloat16] if has_fast_bfloat16() else [torch.float32]
    rows, checks = list[Any](), []
    for kind in KINDS:
        for dtype in types:
            found, check = compared(kind, dtype, options)
            rows += found
        checks.append(check)
    return measure.write(
        "recurrent",
        title="Forms of the BiLSTM on a CPU",
        target="",
        about=f"{LAYERS} layers, {WIDTH} wide in each direction, over vectors as wide as a layer of BERT-mini; one "
        "forward and backward. The rectangles are the best ones if a step costs so many sequences besides its own; "
        f"slots a token: what they hold. The package counts {recurrent._STEP_ROWS:g}.",
        arguments=options,
        settings={"width": WIDTH, "layers": LAYERS},
        checks=checks,
        tables=[measure.table("Two layers, both directions", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
