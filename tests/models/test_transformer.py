"""The Transformer against PyTorch's own layers with the same weights, and against its equations."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.layers.initialise import xavier_
from firth.models.config import TransformerConfig
from firth.models.transformer import TransformerEncoder, halves, interleaved
from firth.models.transformer_decoder import Decoder
from firth.packed import Rows, Tokens, from_padded, to_padded
from firth.systems import SIZES, SYSTEMS

TINY = TransformerConfig(vocab_size=23, width=8, n_layers=2, n_heads=2, feed_forward_width=12, dropout=0.0)
SOURCE, TARGET = [5, 3, 7], [4, 6, 2]
both_forms = pytest.mark.parametrize("norm", ["post", "pre"])
either_bias = pytest.mark.parametrize("bias", [False, True])


def randomised(module: nn.Module, seed: int = 0) -> Any:
    """The module in float64 with every parameter sampled, norms and biases included."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module.double()


def tokens(lengths: list[int], seed: int = 1) -> Tokens:
    torch.manual_seed(seed)
    rows = Rows.from_lengths(lengths)
    return Tokens(rows, torch.randint(TINY.vocab_size, (rows.n_tokens,)))


def joint(attention: Any, into: nn.MultiheadAttention, parts: list[tuple[Tensor, Tensor | None]]) -> None:
    """Copy projections into PyTorch's module, which stores them as one matrix in the order query, key, value."""
    with torch.no_grad():
        into.in_proj_weight.copy_(torch.cat([weight for weight, _ in parts]))
        into.out_proj.weight.copy_(attention.output.weight)
        if into.in_proj_bias is not None:
            into.in_proj_bias.copy_(torch.cat([bias for _, bias in parts]))
            into.out_proj.bias.copy_(attention.output.bias)


def copy_linear(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.load_state_dict(ours.state_dict())


def their_layer(kind: type[nn.Module], config: TransformerConfig) -> Any:
    layer: Any = kind(
        config.width,
        config.n_heads,
        config.feed_forward_width,
        dropout=0.0,
        activation="relu",
        layer_norm_eps=config.norm_epsilon,
        batch_first=True,
        norm_first=config.norm == "pre",
        dtype=torch.float64,
    )
    if not config.attention_bias:
        for name in ("self_attn", "multihead_attn"):
            if hasattr(layer, name):
                whole = nn.MultiheadAttention(
                    config.width, config.n_heads, bias=False, batch_first=True, dtype=torch.float64
                )
                setattr(layer, name, whole)
    return layer


def their_encoder_layer(block: Any, config: TransformerConfig) -> Any:
    layer = their_layer(nn.TransformerEncoderLayer, config)
    joint(
        block.attention,
        layer.self_attn,
        [(block.attention.query_key_value.weight, block.attention.query_key_value.bias)],
    )
    post = config.norm == "post"
    copy_linear(block.feed_forward if post else block.feed_forward.inner, layer.linear1)
    copy_linear(block.feed_forward_output if post else block.feed_forward.output, layer.linear2)
    copy_linear(block.attention_norm, layer.norm1)
    copy_linear(block.feed_forward_norm, layer.norm2)
    return layer


def their_decoder_layer(block: Any, config: TransformerConfig) -> Any:
    layer = their_layer(nn.TransformerDecoderLayer, config)
    projection, cross = block.attention.query_key_value, block.cross_attention
    joint(block.attention, layer.self_attn, [(projection.weight, projection.bias)])
    parts = [(cross.query.weight, cross.query.bias), (cross.key_value.weight, cross.key_value.bias)]
    joint(cross, layer.multihead_attn, parts)
    copy_linear(block.feed_forward.inner, layer.linear1)
    copy_linear(block.feed_forward.output, layer.linear2)
    for ours, theirs in (
        (block.attention_norm, layer.norm1),
        (block.cross_attention_norm, layer.norm2),
        (block.feed_forward_norm, layer.norm3),
    ):
        copy_linear(ours, theirs)
    return layer


@both_forms
@either_bias
@pytest.mark.parametrize("training", [False, True])
def test_encoder_blocks_are_those_of_pytorch(norm: Any, bias: bool, training: bool) -> None:
    config = replace(TINY, norm=norm, attention_bias=bias)
    encoder = randomised(TransformerEncoder(config)).train(training)
    layers = [their_encoder_layer(block, config).train(training) for block in encoder.blocks]
    batch = tokens(SOURCE)
    hidden = encoder(batch, keep=(0, -1))
    x, real = to_padded(hidden.layers[0], batch.rows)
    for layer in layers:
        x = layer(x, src_key_padding_mask=~real)
    expected, _ = from_padded(encoder.end(x), real)
    torch.testing.assert_close(hidden.top, expected, rtol=0, atol=1e-10)
    weights = torch.randn_like(expected)
    (ours,) = torch.autograd.grad((hidden.top * weights).sum(), encoder.pieces.weight, retain_graph=True)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), encoder.pieces.weight)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@both_forms
