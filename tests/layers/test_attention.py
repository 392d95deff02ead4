"""Attention over packed sequences against one sequence at a time in float64, with and without dropout."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.layers import attention
from firth.layers.attention import SelfAttention, _attend_rectangle, attend
from firth.layers.dropout import draw_seed
from firth.packed import Rows

NO_SEED = torch.zeros(1, dtype=torch.int64)
RAGGED = [[5], [3, 3, 3], [1, 7, 2], [20, 3, 35, 16, 17, 1], [4, 30], [30, 4]]


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_rows: Rows,
    k_rows: Rows,
    *,
    causal: bool,
    weights_seen: list[Tensor] | None = None,
) -> Tensor:
    """Softmax attention by einsum, one sequence at a time."""
    outputs = []
    q_parts, k_parts = q_rows.lengths.tolist(), k_rows.lengths.tolist()
    for row_q, row_k, row_v in zip(q.split(q_parts), k.split(k_parts), v.split(k_parts), strict=True):
        scores = torch.einsum("qnd,knd->nqk", row_q, row_k) / math.sqrt(q.shape[-1])
        if causal:
            n_q, n_k = scores.shape[1:]
            future = torch.arange(n_k) > torch.arange(n_q)[:, None] + n_k - n_q
            scores = scores.masked_fill(future, -math.inf)
        weights = scores.softmax(-1)
        if weights_seen is not None:
            weights_seen.append(weights)
        outputs.append(torch.einsum("nqk,knd->qnd", weights, row_v))
    return torch.cat(outputs)


def inputs(
    q_rows: Rows, k_rows: Rows, *, heads: int = 2, width: int = 3, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = (q_rows.n_tokens, k_rows.n_tokens, k_rows.n_tokens)
    return [torch.randn(n, heads, width, dtype=dtype, requires_grad=True) for n in sizes]


def output_and_gradients(output: Tensor, x: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    return [output.detach(), *torch.autograd.grad(output, x, torch.randn_like(output))]


def check_equal(q_rows: Rows, k_rows: Rows, *, causal: bool) -> None:
    x = inputs(q_rows, k_rows)
    ours = attend(*x, q_rows, k_rows, causal=causal, dropout=0.0, seed=NO_SEED)
    found = output_and_gradients(ours, x)
    expected = output_and_gradients(reference(*x, q_rows, k_rows, causal=causal), x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", RAGGED)
def test_equals_one_row_at_a_time(lengths: list[int], causal: bool) -> None:
    rows = Rows.from_lengths(lengths)
    check_equal(rows, rows, causal=causal)


@pytest.mark.parametrize(
    ("q_lengths", "k_lengths", "causal"),
    [
        ([2, 5, 1], [4, 3, 9], False),
        ([1, 1, 1], [4, 18, 40], False),
        ([7, 30], [2, 1], False),
        ([1, 1, 1], [4, 18, 40], True),
        ([2, 5, 1], [4, 5, 9], True),
        ([3, 17, 2], [20, 17, 2], True),
    ],
)
def test_query_and_key_rows_of_different_length(q_lengths: list[int], k_lengths: list[int], causal: bool) -> None:
    check_equal(Rows.from_lengths(q_lengths), Rows.from_lengths(k_lengths), causal=causal)


@pytest.fixture(params=[(1, 1), (1, 2**31), (17, 33)])
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fused kernel for both passes, for the forward pass only, or from a minimum length."""
    monkeypatch.setitem(attention._FUSED_FROM, torch.float64, request.param)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", RAGGED)
def test_the_fused_form_equals_one_row_at_a_time(lengths: list[int], causal: bool) -> None:
    rows = Rows.from_lengths(lengths)
    check_equal(rows, rows, causal=causal)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("q_lengths", "k_lengths"), [([2, 5, 1], [4, 30, 9]), ([3, 37, 2], [20, 37, 2])])
