"""GPT against a second implementation of its equations, dropout included, and its steps against one full pass."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.errors import ConfigError, LengthError
from firth.layers.attention import Past
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.packed import Rows, Tokens, from_padded, to_padded
from firth.systems import SIZES, size_named

TINY = GptConfig(
    vocab_size=23,
    width=8,
    n_layers=3,
    n_heads=2,
    max_positions=20,
    dropout=0.3,
    attention_dropout=0.2,
    embedding_dropout=0.4,
)
LENGTHS = [5, 3, 7]  # with SHORT_ROW = 0 the plan has one group, whose rectangle is the padded batch


def tiny(**changes: Any) -> Gpt:
    """A model with every parameter sampled, norms and biases included."""
    torch.manual_seed(0)
    model = Gpt(replace(TINY, **changes)).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(lengths: Sequence[int] = LENGTHS) -> Tokens:
    torch.manual_seed(1)
    rows = Rows.from_lengths(lengths)
    return Tokens(rows, torch.randint(TINY.vocab_size, (rows.n_tokens,)))


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def reference(model: Gpt, batch: Tokens, unit_masks: Iterator[Tensor], weight_masks: Iterator[Tensor]) -> list[Tensor]:
    """Layers 0 to L, padded, by the specification §1. Each dropout multiplies by the next of its masks."""
    c = model.config
    ids, _ = to_padded(batch.ids, batch.rows)
    seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.float64).tril()

    def drop(x: Tensor) -> Tensor:
        return x * to_padded(next(unit_masks), batch.rows)[0]

    e = model.embeddings
    layers = [x := drop(e.pieces.weight[ids] + e.positions.weight[: ids.shape[1]])]
    for block in model.blocks:
        joint = x @ block.attention.query_key_value.weight.T + block.attention.query_key_value.bias
        q, k, v = (part.unflatten(-1, (c.n_heads, -1)) for part in joint.chunk(3, -1))
        scores = torch.einsum("bqnd,bknd->bnqk", q, k) / math.sqrt(c.width / c.n_heads)
        weights = (scores * seen - 1e9 * (1 - seen)).softmax(-1) * next(weight_masks)
        context = torch.einsum("bnqk,bknd->bqnd", weights, v).flatten(2)
        context = context @ block.attention.output.weight.T + block.attention.output.bias
        n = layer_norm(x + drop(context), block.attention_norm)
        inner = n @ block.feed_forward.weight.T + block.feed_forward.bias
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        out = inner @ block.feed_forward_output.weight.T + block.feed_forward_output.bias
        x = layer_norm(n + drop(out), block.feed_forward_norm)
        layers.append(x)
    return layers


@pytest.mark.parametrize("training", [True, False])
def test_equals_its_equations(masks: dict[str, list[Tensor]], training: bool) -> None:
    model = tiny().train(training)
    batch = tokens()
    hidden = model(batch, keep=range(4))
    expected = reference(
        model,
        batch,
        iter(masks["units"][:]) if training else itertools.repeat(torch.ones(sum(LENGTHS), 1)),
        iter(masks["weights"][:]) if training else itertools.repeat(torch.ones(())),
    )
    real = to_padded(batch.ids, batch.rows)[1]
    assert sorted(hidden.layers) == [0, 1, 2, 3]
    for number, layer in enumerate(expected):
        torch.testing.assert_close(hidden.layers[number], from_padded(layer, real)[0], atol=1e-10, rtol=0)
    torch.testing.assert_close(hidden.summary, hidden.top[batch.rows.last], atol=0, rtol=0)
    if training:
        # One for the embedding sum, two per block; each with its own probability.
        assert [len(masks["units"]), len(masks["weights"])] == [1 + 2 * 3, 3]
        assert float(masks["units"][0].max()) == pytest.approx(1 / 0.6, rel=1e-4)
        assert float(masks["units"][1].max()) == pytest.approx(1 / 0.7, rel=1e-4)
        assert float(masks["weights"][0].max()) == pytest.approx(1 / 0.8, rel=1e-4)


def test_dropout_of_embeddings_falls_on_the_sum_as_often_as_it_says() -> None:
    model = Gpt(replace(TINY, vocab_size=5, width=64, n_heads=1, max_positions=512, n_layers=1)).train()
    torch.nn.init.ones_(model.embeddings.pieces.weight)
    torch.nn.init.zeros_(model.embeddings.positions.weight)
    torch.manual_seed(0)
    rows = Rows.from_lengths([512] * 4)
    x = model(Tokens(rows, torch.zeros(2048, dtype=torch.int64)), keep=(0,)).layers[0]
    share = float((x == 0).double().mean())
    assert abs(share - 0.4) < 5 * math.sqrt(0.4 * 0.6 / x.numel())
    # A token is dropped independently at the same position of another sequence: table entries are not dropped.
    assert not torch.equal(x[:512], x[512:1024])


def test_changing_a_token_changes_nothing_before_it() -> None:
    model, ids = tiny().eval(), [3, 1, 4, 1, 5, 9]
    rows = Rows.from_lengths([6])
    top = model(Tokens(rows, torch.tensor(ids))).top
    for place in range(1, 6):
        changed = ids.copy()
        changed[place] = (changed[place] + 7) % 23
        after = model(Tokens(rows, torch.tensor(changed))).top
        assert torch.equal(after[:place], top[:place])
        assert not torch.allclose(after[place:], top[place:])


@pytest.mark.parametrize("cuts", [[(5, 3, 7)], [(1, 1, 1), (1, 1, 1), (3, 1, 5)], [(2, 1, 6), (3, 2, 1)]])
def test_steps_give_what_the_whole_gives(cuts: list[tuple[int, ...]]) -> None:
    model, batch = tiny().eval(), tokens()
    whole = model(batch).top.split(LENGTHS)
    rows, past = batch.ids.split(LENGTHS), None
    done = [0] * 3
    for new in cuts:
        parts = [row[a : a + n] for row, a, n in zip(rows, done, new, strict=True)]
        top, past = model.step(Tokens(Rows.from_lengths(new), torch.cat(parts)), past)
        for row, part, a in zip(whole, top.split(list(new)), done, strict=True):
            torch.testing.assert_close(part, row[a : a + len(part)], atol=1e-10, rtol=0)
        done = [a + n for a, n in zip(done, new, strict=True)]
    assert isinstance(past, Past) and past.rows.lengths.tolist() == LENGTHS and len(past.layers) == 3


def test_a_chosen_past_goes_on_as_its_row() -> None:
    model, batch = tiny().eval(), tokens()
    _, past = model.step(batch, None)
    chosen, new = torch.tensor([2, 0, 2]), torch.tensor([7, 8, 9])
    top, _ = model.step(Tokens(Rows.from_lengths([1, 1, 1]), new), past.select(chosen))
    rows = batch.ids.split(LENGTHS)
    for vector, row, piece in zip(top, chosen.tolist(), new, strict=True):
        ids = torch.cat([rows[row], piece[None]])
        alone = model(Tokens(Rows.from_lengths([len(ids)]), ids)).top[-1]
        torch.testing.assert_close(vector, alone, atol=1e-10, rtol=0)


def test_rows_longer_than_the_positions_are_refused_in_one_go_and_in_steps() -> None:
    model = tiny().eval()
    with pytest.raises(LengthError, match="a sequence has 21 tokens, the model reads at most 20"):
        model(tokens([3, 21]))
    _, past = model.step(tokens([3, 20]), None)
    with pytest.raises(LengthError, match="a sequence has 21 tokens"):
        model.step(tokens([1, 1]), past)


def test_layer_groups_are_all_parameters_once() -> None:
    model = tiny()
    groups = model.layer_groups()
    assert len(groups) == 4 and model.widths == (8,) * 4 and model.causal
    flat = [id(p) for group in groups for p in group]
    assert len(flat) == len(set(flat)) and set(flat) == {id(p) for p in model.parameters()}
    assert model.regions() == list(model.blocks)


def test_the_published_model_has_its_number_of_parameters() -> None:
    system, sizes = SIZES["gpt-base"]
    assert system == "gpt"
    with torch.device("meta"):
        model = Gpt(GptConfig(vocab_size=40478, **sizes))
    assert sum(p.numel() for p in model.parameters()) == 116_534_784
    assert GptConfig(vocab_size=40478, **sizes) == GptConfig(vocab_size=40478)
    assert model.config.feed_forward_width == 3072


def test_fresh_weights_are_normal_and_not_cut() -> None:
    torch.manual_seed(0)
    model = Gpt(GptConfig(vocab_size=2000, width=64, n_layers=1, n_heads=1))
    weight = model.embeddings.pieces.weight.detach()
    assert float(weight.std()) == pytest.approx(0.02, rel=0.01) and float(weight.abs().max()) > 0.06
    assert bool((model.blocks[0].feed_forward.bias == 0).all())
    assert bool((model.blocks[0].attention_norm.weight == 1).all())


def test_the_stream_is_of_the_type_of_the_products() -> None:
    model = Gpt(replace(TINY, width=16)).eval()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(tokens(), keep=(0, -1))
    assert {layer.dtype for layer in hidden.layers.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 9}, "width=9 is not a multiple of n_heads=2"),
        ({"n_layers": 0}, "n_layers=0: expected at least 1"),
        ({"norm_epsilon": 0.0}, "norm_epsilon=0.0"),
        ({"init_range": -1.0}, "init_range=-1.0"),
        ({"embedding_dropout": 1.0}, "embedding_dropout=1.0"),
        ({"dropout": -0.1}, "dropout=-0.1"),
    ],
)
def test_sizes_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(TINY, **changes)


def test_narrow_sizes_begin_by_their_width_and_the_published_one_as_published() -> None:
    mini, base = (GptConfig(vocab_size=40, **size_named(name)[1]) for name in ("gpt-mini", "gpt-base"))
    assert (mini.init_range, base.init_range) == (1 / 16, 0.02)
