"""The code for CUDA GPUs, on tensors without values: shapes, types, gradients, and no read of a value.

Reading a value on the host would wait for the GPU. Tensors on the "meta" device have no values, so any read fails.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from systems_under_test import tiny_recipe
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from firth.data.shards import Corpus
from firth.layers import attention
from firth.layers.recurrent import BiRNN, one_rectangle, rectangles, run_over
from firth.packed import Rows, plan_groups
from firth.pretraining.assembly import make_loader, make_objective

LENGTHS = [3, 7, 2, 7]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_rectangles(causal: bool) -> None:
    """In bfloat16, without dropout; the fake tensors claim to be on a GPU."""
    mode, host = FakeTensorMode(), Rows.from_lengths(LENGTHS)
    q = torch.empty(sum(LENGTHS), 2, 16, device="meta", dtype=torch.bfloat16)
    on_card, offsets = (FakeTensor(mode, x.to("meta"), torch.device("cuda")) for x in (q, host.offsets))
    rows, seed = Rows(offsets, host.positions, host.max_length, host.plan), torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        out = attention.attend(on_card, on_card, on_card, rows, rows, causal=causal, dropout=0.0, seed=seed)
    assert (out.shape, out.dtype, out.device.type) == (q.shape, q.dtype, "cuda")


def by_group(q: Tensor, k: Tensor, v: Tensor, q_rows: Rows, k_rows: Rows, **options: Any) -> Tensor:
    """The computation of a GPU in float32, or with attention dropout."""
    return attention._attend_by_group(q, k, v, q_rows.plan, k_rows.plan, options["causal"], options["dropout"])


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_rectangles(causal: bool, dropout: float) -> None:
    rows = Rows.from_lengths(LENGTHS).to("meta")
    q, k, v = (torch.empty(sum(LENGTHS), 2, 16, device="meta", requires_grad=True) for _ in range(3))
    out = by_group(q, k, v, rows, rows, causal=causal, dropout=dropout)
    out.sum().backward()
    assert out.shape == q.shape
    for x in (q, k, v):
        assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [1], [5, 1, 1]])
def test_the_rectangle_of_a_card_is_that_of_the_host(lengths: list[int]) -> None:
    rows, order = Rows.from_lengths(lengths), torch.arange(len(lengths))
    found, expected = one_rectangle(rows), plan_groups(rows.lengths.numpy(), [order.numpy()])
    assert torch.equal(found.plan.flat, expected.flat) and torch.equal(found.plan.sizes, expected.sizes)
    assert torch.equal(found.rows[0], order)
    # A layer computes the same on them as on CPU tensors.
    layer, x = torch.nn.LSTM(8, 6), torch.randn(sum(lengths), 8)
    (weights,) = layer.all_weights
    ours, theirs = (run_over(x, weights, "lstm", across)[0] for across in (found, rectangles(rows)))
    torch.testing.assert_close(ours, theirs)
    assert rectangles(rows.to("meta")).plan.flat.shape == expected.flat.shape


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrent_layers(cell: Any) -> None:
    layers, rows = BiRNN(8, 6, 2, 0.1, cell).to("meta"), Rows.from_lengths(LENGTHS).to("meta")
    x = torch.empty(sum(LENGTHS), 8, device="meta", requires_grad=True)
    out = layers(x, rows)
    out.sum().backward()
    assert out.shape == (len(x), 12) and x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("system", ["bert", "gpt"])
def test_a_step_of_pretraining(system: str, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward and backward pass of a training batch: only its counts are known on the host."""
    monkeypatch.setattr(attention, "attend", by_group)
    # torch supports this query only for known devices.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    recipe = tiny_recipe(system, tiny_corpus)
    batch = next(make_loader(recipe, Corpus(tiny_corpus)).one_epoch()).to("meta")
    objective = make_objective(recipe).to("meta").train()
    step = objective(batch)
    assert {name: loss.shape for name, loss in step.losses.items()} == dict.fromkeys(objective.weights, ())
    torch.stack(list(step.losses.values())).sum().backward()
    for name, p in objective.named_parameters():
        assert p.grad is not None and p.grad.shape == p.shape, name
