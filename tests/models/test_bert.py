"""BERT against a second implementation of its equations, on padded batches, dropout included."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.errors import ConfigError, LengthError
from firth.layers.dropout import kept_scale
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.packed import Rows, Tokens, from_padded, to_padded
from firth.systems import SIZES

TINY = BertConfig(
    vocab_size=23,
    width=8,
    n_layers=3,
    n_heads=2,
    feed_forward_width=12,
    max_positions=20,
    dropout=0.3,
    attention_dropout=0.2,
)
LENGTHS = [5, 3, 7]  # with SHORT_ROW = 0 the plan has one group, whose rectangle is the padded batch


def tiny(**changes: Any) -> Bert:
    """A model with every parameter sampled, norms and biases included."""
    torch.manual_seed(0)
    model = Bert(replace(TINY, **changes)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(lengths: list[int] = LENGTHS, *, segments: bool = True) -> Tokens:
    torch.manual_seed(1)
    rows = Rows.from_lengths(lengths)
    ids = torch.randint(TINY.vocab_size, (rows.n_tokens,))
    return Tokens(rows, ids, torch.randint(2, (rows.n_tokens,)) if segments else None)


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt() * norm.weight + norm.bias


def reference(model: Bert, batch: Tokens, unit_masks: Iterator[Tensor], weight_masks: Iterator[Tensor]) -> list[Tensor]:
    """Layers 0 to L, padded. Each dropout multiplies by the next of its masks."""
    c = model.config
    ids, real = to_padded(batch.ids, batch.rows)
    segments = torch.zeros_like(ids) if batch.segments is None else to_padded(batch.segments, batch.rows)[0]
    hidden = ~real[:, None, None, :]
    if c.causal:
        hidden = hidden | torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)

    def drop(x: Tensor) -> Tensor:
        return x * to_padded(next(unit_masks), batch.rows)[0]

    e = model.embeddings
    x = e.pieces.weight[ids] + e.segments.weight[segments] + e.positions.weight[: ids.shape[1]]
    layers = [x := drop(layer_norm(x, e.norm))]
    for block in model.blocks:
        joint = x @ block.attention.query_key_value.weight.T + block.attention.query_key_value.bias
        q, k, v = (part.unflatten(-1, (c.n_heads, -1)) for part in joint.chunk(3, -1))
        scores = torch.einsum("bqnd,bknd->bnqk", q, k) / math.sqrt(c.width / c.n_heads)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1) * next(weight_masks)
        context = torch.einsum("bnqk,bknd->bqnd", weights, v).flatten(2)
        context = context @ block.attention.output.weight.T + block.attention.output.bias
        x = layer_norm(x + drop(context), block.attention_norm)
        inner = x @ block.feed_forward.weight.T + block.feed_forward.bias
        if c.activation == "gelu":
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
        else:
            inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        out = inner @ block.feed_forward_output.weight.T + block.feed_forward_output.bias
        x = layer_norm(x + drop(out), block.feed_forward_norm)
        layers.append(x)
    return layers


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("segments", [True, False])
def test_equals_its_equations(
    masks: dict[str, list[Tensor]], activation: str, causal: bool, training: bool, segments: bool
) -> None:
    model = tiny(activation=activation, causal=causal).train(training)
    batch = tokens(segments=segments)
    hidden = model(batch, keep=range(4))
    expected = reference(
        model,
        batch,
        iter(masks["units"][:]) if training else itertools.repeat(torch.ones(sum(LENGTHS), 1)),
        iter(masks["weights"][:]) if training else itertools.repeat(torch.ones(())),
    )
    real = to_padded(batch.ids, batch.rows)[1]
    for number, layer in enumerate(expected):
        torch.testing.assert_close(hidden.layers[number], from_padded(layer, real)[0], rtol=0, atol=1e-10)
    first_or_last = expected[-1][:, 0] if not causal else expected[-1][torch.arange(3), torch.tensor(LENGTHS) - 1]
    summary = torch.tanh(first_or_last @ model.pooler.weight.T + model.pooler.bias)
    torch.testing.assert_close(hidden.summary, summary, rtol=0, atol=1e-10)
    # Gradients too: the backward pass must drop what the forward pass dropped.
    torch.manual_seed(2)
    pull = torch.randn_like(hidden.top)
    parameters = [p for name, p in model.named_parameters() if "pooler" not in name]
    ours = torch.autograd.grad((hidden.top * pull).sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad((from_padded(expected[-1], real)[0] * pull).sum(), parameters, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_dropout_stands_in_the_places_of_the_paper(masks: dict[str, list[Tensor]]) -> None:
    """Only after the embedding norm, on attention weights, and on each of a block's two outputs."""
    tiny().train()(tokens())
    assert len(masks["units"]) == 1 + 2 * TINY.n_layers
    assert len(masks["weights"]) == TINY.n_layers
    assert {mask.shape for mask in masks["units"]} == {(sum(LENGTHS), TINY.width)}
    for kind, rate in (("units", TINY.dropout), ("weights", TINY.attention_dropout)):
        values = torch.cat([mask.flatten() for mask in masks[kind]]).tolist()
        assert set(values) == {0.0, max(values)}
        assert max(values) == pytest.approx(kept_scale(rate))
        assert kept_scale(rate) == pytest.approx(1 / (1 - rate), rel=1e-4)


