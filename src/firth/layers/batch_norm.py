"""Batch normalisation of vectors, such as the text vectors of a batch."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Momentum of the running statistics, and the epsilon added to a variance: those of PyTorch and fastai.
_NEWEST, _EPSILON = 0.1, 1e-5


class BatchNorm(nn.Module):
    """Normalises each feature to mean 0 and variance 1 over N vectors, then applies a learned gain and shift.

    Source: Ioffe & Szegedy 2015; outputs and gradients are those of PyTorch's BatchNorm1d. In training the statistics
    are those of one call, i.e. of a micro-batch, and update the running ones; otherwise the running ones are used. A
    single vector has no variance: it uses the running statistics in training too, and does not update them (PyTorch
    refuses it). Differs: over the first ten batches the running statistics are a plain mean, where PyTorch's still
    contain the initial mean 0 and variance 1. LSTM states vary far less than that, and forgetting it takes a hundred
    steps: more than fine-tuning on few labels has.
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
        x = x.to(self.weight.dtype)  # batch means need more than 16 bits
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