@pytest.mark.parametrize("causal", [False, True])
def test_the_fused_form_between_rows_of_different_length(
    q_lengths: list[int], k_lengths: list[int], causal: bool
) -> None:
    check_equal(Rows.from_lengths(q_lengths), Rows.from_lengths(k_lengths), causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", RAGGED)
def test_the_form_of_a_card_by_group_equals_one_row_at_a_time(lengths: list[int], causal: bool) -> None:
    rows = Rows.from_lengths(lengths)
    x = inputs(rows, rows)
    found = output_and_gradients(attention._attend_by_group(*x, rows.plan, rows.plan, causal, 0.0), x)
    expected = output_and_gradients(reference(*x, rows, rows, causal=causal), x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_the_form_of_a_card_by_group_drops_single_weights() -> None:
    rows = Rows.from_lengths([20, 3, 17])
    q, k, _ = (x.detach() for x in inputs(rows, rows, width=20))
    v = torch.eye(20, dtype=torch.float64)[rows.positions][:, None].expand(-1, 2, -1)
    torch.manual_seed(4)
    after = attention._attend_by_group(q, k, v, rows.plan, rows.plan, False, 0.5)
    before = reference(q, k, v, rows, rows, causal=False)
    kept, gone = (after - 2 * before).abs() < 1e-9, after == 0
    assert bool((kept | gone)[before > 0].all())
    assert abs(float(gone[before > 0].double().mean()) - 0.5) < 0.1


def test_the_form_of_a_card_takes_no_kernel_that_is_built_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, allowed, true = Rows.from_lengths([20, 3, 17]), list[bool](), attention.F.scaled_dot_product_attention

    def noted(*x: Tensor, **options: Any) -> Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return true(*x, **options)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", noted)
    attention._attend_by_group(*inputs(rows, rows), rows.plan, rows.plan, False, 0.5)
    assert allowed and not any(allowed)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_short_rows_in_bfloat16_are_computed_in_float32(dropout: float) -> None:
    rows = Rows.from_lengths([20, 3, 63, 17])
    x = inputs(rows, rows, width=64, dtype=torch.bfloat16)
    exact = [part.detach().float().requires_grad_() for part in x]
    seed = torch.tensor([5])
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(*x, rows, rows, causal=False, dropout=dropout, seed=seed)
    expected = attend(*exact, rows, rows, causal=False, dropout=dropout, seed=seed)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.bfloat16())
    torch.manual_seed(1)
    grad = torch.randn_like(found)
    ours, theirs = torch.autograd.grad(found, x, grad), torch.autograd.grad(expected, exact, grad.float())
    # The fused kernel's backward pass reads its rounded output.
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("causal", "window"), [(False, (-1, -1)), (True, (-1, 0))])
def test_the_form_of_a_card_for_rows_of_any_length(
    causal: bool, window: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the arguments to PyTorch's kernel; the kernel itself runs only on GPUs."""
    from torch.nn.attention import varlen

    asked: list[Any] = []

    def record(q: Tensor, k: Tensor, v: Tensor, *rest: Any, window_size: tuple[int, int]) -> Tensor:
        asked.extend((*rest, window_size))
        return q

    monkeypatch.setattr(varlen, "varlen_attn", record)
    q_rows, k_rows = Rows.from_lengths([2, 40]), Rows.from_lengths([70, 3])
    q, k, v = inputs(q_rows, k_rows)
    assert attention._varlen(q, k, v, q_rows, k_rows, causal) is q
    q_offsets, k_offsets, *sizes = asked
    assert (q_offsets.tolist(), k_offsets.tolist()) == ([0, 2, 42], [0, 70, 73])
    assert q_offsets.dtype == k_offsets.dtype == torch.int32
    assert sizes == [64, 128, window]


def test_equal_rows_that_are_not_the_same_object() -> None:
    check_equal(Rows.from_lengths([30, 4, 17]), Rows.from_lengths([30, 4, 17]), causal=True)


def test_causal_is_aligned_to_the_end_of_the_row() -> None:
    """Generation with a cache: the last queries, over all keys, give what the whole sequence gives."""
    whole = Rows.from_lengths([6, 4])
    q, k, v = inputs(whole, whole)
    full = attend(q, k, v, whole, whole, causal=True, dropout=0.0, seed=NO_SEED)
    last_two = torch.tensor([4, 5, 8, 9])
    part = attend(q[last_two], k, v, Rows.from_lengths([2, 2]), whole, causal=True, dropout=0.0, seed=NO_SEED)
    torch.testing.assert_close(part, full[last_two], rtol=0, atol=1e-12)


def test_queries_before_the_first_key_do_not_spoil_the_others() -> None:
    """With more causal queries than keys, queries that see a key are right and everything is finite."""
    q_rows, k_rows = Rows.from_lengths([4, 3]), Rows.from_lengths([2, 3])
    x = inputs(q_rows, k_rows)
    out = attend(*x, q_rows, k_rows, causal=True, dropout=0.0, seed=NO_SEED)
    seeing = torch.tensor([2, 3, 4, 5, 6])
    expected = reference(*x, q_rows, k_rows, causal=True)
    torch.testing.assert_close(out[seeing], expected[seeing], rtol=0, atol=1e-10)
    assert all(bool(part.isfinite().all()) for part in output_and_gradients(out, x))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_the_forward(causal: bool, dropout: float) -> None:
    rows = Rows.from_lengths([3, 1, 4])
    x = inputs(rows, rows, heads=1, width=2)
    seed = torch.tensor([7])

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, rows, rows, causal=causal, dropout=dropout, seed=seed)

    assert torch.autograd.gradcheck(run, x)


