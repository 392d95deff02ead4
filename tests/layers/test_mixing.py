"""Layer mixes and pooling into words and sequences, by hand and against one word or sequence at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from firth.errors import ConfigError
from firth.layers.mixing import MixKind, PoolKind, WeightedSum, attend_runs, make_mix, pool_rows, pool_words
from firth.packed import Rows

LAYERS = {0: torch.tensor([[9.0, 9.0]]), 1: torch.tensor([[1.0, 2.0]]), 2: torch.tensor([[3.0, 6.0]])}


@pytest.mark.parametrize(
    ("kind", "layers", "expected"),
    [
        ("one", (1,), [1.0, 2.0]),
        ("one", (-1,), [3.0, 6.0]),
        ("sum", (1, 2), [4.0, 8.0]),
        ("sum", (0, 1, 2), [13.0, 17.0]),
        ("scalar", (1, 2), [2.0, 4.0]),
        ("scalar", (2,), [3.0, 6.0]),
        ("concat", (1, 2), [1.0, 2.0, 3.0, 6.0]),
        ("concat", (-1, -2), [3.0, 6.0, 1.0, 2.0]),
    ],
)
def test_mixes_by_hand(kind: MixKind, layers: tuple[int, ...], expected: list[float]) -> None:
    mix = make_mix(kind, layers, (2, 2, 2))
    out = mix(LAYERS)
    assert out.tolist() == [expected]
    assert mix.width == len(expected)
    assert mix.layers == tuple(layer % 3 for layer in layers)


def test_concat_takes_unequal_widths() -> None:
    mix = make_mix("concat", (2, 0), (3, 5, 1))
    assert mix.width == 4
    assert mix({0: torch.zeros(2, 3), 2: torch.ones(2, 1)}).tolist() == [[1, 0, 0, 0]] * 2


def test_weighted_sum_is_elmo_equation_1() -> None:
    mix = make_mix("scalar", (1, 2), (2, 2, 2))
    assert isinstance(mix, WeightedSum)
    assert {name: p.tolist() for name, p in mix.named_parameters()} == {"scalars": [0.0, 0.0], "gamma": 1.0}
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([math.log(3), 0.0]))
        mix.gamma.fill_(10.0)
    torch.testing.assert_close(mix.weights(), torch.tensor([0.75, 0.25]))
    out = mix(LAYERS)
    torch.testing.assert_close(out, torch.tensor([[15.0, 30.0]]))
    # d out / d γ = (1.5, 3); d out / d scalar_1 = γ s_1 (h_1 - mix) = 7.5 (-0.5, -1), and scalar_2 the opposite.
    out.sum().backward()
    assert mix.gamma.grad is not None and mix.scalars.grad is not None
    torch.testing.assert_close(mix.gamma.grad, torch.tensor(4.5))
    torch.testing.assert_close(mix.scalars.grad, torch.tensor([-11.25, 11.25]))


def test_a_layer_can_be_forced() -> None:
    mix = make_mix("scalar", (0, 1, 2), (2, 2, 2))
    assert isinstance(mix, WeightedSum)
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([-9e10, 1.0, -9e10]))
    assert torch.equal(mix(LAYERS), LAYERS[1])


def test_layer_norm_is_over_all_tokens_and_features() -> None:
    mix = make_mix("scalar", (0, 1), (2, 2), layer_norm=True)
    layers = {0: torch.tensor([[1.0, 3.0], [5.0, 7.0]]), 1: torch.tensor([[0.0, 0.0], [0.0, 2.0]])}
    # Layer 0: mean 4, variance 5. Layer 1: mean 0.5, variance 0.75.
    one = torch.tensor([[-3.0, -1.0], [1.0, 3.0]]) / math.sqrt(5)
    other = torch.tensor([[-0.5, -0.5], [-0.5, 1.5]]) / math.sqrt(0.75)
    torch.testing.assert_close(mix(layers), (one + other) / 2)


def test_layer_norm_of_a_constant_layer_is_zero() -> None:
    mix = make_mix("scalar", (0,), (2,), layer_norm=True)
    assert mix({0: torch.full((3, 2), 7.0)}).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize(
    ("kind", "layers", "widths", "says"),
    [
        ("sum", (0, 1), (4, 8), "mix 'sum' of the layers [0, 1] with widths [4, 8]: expected one width"),
        ("scalar", (0, -1), (4, 8), "mix 'scalar' of the layers [0, 1] with widths [4, 8]: expected one width"),
        ("one", (0, 1), (4, 4), "mix 'one' of the layers [0, 1]: expected a single layer"),
        ("sum", (), (4, 4), "a mix of the layers []: expected at least one, each once"),
        ("sum", (1, -1), (4, 4), "a mix of the layers [1, -1]: expected at least one, each once"),
        ("sum", (2,), (4, 4), "layer 2 of an encoder with layers 0 (embeddings) to 1"),
        ("sum", (-3,), (4, 4), "layer -3 of an encoder with layers 0 (embeddings) to 1"),
    ],
)
def test_mixes_that_do_not_fit(kind: MixKind, layers: tuple[int, ...], widths: tuple[int, ...], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_mix(kind, layers, widths)
    assert str(caught.value).startswith(says)


def test_layer_norm_is_for_the_weighted_sum_only() -> None:
    with pytest.raises(ConfigError, match="mix 'sum' with layer_norm: only 'scalar' has it"):
        make_mix("sum", (0, 1), (4, 4), layer_norm=True)


# Tokens 0 to 6; word 0 is token 1, word 1 tokens 2 to 4, word 2 token 6 (0 and 5 belong to no word).
PIECES = torch.tensor([[100.0], [1.0], [2.0], [4.0], [9.0], [100.0], [7.0]])
FIRST, LAST = torch.tensor([1, 2, 6]), torch.tensor([1, 4, 6])


@pytest.mark.parametrize(("how", "expected"), [("first", [1, 2, 7]), ("last", [1, 9, 7]), ("mean", [1, 5, 7])])
def test_words_by_hand(how: PoolKind, expected: list[float]) -> None:
    assert pool_words(PIECES, FIRST, LAST, how).flatten().tolist() == expected
    assert pool_words(PIECES, FIRST.int(), LAST.int(), how).flatten().tolist() == expected


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_no_words(how: PoolKind) -> None:
    assert pool_words(PIECES, FIRST[:0], LAST[:0], how).shape == (0, 1)


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_a_word_without_pieces_is_refused(how: PoolKind) -> None:
    with pytest.raises(ValueError, match="word 1 is the tokens 3 to 2: expected at least one"):
        pool_words(PIECES, torch.tensor([1, 3]), torch.tensor([1, 2]), how)


def one_word_at_a_time(x: Tensor, first: Tensor, last: Tensor) -> Tensor:
    return torch.stack([x[a : b + 1].mean(0) for a, b in zip(first.tolist(), last.tolist(), strict=True)])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_means_and_gradients_equal_one_word_at_a_time(words: list[tuple[int, int]]) -> None:
    """In any order, with gaps, and with tokens that several words share."""
    first, last = torch.tensor([sorted(word) for word in words]).unbind(1)
    torch.manual_seed(0)
    x = torch.randn(10, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(len(words), 3, dtype=torch.float64)
    ours, expected = pool_words(x, first, last, "mean"), one_word_at_a_time(x, first, last)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    (our_grad,) = torch.autograd.grad(ours, x, weight)
    (expected_grad,) = torch.autograd.grad(expected, x, weight)
    torch.testing.assert_close(our_grad, expected_grad, rtol=0, atol=1e-12)


def test_bfloat16_means_are_rounded_once() -> None:
    """With a sum rounded to bfloat16, 256 + 4 + 1 would be 260 and the mean 86.5."""
    x = torch.tensor([[256.0], [4.0], [1.0]], dtype=torch.bfloat16)
    mean = pool_words(x, torch.tensor([0]), torch.tensor([2]), "mean")
    assert mean.dtype == torch.bfloat16
    assert mean.item() == 87


def test_means_of_rows_in_few_bits_are_rounded_once() -> None:
    x = torch.tensor([[256.0], [4.0], [1.0]], dtype=torch.bfloat16)
    mean = pool_rows(x, Rows.from_lengths([3]), "mean")
    assert mean.dtype == torch.bfloat16 and mean.item() == 87
    # The sum would overflow float16.
    large = torch.full((4000, 1), 30.0, dtype=torch.float16)
    assert pool_rows(large, Rows.from_lengths([4000]), "mean").item() == 30


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from(["first", "last", "mean", "max"]))
def test_pooling_is_that_of_each_row_alone(lengths: list[int], how: str) -> None:
    x, rows = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(1)), Rows.from_lengths(lengths)
    alone = {"first": lambda p: p[0], "last": lambda p: p[-1], "mean": lambda p: p.mean(0), "max": lambda p: p.amax(0)}
    expected = torch.stack([alone[how](part) for part in x.split(lengths)])
    torch.testing.assert_close(pool_rows(x, rows, how), expected, rtol=0, atol=1e-6)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.sampled_from([1.0, 300.0]))
def test_attention_pooling_is_that_of_each_row_alone(lengths: list[int], scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(lengths), 3, generator=generator, dtype=torch.float64, requires_grad=True)
    scores = (scale * torch.randn(sum(lengths), generator=generator, dtype=torch.float64)).requires_grad_()
    parts = zip(x.split(lengths), scores.split(lengths), strict=True)
    expected = torch.stack([score.softmax(0) @ part for part, score in parts])
    found = attend_runs(x, scores, torch.tensor(lengths))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for mine, theirs in zip(
        *(torch.autograd.grad(y.square().sum(), (x, scores)) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_attention_pooling_of_equal_scores_is_the_mean_rounded_once() -> None:
    x = torch.tensor([[256.0], [4.0], [1.0]], dtype=torch.bfloat16)
    mean = attend_runs(x, torch.zeros(3), torch.tensor([3]))
    assert mean.dtype == torch.bfloat16 and mean.item() == 87


def test_gradients_pass_through_pooling() -> None:
    x = torch.tensor([[1.0], [5.0], [2.0]], requires_grad=True)
    (pool_rows(x, Rows.from_lengths([2, 1]), "max") * torch.tensor([[1.0], [10.0]])).sum().backward()
    assert x.grad is not None and x.grad.ravel().tolist() == [0, 1, 10]
