"""MT-LSTM and its decoder: layers, a frozen embedding table, sequences that end at different steps."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.models.config import MtLstmConfig
from firth.models.mtlstm import MtLstm
from firth.models.mtlstm_decoder import MtLstmDecoder

SIZES = MtLstmConfig(vocab_size=11, width=5, hidden_width=4, dropout=0.0)
ROWS = [[4, 5, 6], [7], [8, 9, 10, 4, 5, 6], [2, 3]]


def made(**changes: Any) -> MtLstm:
    torch.manual_seed(0)
    return MtLstm(dataclasses.replace(SIZES, init_range=0.5, **changes)).double()


def test_layers_are_words_first_layer_last_layer() -> None:
    encoder = made()
    hidden = encoder(pack_lists(ROWS), keep=(0, 1, 2))
    assert [hidden.layers[n].shape for n in (0, 1, 2)] == [(12, 5), (12, 8), (12, 8)] and encoder.widths == (5, 8, 8)
    assert torch.equal(hidden.layers[0], encoder.words[torch.tensor(sum(ROWS, []))])
    first, second = encoder.layers
    row = hidden.layers[0][4:10]
    assert isinstance(first, nn.LSTM) and isinstance(second, nn.LSTM)
    torch.testing.assert_close(hidden.layers[1][4:10], first(row[:, None])[0][:, 0])
    torch.testing.assert_close(hidden.layers[2][4:10], second(first(row[:, None])[0])[0][:, 0])
    for keep in ((0,), (1,), (2,), (-1,), (0, 2)):
        some = encoder(pack_lists(ROWS), keep=keep).layers
        assert set(some) == {n % 3 for n in keep} and all(torch.equal(some[n], hidden.layers[n]) for n in some)
    with pytest.raises(ValueError, match="layers 0 .* to 2"):
        encoder(pack_lists(ROWS), keep=(3,))


def test_a_word_without_a_vector_is_zero() -> None:
    encoder = made()
    encoder.words[0] = 0
    assert not encoder(pack_lists([[5, 0, 6]]), keep=(0,)).layers[0][1].any()


def test_rows_of_any_length_are_each_as_alone_and_end_where_they_end() -> None:
    encoder = made()
    hidden, states = encoder.read(pack_lists(ROWS))
    assert hidden.summary is not None
    for number, row in enumerate(ROWS):
        alone, ends = encoder.read(pack_lists([row]))
        begin = int(hidden.rows.offsets[number])
        torch.testing.assert_close(hidden.top[begin : begin + len(row)], alone.top)
        assert alone.summary is not None
        torch.testing.assert_close(hidden.summary[number], alone.summary[0])
        # [forward at the last token ; backward at the first]
        torch.testing.assert_close(hidden.summary[number], torch.cat([alone.top[-1, :4], alone.top[0, 4:]]))
        for whole, part in zip(states, ends, strict=True):
            for one, other in zip(whole, part, strict=True):
                torch.testing.assert_close(one[number], other[0])


def test_fixed_words_are_no_parameter_and_learnt_ones_are() -> None:
    fixed, learnt = made(), made(fixed_words=False)
    assert "words" not in dict(fixed.named_parameters()) and len(fixed.layer_groups()) == 2
    assert learnt.layer_groups()[0] == [learnt.words] and len(learnt.layer_groups()) == 3
    assert set(fixed.state_dict()) == set(learnt.state_dict())
    for encoder in (fixed, learnt):
        encoder(pack_lists(ROWS)).top.sum().backward()
    assert fixed.words.grad is None and not fixed.words.requires_grad
    assert learnt.words.grad is not None and bool(learnt.words.grad[4:].any())


def test_dropout_falls_between_layers_in_training() -> None:
    encoder = made(dropout=0.5)
    again = encoder.eval()(pack_lists(ROWS), keep=(1, 2))
    encoder.train()
    dropped = encoder(pack_lists(ROWS), keep=(1, 2))
    assert torch.equal(dropped.layers[1], again.layers[1])
    assert not torch.allclose(dropped.layers[2], again.layers[2])


def test_everything_begins_uniform() -> None:
    encoder = MtLstm(dataclasses.replace(SIZES, hidden_width=40))
    for name, tensor in encoder.state_dict().items():
        assert tensor.abs().max() <= 0.1, name
        assert tensor.numel() < 100 or tensor.abs().max() > 0.09, name


@pytest.mark.parametrize(
    ("name", "value"), [("width", 0), ("hidden_width", 0), ("n_layers", 0), ("dropout", 1.0), ("init_range", -1.0)]
)
def test_sizes_that_make_no_model(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        MtLstmConfig(vocab_size=4, **{name: value})


def decoder_of(encoder: MtLstm, dropout: float = 0.0) -> MtLstmDecoder:
    return MtLstmDecoder(encoder.config, dropout).double()


def test_rows_that_end_early_leave_the_others_as_they_are() -> None:
    encoder = made()
    decoder = decoder_of(encoder)
    targets = [[1, 4], [1, 5, 6, 7, 8], [1], [1, 9, 10]]
    hidden, states = encoder.read(pack_lists(ROWS))
    together = decoder(pack_lists(targets), decoder.begin(hidden.top, hidden.rows, states))
    parts = []
    for row, target in zip(ROWS, targets, strict=True):
        alone, ends = encoder.read(pack_lists([row]))
        parts.append(decoder(pack_lists([target]), decoder.begin(alone.top, alone.rows, ends)))
    torch.testing.assert_close(together, torch.cat(parts))


def test_selected_rows_keep_their_source() -> None:
    encoder = made()
    decoder = decoder_of(encoder)
    hidden, states = encoder.read(pack_lists(ROWS))
    state = decoder.begin(hidden.top, hidden.rows, states)
    _, state = decoder.step(torch.tensor([1, 1, 1, 1]), state)
    twice = state.select(torch.tensor([2, 0, 0]))
    assert twice.row.tolist() == [2, 0, 0] and twice.source.keys.shape == (3, 6, 8)
    turned = twice.select(torch.tensor([0, 2, 1]))
    assert turned.source is twice.source, "beams of one row change places without a copy of it"
    found, _ = decoder.step(torch.tensor([4, 5, 6]), turned)
    expected: list[Tensor] = []
    for row, word in ((2, 4), (0, 5), (0, 6)):
        alone, ends = encoder.read(pack_lists([ROWS[row]]))
        written = decoder(pack_lists([[1, word]]), decoder.begin(alone.top, alone.rows, ends))
        expected.append(written[1])
    torch.testing.assert_close(found, torch.stack(expected))


def test_dropout_of_the_decoder_is_fed_back() -> None:
    encoder = made()
    decoder, hidden = decoder_of(encoder, dropout=0.5), encoder(pack_lists(ROWS))
    state = decoder.begin(hidden.top, hidden.rows, encoder.read(pack_lists(ROWS))[1])
    written, after = decoder.step(torch.tensor([1, 1, 1, 1]), state)
    assert 0 < int((written == 0).sum()) < written.numel() and after.fed is written