def test_gradients_between_rows_of_different_length_with_dropout() -> None:
    q_rows, k_rows = Rows.from_lengths([2, 4]), Rows.from_lengths([5, 3])
    x = inputs(q_rows, k_rows, heads=1, width=2)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, q_rows, k_rows, causal=False, dropout=0.3, seed=torch.tensor([11]))

    assert torch.autograd.gradcheck(run, x)


def dropped_weights(lengths: list[int], *, causal: bool, dropout: float, seed: int) -> tuple[Tensor, Tensor]:
    """Attention weights after and before dropout, read off with unit vectors as values.

    Each sequence's values are the first unit vectors, so the output at (query, key) is the weight.
    """
    rows = Rows.from_lengths(lengths)
    q, k, _ = inputs(rows, rows, heads=2, width=max(lengths))
    v = torch.eye(max(lengths), dtype=torch.float64)[rows.positions][:, None].expand(-1, 2, -1)
    seeds = torch.tensor([seed])
    after = attend(q, k, v, rows, rows, causal=causal, dropout=dropout, seed=seeds)
    before = attend(q, k, v, rows, rows, causal=causal, dropout=0.0, seed=seeds)
    return after.detach(), before.detach()


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_falls_on_single_weights(causal: bool) -> None:
    """Each weight is zero or scaled by 1 / (1 - p), independently of the query's other weights."""
    after, before = dropped_weights([20, 3, 17], causal=causal, dropout=0.5, seed=3)
    seen = before > 0
    kept = (after - 2 * before).abs() < 1e-12
    gone = after == 0
    assert bool((kept | gone)[seen].all())
    assert bool((after[~seen] == 0).all())
    share = float(gone[seen].double().mean())
    n_weights = int(seen.sum())
    assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(n_weights)
    # The kept weights are not renormalised: their sum differs between queries and between heads.
    mass = after.sum(-1)
    assert float(mass.std(0).min()) > 0
    assert not torch.allclose(mass[:, 0], mass[:, 1])


