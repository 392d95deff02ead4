"""Recurrent layers over packed sequences: those of similar length share a rectangle for PyTorch's kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.dropout import Dropout
from firth.packed import Carry, Plan, Rows, like_lengths, plan_groups

# Fixed cost of a step, in sequences: decides when a further rectangle pays off.
# Source: benchmarks/recurrent.py, on a CPU. On a GPU all sequences run at once; not measured there.
_STEP_ROWS = 8.0

Cell = Literal["lstm", "gru"]
State = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class CarriedState:
    """The state of recurrent layers after some sequences, for generation; ``axis``: their dimension in each tensor."""

    carry: Carry
    axis: int

    def select(self, chosen: Int[Tensor, " R"]) -> "CarriedState":
        """Select sequences in the given order; one may be taken several times."""
        return CarriedState({name: x.index_select(self.axis, chosen) for name, x in self.carry.items()}, self.axis)


@dataclass(frozen=True, slots=True)
class Rectangles:
    """The rectangles of a batch: ``plan``, and the sequence indices of each."""

    plan: Plan
    rows: tuple[Int[Tensor, " _"], ...]


def rectangles(rows: Rows) -> Rectangles:
    """Choose the rectangles with the fewest slots, counting each step as ``_STEP_ROWS`` more; on a GPU, one for all."""
    if rows.offsets.device.type != "cpu":
        return one_rectangle(rows)
    lengths = rows.lengths.numpy()
    groups = like_lengths(lengths, lengths, _STEP_ROWS * lengths)
    return Rectangles(plan_groups(lengths, groups), tuple(map(torch.from_numpy, groups)))


def one_rectangle(rows: Rows) -> Rectangles:
    """One rectangle for all sequences, planned on their device: reading their lengths would wait for a GPU."""
    n_rows, longest, device = rows.n_rows, rows.longest, rows.offsets.device
    lengths, n_slots = rows.lengths.long(), n_rows * longest
    columns = torch.arange(longest, device=device).minimum(lengths[:, None] - 1)
    gather, scatter = rows.first[:, None] + columns, rows.row_of_token() * longest + rows.positions
    filled = n_slots == rows.n_tokens
    sizes = torch.tensor([(n_rows, n_slots, filled), (n_rows, longest, not filled)], dtype=torch.int64)
    flat = torch.cat([lengths, gather.flatten(), scatter])
    return Rectangles(Plan(flat=flat, sizes=sizes), (torch.arange(n_rows, device=device),))


def run_over(
    x: Float[Tensor, "T width_in"],
    weights: Sequence[Tensor],
    cell: Cell,
    across: Rectangles,
    start: State | None = None,
) -> tuple[Float[Tensor, "T width"], State | None]:
    """Run one layer in one direction with PyTorch's kernel and its four ``weights``.

    ``start``, and the state after the last tokens: of an LSTM, (B, width) each. ``start`` may be None, for zeros;
    the final state is None unless all sequences have one length.
    """
    plan, learns, flat = across.plan, torch.is_grad_enabled(), tuple(weights)
    slots = x if plan.in_order else x.index_select(0, plan.gather)
    outputs, ends = list[Tensor](), list[Tensor]()
    sizes = [(n_rows, longest) for n_rows, longest, _ in plan.groups.tolist()]
    for (n_rows, longest), rows, part in zip(sizes, across.rows, slots.split([n * m for n, m in sizes]), strict=True):
        steps = part.unflatten(0, (n_rows, longest))
        zeros = x.new_zeros(1, n_rows, weights[1].shape[1])
        if cell == "lstm":
            begin = [zeros, zeros] if start is None else [state.index_select(0, rows)[None] for state in start]
            out, *ends = torch.lstm(steps, begin, flat, True, 1, 0.0, learns, False, True)
        else:
            out = torch.gru(steps, zeros, flat, True, 1, 0.0, learns, False, True)[0]
        outputs.append(out.flatten(0, 1))
    found = torch.cat(outputs)
    # One rectangle without padding: all sequences ended.
    state = (ends[0][0], ends[1][0]) if ends and plan.in_order and len(sizes) == 1 else None
    return found if plan.in_order else found.index_select(0, plan.scatter), state


def by_time(rows: Rows) -> tuple[Int[Tensor, " T"], Int[Tensor, " S"]]:
    """The order in which a recurrence reads tokens, and the number of sequences at each step.

    All first tokens come first, longest sequence first, then the second tokens, and so on: step t has the first
    ``sizes[t]`` sequences. ``order`` is on the device of ``rows``, ``sizes`` on the host.
    """
    lengths, longest_first = rows.lengths.cpu().long().sort(descending=True, stable=True)
    steps = torch.arange(int(lengths[0]))
    sizes = (lengths > steps[:, None]).sum(1)
    step_of_token = steps.repeat_interleave(sizes)
    row_of_token = torch.arange(rows.n_tokens) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    begins = rows.first.cpu().long().index_select(0, longest_first)
    return (begins.index_select(0, row_of_token) + step_of_token).to(rows.offsets.device), sizes


class BiRNN(nn.Module):
    """Bidirectional recurrent layers; the output is [forward ; backward] of the top layer.

    Source: Peters et al. 2017, §2.1 (two layers below a tagger); Devlin et al. 2018, §5.3 (on frozen
    layers). ``width`` is of one direction. Dropout applies to the input of each layer, independently for each word,
    not to recurrent connections or the output. Initialisation: recurrent matrices orthogonal and input
    matrices Glorot-uniform, per gate; biases 0, 1 for an LSTM's forget gate.
    """

    def __init__(self, width_in: int, width: int, n_layers: int, dropout: float, cell: Cell = "lstm"):
        super().__init__()
        self.dropout = Dropout(dropout)
        make = nn.LSTM if cell == "lstm" else nn.GRU
        self.layers = nn.ModuleList(
            make(width_in if number == 0 else 2 * width, width, bidirectional=True) for number in range(n_layers)
        )
        for name, parameter in self.named_parameters():
            initialise_gates(name, parameter.data, cell)

    def forward(self, x: Float[Tensor, "W H"], rows: Rows) -> Float[Tensor, "W width"]:
        if len(x) != rows.n_tokens:
            raise ValueError(f"{len(x)} vectors for sequences of {rows.n_tokens} words")
        across = rectangles(rows)
        # The backward direction runs left to right over reversed sequences, so that padding follows the tokens.
        turned = rows.turned()
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM | nn.GRU)
            cell: Cell = "lstm" if isinstance(layer, nn.LSTM) else "gru"
            x = self.dropout(x)
            ahead, back = layer.all_weights
            behind = run_over(x.index_select(0, turned), back, cell, across)[0].index_select(0, turned)
            x = torch.cat([run_over(x, ahead, cell, across)[0], behind], 1)
        return x


def initialise_gates(name: str, values: Tensor, cell: Cell) -> None:
    """Initialise a parameter of PyTorch's recurrent layers, by its name there."""
    gates = values.chunk(4 if cell == "lstm" else 3)  # input, forget, cell, output; reset, update, new
    if "weight" in name:
        for gate in gates:
            (nn.init.orthogonal_ if "_hh_" in name else nn.init.xavier_uniform_)(gate)
        return
    values.zero_()
    if cell == "lstm" and "_ih_" in name:  # PyTorch adds two biases
        gates[1].fill_(1)