def test_no_dropout_in_evaluation(masks: dict[str, list[Tensor]]) -> None:
    model = tiny().eval()
    assert torch.equal(model(tokens()).top, model(tokens()).top)
    assert not masks["units"] and not masks["weights"]


@pytest.mark.parametrize(("size", "count"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_published_parameter_counts(size: str, count: int) -> None:
    _, sizes = SIZES[size]
    with torch.device("meta"):
        model = Bert(BertConfig(vocab_size=30522, **sizes))
    assert sum(p.numel() for p in model.parameters()) == count


def test_all_sizes_of_the_table_can_be_built() -> None:
    for system, sizes in (SIZES[name] for name in SIZES if name.startswith("bert")):
        with torch.device("meta"):
            model = Bert(BertConfig(vocab_size=100, **sizes))
        assert len(model.blocks) == sizes["n_layers"]
        assert sizes["width"] // model.config.n_heads == 64
        assert model.config.causal is (system == "bert-ltr")


def test_start_is_the_truncated_normal_of_the_paper() -> None:
    torch.manual_seed(0)
    model = Bert(
        BertConfig(vocab_size=1000, width=128, n_layers=2, n_heads=2, feed_forward_width=512, max_positions=100)
    )
    for name, p in model.named_parameters():
        values = p.detach()
        if p.dim() > 1:
            assert float(values.abs().max()) <= 0.04, name
            if p.numel() > 10_000:
                assert abs(float(values.std()) - 0.88 * 0.02) < 0.0003, name
        elif name.endswith("norm.weight"):
            assert bool((values == 1).all()), name
        else:
            assert bool((values == 0).all()), name


def test_longest_row_it_can_read() -> None:
    model = tiny().eval()
    assert model(tokens([20, 3])).top.shape == (23, 8)


@pytest.mark.parametrize("lengths", [[21], [3, 21, 20], [600]])
def test_a_row_longer_than_the_positions_is_refused(lengths: list[int]) -> None:
    with pytest.raises(LengthError, match=rf"{max(lengths)} tokens, the model reads at most 20"):
        tiny()(tokens(lengths))


def test_ids_outside_the_tables_are_refused() -> None:
    rows = Rows.from_lengths([2])
    model = tiny()
    with pytest.raises(IndexError):
        model(Tokens(rows, torch.tensor([0, TINY.vocab_size])))
    with pytest.raises(IndexError):
        model(Tokens(rows, torch.tensor([0, 1]), torch.tensor([0, TINY.n_segments])))


def test_more_segments_leave_the_known_ones_and_learn_apart() -> None:
    model, batch = tiny().eval(), tokens()
    before, segments = model(batch).top, model.embeddings.segments.weight.clone()
    model.extend_segments(5)
    assert batch.segments is not None and model.config.n_segments == 5
    table = model.embeddings.segments.weight
    assert table.requires_grad and any(p is table for p in model.layer_groups()[0])
    torch.testing.assert_close(table[:2], segments, rtol=0, atol=0)
    torch.testing.assert_close(model(batch).top, before, rtol=0, atol=0)
    moved = (table[2:] - table[[0, 1, 0]]).detach()
    assert 0.5 < float(moved.std() / model.embeddings.pieces.weight.detach().std()) < 2
    other = model(replace(batch, segments=batch.segments + 2)).top
    assert not torch.allclose(other, before)
    other.sum().backward()
    assert table.grad is not None and not table.grad[[0, 1, 4]].any()
    model.extend_segments(2)
    assert model.embeddings.segments.weight is table


def test_missing_segments_are_segment_zero() -> None:
    model, batch = tiny().eval(), tokens(segments=False)
    zeros = replace(batch, segments=torch.zeros_like(batch.ids))
    torch.testing.assert_close(model(batch).top, model(zeros).top, rtol=0, atol=0)
    ones = replace(batch, segments=torch.ones_like(batch.ids))
    assert not torch.allclose(model(batch).top, model(ones).top)


def test_summary_reads_the_first_token_or_left_to_right_the_last() -> None:
    """Left to right, the first token sees no other token, so the summary reads the last one."""
    for causal in (False, True):
        model, batch = tiny(causal=causal).eval(), tokens()
        hidden = model(batch)
        at = batch.rows.last if causal else batch.rows.first
        expected = torch.tanh(torch.nn.functional.linear(hidden.top[at], model.pooler.weight, model.pooler.bias))
        torch.testing.assert_close(hidden.summary, expected, rtol=0, atol=1e-12)
    changed = replace(batch, ids=batch.ids.clone())
    changed.ids[batch.rows.last] = (changed.ids[batch.rows.last] + 1) % TINY.vocab_size
    after = model(changed)
    before_last = torch.ones(batch.rows.n_tokens, dtype=torch.bool)
    before_last[batch.rows.last] = False
    torch.testing.assert_close(after.top[before_last], hidden.top[before_last], rtol=0, atol=0)
    assert not torch.allclose(after.summary, hidden.summary, atol=1e-4)


def test_only_the_layers_asked_for_are_kept() -> None:
    model, batch = tiny().eval(), tokens()
    everything = model(batch, keep=(0, 1, 2, 3)).layers
    assert sorted(everything) == [0, 1, 2, 3]
    some = model(batch, keep=(-2, 0)).layers
    assert sorted(some) == [0, 2]
    assert all(torch.equal(some[i], everything[i]) for i in some)
    none = model(batch, keep=())
    assert none.layers == {} and none.summary is not None
    with pytest.raises(ValueError, match="layer 4"):
        model(batch, keep=(4,))


def test_layer_groups_are_a_partition_bottom_to_top() -> None:
    model = tiny()
    groups = model.layer_groups()
    assert len(groups) == TINY.n_layers + 2
    flat = [id(p) for group in groups for p in group]
    assert len(flat) == len(set(flat))
    assert set(flat) == {id(p) for p in model.parameters()}
    assert groups[0][0] is model.embeddings.pieces.weight
    assert groups[-1][0] is model.pooler.weight


def test_a_row_does_not_see_its_company() -> None:
    model = tiny().eval()
    lengths = [9, 20, 2]
    together = tokens(lengths)
    hidden = model(together)
    for row, (begin, end) in enumerate(
        zip(together.rows.first.tolist(), (together.rows.last + 1).tolist(), strict=True)
    ):
        assert together.segments is not None
        alone = Tokens(Rows.from_lengths([end - begin]), together.ids[begin:end], together.segments[begin:end])
        single = model(alone)
        torch.testing.assert_close(single.top, hidden.top[begin:end], rtol=0, atol=1e-12)
        torch.testing.assert_close(single.summary[0], hidden.summary[row], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 10, "n_heads": 3}, "width=10 is not a multiple of n_heads=3"),
        ({"n_layers": 0}, "n_layers=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **changes)


def test_with_one_segment_embedding_both_texts_of_a_pair_have_it() -> None:
    """As users of such models read pairs."""
    model = Bert(replace(TINY, n_segments=1)).eval()
    rows, ids = Rows.from_lengths([4]), torch.tensor([1, 2, 3, 4])
    pair = model(Tokens(rows, ids, torch.tensor([0, 0, 1, 1])))
    torch.testing.assert_close(pair.top, model(Tokens(rows, ids)).top)
