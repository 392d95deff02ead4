"""Dot-product attention of all Transformers here, over packed sequences.

``attend`` computes softmax(q kᵀ / √D) v within each sequence. On a GPU it is PyTorch's variable-length flash attention.
On a CPU sequences of near-equal length form rectangles, planned in their ``Rows``, and each
rectangle uses whichever is faster for its length: the fused kernel, or two batched products around an explicit
softmax. That is a custom operator with its own backward, so that a compiler sees one node, and its dropout is a
function of the given seed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from firth.layers.dropout import draw_seed, keep_mask, kept_scale
from firth.layers.operators import operator, shapes_of
from firth.packed import Plan, Rows, plan_groups

# The length from which the fused kernel is faster than the explicit form, by dtype, forward and
# backward. Source: benchmarks/attention.py. With dropout the fused kernel is never faster.
_FUSED_FROM = {
    torch.bfloat16: (512, 512),
    torch.float32: (1, 1),
}
_NEVER = 2**31
# Kernels for rectangles on a GPU. cuDNN's, which PyTorch prefers on recent ones, is built for each new shape, and
# rectangles keep changing shape: fine-tuning on sentences took 0.2 s per step with it.
_OF_ANY_SHAPE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# The length from which rectangles are multiplied in bfloat16. Below it, training on sentences makes 2.7 times as many
# steps per second in float32.
_BFLOAT16_FROM = 64

# Keys and values (T, N, D) of all tokens of some sequences, in one layer.
KeysValues = tuple[Tensor, Tensor]


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
    """Compute attention of each sequence's queries over its keys and values.

    Source: Vaswani et al. 2017, §3.2.1. Query and key sequences may differ in length; ``causal`` is aligned
    to the end, so that the last query sees all keys (generation with a cache). ``dropout`` is
    the drop probability of attention weights; ``seed``, an int64 tensor on the host,
    determines which are dropped (on a GPU its own generator does).
    """
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and not dropout:
        return _varlen(q, k, v, q_rows, k_rows, causal)
    if q_rows is k_rows:
        q_plan = k_plan = q_rows.plan
    else:
        q_plan, k_plan = _one_group(q_rows), _one_group(k_rows)
    if q.is_cuda:
        return _attend_by_group(q, k, v, q_plan, k_plan, causal, dropout)
    if q_plan is k_plan and not (causal or dropout or torch.is_grad_enabled() or torch.compiler.is_compiling()):
        found = _attend_rectangle(q, k, v, q_plan)
        if found is not None:
            return found
    return _attend(q, k, v, seed, q_plan.flat, q_plan.sizes, k_plan.flat, k_plan.sizes, causal, dropout)[0]


class SelfAttention(nn.Module):
    """Multi-head self-attention: joint projection to queries, keys and values, ``attend``, projection out."""

    def __init__(self, *, width: int, n_heads: int, dropout: float, causal: bool, bias: bool = True):
        super().__init__()
        self.n_heads, self.dropout, self.causal = n_heads, dropout, causal
        self.query_key_value = nn.Linear(width, 3 * width, bias)
        self.output = nn.Linear(width, width, bias)

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        q, k, v = self.project(x)
        dropout = self.dropout if self.training else 0.0
        context = attend(q, k, v, rows, rows, causal=self.causal, dropout=dropout, seed=draw_seed(dropout))
        return self.output(context.flatten(1))

    def step(
        self, x: Float[Tensor, "T H"], joined: "Joined", past: KeysValues | None
    ) -> tuple[Float[Tensor, "T H"], KeysValues]:
        """``forward`` of tokens that continue sequences (causal, no dropout).

        ``past``: cached keys and values of the earlier tokens, None if there are none. Also returns those of all
        tokens.
        """
        if not self.causal:
            raise ValueError("only causal attention can continue a sequence")
        q, k, v = self.project(x)
        k, v = joined.after(past and past[0], k), joined.after(past and past[1], v)
        context = attend(q, k, v, joined.new, joined.every, causal=True, dropout=0.0, seed=draw_seed(0.0))
        return self.output(context.flatten(1)), (k, v)

    def project(self, x: Float[Tensor, "T H"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (T, N, D)."""
        q, k, v = self.query_key_value(x).unflatten(-1, (3, self.n_heads, -1)).unbind(1)
        return q, k, v


