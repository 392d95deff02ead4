"""Batch normalisation against PyTorch's, and a single vector, which PyTorch refuses."""

import pytest
import torch
from torch import Tensor, nn

from firth.layers.batch_norm import BatchNorm


def pair(width: int = 5) -> tuple[BatchNorm, nn.BatchNorm1d]:
    """Both modules with the same gains, shifts and running statistics."""
    torch.manual_seed(0)
    ours, theirs = BatchNorm(width).double(), nn.BatchNorm1d(width).double()
    with torch.no_grad():
        for tensor in (ours.weight, ours.bias, ours.running_mean):
            tensor.normal_()
        ours.running_var.uniform_(0.5, 2)
    state = ours.state_dict()
    theirs.load_state_dict({name.replace("n_batches", "num_batches_tracked"): t for name, t in state.items()})
    return ours, theirs


def vectors(n: int, width: int = 5) -> Tensor:
    return torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).requires_grad_()


@pytest.mark.parametrize("train", [False, True])
def test_numbers_gradients_and_running_statistics_are_pytorchs(train: bool) -> None:
    ours, theirs = (module.train(train) for module in pair())
    for number, n in enumerate((7, 2, 4, *range(5, 14)), 1):
        mine, other = vectors(n), vectors(n)
        # Over the first ten batches our running statistics are the plain mean; PyTorch's default momentum is 0.1.
        theirs.momentum = max(1 / number, 0.1)
        a, b = ours(mine), theirs(other)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        for y in (a, b):
            y.pow(3).sum().backward()
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-10)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-12)
    assert ours.n_batches == 12 * train == theirs.num_batches_tracked
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-10)


def test_one_batch_is_enough_to_know_it() -> None:
    """Features of low variance are not normalised as if their variance were 1."""
    ours, x = BatchNorm(5).double(), 0.1 * vectors(8) + 3
    ours.train()(x)
    shown = ours.eval()(x)
    torch.testing.assert_close(shown.std(0), torch.ones(5).double(), rtol=0, atol=0.01)
    torch.testing.assert_close(shown.mean(0), torch.zeros(5).double(), rtol=0, atol=1e-9)


def test_a_vector_alone_is_read_by_the_running_statistics() -> None:
    ours, theirs = pair()
    x = vectors(1)
    with pytest.raises(ValueError, match="more than 1 value"):
        theirs.train()(x)
    before = {name: buffer.clone() for name, buffer in ours.named_buffers()}
    torch.testing.assert_close(ours.train()(x), theirs.eval()(x))
    assert all(torch.equal(buffer, before[name]) for name, buffer in ours.named_buffers())


def test_statistics_of_16_bits_are_those_of_32() -> None:
    ours = BatchNorm(5)
    assert ours(vectors(6).bfloat16()).dtype == torch.float32
