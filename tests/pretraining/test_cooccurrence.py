"""Token vectors from co-occurrence counts, compared with a direct implementation of the definition."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.data.shards import Corpus
from firth.pretraining import cooccurrence
from firth.pretraining.cooccurrence import cooccurrence_vectors, token_counts


def written_out(corpus: Corpus, window: int) -> np.ndarray:
    """Positive pointwise mutual information of each pair of tokens, counted one pair of positions at a time."""
    n = corpus.tokenizer.size
    pairs = np.zeros((n, n))
    for info in corpus.shards("train"):
        ids = corpus.open(info).ids
        for i, token in enumerate(ids):
            for d in range(1, window + 1):
                for j in (i - d, i + d):
                    if 0 <= j < len(ids):
                        pairs[token, ids[j]] += 1 / d
    context = pairs.sum(0) ** 0.75
    context /= context.sum()
    share = pairs / np.maximum(pairs.sum(1, keepdims=True), 1e-9)
    return np.log(np.maximum(share / np.maximum(context, 1e-12), 1.0))


def test_vectors_keep_what_pairs_of_tokens_say(tiny_corpus: Path) -> None:
    corpus = Corpus(str(tiny_corpus))
    counts = token_counts(corpus)
    width = corpus.tokenizer.size
    vectors = cooccurrence_vectors(corpus, counts, width, window=3)
    # All dimensions are kept, so the inner products of the vectors are the matrix square root of table @ table.T.
    table = written_out(corpus, 3)
    left, values, _ = np.linalg.svd(table)
    expected = (left * values) @ left.T
    assert np.allclose((vectors @ vectors.T).numpy(), expected, atol=1e-2 * values[0])


def test_counts_are_of_training_text(tiny_corpus: Path) -> None:
    corpus = Corpus(str(tiny_corpus))
    ids = np.concatenate([corpus.open(info).ids for info in corpus.shards("train")])
    assert token_counts(corpus).tolist() == np.bincount(ids, minlength=corpus.tokenizer.size).tolist()


def test_tokens_that_never_occur_have_no_direction(tiny_corpus: Path) -> None:
    corpus = Corpus(str(tiny_corpus))
    counts = token_counts(corpus)
    vectors = cooccurrence_vectors(corpus, counts, 8)
    assert vectors.shape == (corpus.tokenizer.size, 8)
    assert vectors[counts == 0].abs().max() < 1e-5 < vectors[counts > 5].norm(dim=1).min()


def test_a_vocabulary_with_fewer_directions_than_dimensions_leaves_zeros(tiny_corpus: Path) -> None:
    corpus = Corpus(str(tiny_corpus))
    width = corpus.tokenizer.size + 64
    vectors = cooccurrence_vectors(corpus, token_counts(corpus), width)
    assert vectors.shape[1] == width
    assert vectors[:, -1].abs().max() == 0
    assert math.isfinite(float(vectors.sum()))


def test_long_text_is_sampled(
    tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Corpus(str(tiny_corpus))
    monkeypatch.setattr(cooccurrence, "MOST_TOKENS", 100)
    assert len(cooccurrence._chosen(corpus)) == 1
    assert torch.isfinite(cooccurrence_vectors(corpus, token_counts(corpus), 4)).all()
    assert "stopped" not in capsys.readouterr().err
