"""Custom operators: calling them imports no compiler."""

import subprocess
import sys

import pytest
import torch

from firth.layers.operators import operator, shapes_of


def test_calls_and_gradients_import_no_compiler() -> None:
    code = """
import sys, torch
from firth.layers.dropout import keep_mask
from firth.layers.vocabulary import vocabulary_loss
x, weight = torch.ones(2, 3, requires_grad=True), torch.eye(5, 3, requires_grad=True)
loss, _ = vocabulary_loss(x, weight, None, torch.tensor([0, 4]))
loss.backward()
assert x.grad is not None and keep_mask((2, 3), 0.5, torch.tensor([1])).shape == (2, 3)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_operator_is_in_the_table_and_has_a_schema() -> None:
    @operator("firth_test::twice")
    def twice(x: torch.Tensor, times: int) -> torch.Tensor:
        return x * 2 * times

    shapes_of(twice)(lambda x, times: torch.empty_like(x))
    assert torch.equal(twice(torch.ones(2), 3), torch.full((2,), 6.0))
    assert str(twice._schema) == "firth_test::twice(Tensor x, SymInt times) -> Tensor"
    torch.library.opcheck(twice, (torch.ones(3), 2))
    with pytest.raises(RuntimeError, match="expected at most 2 argument"):
        twice(1, 2, 3)


def test_predictions_need_no_optimizer_of_scipy() -> None:
    code = "import sys, firth.inference.model; assert 'scipy.optimize' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
