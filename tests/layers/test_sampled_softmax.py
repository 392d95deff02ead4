"""Sampled softmax against TensorFlow's rules, written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from firth.layers.sampled_softmax import draw_negatives, expected, sampled_loss

V, M, H = 50, 7, 4


def share(k: int, size: int = V) -> float:
    return math.log((k + 2) / (k + 1)) / math.log(size + 1)


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(M, H), torch.randn(V, H), torch.randn(V)
    return x, weight, bias, torch.tensor([0, 3, 49, 3, 10, 11, 1])


def test_shares_are_log_uniform_and_add_up() -> None:
    assert sum(share(k) for k in range(V)) == pytest.approx(1)
    found = expected(torch.arange(V), 20, V)
    assert found.tolist() == pytest.approx([1 - (1 - share(k)) ** 20 for k in range(V)], rel=1e-5)


def test_the_loss_by_hand() -> None:
    x, weight, bias, label = given()
    negatives, n_draws = torch.tensor([0, 3, 7, 20]), 9
    total, right = 0.0, 0
    for row, answer in zip(x, label.tolist(), strict=True):

        def score(k: int, row: torch.Tensor = row) -> float:
            return float(row @ weight[k] + bias[k])

        others = [k for k in negatives.tolist() if k != answer]
        corrected = [score(k) - math.log(1 - (1 - share(k)) ** n_draws) for k in (answer, *others)]
        total += math.log(sum(map(math.exp, corrected))) - corrected[0]
        right += corrected[0] > max(corrected[1:])
    loss, correct = sampled_loss(x, weight, bias, label, negatives, n_draws)
    assert float(loss) == pytest.approx(total, rel=1e-5) and int(correct) == right


def test_negatives_are_different_and_a_function_of_the_seed() -> None:
    for n in (1, 8, V - 1, V):
        negatives, n_draws = draw_negatives(n, V, seed=3)
        assert len(set(negatives.tolist())) == n == len(negatives) <= n_draws
        assert torch.equal(negatives, negatives.sort()[0])
        assert int(negatives.min()) >= 0 and int(negatives.max()) < V
        assert torch.equal(draw_negatives(n, V, seed=3)[0], negatives)
    assert not torch.equal(draw_negatives(20, V, 3)[0], draw_negatives(20, V, 4)[0])


def test_words_are_met_as_often_as_expected() -> None:
    """Expected counts assume a fixed number of draws; drawing until 10 words are distinct comes close."""
    counts, runs, draws = torch.zeros(V), 4000, 0
    for seed in range(runs):
        negatives, n_draws = draw_negatives(10, V, seed)
        counts[negatives] += 1
        draws += n_draws
    assert float(counts.sum()) == 10 * runs
    theory = expected(torch.arange(V), round(draws / runs), V)
    assert float((counts / runs - theory).abs().max()) < 0.06


def test_on_the_whole_the_gradient_is_that_of_the_full_softmax() -> None:
    x, weight, bias, label = given()
    x.requires_grad_()
    (full,) = torch.autograd.grad(F.cross_entropy(x @ weight.T + bias, label, reduction="sum"), x)
    mean = torch.zeros_like(x)
    for seed in range(300):
        negatives, n_draws = draw_negatives(30, V, seed)
        loss, _ = sampled_loss(x, weight, bias, label, negatives, n_draws)
        mean += torch.autograd.grad(loss, x)[0] / 300
    assert float((mean - full).norm() / full.norm()) < 0.15


def test_gradients_reach_only_what_was_drawn_or_asked_for() -> None:
    x, weight, bias, label = given()
    weight.requires_grad_()
    negatives, n_draws = draw_negatives(5, V, 0)
    sampled_loss(x, weight, bias, label, negatives, n_draws)[0].backward()
    touched = set(weight.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert touched <= {*negatives.tolist(), *label.tolist()} and set(label.tolist()) <= touched
