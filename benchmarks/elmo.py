"""The LSTMs of ELMo on a CPU, both directions: forward alone, and forward with backward.

.venv/bin/python benchmarks/elmo.py

No maintained library has this cell: it clips between one product and the next, where fused kernels allow no changes.
So the baseline is written here: time step by time step over padded rows, one product over a word and the previous
state, as TensorFlow's cell computes it. Also compared: PyTorch's ``nn.LSTM`` with a projection, which does not clip.
"""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firth.bench.measure import in_turn
from firth.models.bilm import Direction
from firth.models.config import BilmConfig
from firth.packed import Rows, to_padded

SIZES = {"tiny": (8, 12), "elmo-mini": (128, 512), "elmo-small": (128, 1024), "elmo": (512, 4096)}
KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "a stream, 32 sequences of 20": lambda rng: np.full(32, 20),
    "32 sentences, about 19 words": lambda rng: np.clip(rng.lognormal(2.9, 0.4, 32), 4, 64).astype(int),
}
COLUMNS: measure.Columns = (
    ("name", "size", "{}"),
    ("rows", "sequences", "{}"),
    ("form", "form", "{}"),
    ("forward", "tokens/s, forward", "{:,.0f}"),
    ("both", "tokens/s, forward and backward", "{:,.0f}"),
)
Form = Callable[[Tensor, Rows], Tensor]


def packed(directions: Sequence[Direction]) -> Form:
    """The package's own computation."""

    def run(x: Tensor, rows: Rows) -> Tensor:
        turned = rows.turned()
        layers = directions[0].layers
        state = [x.new_zeros(len(layers), rows.n_rows, size) for size in layers[0].weight_hr.shape]
        ahead, back = (d(given, rows, *state)[0][-1] for d, given in zip(directions, (x, x[turned]), strict=True))
        return torch.cat([ahead, back[turned]], 1)

    return run


def step_by_step(directions: Sequence[Direction]) -> Form:
    """One product per step over [word ; state], for all rows, including those that have ended."""

    def layer(own: Any, x: Tensor, mask: Tensor) -> Tensor:
        weight, bias = torch.cat([own.weight_ih, own.weight_hh], 1), own._bias()
        hidden = x.new_zeros(len(x), len(own.weight_hr))
        cell = x.new_zeros(len(x), own.weight_hr.shape[1])
        outputs = []
        for word, there in zip(x.unbind(1), mask.unbind(1), strict=True):
            i, f, g, o = F.linear(torch.cat([word, hidden], 1), weight, bias).chunk(4, 1)
            new = (f.sigmoid() * cell + i.sigmoid() * g.tanh()).clamp(-own.cell_clip, own.cell_clip)
            out = F.linear(o.sigmoid() * new.tanh(), own.weight_hr).clamp(-own.projection_clip, own.projection_clip)
            cell, hidden = torch.where(there[:, None], new, cell), torch.where(there[:, None], out, hidden)
            outputs.append(hidden)
        return torch.stack(outputs, 1)

    return in_rectangles(directions, layer)


def without_clips(directions: Sequence[Direction]) -> Form:
    """PyTorch's layer with a projection: its results differ wherever ours would be clipped."""
    lstms: dict[int, nn.LSTM] = {}
    for direction in directions:
        for own in direction.layers:
            width, cells = own.weight_hr.shape
            lstm = nn.LSTM(own.weight_ih.shape[1], cells, proj_size=width, batch_first=True)
            state = {"weight_ih_l0": own.weight_ih, "weight_hh_l0": own.weight_hh, "weight_hr_l0": own.weight_hr}
            state |= {"bias_ih_l0": own._bias(), "bias_hh_l0": torch.zeros_like(own.bias)}
            lstm.load_state_dict(state)
            lstms[id(own)] = lstm

    def layer(own: Any, x: Tensor, mask: Tensor) -> Tensor:
        lengths = mask.sum(1)
        given = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(lstms[id(own)](given)[0], batch_first=True)[0]

    return in_rectangles(directions, layer)


def in_rectangles(directions: Sequence[Direction], layer: Callable[[Any, Tensor, Tensor], Tensor]) -> Form:
    """Both directions over padded rows; ``layer`` maps a layer's weights, (B, S, H) and the mask to (B, S, H)."""

    def run(x: Tensor, rows: Rows) -> Tensor:
        turned = rows.turned()
        found = []
        for direction, given in zip(directions, (x, x[turned]), strict=True):
            padded, mask = to_padded(given, rows)
            for number, own in enumerate(direction.layers):
                out = layer(own, padded, mask)
                padded = out + padded if number else out
            found.append(padded[mask])
        return torch.cat([found[0], found[1][turned]], 1)

    return run


def forward(form: Form, x: Tensor, rows: Rows) -> None:
    with torch.inference_mode():
        form(x, rows)


def both(form: Form, x: Tensor, rows: Rows, parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
    form(x, rows).sum().backward()


def compared(size: str, kind: str, options: Namespace) -> tuple[list[Any], list[dict[str, Any]]]:
    """The rows of the table for one size and kind of rows, and the differences between the forms."""
    lengths = KINDS[kind](np.random.default_rng(0))[: 3 if options.quick else None]
    rows = Rows.from_lengths(lengths)
    torch.manual_seed(0)
    width, cells = SIZES[size]
    config = BilmConfig(vocab_size=2, width=width, cells=cells, dropout=0.0)
    directions = [Direction(config), Direction(config)]
    x = torch.randn(rows.n_tokens, width, requires_grad=True)
    parameters = [p for direction in directions for p in direction.parameters()]
    forms = {
        "Firth": packed(directions), "a loop over time, padded": step_by_step(directions),
        "nn.LSTM, without clips": without_clips(directions),
    }  # fmt: skip
    checks, gradients = [], {}
    for name in ("Firth", "a loop over time, padded"):
        both(forms[name], x, rows, parameters)
        gradients[name] = [p.grad for p in parameters]
    named = f"{size}, {kind}"
    with torch.no_grad():
        difference = float((forms["Firth"](x, rows) - forms["a loop over time, padded"](x, rows)).abs().max())
    checks.append(measure.check(f"{named}: outputs", difference, 1e-5))
    worst = max(float((a - b).norm() / b.norm()) for a, b in zip(*gradients.values(), strict=True))
    checks.append(measure.check(f"{named}: gradients", worst, 1e-4))
    once = in_turn({name: lambda form=form: forward(form, x, rows) for name, form in forms.items()}, options.repeats)
    twice = in_turn(
        {name: lambda form=form: both(form, x, rows, parameters) for name, form in forms.items()}, options.repeats
    )
    table = [
        {
            "name": size, "rows": kind, "form": name,
            "forward": rows.n_tokens / once[name].median, "both": rows.n_tokens / twice[name].median,
        }
        for name in forms
    ]  # fmt: skip
    return table, checks


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    rows, checks = list[Any](), list[dict[str, Any]]()
    for size in ("tiny",) if options.quick else ("elmo-mini", "elmo-small", "elmo"):
        for kind in KINDS:
            found, same = compared(size, kind, options)
            rows += found
            checks += same
    return measure.write(
        "elmo",
        title="The LSTMs of ELMo on a CPU",
        target="",
        about="Two layers in each direction, float32, no dropout; words are vectors already. The loop over time is "
        "written for this comparison, in plain PyTorch: no library that is kept has the cell with its clips.",
        arguments=options,
        settings={"sizes": SIZES},
        checks=checks,
        tables=[measure.table("Two layers, both directions", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
