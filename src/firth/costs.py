"""Count floating-point operations of a step, and bytes kept per token for the backward pass.

``…_flops(config, batch)``: forward and backward. ``…_bytes(config, bytes per number)``: bytes for one token, first
without recomputation of blocks, then with it.
"""

from firth.data.batch import Batch
from firth.models.config import (
    AwdLstmConfig,
    BertConfig,
    BilmConfig,
    GptConfig,
    LstmConfig,
    MtLstmConfig,
    TransformerConfig,
    VectorsConfig,
)
from firth.objectives.config import BilmLMConfig
from firth.text.characters import ROW


def transformer_flops(config: BertConfig, batch: Batch) -> float:
    """Forward and backward: six operations per weight and token, attention, and the vocabulary at predicted tokens."""
    return gpt_flops(config, batch) + 6 * config.width**2 * _predictions(batch)


def gpt_flops(config: BertConfig | GptConfig, batch: Batch) -> float:
    """Like ``transformer_flops``, without a layer between the blocks and the vocabulary."""
    lengths = batch.tokens.rows.lengths.double()
    tokens, squares = float(lengths.sum()), float((lengths**2).sum())
    block = block_weights(config)
    vocabulary = config.width * config.vocab_size * _predictions(batch)
    return 6 * (config.n_layers * (block * tokens + 2 * config.width * squares) + vocabulary)


def block_weights(config: BertConfig | GptConfig | TransformerConfig) -> int:
    """Weights of a block's matrices: four of attention, two of the feed-forward part."""
    return 4 * config.width**2 + 2 * config.width * config.feed_forward_width


def _predictions(batch: Batch) -> int:
    return sum(n for term, n in batch.counts().items() if term in ("mlm", "lm"))


# Numbers per token at the peak of the backward pass, as a multiple of the hidden size, beyond what is kept for it.
# Measured (benchmarks/training_memory.py), not derived.
_PASSING = 105


def transformer_bytes(config: BertConfig | GptConfig, item: int) -> tuple[float, float]:
    """Bytes for one token, all layers: queries, keys, values, context, two sums and norms of the hidden size, the inner
    layer before and after its activation, and a byte per element that dropout may zero. With recomputation: one input
    per block, and everything of one block."""
    dropped = 2 * config.width if config.dropout else 0
    block = item * (8 * config.width + 2 * config.feed_forward_width) + dropped
    passing = _PASSING * item * config.width
    return config.n_layers * block + passing, config.n_layers * item * config.width + block + passing


def translation_flops(config: TransformerConfig, batch: Batch) -> float:
    """Like ``transformer_flops``, for both sides; the decoder's blocks also attend to the source."""
    width, block = config.width, block_weights(config)
    source = batch.tokens.rows.lengths.double()
    encoder = block * float(source.sum()) + 2 * width * float((source**2).sum())
    if batch.second is None:
        return 6 * config.n_layers * encoder
    target = batch.second.rows.lengths.double()
    own = block * float(target.sum()) + 2 * width * float((target**2).sum())
    cross = 2 * width**2 * float((source + target).sum()) + 2 * width * float((source * target).sum())
    vocabulary = width * config.vocab_size * batch.counts()["translation"]
    return 6 * (config.n_layers * (encoder + own + cross) + vocabulary)


def translation_bytes(config: TransformerConfig, item: int) -> tuple[float, float]:
    """Bytes for one token, if half of the tokens are in the encoder's blocks and half in the decoder's, which also keep
    a second attention and are never recomputed."""
    dropped = 3 * config.width if config.dropout else 0
    block = item * (8 * config.width + 2 * config.feed_forward_width) + dropped
    cross = item * 6 * config.width
    passing = _PASSING * item * config.width / 2
    decoder = config.n_layers * (block + cross) / 2
    return config.n_layers * block / 2 + decoder + passing, config.n_layers * item * config.width + decoder + passing


def bilm_flops(config: BilmConfig, batch: Batch) -> float:
    """Forward and backward: six operations per weight and token; the filters once per distinct word, over all its
    windows. With a large vocabulary, predictions are over a sample of the published size."""
    sides = [batch.tokens] if batch.second is None else [batch.tokens, batch.second]
    n_filters = sum(n for _, n in config.filters)
    windows = sum(size * n * (ROW - size + 1) for size, n in config.filters) * config.character_width
    word = windows + 2 * config.n_highways * n_filters**2 + n_filters * config.width
    layer = 8 * config.width * config.cells + config.width * config.cells
    # A stream has a side for each direction; a sequence without a second side is read in both.
    tokens = sum(side.rows.n_tokens for side in sides) * (1 if batch.second else 2)
    words = sum(side.ids.unique().numel() for side in sides)
    predictions = batch.counts().get("forward", 0) + batch.counts().get("backward", 0)
    vocabulary = config.width * min(config.vocab_size, BilmLMConfig().negatives)
    return 6.0 * (words * word + tokens * config.n_layers * layer + predictions * vocabulary)


