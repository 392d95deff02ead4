"""Word vectors as an encoder: look-up, sequence means, and every rule for out-of-vocabulary words, by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.errors import ConfigError
from firth.layers.subwords import ngram_buckets, word_bytes
from firth.models.config import VectorsConfig
from firth.models.vectors import Vectors
from firth.packed import Hidden, Rows, Tokens
from firth.text.characters import character_rows
from firth.text.shapes import SHAPES, bucket_of

# Special tokens are 0 to 3; 0 is the unknown token.
WORDS = ["<unk>", "<s>", "<sep>", "</s>", "the", "cat"]


def make(**options) -> Vectors:
    torch.manual_seed(0)
    return Vectors(VectorsConfig(vocab_size=len(WORDS), width=3, **options))


def tokens_of(rows: list[list[str]], chars: bool = True) -> Tokens:
    words = [word for row in rows for word in row]
    ids = torch.tensor([WORDS.index(word) if word in WORDS else 0 for word in words])
    spelled = torch.from_numpy(character_rows(words).astype(np.int32)) if chars else None
    return Tokens(Rows.from_lengths([len(row) for row in rows]), ids, chars=spelled)


def read(encoder: Vectors, *words: str) -> Tensor:
    hidden: Hidden = encoder(tokens_of([list(words)]))
    return hidden.top


def test_layer_zero_is_the_top_one_and_the_table() -> None:
    encoder = make()
    tokens = tokens_of([["the", "cat"], ["cat", "dog", "</s>"]])
    for keep in ((0,), (-1,), (0, -1)):
        hidden = encoder(tokens, keep=keep)
        assert list(hidden.layers) == [0]
        assert torch.equal(hidden.top, encoder.piece_embedding[[4, 5, 5, 0, 3]])
    assert (encoder.widths, encoder.config.n_layers, encoder.causal) == ((3,), 0, False)
    with pytest.raises(ValueError, match="layer 1 of an encoder with layers 0"):
        encoder(tokens, keep=(1,))


def test_the_summary_is_the_mean_of_the_words() -> None:
    """``<s>``, ``<sep>`` and ``</s>`` are not words; an unknown word is one."""
    encoder = make()
    rows = [["the", "cat", "</s>"], ["the", "<sep>", "dog", "</s>"], ["</s>"]]
    table, summary = encoder.piece_embedding, encoder(tokens_of(rows)).summary
    expected = torch.stack([(table[4] + table[5]) / 2, (table[4] + table[0]) / 2, torch.zeros(3)])
    torch.testing.assert_close(summary, expected)


def test_one_vector_for_all_unknown_words() -> None:
    encoder = make(unknown="one")
    assert encoder.unknown is None
    assert torch.equal(read(encoder, "dog", "Zork"), encoder.piece_embedding[[0, 0]])


def test_a_vector_for_each_shape() -> None:
    encoder = make(unknown="shapes")
    assert encoder.unknown is not None
    found = read(encoder, "the", "1996", "NATO", "Geneva", "dogs")
    wanted = [SHAPES.index(shape) for shape in ("number", "capitals", "capital", "-s")]
    assert torch.equal(found, torch.cat([encoder.piece_embedding[[4]], encoder.unknown.weight[wanted]]))


def test_a_vector_for_each_hash() -> None:
    """Equal words have equal vectors, in any batch and any process."""
    encoder = make(unknown="hashed", n_buckets=50)
    assert encoder.unknown is not None
    found = read(encoder, "dog", "the", "고양이", "dog")
    rows = [bucket_of("dog", 50), bucket_of("고양이", 50)]
    assert torch.equal(found[[0, 2]], encoder.unknown.weight[rows])
    assert torch.equal(found[0], found[3])
    assert torch.equal(read(encoder, "고양이")[0], found[2])


def test_the_mean_of_ngrams() -> None:
    encoder = make(unknown="ngrams", n_buckets=50, shortest_ngram=2, longest_ngram=4)
    assert encoder.unknown is not None
    found = read(encoder, "dog", "고양이", "the")
    for row, word in enumerate(("dog", "고양이")):
        buckets, _ = ngram_buckets(word_bytes([word.encode()]), 2, 4, 50)
        torch.testing.assert_close(found[row], encoder.unknown.weight[buckets].mean(0))
    assert torch.equal(found[2], encoder.piece_embedding[4])
    # Of a word that was cut, the end is not taken for the end of the word.
    wide = make(unknown="ngrams", n_buckets=1 << 16, shortest_ngram=3, longest_ngram=3)
    (cut,), letters = read(wide, "ab" * 40), ngram_buckets(word_bytes([b"ab" * 40]), 3, 3, 1 << 16)[0][:47]
    torch.testing.assert_close(cut, wide.unknown.weight[letters].mean(0))
    long = make(unknown="ngrams", n_buckets=50, shortest_ngram=9, longest_ngram=9)
    assert torch.equal(read(long, "dog"), torch.zeros(1, 3)), "a word without n-grams"


@pytest.mark.parametrize("unknown", ["shapes", "hashed", "ngrams"])
def test_tokens_without_characters_are_the_unknown_piece(unknown: str) -> None:
    encoder = make(unknown=unknown, n_buckets=0 if unknown == "shapes" else 9)
    hidden = encoder(tokens_of([["dog", "cat"]], chars=False))
    assert torch.equal(hidden.top, encoder.piece_embedding[[0, 5]])


@pytest.mark.parametrize("unknown", ["shapes", "hashed", "ngrams"])
def test_only_the_rows_that_were_used_learn(unknown: str) -> None:
    encoder = make(unknown=unknown, n_buckets=0 if unknown == "shapes" else 200)
    assert encoder.unknown is not None
    encoder(tokens_of([["dog", "the"]])).top.sum().backward()
    reached = encoder.piece_embedding.grad.abs().sum(1) > 0
    assert reached.tolist() == [False, False, False, False, True, False]
    assert 0 < int((encoder.unknown.weight.grad.abs().sum(1) > 0).sum()) < 20
    assert [id(p) for p in encoder.layer_groups()[0]] == [id(p) for p in encoder.parameters()]


def test_it_begins_as_word2vec_does() -> None:
    weight = Vectors(VectorsConfig(vocab_size=4000, width=20)).piece_embedding.detach()
    assert float(weight.abs().max()) <= 0.5 / 20
    assert abs(float(weight.std()) - 1 / 20 / 12**0.5) < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width=0: expected at least 1"),
        ({"unknown": "hashed"}, "n_buckets=0: expected at least 1 with unknown='hashed'"),
        ({"unknown": "shapes", "n_buckets": 5}, "n_buckets=5: expected 0 with unknown='shapes'"),
        ({"shortest_ngram": 4, "longest_ngram": 3}, "longest_ngram=3: expected at least 4"),
    ],
)
def test_sizes_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VectorsConfig(vocab_size=9, **options)