@dataclass(frozen=True, slots=True)
class Joined:
    """Sequences continued by ``new`` tokens; ``every``: old and new together.

    ``order``: for every token, its index in the old tokens followed by the new ones.
    """

    new: Rows
    every: Rows
    order: Int[Tensor, " T"]

    @classmethod
    def of(cls, old: Rows | None, new: Rows) -> "Joined":
        """Join the old and new tokens of the same sequences; ``old``: None if there are none yet."""
        if old is None:
            return cls(new, new, torch.arange(new.n_tokens, device=new.offsets.device))
        every = Rows.from_lengths((old.lengths + new.lengths).cpu().numpy()).to(new.offsets.device)
        row, place = every.row_of_token(), every.positions
        before, old_starts, new_starts = (x.index_select(0, row) for x in (old.lengths, old.first, new.first))
        order = torch.where(place < before, old_starts + place, old.n_tokens + new_starts + place - before)
        return cls(new, every, order)

    @property
    def positions(self) -> Int[Tensor, " Tn"]:
        """The positions of the new tokens in their sequences."""
        if self.every is self.new:
            return self.new.positions
        before = self.every.lengths - self.new.lengths
        return self.new.positions + before.index_select(0, self.new.row_of_token())

    def after(self, old: Float[Tensor, "To N D"] | None, new: Float[Tensor, "Tn N D"]) -> Float[Tensor, "T N D"]:
        """Interleave values of old and new tokens, sequence by sequence."""
        return new if old is None else torch.cat([old, new]).index_select(0, self.order)


@dataclass(frozen=True, slots=True)
class Past:
    """The key-value cache of generation: keys and values of all tokens in ``rows`` so far, by layer."""

    rows: Rows
    layers: tuple[KeysValues, ...]

    def select(self, chosen: Int[Tensor, " R"]) -> "Past":
        """Select sequences in the given order; one may be taken several times."""
        rows, index = self.rows.select(chosen)
        return Past(rows, tuple((k.index_select(0, index), v.index_select(0, index)) for k, v in self.layers))


def _one_group(rows: Rows) -> Plan:
    """One rectangle with all sequences in order, which pairs query and key sequences by index."""
    lengths = rows.lengths.cpu().long().numpy()
    return plan_groups(lengths, [np.arange(len(lengths))]).to(rows.offsets.device)


class _Layout:
    """A plan with its numbers read once per call: for a short text, reading them takes as long as a matrix product."""

    def __init__(self, plan: Plan):
        self._plan, self._in_order, self.groups = plan, plan.in_order, plan.groups.tolist()

    def to_slots(self, x: Tensor) -> Tensor:
        return x if self._in_order else x.index_select(0, self._plan.gather)

    def to_tokens(self, slots: Tensor) -> Tensor:
        return slots if self._in_order else slots.index_select(0, self._plan.scatter)

    def gradient_to_slots(self, grad: Tensor) -> Tensor:
        """Scatter gradients to slots; padding gets zeros, so that it adds nothing to keys and values."""
        if self._in_order:
            return grad
        n_slots = sum(n * length for n, length, _ in self.groups)
        return grad.new_zeros(n_slots, *grad.shape[1:]).index_copy_(0, self._plan.scatter, grad)

    def lengths(self) -> tuple[Tensor, ...]:
        """The sequence lengths of each group."""
        return self._plan.lengths.split([n for n, _, _ in self.groups])


def _rectangles(x: Tensor, groups: list[list[int]]) -> Iterator[Tensor]:
    """Yield views ``(rows, N, length, D)`` of slots ``(P, N, D)``, one for each group."""
    sizes = [n * length for n, length, _ in groups]
    for part, (n, length, _) in zip(x.split(sizes), groups, strict=True):
        yield part.unflatten(0, (n, length)).transpose(1, 2)


def _hidden_scores(q: _Layout, k: _Layout, causal: bool) -> Iterator[Tensor | None]:
    """Yield for each group a mask ``(rows, 1, q length, k length)``, True where a query must not see a key, or None."""
    if not causal and not any(ragged for _, _, ragged in k.groups):
        yield from [None] * len(k.groups)
        return
    for rows_q, rows_k, q_group, k_group in zip(q.lengths(), k.lengths(), q.groups, k.groups, strict=True):
        key = torch.arange(k_group[1], device=rows_k.device)
        hidden = None
        if k_group[2]:
            hidden = (key >= rows_k[:, None])[:, None, None, :]
        if causal:
            query = torch.arange(q_group[1], device=rows_k.device)
            future = key > query[:, None] + (rows_k - rows_q)[:, None, None]
            # A padding query may see no key: let it see the first one, as its output is never read.
            future[..., 0] = False
            hidden = future[:, None] if hidden is None else hidden | future[:, None]
        yield hidden


