"""An LSTM with output projection and clipping, over packed sequences.

Source: allenai/bilm-tf model.py and TensorFlow's LSTMCell; Sak et al. 2014 for the projection.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.machine import compute_dtype

State = tuple[Float[Tensor, "B P"], Float[Tensor, "B C"]]


class ProjectedLSTM(nn.Module):
    """One layer in one direction, over tokens in the order of ``layers.recurrent.by_time``.

    ``c = clip(σ(f + 1) · c' + σ(i) · tanh(g))``, ``h = clip((σ(o) · tanh(c)) P)``: no peepholes, no projection
    bias; 0 disables a clip. The 1 on the forget gate is added here, not stored, so that published weights
    round-trip bit for bit. Gates are in PyTorch's order: i, f, g, o.

    With clipping no fused kernel applies: a loop over time runs the unfinished sequences, and the products of all
    inputs are computed before it. Without clipping PyTorch's own loop runs, which is no faster on a CPU.
    Initialisation: Glorot-uniform (TensorFlow's default), biases 0.
    """

    def __init__(self, *, width_in: int, cells: int, width: int, cell_clip: float, projection_clip: float):
        super().__init__()
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.weight_ih = nn.Parameter(torch.empty(4 * cells, width_in))
        self.weight_hh = nn.Parameter(torch.empty(4 * cells, width))
        self.bias = nn.Parameter(torch.zeros(4 * cells))
        self.weight_hr = nn.Parameter(torch.empty(width, cells))
        # TensorFlow has one matrix over input and state, so both parts are initialised alike.
        bound = math.sqrt(6 / (width_in + width + 4 * cells))
        for weight in (self.weight_ih, self.weight_hh):
            nn.init.uniform_(weight, -bound, bound)
        nn.init.xavier_uniform_(self.weight_hr)

    def forward(
        self, x: Float[Tensor, "T H"], sizes: Int[Tensor, " S"], start: State
    ) -> tuple[Float[Tensor, "T P"], State]:
        """``sizes``: number of sequences at each step (on the host); ``start``: initial states, in that order.

        Returns the outputs, and the state after each sequence's last token, in the order of ``start``.
        """
        if self.cell_clip or self.projection_clip:
            return self._clipped(x, sizes, start)
        bias, none = self._bias(), torch.zeros_like(self.bias)
        weights = [self.weight_ih, self.weight_hh, bias, none, self.weight_hr]
        before = (start[0][None], start[1][None])
        out, hidden, cell = torch.lstm(x, sizes, before, weights, True, 1, 0.0, self.training, False)
        return out, (hidden[0], cell[0])

    def _bias(self) -> Float[Tensor, " _"]:
        i, f, g, o = self.bias.chunk(4)
        return torch.cat([i, f + 1, g, o])

    def _clipped(self, x: Tensor, sizes: Tensor, start: State) -> tuple[Tensor, State]:
        (hidden, cell), dtype = start, compute_dtype(x)
        outputs, ended = [], []
        # Cast once for all steps; autocast would cast at each.
        recurrent, projection = self.weight_hh.to(dtype), self.weight_hr.to(dtype)
        inputs = F.linear(x, self.weight_ih, self._bias())
        for gates in inputs.split(sizes.tolist()):
            if len(gates) < len(hidden):
                ended.append((hidden[len(gates) :], cell[len(gates) :]))
                hidden, cell = hidden[: len(gates)], cell[: len(gates)]
            i, f, g, o = (gates + F.linear(hidden, recurrent)).chunk(4, 1)
            cell = _clip(f.sigmoid() * cell + i.sigmoid() * g.tanh(), self.cell_clip)
            hidden = _clip(F.linear(o.sigmoid() * cell.tanh(), projection), self.projection_clip)
            outputs.append(hidden)
        # The shortest sequences end first and come last.
        hiddens, cells = zip((hidden, cell), *reversed(ended), strict=True)
        return torch.cat(outputs), (torch.cat(hiddens), torch.cat(cells))


def _clip(x: Tensor, most: float) -> Tensor:
    return x.clamp(-most, most) if most else x