def bilm_bytes(config: BilmConfig, item: int) -> tuple[float, float]:
    """Bytes for one token in one direction, all layers: four gates twice, the cell and its tanh, and the projected and
    clipped values. Also for its word, if every second one is distinct: the filters at about a dozen places, and the
    highways. Nothing is recomputed."""
    n_filters = sum(n for _, n in config.filters)
    word = (12 + 5 * config.n_highways) * n_filters / 2
    kept = item * (config.n_layers * (13.0 * config.cells + 6 * config.width) + word)
    return kept, kept


def lstm_flops(config: LstmConfig, batch: Batch) -> float:
    """Forward and backward: six operations per weight and token, and the vocabulary at predicted tokens."""
    layers = config.n_layers * 8 * config.width**2 * batch.tokens.rows.n_tokens
    vocabulary = config.width * config.vocab_size * batch.counts().get("lm", 0)
    return 6.0 * (layers + vocabulary)


def mtlstm_flops(config: MtLstmConfig, batch: Batch) -> float:
    """Like ``lstm_flops``, for both directions, plus the decoder, each step of which attends to the whole source."""
    width, decoder = config.hidden_width, 2 * config.hidden_width
    below = [config.width, *[decoder] * (config.n_layers - 1)]
    source = batch.tokens.rows.lengths.double()
    encoded = sum(8 * width * (size + width) for size in below) * float(source.sum())
    if batch.second is None:
        return 6.0 * encoded
    target = batch.second.rows.lengths.double()
    layers = sum(4 * decoder * (size + decoder) for size in (config.width + decoder, *below[1:]))
    written = (layers + 2 * decoder**2) * float(target.sum())
    attention = decoder**2 * float(source.sum()) + 2 * decoder * float((source * target).sum())
    vocabulary = decoder * config.vocab_size * batch.counts()["translation"]
    return 6.0 * (encoded + written + attention + vocabulary)


def mtlstm_bytes(config: MtLstmConfig, item: int) -> tuple[float, float]:
    """Bytes for one token, if half of the tokens are on each side: both directions of the encoder, the
    decoder's layers with their gates twice, and what is above them. Nothing is recomputed."""
    encoder = config.n_layers * 2 * 8.0 * config.hidden_width + config.width
    decoder = (config.n_layers * 12.0 + 8) * 2 * config.hidden_width + 2 * config.width
    kept = item * (encoder + decoder) / 2
    return kept, kept


def awd_lstm_flops(config: AwdLstmConfig, batch: Batch) -> float:
    """Like ``lstm_flops``."""
    widths = config.layer_widths
    weights = sum(4 * width * (below + width) for below, width in zip(widths, widths[1:], strict=False))
    vocabulary = config.width * config.vocab_size * batch.counts().get("lm", 0)
    return 6.0 * (weights * batch.tokens.rows.n_tokens + vocabulary)


def awd_lstm_bytes(config: AwdLstmConfig, item: int) -> tuple[float, float]:
    """Bytes for one token, all layers, with the mask and the result of dropout below each. Nothing is recomputed."""
    widths = config.layer_widths
    kept = item * float(sum(7 * width + 3 * below for below, width in zip(widths, widths[1:], strict=False)))
    return kept, kept


def lstm_bytes(config: LstmConfig, item: int) -> tuple[float, float]:
    """Bytes for one token, all layers: input, four gates, cell, its tanh and output, and in the backward pass their
    gradients and some sums of them (measured: 20 numbers). Nothing is recomputed."""
    kept = config.n_layers * item * 20.0 * config.width
    return kept, kept


def vectors_flops(config: VectorsConfig, batch: Batch) -> float:
    """Forward and backward: the vocabulary at predicted tokens; lookups and sums are negligible."""
    return 6.0 * config.width * config.vocab_size * _predictions(batch)


def vectors_bytes(config: VectorsConfig, item: int) -> tuple[float, float]:
    """Bytes for one token: its vector, that of its context, and their gradients."""
    kept = 4.0 * item * config.width
    return kept, kept
