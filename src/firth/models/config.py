"""Configurations of all encoders; does not import torch."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from firth.config import AMOUNT, COUNT, DEPTH, DEVIATION, POSITIVE, RATE, WIDTH, Bounds, check_bounds, option, required
from firth.errors import ConfigError
from firth.text.characters import ROW


@dataclass(frozen=True, kw_only=True, slots=True)
class BertConfig:
    """BERT's configuration. Defaults are BERT-base (Devlin et al. 2018, §3) with the released ``n_segments`` of 2."""

    vocab_size: int = required("vocabulary size (taken from the corpus's tokenizer)", COUNT)
    width: int = option(768, "H, hidden size", WIDTH)
    n_layers: int = option(12, "L, Transformer blocks", DEPTH)
    n_heads: int = option(12, "A, attention heads; width is a multiple of it", COUNT)
    feed_forward_width: int = option(3072, "inner size of a block's feed-forward part", WIDTH)
    max_positions: int = option(512, "maximum sequence length of the position embeddings", COUNT)
    n_segments: int = option(2, "segment embeddings (sentence A, sentence B)", COUNT)
    activation: Literal["gelu", "gelu_tanh", "relu", "tanh", "linear"] = option(
        "gelu", "gelu is the exact (erf) form, gelu_tanh the approximation"
    )
    dropout: float = option(0.1, "dropout of embeddings and block outputs", RATE)
    attention_dropout: float = option(0.1, "dropout of attention weights", RATE)
    init_range: float = option(0.02, "standard deviation of the initial truncated normal", DEVIATION)
    norm_epsilon: float = option(1e-12, "LayerNorm", POSITIVE)
    causal: bool = option(False, "True: left to right, each token attends only to earlier ones")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GptConfig:
    """GPT's configuration. Defaults are the published ones (Radford et al. 2018, §4.1); inner size 4 × ``width``."""

    vocab_size: int = required("vocabulary size (taken from the corpus's tokenizer)", COUNT)
    width: int = option(768, "H, hidden size", WIDTH)
    n_layers: int = option(12, "L, Transformer blocks", DEPTH)
    n_heads: int = option(12, "A, attention heads; width is a multiple of it", COUNT)
    max_positions: int = option(512, "maximum sequence length of the position embeddings", COUNT)
    dropout: float = option(0.1, "dropout of block outputs", RATE)
    attention_dropout: float = option(0.1, "dropout of attention weights", RATE)
    embedding_dropout: float = option(0.1, "dropout of the sum of token and position embeddings", RATE)
    init_range: float = option(0.02, "standard deviation of the initial normal", DEVIATION)
    norm_epsilon: float = option(1e-5, "LayerNorm", POSITIVE)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")

    @property
    def feed_forward_width(self) -> int:
        """Inner size of a block's feed-forward part."""
        return 4 * self.width


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmConfig:
    """A plain left-to-right LSTM whose state is carried from batch to batch."""

    vocab_size: int = required("vocabulary size (taken from the corpus's tokenizer)", COUNT)
    width: int = option(256, "size of the embedding and of each layer", WIDTH)
    n_layers: int = option(1, "LSTM layers", DEPTH)
    dropout: float = option(0.0, "dropout of embeddings and layer outputs", RATE)
    init_range: float = option(0.1, "embeddings are initialised uniformly in ± this", DEVIATION)

    def __post_init__(self) -> None:
        check_bounds(self)


_RATES = ("embedding_dropout", "input_dropout", "weight_dropout", "hidden_dropout")


@dataclass(frozen=True, kw_only=True, slots=True)
class AwdLstmConfig:
    """Sizes and dropout of ULMFiT's language model (Howard & Ruder 2018, §4.1; Merity et al. 2017)."""

    vocab_size: int = required("vocabulary size in words (taken from the corpus's tokenizer)", COUNT)
    width: int = option(400, "size of the embedding and of the top layer", WIDTH)
    hidden_width: int = option(1150, "size of the layers in between", WIDTH)
    n_layers: int = option(3, "LSTM layers", DEPTH)
    embedding_dropout: float = option(0.05, "dropout of words, each from a whole batch", RATE)
    input_dropout: float = option(0.4, "dropout of word embeddings, the same at every step", RATE)
    weight_dropout: float = option(0.5, "dropout of the hidden-to-hidden matrices", RATE)
    hidden_dropout: float = option(0.3, "dropout between layers, the same at every step", RATE)
    backward: bool = option(False, "True: read sequences from the last token to the first")
    init_range: float = option(0.1, "embeddings are initialised uniformly in ± this", DEVIATION)

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return (self.width, *[self.hidden_width] * (self.n_layers - 1), self.width)

    def with_dropout(self, rate: float) -> "AwdLstmConfig":
        """Scale all four dropouts in their published proportions; ``rate``: input dropout (published: 0.4)."""
        published: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in _RATES}
        scale = rate / published["input_dropout"]
        return replace(self, **{name: value * scale for name, value in published.items()})


