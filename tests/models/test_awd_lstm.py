"""AWD-LSTM against PyTorch's LSTM, one sequence at a time: layers, summary, state, direction, dropout."""

import pytest
import torch
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.layers.dropout import Dropout
from firth.models.awd_lstm import AwdLstm
from firth.models.config import AwdLstmConfig
from firth.packed import Rows, Tokens

SIZES = {"vocab_size": 17, "width": 6, "hidden_width": 8, "n_layers": 3}
LENGTHS = [4, 1, 7, 4]


def model(**options: object) -> AwdLstm:
    torch.manual_seed(0)
    return AwdLstm(AwdLstmConfig(**SIZES | options)).double().eval()


def tokens(lengths: list[int]) -> Tokens:
    torch.manual_seed(1)
    rows = Rows.from_lengths(lengths)
    return Tokens(rows, torch.randint(SIZES["vocab_size"], (rows.n_tokens,)))


def one_row(encoder: AwdLstm, ids: Tensor) -> list[Tensor]:
    """Layers of one sequence by torch.nn.LSTM."""
    layers = [encoder.embeddings.weight[ids]]
    for lstm in encoder.layers:
        theirs = nn.LSTM(lstm.input_size, lstm.hidden_size).double()
        theirs.load_state_dict(lstm.state_dict())
        layers.append(theirs(layers[-1])[0])
    return layers


def test_sizes() -> None:
    encoder = model()
    assert encoder.widths == (6, 8, 8, 6) and encoder.summary_width == 18
    assert AwdLstmConfig(vocab_size=9).layer_widths == (400, 1150, 1150, 400)
    assert AwdLstmConfig(vocab_size=9, n_layers=1).layer_widths == (400, 400)
    groups = encoder.layer_groups()
    assert [len(group) for group in groups] == [1, 4, 4, 4]
    assert float(encoder.embeddings.weight.detach().abs().max()) <= 0.1
    assert float(encoder.layers[1].weight_hh_l0.detach().abs().max()) <= 8**-0.5


def test_equals_one_row_at_a_time() -> None:
    encoder, batch = model(), tokens(LENGTHS)
    hidden = encoder(batch, keep=(0, 1, 2, 3))
    expected = [one_row(encoder, ids) for ids in batch.ids.split(LENGTHS)]
    for number in range(4):
        together = torch.cat([layers[number] for layers in expected])
        torch.testing.assert_close(hidden.layers[number], together, rtol=0, atol=1e-12)
    pooled = [torch.cat([layers[3][-1], layers[3].amax(0), layers[3].mean(0)]) for layers in expected]
    torch.testing.assert_close(hidden.summary, torch.stack(pooled), rtol=0, atol=1e-12)


def test_backward_is_forward_over_rows_turned_round() -> None:
    batch, ahead = tokens(LENGTHS), model()
    back = model(backward=True)
    back.load_state_dict(ahead.state_dict())
    turned = Tokens(batch.rows, torch.cat([ids.flip(0) for ids in batch.ids.split(LENGTHS)]))
    found, expected = back(batch, keep=(0, 1, 3)), ahead(turned, keep=(0, 1, 3))
    for number, layer in expected.layers.items():
        again = torch.cat([part.flip(0) for part in layer.split(LENGTHS)])
        torch.testing.assert_close(found.layers[number], again, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.summary, expected.summary, rtol=0, atol=1e-12)
    assert ahead.causal and not back.causal


@pytest.mark.parametrize("backward", [False, True])
def test_state_goes_on_where_the_batch_before_ended(backward: bool) -> None:
    encoder, whole = model(backward=backward), tokens([9, 9])
    columns = whole.ids.view(2, 9)
    expected = encoder(whole).top.view(2, 9, -1)
    carry, parts = None, []
    pieces = ((0, 4), (4, 5), (5, 9))
    for begin, end in pieces[::-1] if backward else pieces:
        part = Tokens(Rows.from_lengths([end - begin] * 2), columns[:, begin:end].flatten())
        hidden = encoder(part, carry=carry)
        carry = hidden.carry
        parts.append(hidden.top.view(2, end - begin, -1))
    torch.testing.assert_close(torch.cat(parts[::-1] if backward else parts, 1), expected, rtol=0, atol=1e-12)
    assert {name: tuple(t.shape) for name, t in carry.items()} == {
        "hidden.0": (2, 8),
        "cell.0": (2, 8),
        "hidden.1": (2, 8),
        "cell.1": (2, 8),
        "hidden.2": (2, 6),
        "cell.2": (2, 6),
    }


def test_texts_have_no_carry_and_begin_anew() -> None:
    encoder = model()
    assert encoder(tokens([2, 5])).carry is None
    assert torch.equal(encoder(tokens([5])).top, encoder(tokens([5])).top)


def test_train_mode_without_rates_is_eval_mode() -> None:
    encoder, batch = model(), tokens(LENGTHS)
    expected = encoder(batch, keep=(0, 1, 2, 3))
    for part in encoder.train().modules():
        if isinstance(part, Dropout):
            part.p = 0.0
    found = encoder(batch, keep=(0, 1, 2, 3))
    for number, layer in expected.layers.items():
        assert torch.equal(found.layers[number], layer)


@pytest.mark.parametrize(
    ("rate", "first_changed"),
    [("embedding_dropout", 0), ("input_dropout", 0), ("weight_dropout", 1), ("hidden_dropout", 1)],
)
def test_where_each_dropout_falls(rate: str, first_changed: int) -> None:
    """Layers below the dropout do not change; the top layer's output is never dropped itself."""
    off = dict.fromkeys(("embedding_dropout", "input_dropout", "weight_dropout", "hidden_dropout"), 0.0)
    encoder, batch = model(**off | {rate: 0.5}), tokens([7, 7])
    expected = encoder(batch, keep=(0, 1, 2, 3)).layers
    found = encoder.train()(batch, keep=(0, 1, 2, 3)).layers
    changed = [not torch.equal(found[number], expected[number]) for number in range(4)]
    assert changed == [number >= first_changed for number in range(4)]
    assert (found[3] != 0).all()
    if rate == "hidden_dropout":
        zero = (found[1] == 0).view(2, 7, -1)
        assert zero.any() and torch.equal(zero, zero[:, :1].expand_as(zero)), "the same units at every step"
        assert torch.equal(found[1][~zero.flatten(0, 1)], (2 * expected[1])[~zero.flatten(0, 1)])


def test_dropout_in_its_published_proportions() -> None:
    config = AwdLstmConfig(vocab_size=9, hidden_width=3, weight_dropout=0.1)
    assert config.with_dropout(0.4) == AwdLstmConfig(vocab_size=9, hidden_width=3)
    half = config.with_dropout(0.2)
    rates = (half.embedding_dropout, half.input_dropout, half.weight_dropout, half.hidden_dropout)
    assert rates == pytest.approx((0.025, 0.2, 0.25, 0.15))
    assert config.with_dropout(0.0).weight_dropout == 0


@pytest.mark.parametrize(
    "changes", [{"width": 0}, {"hidden_width": 0}, {"n_layers": 0}, {"weight_dropout": 1.0}, {"init_range": -1.0}]
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        AwdLstmConfig(**SIZES | changes)  # type: ignore[arg-type]