@either_bias
@pytest.mark.parametrize("training", [False, True])
def test_decoder_blocks_are_those_of_pytorch(norm: Any, bias: bool, training: bool) -> None:
    config = replace(TINY, norm=norm, attention_bias=bias)
    decoder = randomised(Decoder(config)).train(training)
    layers = [their_decoder_layer(block, config).train(training) for block in decoder.blocks]
    batch, source_rows = tokens(TARGET), Rows.from_lengths(SOURCE)
    torch.manual_seed(2)
    embedding = torch.randn(config.vocab_size, config.width, dtype=torch.float64, requires_grad=True)
    source = torch.randn(source_rows.n_tokens, config.width, dtype=torch.float64, requires_grad=True)
    top = decoder(batch, embedding, source, source_rows)
    rows = batch.rows
    x, real = to_padded(decoder.placed(embedding, batch.ids, rows.positions, rows.longest), rows)
    memory, memory_real = to_padded(source, source_rows)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for layer in layers:
        x = layer(x, memory, tgt_mask=future, tgt_key_padding_mask=~real, memory_key_padding_mask=~memory_real)
    expected, _ = from_padded(decoder.end(x), real)
    torch.testing.assert_close(top, expected, rtol=0, atol=1e-10)
    weights = torch.randn_like(expected)
    parts = (embedding, source)
    for ours, theirs in zip(
        torch.autograd.grad((top * weights).sum(), parts, retain_graph=True),
        torch.autograd.grad((expected * weights).sum(), parts),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_weights_of_blocks_get_the_gradients_of_pytorch() -> None:
    config = replace(TINY, n_layers=1)
    decoder = randomised(Decoder(config))
    layer = their_decoder_layer(decoder.blocks[0], config)
    rows, source_rows = Rows.from_lengths([4]), Rows.from_lengths([5])
    x, source = (torch.randn(n, config.width, dtype=torch.float64) for n in (4, 5))
    block = decoder.blocks[0]
    block(x, rows, block.cross_attention.remember(source), source_rows).square().sum().backward()
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    layer(x[None], source[None], tgt_mask=future).square().sum().backward()
    cross = block.cross_attention
    pairs = [
        (block.attention.query_key_value.weight.grad, layer.self_attn.in_proj_weight.grad),
        (torch.cat([cross.query.weight.grad, cross.key_value.weight.grad]), layer.multihead_attn.in_proj_weight.grad),
        (block.feed_forward.inner.weight.grad, layer.linear1.weight.grad),
        (block.cross_attention_norm.weight.grad, layer.norm2.weight.grad),
    ]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("width", [4, 6, 16])
def test_positions_by_their_equations(width: int) -> None:
    table, other = interleaved(9, width), halves(9, width)
    for place in (0, 1, 8):
        for i in range(width // 2):
            angle = place / 10000 ** (2 * i / width)
            assert table[place, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[place, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)
            angle = place * 10000 ** (-i / (width // 2 - 1))
            assert other[place, i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert other[place, width // 2 + i] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("positions", ["interleaved", "halves"])
def test_layer_0_is_scaled_embeddings_and_positions(positions: Any) -> None:
    encoder = TransformerEncoder(replace(TINY, positions=positions))
    batch = tokens(SOURCE)
    table = {"interleaved": interleaved, "halves": halves}[positions](7, TINY.width)
    expected = encoder.pieces.weight[batch.ids] * math.sqrt(TINY.width) + table[batch.rows.positions]
    torch.testing.assert_close(encoder(batch, keep=(0,)).layers[0], expected)


def test_summary_is_the_mean_of_a_row() -> None:
    encoder = randomised(TransformerEncoder(TINY))
    batch = tokens(SOURCE)
    hidden = encoder(batch)
    expected = torch.stack([row.mean(0) for row in hidden.top.split(SOURCE)])
    torch.testing.assert_close(hidden.summary, expected)


@both_forms
def test_other_rows_and_what_comes_later_change_nothing(norm: Any) -> None:
    """A sequence alone, and beside longer sources and targets, which would pad it in a rectangle."""
    decoder = randomised(Decoder(replace(TINY, norm=norm)))
    torch.manual_seed(3)
    embedding = torch.randn(TINY.vocab_size, TINY.width, dtype=torch.float64)
    source = torch.randn(15, TINY.width, dtype=torch.float64)
    together = decoder(tokens([3, 12]), embedding, source, Rows.from_lengths([5, 10]))[:3]
    ids = tokens([3, 12]).ids[:3]
    alone = decoder(Tokens(Rows.from_lengths([3]), ids), embedding, source[:5], Rows.from_lengths([5]))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    shorter = decoder(Tokens(Rows.from_lengths([2]), ids[:2]), embedding, source[:5], Rows.from_lengths([5]))
    torch.testing.assert_close(alone[:2], shorter, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_dropout_drops_as_often_as_it_says(norm: Any) -> None:
    rates = {"dropout": 0.4, "attention_dropout": 0.2, "feed_forward_dropout": 0.3}
    config = replace(TINY, norm=norm, **rates)
    encoder, decoder = TransformerEncoder(config), Decoder(config)
    batch, places = tokens([200]), torch.arange(200)
    dropped = (decoder.placed(encoder.pieces.weight, batch.ids, places, 200) == 0).float().mean()
    assert dropped == pytest.approx(0.4, abs=0.05)
    for module in (encoder, decoder):
        found = sorted({part.p for part in module.modules() if type(part).__name__ == "Dropout"})
        assert found == [0.3, 0.4]
    assert all(block.attention.dropout == 0.2 for block in (*encoder.blocks, *decoder.blocks))
    assert all(block.cross_attention.rate == 0.2 for block in decoder.blocks)
    memory, rows = torch.randn(200, TINY.width), batch.rows
    cross = decoder.blocks[0].cross_attention
    outputs = [cross(memory, rows, cross.remember(memory), rows) for _ in range(2)]
    assert not torch.equal(*outputs)
    cross.eval()
    again = [cross(memory, rows, cross.remember(memory), rows) for _ in range(2)]
    assert torch.equal(*again)


def test_weights_begin_as_each_matrix_alone() -> None:
    config = replace(TINY, width=64, n_heads=2, feed_forward_width=256, vocab_size=500)
    torch.manual_seed(0)
    encoder, decoder = TransformerEncoder(config), Decoder(config)
    assert float(encoder.pieces.weight.detach().std()) == pytest.approx(64**-0.5, rel=0.02)
    limit = math.sqrt(6 / (64 + 64))
    for matrix in (
        *encoder.blocks[0].attention.query_key_value.weight.chunk(3),
        *decoder.blocks[0].cross_attention.key_value.weight.chunk(2),
        decoder.blocks[0].cross_attention.query.weight,
    ):
        assert 0.98 * limit < float(matrix.detach().abs().max()) <= limit
    inner = decoder.blocks[0].feed_forward.inner
    assert float(inner.weight.detach().abs().max()) <= math.sqrt(6 / (64 + 256))
    assert not inner.bias.any()
    linear = nn.Linear(3, 3)
    xavier_(linear)
    assert not linear.bias.any()


def test_published_sizes() -> None:
    """65 M and 213 M parameters with a joint vocabulary of about 37,000 (Table 3)."""
    for name, millions in (("transformer-base", 65), ("transformer-big", 213)):
        system, sizes = SIZES[name]
        config = TransformerConfig(vocab_size=37_000, **sizes)
        with torch.device("meta"):
            model = SYSTEMS[system].objective(TransformerEncoder(config), SYSTEMS[system].objective_config())
        n = sum(p.numel() for p in model.parameters())
        assert n / 1e6 == pytest.approx(millions, rel=0.04)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 9, "n_heads": 3}, "width=9 is odd"),
        ({"width": 10, "n_heads": 4}, "not a multiple of n_heads=4"),
        ({"width": 2, "n_heads": 1, "positions": "halves"}, "needs at least 4"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"n_layers": 0}, "n_layers=0"),
        ({"norm_epsilon": 0.0}, "norm_epsilon=0.0"),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **changes)
