"""The LSTM encoder against PyTorch's own, one sequence at a time, and its state across batches."""

import pytest
import torch
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.models.config import LstmConfig
from firth.models.lstm import Lstm
from firth.packed import Rows, Tokens

CONFIG = LstmConfig(vocab_size=17, width=6, n_layers=2)


def model() -> Lstm:
    torch.manual_seed(0)
    return Lstm(CONFIG).double()


def tokens(lengths: list[int]) -> Tokens:
    torch.manual_seed(1)
    rows = Rows.from_lengths(lengths)
    return Tokens(rows, torch.randint(CONFIG.vocab_size, (rows.n_tokens,)))


def one_row(encoder: Lstm, ids: Tensor) -> list[Tensor]:
    """Layers of one sequence by torch.nn.LSTM on a batch of one."""
    layers = [encoder.embeddings.weight[ids]]
    for lstm in encoder.layers:
        layers.append(lstm(layers[-1][None])[0][0])
    return layers


def test_equals_one_row_at_a_time() -> None:
    encoder, batch = model(), tokens([4, 1, 7, 4])
    hidden = encoder(batch, keep=(0, 1, 2))
    expected = [one_row(encoder, ids) for ids in batch.ids.split([4, 1, 7, 4])]
    for number in (0, 1, 2):
        together = torch.cat([layers[number] for layers in expected])
        torch.testing.assert_close(hidden.layers[number], together, rtol=0, atol=1e-12)
    torch.testing.assert_close(hidden.summary, torch.stack([layers[2][-1] for layers in expected]), rtol=0, atol=1e-12)


def test_state_goes_on_where_the_batch_before_ended() -> None:
    encoder = model()
    whole = tokens([9, 9])
    columns = whole.ids.view(2, 9)
    expected = encoder(whole).top.view(2, 9, -1)
    carry, parts = None, []
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        part = Tokens(Rows.from_lengths([end - begin] * 2), columns[:, begin:end].flatten())
        hidden = encoder(part, carry=carry)
        carry = hidden.carry
        parts.append(hidden.top.view(2, end - begin, -1))
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)
    assert carry is not None
    assert {name: tuple(t.shape) for name, t in carry.items()} == {"hidden": (2, 2, 6), "cell": (2, 2, 6)}


def test_state_is_that_of_each_rows_last_token() -> None:
    encoder, batch = model(), tokens([2, 5])
    hidden = encoder(batch)
    torch.testing.assert_close(hidden.carry["hidden"][1], hidden.top[batch.rows.last], rtol=0, atol=1e-12)


def test_dropout_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = Lstm(LstmConfig(vocab_size=17, width=50, dropout=0.5))
    batch = tokens([6])
    assert torch.equal(encoder.eval()(batch).top, encoder(batch).top)
    top = encoder.train()(batch).top
    assert 0.3 < float((top == 0).float().mean()) < 0.7


def test_start_and_groups() -> None:
    encoder = model()
    assert float(encoder.embeddings.weight.detach().abs().max()) <= CONFIG.init_range
    groups = encoder.layer_groups()
    assert [len(group) for group in groups] == [1, 4, 4]
    assert {id(p) for group in groups for p in group} == {id(p) for p in encoder.parameters()}
    assert all(isinstance(p, nn.Parameter) for group in groups for p in group)
    assert encoder.widths == (6, 6, 6)


@pytest.mark.parametrize("changes", [{"width": 0}, {"n_layers": 0}, {"dropout": 1.0}])
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        LstmConfig(vocab_size=5, **changes)  # type: ignore[arg-type]
