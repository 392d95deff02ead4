"""Activations by name against their formulas."""

import math

import pytest
import torch

from firth.layers.activations import ACTIVATIONS

X = torch.linspace(-6, 6, 241, dtype=torch.float64)
FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    "linear": lambda x: x,
}


def test_every_name_has_a_formula_here() -> None:
    assert set(ACTIVATIONS) == set(FORMULAS)


@pytest.mark.parametrize("name", FORMULAS)
def test_activation_is_its_formula(name: str) -> None:
    torch.testing.assert_close(ACTIVATIONS[name](X), FORMULAS[name](X), rtol=0, atol=1e-12)


def test_the_two_forms_of_gelu_are_different_by_as_much_as_is_published() -> None:
    gap = float((ACTIVATIONS["gelu"](X) - ACTIVATIONS["gelu_tanh"](X)).abs().max())
    assert 4e-4 < gap < 6e-4
