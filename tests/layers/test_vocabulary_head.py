"""The vocabulary loss against PyTorch's cross-entropy, and that it stores no logits."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from firth.layers import vocabulary
from firth.layers.vocabulary import VocabularyHead, vocabulary_loss

V, H, M = 13, 5, 11


def inputs(n: int = M, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    shapes = ((n, H), (V, H), (V,))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes], torch.randint(V, (n,))


# All predictions in one chunk; a remainder; one prediction per chunk; a chunk smaller than one prediction.
@pytest.fixture(params=[2**23, 4 * V, V, 1])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(vocabulary, "_CHUNK_LOGITS", request.param)
    return int(request.param)


@pytest.mark.usefixtures("chunks")
def test_equals_cross_entropy_with_gradients() -> None:
    x, label = inputs()
    loss, correct = vocabulary_loss(*x, label)
    logits = F.linear(*x)
    expected = F.cross_entropy(logits, label, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    assert int(correct) == int((logits.argmax(1) == label).sum())
    # The incoming gradient is not always one: the trainer divides by a count.
    for one, other in zip(torch.autograd.grad(loss * 3, x), torch.autograd.grad(expected * 3, x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("chunks")
def test_gradients_are_those_of_the_loss() -> None:
    x, label = inputs(4)
    assert torch.autograd.gradcheck(lambda *parts: vocabulary_loss(*parts, label)[0], x)


def test_right_predictions_are_counted_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_CHUNK_LOGITS", 2 * V)
    (x, weight, bias), _ = inputs()
    best = F.linear(x, weight, bias).argmax(1)
    label = best.clone()
    label[[1, 5, 10]] = (label[[1, 5, 10]] + 1) % V
    _, correct = vocabulary_loss(x, weight, bias, label)
    assert int(correct) == M - 3


def test_no_prediction_is_a_loss_and_gradients_of_zero() -> None:
    x, label = inputs(0)
    loss, correct = vocabulary_loss(*x, label)
    assert (float(loss.detach()), float(correct)) == (0.0, 0.0)
    grads = torch.autograd.grad(loss, x)
    assert [g.shape for g in grads] == [p.shape for p in x]
    assert all(bool((g == 0).all()) for g in grads)


def test_extreme_logits_stay_finite() -> None:
    x = torch.tensor([[1e4, 0.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss, _ = vocabulary_loss(x, weight, torch.zeros(2), torch.tensor([1]))
    assert float(loss.detach()) == pytest.approx(2e4)
    (grad,) = torch.autograd.grad(loss, x)
    assert grad.tolist() == [[2.0, 0.0]]


class _Sizes:
    """Sizes of all tensors that autograd saves for the backward pass."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __enter__(self) -> "_Sizes":
        def pack(tensor: Tensor) -> Tensor:
            self.sizes.append(tensor.numel())
            return tensor

        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__(None, None, None)


def test_no_logits_are_kept_for_the_backward() -> None:
    x, label = inputs(60)
    with _Sizes() as kept:
        vocabulary_loss(*x, label)
    assert sum(kept.sizes) == 60 * H + V * H + V  # the gradients themselves
    with _Sizes() as plain:
        F.cross_entropy(F.linear(*x), label, reduction="sum")
    assert 60 * V in plain.sizes  # so the check does detect stored logits


def test_without_gradients_none_are_made() -> None:
    x, label = inputs()
    with torch.no_grad():
        loss, correct = vocabulary_loss(*x, label)
    assert not loss.requires_grad
    frozen = [p.detach() for p in x]
    again, _ = vocabulary_loss(*frozen, label)
    assert not again.requires_grad
    torch.testing.assert_close(loss, again)
    _, _, *grads = vocabulary._vocabulary_loss(*frozen, label, 0.0, False, torch.float64)
    assert [g.numel() for g in grads] == [0, 0, 0]


@pytest.mark.parametrize("trained", [0, 1, 2])
def test_part_of_it_can_be_frozen(trained: int) -> None:
    x, label = inputs()
    parts = [p.detach().requires_grad_(i == trained) for i, p in enumerate(x)]
    loss, _ = vocabulary_loss(*parts, label)
    (grad,) = torch.autograd.grad(loss, parts[trained])
    (expected,) = torch.autograd.grad(F.cross_entropy(F.linear(*x), label, reduction="sum"), x[trained])
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-10)


