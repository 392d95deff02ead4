"""Token vectors from co-occurrence counts: positive pointwise mutual information, reduced by a singular value
decomposition.

Source: Levy, Goldberg and Dagan 2015 (PPMI and SVD with context distribution smoothing and eigenvalue weighting).
A minute of counting replaces the hundreds of optimizer steps that a model needs to group the tokens of its
vocabulary by meaning.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.data.shards import Corpus, ShardInfo
from firth.progress import Progress

WINDOW = 5
# Contexts beyond the most frequent tokens cost memory (4 bytes per token of the vocabulary) and change little.
MOST_CONTEXTS = 8192
# Exponent of the context distribution: rare contexts count for less.
_SMOOTHING = 0.75
# Tokens to read: twice as many hardly change the vectors, and the time is taken from training.
MOST_TOKENS = 20_000_000
_OVERSAMPLING = 32
_POWER_ITERATIONS = 3


def token_counts(corpus: Corpus) -> Float[np.ndarray, " V"]:
    """How often each token of the vocabulary occurs in the training text."""
    counts = np.zeros(corpus.tokenizer.size)
    for info in corpus.shards("train"):
        counts += np.bincount(np.asarray(corpus.open(info).ids), minlength=len(counts))
    return counts


def cooccurrence_vectors(
    corpus: Corpus, counts: Float[np.ndarray, " V"], width: int, *, window: int = WINDOW
) -> Float[Tensor, "V {width}"]:
    """Compute a vector for each token of the vocabulary from the tokens around it in the training text.

    A neighbour at distance d within ``window`` counts 1/d. Tokens that never occur get zeros. Deterministic.
    """
    contexts = np.argsort(-counts, kind="stable")[: min(MOST_CONTEXTS, len(counts))]
    column = np.full(len(counts), -1)
    column[contexts] = np.arange(len(contexts))
    table = torch.from_numpy(_count(corpus, column, len(contexts), window))
    return _reduced(_positive_information(table), width)


def _chosen(corpus: Corpus) -> list[ShardInfo]:
    """Training shards, evenly spread over the corpus, of about ``MOST_TOKENS`` together."""
    infos = [info for info in corpus.shards("train") if info.tokens]
    return infos[:: max(1, -(-sum(info.tokens for info in infos) // MOST_TOKENS))]


def _count(corpus: Corpus, column: np.ndarray, n_contexts: int, window: int) -> Float[np.ndarray, "V K"]:
    from scipy.sparse import csr_matrix  # imported here: slow to import, and most runs start without

    table = np.zeros((len(column), n_contexts), np.float32)
    chosen = _chosen(corpus)
    with Progress("co-occurrence counts", len(chosen), "shards") as progress:
        for info in chosen:
            ids = np.asarray(corpus.open(info).ids, np.int64)[:MOST_TOKENS]
            pairs = csr_matrix(table.shape, dtype=np.float32)
            for distance in range(1, min(window, len(ids) - 1) + 1):
                left, right = ids[:-distance], ids[distance:]
                for token, context in ((left, column[right]), (right, column[left])):
                    kept = context >= 0
                    ones = np.full(int(kept.sum()), 1 / distance, np.float32)
                    pairs += csr_matrix((ones, (token[kept], context[kept])), shape=table.shape)
            rows = np.repeat(np.arange(len(column)), np.diff(pairs.indptr))
            table[rows, pairs.indices] += pairs.data
            progress.advance(1)
    return table


def _positive_information(table: Float[Tensor, "V K"]) -> Float[Tensor, "V K"]:
    """max(0, log(p(token, context) / (p(token) p(context)^0.75))), in place."""
    token = table.sum(1, keepdim=True).clamp(min=1e-9)
    context = table.sum(0, keepdim=True) ** _SMOOTHING
    context = (context / context.sum().clamp(min=1e-9)).clamp(min=1e-12)
    return table.div_(token).div_(context).clamp_(min=1.0).log_()


def _reduced(table: Float[Tensor, "V K"], width: int) -> Float[Tensor, "V {width}"]:
    """The first left singular vectors, times the roots of their singular values (Halko et al. 2011, algorithm 4.4)."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(table.shape[1], width + _OVERSAMPLING, generator=generator)
    for _ in range(_POWER_ITERATIONS):
        basis = torch.linalg.qr(table @ basis).Q
        basis = torch.linalg.qr(table.T @ basis).Q
    left, values, _ = torch.linalg.svd(table @ basis, full_matrices=False)
    vectors = left[:, :width] * values[:width].sqrt()
    # A small vocabulary has fewer directions than the model has dimensions.
    return torch.nn.functional.pad(vectors, (0, width - vectors.shape[1]))