def _contiguous(*rectangles: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Copies that are contiguous per head; otherwise each batched product would copy again."""
    return [x.to(dtype).contiguous() for x in rectangles]


def _rectangle_dtype(dtype: torch.dtype, length: int) -> torch.dtype:
    """The dtype of a rectangle's products: float32 for short ones in bfloat16.

    Short rectangles keep changing shape. A product in bfloat16 is compiled for its shape, which takes a hundred
    times as long as the product; in float32 nothing is compiled.
    """
    return torch.float32 if dtype == torch.bfloat16 and length < _BFLOAT16_FROM else dtype


def _weights(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).mul_(1 / math.sqrt(q.shape[-1]))
    if hidden is not None:
        scores.masked_fill_(hidden, -math.inf)
    # An explicit dtype makes autocast compute forward and backward alike.
    return scores.softmax(-1, dtype=scores.dtype)


def _kept(weights: Tensor, dropout: float, seed: Tensor) -> Tensor:
    """The dropout factor: 0, or 1 / (1 - dropout)."""
    return keep_mask(weights.shape, dropout, seed).to(weights.dtype).mul_(kept_scale(dropout))


def _is_fused(dtype: torch.dtype, length: int, dropout: float, *, backward: bool) -> bool:
    starts = _FUSED_FROM.get(dtype, (_NEVER, _NEVER))
    return not dropout and length >= starts[backward]


def _added(hidden: Tensor | None, like: Tensor) -> Tensor | None:
    """The additive mask of the fused kernel ``(rows, 1, q length, k length)``."""
    if hidden is None:
        return None
    mask = torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, -math.inf)
    return mask.expand(-1, 1, like.shape[2], -1)


@operator("firth::attend")
def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seed: Tensor,
    q_flat: Tensor,
    q_sizes: Tensor,
    k_flat: Tensor,
    k_sizes: Tensor,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The contexts ``(Tq, N, D)``, and for the fused kernel the log-sum-exp of the scores."""
    q_layout, k_layout = _Layout(Plan(q_flat, q_sizes)), _Layout(Plan(k_flat, k_sizes))
    groups_q, groups_k = q_layout.groups, k_layout.groups
    slots_q, slots_k, slots_v = q_layout.to_slots(q), k_layout.to_slots(k), k_layout.to_slots(v)
    out = torch.empty(slots_q.shape[0], q.shape[1], v.shape[2], dtype=v.dtype)
    sums = _no_sums(slots_q)
    for number, (rect_q, rect_k, rect_v, rect_out, rect_sums, hidden) in enumerate(
        zip(
            _rectangles(slots_q, groups_q),
            _rectangles(slots_k, groups_k),
            _rectangles(slots_v, groups_k),
            _rectangles(out, groups_q),
            _rectangles(sums, groups_q),
            _hidden_scores(q_layout, k_layout, causal),
            strict=True,
        )
    ):
        dtype = _rectangle_dtype(q.dtype, rect_k.shape[2])
        if _is_fused(dtype, rect_k.shape[2], dropout, backward=False):
            rect_q, rect_k, rect_v = (x.to(dtype) for x in (rect_q, rect_k, rect_v))
            context, logsum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                rect_q, rect_k, rect_v, 0.0, False, attn_mask=_added(hidden, rect_q)
            )
            rect_sums.copy_(logsum[..., None])
        else:
            rect_q, rect_k, rect_v = _contiguous(rect_q, rect_k, rect_v, dtype=dtype)
            context = _written_out(rect_q, rect_k, rect_v, hidden, dropout, seed + number)
        rect_out.copy_(context)
    return q_layout.to_tokens(out), q_layout.to_tokens(sums)


def _attend_rectangle(q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor | None:
    """``_attend`` without gradients on sequences of one length, such as a single text, by the fused kernel.

    Returns the same numbers in half the time, as for one sentence the operator takes longer than the kernel; None for
    other sequences.
    """
    (_, _, in_order), *groups = plan.sizes.tolist()
    n, length, ragged = groups[0]
    dtype = _rectangle_dtype(q.dtype, length)
    if len(groups) > 1 or ragged or not in_order or not _is_fused(dtype, length, 0.0, backward=False):
        return None
    rectangles = (x.to(dtype).unflatten(0, (n, length)).transpose(1, 2) for x in (q, k, v))
    context: Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*rectangles)[0]
    return context.transpose(1, 2).flatten(0, 1).to(v.dtype)


def _written_out(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout: float, seed: Tensor) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):  # the dtype is already chosen
        weights = _weights(q, k, hidden)
        if dropout:
            weights.mul_(_kept(weights, dropout, seed))
        return weights @ v


def _no_sums(x: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], x.shape[1], 1, dtype=torch.promote_types(x.dtype, torch.float32))


