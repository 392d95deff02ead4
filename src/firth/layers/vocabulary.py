"""Vocabulary projection and its loss, without storing the logits.

Logits of M predictions over V tokens are the largest tensors of pre-training. They are computed in
chunks, with each chunk's gradient, so that memory does not grow with M.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.activations import ACTIVATIONS
from firth.layers.operators import operator, shapes_of
from firth.machine import compute_dtype

# Logits per chunk, for the matrix products: 2^23 numbers are 16 MB in bfloat16.
_CHUNK_LOGITS = 2**23
# Logits per block of a chunk, for the softmax: 2^19 numbers are 2 MB in float32, which fit a core's cache.
_BLOCK_LOGITS = 2**19


class VocabularyHead(nn.Module):
    """BERT's masked-LM head: dense, activation, LayerNorm, then the tied embedding and a bias.

    Source: google-research/bert run_pretraining.py, get_masked_lm_output. The embedding matrix is
    passed to each call, so that the head does not own it.
    """

    def __init__(self, *, width: int, vocab_size: int, activation: str, norm_epsilon: float):
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.activate = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def features(self, x: Float[Tensor, "M H"]) -> Float[Tensor, "M H"]:
        """The input of the product with the embedding."""
        return self.norm(self.activate(self.transform(x)))

    def logits(self, x: Float[Tensor, "M H"], embedding: Float[Tensor, "V H"]) -> Float[Tensor, "M V"]:
        return F.linear(self.features(x), embedding, self.bias)

    def loss(
        self, x: Float[Tensor, "M H"], embedding: Float[Tensor, "V H"], label: Int[Tensor, " M"]
    ) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy and the number of correct predictions."""
        return vocabulary_loss(self.features(x), embedding, self.bias, label)


def vocabulary_loss(
    x: Float[Tensor, "M H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None,
    label: Int[Tensor, " M"],
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of ``x weightᵀ + bias`` against ``label``, and the number of correct predictions.

    With label ``smoothing`` ε the target is a distribution: 1 - ε on the label, ε / (V - 1) on each other token; the
    loss is the cross-entropy minus the target's entropy, so that 0 remains the minimum. Source: tensor2tensor
    common_layers.py, smoothing_cross_entropy; Vaswani et al. 2017, §5.4.

    The matrix products run in autocast's dtype if it is on, the softmax and the sums in at least float32.
    """
    needed = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (x, weight, bias))
    loss, correct, *_ = _vocabulary_loss(x, weight, bias, label, smoothing, needed, compute_dtype(weight))
    return loss, correct


@operator("firth::vocabulary_loss")
def _vocabulary_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    label: Tensor,
    smoothing: float,
    needs_grad: bool,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    loss, correct = _zero(weight), _zero(weight)
    grad_x, grad_weight, grad_bias = _gradients(x, weight, bias, needs_grad)
    matrix, rows = weight.to(compute), max(1, _CHUNK_LOGITS // len(weight))
    for start in range(0, len(x), rows):
        part, answers = x[start : start + rows].to(compute), label[start : start + rows]
        logits = part @ matrix.T
        of_bias = grad_bias if needs_grad else None
        for block, answer in zip(*(whole.split(_block_rows(weight)) for whole in (logits, answers)), strict=True):
            # In place: the block of logits becomes its gradient.
            block_loss, block_correct = _softmax_block(block, bias, answer, smoothing, of_bias)
            loss += block_loss
            correct += block_correct
        if needs_grad:
            grad_x[start : start + rows] = logits @ matrix
            # Accumulated over chunks in the weight's dtype: in bfloat16 each chunk would round the sum.
            share = logits.T @ part
            grad_weight.add_(share) if start else grad_weight.copy_(share)
    return loss, correct, grad_x, grad_weight, grad_bias


def _block_rows(weight: Tensor) -> int:
    """Rows of logits per block: few on a CPU, so that they fit its cache."""
    return max(1, (_BLOCK_LOGITS if weight.device.type == "cpu" else _CHUNK_LOGITS) // len(weight))


def _softmax_block(
    logits: Tensor, bias: Tensor | None, label: Tensor, smoothing: float, grad_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Summed loss and correct predictions; with ``grad_bias``, ``logits`` is overwritten by its gradient."""
    answer = label[:, None]
    numbers = logits.to(torch.promote_types(logits.dtype if bias is None else bias.dtype, torch.float32))
    if bias is not None:
        numbers = numbers.add_(bias)
    target = numbers.gather(1, answer)
    highest, best = numbers.max(1, keepdim=True)
    numbers.sub_(highest)
    # The smoothed target: the label's excess over each other token, and the share of those.
    other = smoothing / (logits.shape[1] - 1) if smoothing else 0.0
    above = 1 - smoothing - other
    spread = numbers.sum(1, keepdim=True) if smoothing else None
    exponentials = numbers.exp_()
    total = exponentials.sum(1, keepdim=True)
    if spread is None:
        loss = (highest - target + total.log()).sum()
    else:
        loss = (above * (highest - target) - other * spread + total.log() - _entropy(smoothing, other)).sum()
    if grad_bias is not None:
        if smoothing:
            exponentials.sub_(other * total)
        exponentials.scatter_add_(1, answer, -above * total)
        share = total.reciprocal()
        if bias is not None:
            grad_bias += (share.T @ exponentials).squeeze(0)
        torch.mul(exponentials, share, out=logits)
    return loss, (best == answer).sum()


def _entropy(smoothing: float, other: float) -> float:
    """The entropy of the smoothed target."""
    return -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(other)


def _zero(weight: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)


def _gradients(x: Tensor, weight: Tensor, bias: Tensor | None, needed: bool) -> tuple[Tensor, Tensor, Tensor]:
    if not needed:
        return x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    # Without predictions nothing would overwrite it.
    grad_weight = torch.empty_like(weight) if len(x) else torch.zeros_like(weight)
    return torch.empty_like(x), grad_weight, weight.new_empty(0) if bias is None else torch.zeros_like(bias)


@shapes_of(_vocabulary_loss)
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    label: Tensor,
    smoothing: float,
    needs_grad: bool,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _zero(weight), _zero(weight), *_gradients(x, weight, bias, needs_grad)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias = inputs[2] is not None
    ctx.save_for_backward(*output[2:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    grad_x, grad_weight, grad_bias = ctx.saved_tensors
    of_bias = grad_bias * grad if ctx.has_bias else None
    return grad_x * grad.to(grad_x.dtype), grad_weight * grad, of_bias, None, None, None, None


torch.library.register_autograd(_vocabulary_loss, _backward, setup_context=_save)
