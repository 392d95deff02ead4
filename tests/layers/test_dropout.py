"""Dropout: distribution, expectation, and dependence on the seed alone."""

import math

import pytest
import torch

from firth.layers.dropout import Dropout, _keep_mask, draw_seed, keep_mask, kept_scale


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_kept_elements(p: float) -> None:
    n = 200_000
    kept = float(keep_mask((n,), p, torch.tensor([3])).double().mean())
    assert abs(kept - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)


def test_neighbours_are_independent() -> None:
    """Four elements share a random number: pairs at distance 1 to 4 are kept together as often as by chance."""
    p, n = 0.3, 200_000
    keep = keep_mask((n,), p, torch.tensor([8])).double()
    for distance in (1, 2, 3, 4):
        together = float((keep[:-distance] * keep[distance:]).mean())
        assert abs(together - (1 - p) ** 2) < 5 * 0.5 / math.sqrt(n)
    by_lane = keep.view(-1, 4).mean(0)
    assert float((by_lane - (1 - p)).abs().max()) < 5 * math.sqrt(p * (1 - p) / (n / 4))


@pytest.mark.parametrize("p", [0.1, 1e-9, 0.99999])
def test_the_expectation_is_exact(p: float) -> None:
    """The scale is the reciprocal of the share that the mask actually keeps."""
    levels = torch.arange(-(2**15), 2**15)
    lowest = round(min(p * 2**16, 2**16 - 1)) - 2**15
    assert float((levels >= lowest).double().mean()) * kept_scale(p) == 1.0


def test_the_layer_scales_and_drops() -> None:
    layer, x = Dropout(0.25), torch.randn(50, 40, requires_grad=True)
    torch.manual_seed(1)
    y = layer(x)
    gone = y == 0
    torch.testing.assert_close(y[~gone], (x * kept_scale(0.25))[~gone])
    assert abs(float(gone.double().mean()) - 0.25) < 0.05
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad == 0, gone)
    torch.manual_seed(1)
    assert torch.equal(layer(x), y)
    assert not torch.equal(layer(x), y)


def test_nothing_happens_outside_of_training_or_at_zero() -> None:
    x = torch.randn(5)
    before = torch.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 5), (0, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    mask = keep_mask(shape, 0.5, draw_seed(0.5))
    assert mask.shape == shape
    assert mask.dtype == torch.bool


def test_the_operator_keeps_its_promises() -> None:
    torch.library.opcheck(_keep_mask, ([3, 5], 0, torch.tensor([9])))