def test_bfloat16_autocast_is_close_and_sums_in_float32() -> None:
    x, label = inputs(200, torch.float32)
    exact, _ = vocabulary_loss(*x, label)
    exact_grads = torch.autograd.grad(exact, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, correct = vocabulary_loss(*x, label)
    assert loss.dtype == correct.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(exact.detach()), rel=0.01)
    for low, full, part in zip(torch.autograd.grad(loss, x), exact_grads, x, strict=True):
        assert low.dtype == part.dtype
        assert float((low - full).norm() / full.norm()) < 0.02


def smoothed(logits: Tensor, label: Tensor, smoothing: float) -> Tensor:
    """By definition: cross-entropy with the smoothed target, minus the target's own entropy."""
    answer = torch.full_like(logits, smoothing / (V - 1)).scatter(1, label[:, None], 1 - smoothing)
    return (torch.special.xlogy(answer, answer) - answer * logits.log_softmax(1)).sum()


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("with_bias", [True, False])
def test_smoothed_answers_by_their_definition(with_bias: bool) -> None:
    (x, weight, bias), label = inputs()
    parts = [x, weight, bias] if with_bias else [x, weight]
    loss, correct = vocabulary_loss(x, weight, bias if with_bias else None, label, 0.1)
    logits = F.linear(*parts)
    expected = smoothed(logits, label, 0.1)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    assert int(correct) == int((logits.argmax(1) == label).sum())
    for one, other in zip(torch.autograd.grad(loss * 3, parts), torch.autograd.grad(expected * 3, parts), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_smoothed_answer_by_hand() -> None:
    """Three tokens with probabilities 1/2, 1/4, 1/4; the target is 0.8 on the first and 0.1 on the others."""
    logits = torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64).log()
    loss, correct = vocabulary_loss(logits, torch.eye(3, dtype=torch.float64), None, torch.tensor([0]), 0.2)
    cross = -(0.8 * math.log(1 / 2) + 0.2 * math.log(1 / 4))
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.1))
    assert float(loss) == pytest.approx(cross - entropy, abs=1e-12)
    assert int(correct) == 1


def test_gradients_of_smoothed_answers_are_those_of_the_loss() -> None:
    (x, weight, bias), label = inputs(4)
    assert torch.autograd.gradcheck(lambda *parts: vocabulary_loss(*parts, label, 0.3)[0], (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *parts: vocabulary_loss(*parts, None, label, 0.3)[0], (x, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_bias_is_a_bias_of_zero(dtype: torch.dtype) -> None:
    (x, weight, _), label = inputs(200, torch.float32)
    bias = torch.zeros(V)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss, correct = vocabulary_loss(x, weight, None, label)
        with_zeros, also_correct = vocabulary_loss(x, weight, bias, label)
    assert torch.equal(loss, with_zeros) and torch.equal(correct, also_correct)
    for one, other in zip(
        torch.autograd.grad(loss, (x, weight)), torch.autograd.grad(with_zeros, (x, weight)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("n", [0, 3])
def test_operator_keeps_its_promises(n: int, needs_grad: bool, smoothing: float) -> None:
    x, label = inputs(n, torch.float32)
    if not needs_grad:
        x = [p.detach() for p in x]
    torch.library.opcheck(vocabulary._vocabulary_loss, (*x, label, smoothing, needs_grad, torch.float64))
    torch.library.opcheck(vocabulary._vocabulary_loss, (*x[:2], None, label, smoothing, needs_grad, torch.float64))


def test_head_by_its_equations() -> None:
    """LayerNorm(act(x W + b)) times the embedding, plus a bias; its loss is the cross-entropy of its logits."""
    torch.manual_seed(0)
    head = VocabularyHead(width=H, vocab_size=V, activation="gelu_tanh", norm_epsilon=1e-12).double()
    torch.nn.init.normal_(head.bias)
    x, embedding = torch.randn(4, H, dtype=torch.float64), torch.randn(V, H, dtype=torch.float64)
    label = torch.tensor([1, 0, 12, 5])
    inner = F.gelu(x @ head.transform.weight.T + head.transform.bias, approximate="tanh")
    centred = inner - inner.mean(1, keepdim=True)
    normal = centred / (inner.var(1, unbiased=False, keepdim=True) + 1e-12).sqrt()
    expected = normal @ embedding.T + head.bias
    torch.testing.assert_close(head.logits(x, embedding), expected, rtol=0, atol=1e-10)
    loss, _ = head.loss(x, embedding, label)
    torch.testing.assert_close(loss, F.cross_entropy(expected, label, reduction="sum"), rtol=0, atol=1e-10)
