"""The optimizer state of a whole model, as a checkpoint stores and restores it."""

import torch
from torch import Tensor, nn

from firth.training.optim import check_state, load_state, state_tensors


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return state_tensors(dict(model.named_parameters()), optimizer)


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    params = dict(model.named_parameters())
    check_state(params, optimizer, tensors)
    load_state(params, optimizer, tensors)