@operator("firth::attend_backward")
def _attend_backward(
    grad: Tensor,
    out: Tensor,
    sums: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seed: Tensor,
    q_flat: Tensor,
    q_sizes: Tensor,
    k_flat: Tensor,
    k_sizes: Tensor,
    causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    q_layout, k_layout = _Layout(Plan(q_flat, q_sizes)), _Layout(Plan(k_flat, k_sizes))
    groups_q, groups_k = q_layout.groups, k_layout.groups
    slots_q, slots_k, slots_v = q_layout.to_slots(q), k_layout.to_slots(k), k_layout.to_slots(v)
    slots_grad = q_layout.gradient_to_slots(grad)
    slots_out, slots_sums = q_layout.to_slots(out), q_layout.to_slots(sums)
    grads = tuple(torch.empty(x.shape, dtype=x.dtype) for x in (slots_q, slots_k, slots_v))
    for number, (rect_grad, rect_out, rect_sums, rect_q, rect_k, rect_v, into_q, into_k, into_v, hidden) in enumerate(
        zip(
            _rectangles(slots_grad, groups_q),
            _rectangles(slots_out, groups_q),
            _rectangles(slots_sums, groups_q),
            _rectangles(slots_q, groups_q),
            _rectangles(slots_k, groups_k),
            _rectangles(slots_v, groups_k),
            _rectangles(grads[0], groups_q),
            _rectangles(grads[1], groups_k),
            _rectangles(grads[2], groups_k),
            _hidden_scores(q_layout, k_layout, causal),
            strict=True,
        )
    ):
        dtype = _rectangle_dtype(q.dtype, rect_k.shape[2])
        if _is_fused(dtype, rect_k.shape[2], dropout, backward=True):
            rect_grad, rect_q, rect_k, rect_v, rect_out = (
                x.to(dtype) for x in (rect_grad, rect_q, rect_k, rect_v, rect_out)
            )
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                rect_grad,
                rect_q,
                rect_k,
                rect_v,
                rect_out,
                rect_sums[..., 0],
                0.0,
                False,
                attn_mask=_added(hidden, rect_q),
            )
        else:
            kept_seed = seed + number if dropout else None
            rect_grad, rect_q, rect_k, rect_v = _contiguous(rect_grad, rect_q, rect_k, rect_v, dtype=dtype)
            parts = _backward_written_out(rect_grad, rect_q, rect_k, rect_v, hidden, dropout, kept_seed)
        for into, part in zip((into_q, into_k, into_v), parts, strict=True):
            into.copy_(part)
    return q_layout.to_tokens(grads[0]), k_layout.to_tokens(grads[1]), k_layout.to_tokens(grads[2])


def _backward_written_out(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout: float, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(q, k, hidden)
    grad_weights = grad @ v.transpose(-1, -2)
    dropped = weights
    if seed is not None:
        kept = _kept(weights, dropout, seed)
        dropped = weights * kept
        grad_weights.mul_(kept)
    grad_v = dropped.transpose(-1, -2) @ grad
    # Backward of the softmax: dS = P ∘ (dP - Σ dP ∘ P), then the scale of the scores.
    grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
    grad_scores.mul_(1 / math.sqrt(q.shape[-1]))
    return grad_scores @ k, grad_scores.transpose(-1, -2) @ q, grad_v


@shapes_of(_attend)
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return v.new_empty(q.shape[0], q.shape[1], v.shape[2]), _no_sums(q)


@shapes_of(_attend_backward)
def _(
    grad: Tensor, out: Tensor, sums: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.dropout = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    grads = _attend_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.dropout)
    return (*grads, *(None,) * 7)


torch.library.register_autograd(_attend, _backward, setup_context=_save)


def _varlen(q: Tensor, k: Tensor, v: Tensor, q_rows: Rows, k_rows: Rows, causal: bool) -> Tensor:
    """Attention on packed sequences without rectangles."""
    # Older builds without CUDA lack it and do not need it.
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if causal else (-1, -1)
    lengths = q_rows.max_length, k_rows.max_length
    out = varlen_attn(q, k, v, q_rows.offsets, k_rows.offsets, *lengths, window_size=window)
    assert isinstance(out, Tensor)
    return out


def _attend_by_group(
    q: Tensor, k: Tensor, v: Tensor, q_plan: Plan, k_plan: Plan, causal: bool, dropout: float
) -> Tensor:
    """PyTorch's own attention and backward on each rectangle; dropout happens inside the kernel."""
    q_layout, k_layout = _Layout(q_plan), _Layout(k_plan)
    groups_q, groups_k = q_layout.groups, k_layout.groups
    slots_q, slots_k, slots_v = q_layout.to_slots(q), k_layout.to_slots(k), k_layout.to_slots(v)
    with sdpa_kernel(_OF_ANY_SHAPE):
        parts = [
            F.scaled_dot_product_attention(
                rect_q, rect_k, rect_v, attn_mask=None if hidden is None else ~hidden, dropout_p=dropout
            )
            .transpose(1, 2)
            .flatten(0, 1)
            for rect_q, rect_k, rect_v, hidden in zip(
                _rectangles(slots_q, groups_q),
                _rectangles(slots_k, groups_k),
                _rectangles(slots_v, groups_k),
                _hidden_scores(q_layout, k_layout, causal),
                strict=True,
            )
        ]
    return q_layout.to_tokens(torch.cat(parts))
