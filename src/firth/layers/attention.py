"""The one dot-product attention of all Transformers here, over packed rows.

``attend`` computes softmax(q kᵀ / √D) v within each row. Rows of near-equal length are laid into
rectangles by the plan that their ``Rows`` carry. It is a custom operator with its own backward, so
that a compiler sees one node, and its dropout is a function of a seed that is passed in.

The backward is written out (two batched products around a softmax) because at the lengths of most
text it is several times faster on a CPU than the fused kernel's.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from firth.packed import Plan, Rows, plan_groups


def attend(
    q: Float[Tensor, "Tq N D"],
    k: Float[Tensor, "Tk N D"],
    v: Float[Tensor, "Tk N D"],
    q_rows: Rows,
    k_rows: Rows,
    *,
    causal: bool,
    dropout: float,
    seed: Tensor,
) -> Float[Tensor, "Tq N D"]:
    """Attention of each row of queries over the keys and values of the same row.

    Source: Vaswani et al. 2017, §3.2.1. Query and key rows may differ in length; ``causal`` is aligned
    to the row's end, so that the last query sees all keys (generation with a cache). ``dropout`` is
    the probability with which attention weights are dropped, ``seed`` an int64 tensor (on the host)
    that alone decides which.
    """
    if q_rows is k_rows:
        q_plan = k_plan = q_rows.plan
    else:
        q_plan, k_plan = _one_group(q_rows), _one_group(k_rows)
    return _attend(q, k, v, seed, *_tensors(q_plan), *_tensors(k_plan), causal, dropout)


class SelfAttention(nn.Module):
    """Multi-head self-attention: joint projection to queries, keys and values, ``attend``, projection out."""

    def __init__(self, *, width: int, n_heads: int, dropout: float, causal: bool):
        super().__init__()
        self.n_heads, self.dropout, self.causal = n_heads, dropout, causal
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.n_heads, -1)).unbind(1)
        dropout = self.dropout if self.training else 0.0
        context = attend(q, k, v, rows, rows, causal=self.causal, dropout=dropout, seed=draw_seed(dropout))
        return self.output(context.flatten(1))


def draw_seed(dropout: float) -> Tensor:
    """A seed for ``attend`` from torch's generator (which the trainer sets for each micro-batch)."""
    return torch.randint(2**62, (1,)) if dropout else torch.zeros(1, dtype=torch.int64)


def _one_group(rows: Rows) -> Plan:
    """All rows in their own order in one rectangle: pairs rows of two kinds by number."""
    lengths = rows.lengths.cpu().long().numpy()
    return plan_groups(lengths, [np.arange(len(lengths))]).to(rows.offsets.device)


def _tensors(plan: Plan) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # An empty gather means that slots and tokens are the same.
    gather = plan.gather[:0] if plan.in_order else plan.gather
    return gather, plan.scatter, plan.lengths, plan.groups


def _to_slots(x: Tensor, gather: Tensor) -> Tensor:
    return x.index_select(0, gather) if gather.numel() else x


def _rectangles(x: Tensor, groups: list[list[int]]) -> Iterator[Tensor]:
    """Views ``(rows, N, length, D)`` of slots ``(P, N, D)``, one for each group."""
    sizes = [n * length for n, length, _ in groups]
    for part, (n, length, _) in zip(x.split(sizes), groups, strict=True):
        yield part.unflatten(0, (n, length)).transpose(1, 2)


def _hidden_scores(
    q_lengths: Tensor, k_lengths: Tensor, q_groups: list[list[int]], k_groups: list[list[int]], causal: bool
) -> Iterator[Tensor | None]:
    """For each group, True where a query must not see a key ``(rows, 1, q length, k length)``, or None."""
    sizes = [n for n, _, _ in q_groups]
    device = q_lengths.device
    for rows_q, rows_k, q_group, k_group in zip(
        q_lengths.split(sizes), k_lengths.split(sizes), q_groups, k_groups, strict=True
    ):
        key = torch.arange(k_group[1], device=device)
        hidden = None
        if k_group[2]:
            hidden = (key >= rows_k[:, None])[:, None, None, :]
        if causal:
            query = torch.arange(q_group[1], device=device)
            future = key > query[:, None] + (rows_k - rows_q)[:, None, None]
            # A pad query may see nothing at all: let it see the first key, its output is never read.
            future[..., 0] = False
            hidden = future[:, None] if hidden is None else hidden | future[:, None]
        yield hidden