def test_dropout_drops_no_unit_of_a_context_vector() -> None:
    """With value vectors of ones, the output is the sum of kept weights: it varies by query, never by unit."""
    rows = Rows.from_lengths([64, 40])
    q, k, v = inputs(rows, rows, heads=1, width=8)
    out = attend(q, k, torch.ones_like(v), rows, rows, causal=False, dropout=0.5, seed=torch.tensor([5]))
    out = out[:, 0].detach()
    assert float(out.std(0).min()) > 0
    # Equal up to the kernel's order of summation.
    assert float(out.std(-1).max()) < 1e-12


def test_the_seed_alone_decides_what_is_dropped() -> None:
    one, _ = dropped_weights([9, 4], causal=False, dropout=0.3, seed=42)
    torch.manual_seed(999)
    same, _ = dropped_weights([9, 4], causal=False, dropout=0.3, seed=42)
    other, _ = dropped_weights([9, 4], causal=False, dropout=0.3, seed=43)
    assert torch.equal(one, same)
    assert not torch.equal(one == 0, other == 0)


def test_dropout_leaves_the_expectation() -> None:
    rows = Rows.from_lengths([6, 2])
    q, k, v = (x.detach() for x in inputs(rows, rows))
    plain = attend(q, k, v, rows, rows, causal=True, dropout=0.0, seed=NO_SEED)
    n = 3000
    runs = torch.stack(
        [attend(q, k, v, rows, rows, causal=True, dropout=0.25, seed=torch.tensor([s])) for s in range(n)]
    )
    error = (runs.mean(0) - plain).abs() / (runs.std(0) / math.sqrt(n))
    assert float(error.max()) < 5  # standard errors, over 48 numbers


def test_the_backward_drops_the_same_weights() -> None:
    """The gradient of the values is the transposed weight matrix after dropout."""
    rows = Rows.from_lengths([5])
    q, k, _ = inputs(rows, rows, heads=1, width=5)
    v = torch.eye(5, dtype=torch.float64)[:, None].clone().requires_grad_()
    out = attend(q, k, v, rows, rows, causal=False, dropout=0.5, seed=torch.tensor([12]))
    (grad,) = torch.autograd.grad(out[:, 0].diagonal().sum(), v)
    # Sum over queries i of weight[i, j] · δ(i, d): grad[j, d] = weight[d, j].
    torch.testing.assert_close(grad[:, 0], out[:, 0].detach().T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_does_not_see_its_company(causal: bool) -> None:
    """A sequence gives the same numbers alone and among others, and no gradient crosses between sequences."""
    lengths = [3, 40, 17, 5]
    rows = Rows.from_lengths(lengths)
    x = inputs(rows, rows)
    together = attend(*x, rows, rows, causal=causal, dropout=0.0, seed=NO_SEED)
    alone = Rows.from_lengths([17])
    part = slice(43, 60)
    q, k, v = (t[part] for t in x)
    single = attend(q, k, v, alone, alone, causal=causal, dropout=0.0, seed=NO_SEED)
    torch.testing.assert_close(together[part], single, rtol=0, atol=1e-12)
    for grad in torch.autograd.grad(together[part].sum(), x):
        outside = torch.ones(rows.n_tokens, dtype=torch.bool)
        outside[part] = False
        assert bool((grad[outside] == 0).all())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("q_lengths", "k_lengths"), [([3, 3], None), ([3, 20, 5], None), ([2, 4], [5, 3])])
def test_operators_keep_their_promises(q_lengths: list[int], k_lengths: list[int] | None, dropout: float) -> None:
    """torch.library.opcheck checks schema, fake tensors, autograd and tracing, forward and backward."""
    from firth.layers.attention import _attend, _attend_backward, _one_group

    q_rows = Rows.from_lengths(q_lengths)
    k_rows = q_rows if k_lengths is None else Rows.from_lengths(k_lengths)
    plans = (q_rows.plan, q_rows.plan) if k_lengths is None else (_one_group(q_rows), _one_group(k_rows))
    x = inputs(q_rows, k_rows, dtype=torch.float32)
    more: tuple[Any, ...] = (
        torch.tensor([9]),
        plans[0].flat,
        plans[0].sizes,
        plans[1].flat,
        plans[1].sizes,
        k_lengths is None,
        dropout,
    )
    torch.library.opcheck(_attend, (*x, *more))
    x = [t.detach() for t in x]
    grad = torch.randn(q_rows.n_tokens, 2, 3)
    torch.library.opcheck(_attend_backward, (grad, *_attend(*x, *more), *x, *more))


