"""The comparison of two texts against Sentence-BERT's formula, one example at a time."""

import pytest
import torch
from torch import nn

from firth.layers.towers import TowerComparison, TowersNetwork

WIDTH, K = 5, 3


@pytest.mark.parametrize("compare", ["cosine", "features"])
def test_each_pair_is_compared_by_the_formula(compare: TowerComparison) -> None:
    torch.manual_seed(0)
    made = TowersNetwork(WIDTH, K, compare=compare, dropout=0.3).double().eval()
    nn.init.normal_(made.output.weight)
    x = torch.randn(5, WIDTH, dtype=torch.float32)
    found = made.float()(x, torch.tensor([False, True, False, False, True]))
    for at, (u, v) in {0: (x[0], x[1]), 2: (x[2], x[2]), 3: (x[3], x[4])}.items():
        cosine = (u @ v / (u.norm() * v.norm()))[None]
        parts = [cosine] if compare == "cosine" else [u, v, (u - v).abs(), u * v, cosine]
        torch.testing.assert_close(found[at], made.output.weight @ torch.cat(parts) + made.output.bias)
    assert not found[[1, 4]].any(), "what is found stands at the first text"


def test_it_begins_with_the_scale_of_the_values() -> None:
    made = TowersNetwork(WIDTH, 1, compare="cosine", dropout=0.0)
    made.start_at(1.0, 5.0)
    x = torch.eye(WIDTH)[[0, 0, 1, 2]]
    found = made(x, torch.tensor([False, True, False, True]))
    torch.testing.assert_close(found[:, 0], torch.tensor([5.0, 0.0, 1.0, 0.0]))


def test_a_second_text_without_its_first_is_an_error() -> None:
    with pytest.raises(ValueError, match="without its first"):
        TowersNetwork(WIDTH, 1, compare="cosine", dropout=0.0)(torch.ones(2, WIDTH), torch.tensor([True, False]))