def _kept(shape: torch.Size, dropout: float, generator: torch.Generator, like: Tensor) -> Tensor:
    """What dropout multiplies with: 0, or 1 / (1 - dropout)."""
    kept = torch.empty(shape, dtype=like.dtype, device=like.device)
    return kept.bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _weights(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).mul_(1 / math.sqrt(q.shape[-1]))
    if hidden is not None:
        scores.masked_fill_(hidden, -math.inf)
    # The type is named, so that autocast computes forward and backward alike.
    return scores.softmax(-1, dtype=scores.dtype)


@torch.library.custom_op("firth::attend", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, seed: Tensor,
    q_gather: Tensor, q_scatter: Tensor, q_lengths: Tensor, q_groups: Tensor,
    k_gather: Tensor, k_scatter: Tensor, k_lengths: Tensor, k_groups: Tensor,
    causal: bool, dropout: float,
) -> Tensor:  # fmt: skip
    groups_q, groups_k = q_groups.tolist(), k_groups.tolist()
    slots_q, slots_k, slots_v = _to_slots(q, q_gather), _to_slots(k, k_gather), _to_slots(v, k_gather)
    generator = torch.Generator(q.device).manual_seed(int(seed)) if dropout else None
    out = torch.empty(slots_q.shape[0], q.shape[1], v.shape[2], dtype=v.dtype, device=v.device)
    for rect_q, rect_k, rect_v, rect_out, hidden in zip(
        _rectangles(slots_q, groups_q), _rectangles(slots_k, groups_k), _rectangles(slots_v, groups_k),
        _rectangles(out, groups_q), _hidden_scores(q_lengths, k_lengths, groups_q, groups_k, causal),
        strict=True,
    ):  # fmt: skip
        if generator is None:
            seen = None if hidden is None else ~hidden
            rect_out.copy_(F.scaled_dot_product_attention(rect_q, rect_k, rect_v, attn_mask=seen))
        else:
            weights = _weights(rect_q, rect_k, hidden)
            rect_out.copy_(weights.mul_(_kept(weights.shape, dropout, generator, weights)) @ rect_v)
    return out.index_select(0, q_scatter) if q_gather.numel() else out


@torch.library.custom_op("firth::attend_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, seed: Tensor,
    q_gather: Tensor, q_scatter: Tensor, q_lengths: Tensor, q_groups: Tensor,
    k_gather: Tensor, k_scatter: Tensor, k_lengths: Tensor, k_groups: Tensor,
    causal: bool, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    groups_q, groups_k = q_groups.tolist(), k_groups.tolist()
    slots_q, slots_k, slots_v = _to_slots(q, q_gather), _to_slots(k, k_gather), _to_slots(v, k_gather)
    # Pad slots get no gradient, so that they add nothing to keys and values.
    slots_grad = grad
    if q_gather.numel():
        slots_grad = grad.new_zeros(slots_q.shape[0], *grad.shape[1:]).index_copy_(0, q_scatter, grad)
    generator = torch.Generator(q.device).manual_seed(int(seed)) if dropout else None
    grads = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (slots_q, slots_k, slots_v))
    scale = 1 / math.sqrt(q.shape[-1])
    for rect_grad, rect_q, rect_k, rect_v, into_q, into_k, into_v, hidden in zip(
        _rectangles(slots_grad, groups_q), _rectangles(slots_q, groups_q), _rectangles(slots_k, groups_k),
        _rectangles(slots_v, groups_k), _rectangles(grads[0], groups_q), _rectangles(grads[1], groups_k),
        _rectangles(grads[2], groups_k), _hidden_scores(q_lengths, k_lengths, groups_q, groups_k, causal),
        strict=True,
    ):  # fmt: skip
        weights = _weights(rect_q, rect_k, hidden)
        grad_weights = rect_grad @ rect_v.transpose(-1, -2)
        dropped = weights
        if generator is not None:
            kept = _kept(weights.shape, dropout, generator, weights)
            dropped = weights * kept
            grad_weights.mul_(kept)
        into_v.copy_(dropped.transpose(-1, -2) @ rect_grad)
        # Of softmax: dS = P ∘ (dP - Σ dP ∘ P), the scale of the scores included.
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(scale)
        into_q.copy_(grad_scores @ rect_k)
        into_k.copy_(grad_scores.transpose(-1, -2) @ rect_q)
    scatters = ((q_gather, q_scatter), (k_gather, k_scatter), (k_gather, k_scatter))
    grad_q, grad_k, grad_v = (
        g.index_select(0, scatter) if gather.numel() else g
        for g, (gather, scatter) in zip(grads, scatters, strict=True)
    )
    return grad_q, grad_k, grad_v


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return v.new_empty(q.shape[0], q.shape[1], v.shape[2])


@_attend_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = _attend_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.dropout)
    return (*grads, *(None,) * 11)


_attend.register_autograd(_backward, setup_context=_save)
