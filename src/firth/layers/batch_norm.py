"""Batch normalisation of vectors, such as those that stand for the texts of a batch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Share of the newest batch in the running statistics, and what is added to a variance: PyTorch's and fastai's.
_NEWEST, _EPSILON = 0.1, 1e-5


class BatchNorm(nn.Module):
    """Each feature brought to mean 0 and variance 1 over N vectors, then a learned gain and shift.

    Source: Ioffe & Szegedy 2015; outputs and gradients are those of PyTorch's BatchNorm1d. In training the statistics
    are those of the vectors of one call, so of a micro-batch, and move the running ones; outside of training the
    running ones are used. A vector that is alone has no variance: it is read by the running statistics in training
    too, and does not move them (PyTorch refuses it).
    Differs: of the first ten batches the running statistics are the mean, where PyTorch's hold a part of the mean 0
    and variance 1 that they begin with. States of an LSTM vary far less than that, and it takes a hundred steps to
    forget it: more than a fine-tuning on few labels has.
    """

    running_mean: Tensor
    running_var: Tensor
    n_batches: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("n_batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Float[Tensor, "N width"]) -> Float[Tensor, "N width"]:
        x = x.to(self.weight.dtype)  # means over a batch are not for 16 bits
        if not self.training or len(x) == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=_EPSILON)
        self._track(x.detach())
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=_EPSILON)

    def _track(self, x: Tensor) -> None:
        self.n_batches += 1
        share = self.n_batches.to(x.dtype).reciprocal().clamp(min=_NEWEST)
        variance, mean = torch.var_mean(x, 0)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
