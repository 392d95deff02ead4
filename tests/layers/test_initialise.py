"""Parameter initialisation: standard deviations, bounds, and what is not sampled."""

import torch
from torch import nn

from firth.layers.initialise import normal_, truncated_normal_


def test_truncated_normal_start() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Embedding(300, 200), nn.Linear(200, 300), nn.LayerNorm(300), nn.Linear(300, 200, bias=False)
    )
    for parameter in module.parameters():
        nn.init.constant_(parameter, 7.0)
    truncated_normal_(module, 0.5)
    drawn = [module[0].weight, module[1].weight, module[3].weight]
    for weight in drawn:
        assert float(weight.detach().abs().max()) <= 1.0  # two standard deviations
        assert abs(float(weight.detach().std()) - 0.8796 * 0.5) < 0.005  # normal truncated at 2 standard deviations
        assert abs(float(weight.detach().mean())) < 0.01
    assert bool((module[1].bias == 0).all())
    assert bool((module[2].weight == 1).all()) and bool((module[2].bias == 0).all())


def test_normal_start() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(300, 200), nn.Linear(200, 300), nn.LayerNorm(300))
    for parameter in module.parameters():
        nn.init.constant_(parameter, 7.0)
    normal_(module, 0.5)
    for weight in (module[0].weight.detach(), module[1].weight.detach()):
        assert float(weight.abs().max()) > 1.5  # three standard deviations: not truncated
        assert abs(float(weight.std()) - 0.5) < 0.005
        assert abs(float(weight.mean())) < 0.01
    assert bool((module[1].bias == 0).all())
    assert bool((module[2].weight == 1).all()) and bool((module[2].bias == 0).all())
