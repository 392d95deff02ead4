"""Activation functions by name.

``gelu`` is the exact (erf) form, ``gelu_tanh`` the tanh approximation of BERT's last public code and
of GPT; they differ by up to 5e-4 per call, which shifts logits (specification: BERT, GELU).
"""

import functools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": F.tanh,
    "linear": _identity,
}
