"""Static word vectors as an encoder.

They come from objectives/cbow.py, gensim (vectors/train.py), or another tool's file
(convert/word_vectors.py). Words outside the vocabulary carry their characters, which select their vectors.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.subwords import ngram_mean
from firth.models.config import VectorsConfig
from firth.packed import Encoder, Hidden, Tokens, kept_layers
from firth.text.characters import BEGIN_WORD, END_WORD, ROW
from firth.text.shapes import SHAPES, bucket_of, shape_of
from firth.text.tokenizer_kinds import WORDS

# Ids of a vocabulary of whole words, whose special tokens come first.
UNKNOWN = WORDS.specials.index(WORDS.unk)
_NO_WORDS = tuple(WORDS.specials.index(piece) for piece in (WORDS.start, WORDS.between, WORDS.end))


class Vectors(Encoder):
    """Only an embedding: layer 0 is the top one; ``summary`` is the mean of a sequence's words.

    ``unknown``: vectors for words outside the vocabulary, one per shape, hash, or n-gram hash;
    None if ``<unk>`` covers them all. Tokens without characters are ``<unk>`` too.
    """

    def __init__(self, config: VectorsConfig):
        super().__init__()
        self.config = config
        n_unknown = len(SHAPES) if config.unknown == "shapes" else config.n_buckets
        self.embeddings = nn.Embedding(config.vocab_size, config.width)
        self.unknown = nn.Embedding(n_unknown, config.width) if n_unknown else None
        # Source: word2vec.c, InitNet; GloVe's glove.c initialises alike.
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5 / config.width, 0.5 / config.width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of layer 0."""
        return (self.config.width,)

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        layers = kept_layers(keep, self.config.n_layers)
        x = self.embeddings(tokens.ids)
        if self.unknown is not None and tokens.chars is not None:
            (new,) = (tokens.ids == UNKNOWN).nonzero(as_tuple=True)
            x = x.index_copy(0, new, self._of_unknown(tokens.chars.index_select(0, new)))
        return Hidden(layers=dict.fromkeys(layers, x), rows=tokens.rows, summary=self._mean(x, tokens))

    def _of_unknown(self, chars: Int[Tensor, "U C"]) -> Float[Tensor, "U H"]:
        assert self.unknown is not None
        config = self.config
        if config.unknown == "ngrams":
            return ngram_mean(_marked(chars), self.unknown.weight, config.shortest_ngram, config.longest_ngram)
        words = [_spelled(row) for row in chars.tolist()]
        rows = [shape_of(word) if config.unknown == "shapes" else bucket_of(word, config.n_buckets) for word in words]
        return self.unknown(torch.tensor(rows, dtype=torch.int64, device=chars.device))

    def _mean(self, x: Float[Tensor, "T H"], tokens: Tokens) -> Float[Tensor, "B H"]:
        """The mean of the words of each sequence; zeros if there are none."""
        is_word = torch.ones_like(tokens.ids, dtype=x.dtype)
        for piece in _NO_WORDS:
            is_word = is_word * (tokens.ids != piece)
        row = tokens.rows.row_of_token()
        sums = x.new_zeros(tokens.rows.n_rows, x.shape[1]).index_add(0, row, x * is_word[:, None])
        n_words = is_word.new_zeros(tokens.rows.n_rows).index_add(0, row, is_word)
        return sums / n_words.clamp(min=1)[:, None]

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.embeddings.weight

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters: one group."""
        return [list(self.parameters())]


def _marked(chars: Int[Tensor, "U C"]) -> Int[Tensor, "U C"]:
    """The bytes of words between fastText's marks, from rows of characters.

    A row without padding has no mark at its end: nearly all such words are longer than a row holds.
    """
    marked = torch.where(chars == BEGIN_WORD, ord("<"), torch.where(chars == END_WORD, ord(">"), chars))
    marked = marked.masked_fill(marked > 255, -1).long()
    marked[:, ROW - 1 :] = -1
    return marked


def _spelled(row: Sequence[int]) -> str:
    """Decode a row of characters to its word; a partial character at a cut end is dropped."""
    return bytes(character for character in row if character < 256).decode(errors="ignore")