def test_bfloat16_stays_close_to_float32() -> None:
    rows = Rows.from_lengths([33, 7, 12])
    for dropout in (0.0, 0.2):
        x = inputs(rows, rows, dtype=torch.float32)
        exact = output_and_gradients(attend(*x, rows, rows, causal=False, dropout=dropout, seed=NO_SEED), x)
        low = [t.detach().bfloat16().requires_grad_() for t in x]
        out = attend(*low, rows, rows, causal=False, dropout=dropout, seed=NO_SEED)
        assert out.dtype == torch.bfloat16
        torch.manual_seed(1)
        grads = torch.autograd.grad(out, low, torch.randn(out.shape).bfloat16())
        if not dropout:
            for one, other in zip([out, *grads], exact, strict=True):
                torch.testing.assert_close(one.float(), other, rtol=0, atol=0.06)
        assert all(grad.dtype == torch.bfloat16 and bool(grad.isfinite().all()) for grad in grads)


def test_self_attention_drops_in_training_only() -> None:
    torch.manual_seed(0)
    layer = SelfAttention(width=8, n_heads=2, dropout=0.5, causal=False)
    rows = Rows.from_lengths([4, 6])
    x = torch.randn(10, 8)
    layer.eval()
    assert torch.equal(layer(x, rows), layer(x, rows))
    layer.train()
    torch.manual_seed(1)
    one = layer(x, rows)
    assert not torch.equal(one, layer(x, rows))
    torch.manual_seed(1)
    assert torch.equal(one, layer(x, rows))


def test_self_attention_by_its_equations() -> None:
    torch.manual_seed(0)
    layer = SelfAttention(width=6, n_heads=2, dropout=0.0, causal=True).double()
    rows = Rows.from_lengths([4, 2])
    x = torch.randn(6, 6, dtype=torch.float64)
    q, k, v = (
        (x @ weight.T + bias).view(6, 2, 3)
        for weight, bias in zip(layer.query_key_value.weight.chunk(3), layer.query_key_value.bias.chunk(3), strict=True)
    )
    context = reference(q, k, v, rows, rows, causal=True).reshape(6, 6)
    torch.testing.assert_close(layer(x, rows), layer.output(context), rtol=0, atol=1e-10)


def test_no_dropout_draws_nothing() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    assert draw_seed(0.0).tolist() == [0]
    assert torch.equal(torch.get_rng_state(), before)
    assert len({int(draw_seed(0.1)) for _ in range(20)}) == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[1], [5], [3, 3, 3], [8, 8]])
def test_sequences_of_one_length_take_the_short_way_to_the_same_numbers(lengths: list[int], dtype: torch.dtype) -> None:
    rows = Rows.from_lengths(lengths)
    x = [part.detach() for part in inputs(rows, rows, dtype=dtype)]
    short = _attend_rectangle(*x, rows.plan)
    with torch.no_grad():
        found = attend(*x, rows, rows, causal=False, dropout=0.0, seed=NO_SEED)
    assert short is not None and torch.equal(short, found) and found.dtype == dtype
    # With gradients, the operator runs instead.
    assert torch.equal(attend(*x, rows, rows, causal=False, dropout=0.0, seed=NO_SEED), found)


@pytest.mark.parametrize("lengths", [[3, 5], [5, 2, 5], [16, 17]])
def test_other_sequences_do_not(lengths: list[int]) -> None:
    rows = Rows.from_lengths(lengths)
    assert _attend_rectangle(*(x.detach() for x in inputs(rows, rows, dtype=torch.float32)), rows.plan) is None