HIGHWAYS = Bounds("0 to 100", lambda x: 0 <= x <= 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class BilmConfig:
    """Sizes of the original ELMo (Peters et al. 2018, §3.4; allenai/bilm-tf bin/train_elmo.py)."""

    vocab_size: int = required(
        "vocabulary size in words (taken from the corpus's tokenizer); any word can be read", COUNT
    )
    width: int = option(512, "size of a word vector, and of each layer's output per direction", WIDTH)
    cells: int = option(4096, "LSTM cells of each layer per direction, before projection", WIDTH)
    n_layers: int = option(2, "LSTM layers per direction", DEPTH)
    cell_clip: float = option(3.0, "clip cells to ± this; 0: no clipping", AMOUNT)
    projection_clip: float = option(3.0, "clip layer outputs to ± this, before the residual; 0: no clipping", AMOUNT)
    residual: bool = option(True, "True: residual connections from the second layer on")
    character_width: int = option(16, "size of a character vector", WIDTH)
    filters: tuple[tuple[int, ...], ...] = option(
        ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        "character filters: pairs of width and number",
    )
    activation: Literal["relu", "tanh"] = option("relu", "activation of the filters")
    n_highways: int = option(2, "highway layers over the filters", HIGHWAYS)
    dropout: float = option(0.1, "dropout of each LSTM layer's input, and of the softmax's input", RATE)

    def __post_init__(self) -> None:
        check_bounds(self)
        for filters in self.filters:
            if len(filters) != 2 or not 1 <= filters[0] <= ROW or not WIDTH.holds(filters[1]):
                raise ConfigError(
                    f"filters={list(map(list, self.filters))}: expected pairs of a size, 1 to {ROW}, and a number"
                )
        if not self.filters:
            raise ConfigError("filters=[]: expected at least one pair of a size and a number, such as [[3, 64]]")


@dataclass(frozen=True, kw_only=True, slots=True)
class MtLstmConfig:
    """Sizes of the published encoder (McCann et al. 2017, §3)."""

    vocab_size: int = required("vocabulary size in words (taken from the corpus's tokenizer)", COUNT)
    width: int = option(300, "size of a word vector", WIDTH)
    hidden_width: int = option(300, "size of each layer per direction", WIDTH)
    n_layers: int = option(2, "LSTM layers per direction, and of the decoder", DEPTH)
    dropout: float = option(0.2, "dropout between layers", RATE)
    fixed_words: bool = option(True, "True: word vectors are frozen; false: they are trained")
    init_range: float = option(0.1, "all parameters are initialised uniformly in ± this", DEVIATION)

    def __post_init__(self) -> None:
        check_bounds(self)


Unknown = Literal["one", "shapes", "hashed", "ngrams"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorsConfig:
    """Static word vectors: one vector per word, and a rule for unknown words."""

    vocab_size: int = required("vocabulary size in words (taken from the corpus's tokenizer)", COUNT)
    width: int = option(100, "size of a vector", WIDTH)
    unknown: Unknown = option(
        "one",
        "a word outside the vocabulary has: one vector for all, one for its shape (number, capitals, …), "
        "one for its hash, or the mean of its n-grams' (fastText)",
    )
    n_buckets: int = option(0, "number of hash buckets, of words (1,000 are many) or n-grams (fastText: 2,000,000)")
    shortest_ngram: int = option(3, "in characters, including the start and end marks (fastText: 3)", COUNT)
    longest_ngram: int = option(6, "the same (fastText: 6)")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.longest_ngram < self.shortest_ngram:
            raise ConfigError(f"longest_ngram={self.longest_ngram}: expected at least {self.shortest_ngram}")
        hashes = self.unknown in ("hashed", "ngrams")
        if self.n_buckets < hashes or (self.n_buckets and not hashes):
            wanted = "at least 1" if hashes else "0"
            raise ConfigError(f"n_buckets={self.n_buckets}: expected {wanted} with unknown={self.unknown!r}")

    @property
    def n_layers(self) -> int:
        """Layers above the embedding: none."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerConfig:
    """The Transformer's configuration. Defaults are the base model (Vaswani et al. 2017, §3 and Table 3)."""

    vocab_size: int = required("size of the joint vocabulary (taken from the corpus's tokenizer)", COUNT)
    width: int = option(512, "H, hidden size; even", WIDTH)
    n_layers: int = option(6, "L, blocks of the encoder and of the decoder", DEPTH)
    n_heads: int = option(8, "attention heads; width is a multiple of it", COUNT)
    feed_forward_width: int = option(2048, "inner size of a block's feed-forward part", WIDTH)
    dropout: float = option(0.1, "dropout of embeddings with positions, and of each sublayer's output", RATE)
    attention_dropout: float = option(0.0, "dropout of attention weights", RATE)
    feed_forward_dropout: float = option(0.0, "dropout inside the feed-forward part", RATE)
    attention_bias: bool = option(False, "biases in the attention projections; the paper has none")
    norm: Literal["post", "pre"] = option(
        "post", "post: norm after each sum, as in the paper; pre: before each part, and one at the end of each side"
    )
    positions: Literal["interleaved", "halves"] = option(
        "interleaved", "sines and cosines in turn, as in the paper; halves: all sines first, as in tensor2tensor"
    )
    norm_epsilon: float = option(1e-6, "LayerNorm", POSITIVE)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.width % 2:
            raise ConfigError(f"width={self.width} is odd: positions are pairs of a sine and a cosine, so it is even")
        if self.width % self.n_heads:
            raise ConfigError(f"width={self.width} is not a multiple of n_heads={self.n_heads}")
        if self.positions == "halves" and self.width < 4:
            raise ConfigError(f"width={self.width}: positions='halves' needs at least 4")
