"""Sampled softmax: the loss over a large vocabulary from a sample of it.

Source: Jean et al. 2015; TensorFlow's sampled_softmax_loss and LogUniformCandidateSampler, which allenai/bilm-tf uses.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# Samples per round, relative to the size of the sample.
_DRAWS = 2
_OUT = -1e9


def sampled_loss(
    x: Float[Tensor, "M H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"],
    label: Int[Tensor, " M"],
    negatives: Int[Tensor, " S"],
    n_draws: int,
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of each label against shared ``negatives``, and how many labels score highest among them.

    Each score is corrected by the log of the word's expected count in ``n_draws`` samples, so that the gradient
    approximates that of the full softmax. A negative equal to the label is excluded from that prediction.
    ``negatives`` are sorted and unique.
    """
    true = _scores((x * weight.index_select(0, label)).sum(1), bias, label, n_draws)
    others = _scores(x @ weight.index_select(0, negatives).T, bias, negatives, n_draws)
    place = torch.searchsorted(negatives, label).clamp(max=len(negatives) - 1)
    (hit,) = (negatives.index_select(0, place) == label).nonzero(as_tuple=True)
    others = others.index_put((hit, place.index_select(0, hit)), others.new_tensor(_OUT))
    loss = (torch.logaddexp(true, others.logsumexp(1)) - true).sum()
    return loss, (true > others.amax(1)).sum()


def _scores(products: Tensor, bias: Tensor, words: Tensor, n_draws: int) -> Tensor:
    """Scores with bias and correction, in at least float32."""
    return products + (bias.index_select(0, words) - expected(words, n_draws, len(bias)).log())


def draw_negatives(n: int, size: int, seed: int) -> tuple[Int[Tensor, " S"], int]:
    """Sample ``n`` distinct words of a vocabulary of ``size``, sorted; also returns the number of draws needed.

    Word k has probability ``log((k + 2) / (k + 1)) / log(size + 1)``, which is close to the frequencies of a
    vocabulary sorted by them.
    """
    random = np.random.default_rng(seed)
    drawn = np.empty(0, np.int64)
    while True:
        exponents = random.random(_DRAWS * n) * math.log(size + 1)
        drawn = np.concatenate([drawn, np.minimum(np.exp(exponents).astype(np.int64) - 1, size - 1)])
        _, first = np.unique(drawn, return_index=True)
        if len(first) >= n:
            chosen = np.sort(first)[:n]
            return torch.from_numpy(np.sort(drawn[chosen])), int(chosen[-1]) + 1


def expected(words: Int[Tensor, " N"], n_draws: int, size: int) -> Float[Tensor, " N"]:
    """The probability that a word occurs at least once in ``n_draws`` draws."""
    places = words.double()
    share = ((places + 2) / (places + 1)).log() / math.log(size + 1)
    return -torch.expm1(n_draws * torch.log1p(-share)).float()
