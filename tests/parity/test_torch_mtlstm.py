"""MT-LSTM against PyTorch's LSTM with the same weights, and its decoder against formulas, one sequence at a time."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from firth.data.rows import pack_lists
from firth.models.config import MtLstmConfig
from firth.models.mtlstm import MtLstm
from firth.models.mtlstm_decoder import MtLstmDecoder
from firth.packed import from_padded, to_padded

both_modes = pytest.mark.parametrize("train", [False, True])
SOURCES = [[4, 5, 6], [7], [8, 9, 10, 4, 5, 6, 3, 2], [2, 3], [9, 9, 9]]
TARGETS = [[1, 14], [1, 15, 6, 7, 8], [1], [1, 9, 10], [1, 11, 12, 13]]


def encoder_of(width: int, hidden_width: int, *, fixed_words: bool = False) -> MtLstm:
    torch.manual_seed(1)
    sizes = MtLstmConfig(vocab_size=16, width=width, hidden_width=hidden_width, dropout=0.0, fixed_words=fixed_words)
    return MtLstm(dataclasses.replace(sizes, init_range=0.3)).double()


def torchs(encoder: MtLstm) -> nn.LSTM:
    """PyTorch's two-layer module with its flat parameter names, as in the CoVe release."""
    config = encoder.config
    module = nn.LSTM(config.width, config.hidden_width, config.n_layers, bidirectional=True, batch_first=True).double()
    state = {
        name.replace("_l0", f"_l{number}"): value
        for number, layer in enumerate(encoder.layers)
        for name, value in layer.state_dict().items()
    }
    module.load_state_dict(state)
    return module


@both_modes
def test_the_published_sizes_are_torchs_lstm(train: bool) -> None:
    """300 to 2 × 300, two layers: outputs, final states, and every gradient, on sequences in any order of length."""
    encoder = encoder_of(300, 300).train(train)
    module, tokens = torchs(encoder).train(train), pack_lists(SOURCES)
    hidden, states = encoder.read(tokens, keep=(0, 2))
    words = encoder.words.detach().clone().requires_grad_()
    rectangle, mask = to_padded(words.index_select(0, tokens.ids), tokens.rows)
    packed = pack_padded_sequence(rectangle, mask.sum(1), batch_first=True, enforce_sorted=False)
    out, ends = module(packed)
    top, _ = from_padded(pad_packed_sequence(out, batch_first=True)[0], mask)
    torch.testing.assert_close(hidden.top, top, rtol=0, atol=1e-12)
    # (layers × directions, B, hidden size): the directions of a layer are adjacent.
    for ours, theirs in zip(zip(*states, strict=True), ends, strict=True):
        for number, state in enumerate(ours):
            expected = torch.cat([*theirs[2 * number : 2 * number + 2]], 1)
            torch.testing.assert_close(state, expected, rtol=0, atol=1e-12)
    weight = torch.randn_like(top)
    (hidden.top * weight).sum().backward()
    (top * weight).sum().backward()
    torch.testing.assert_close(encoder.words.grad, words.grad, rtol=0, atol=1e-12)
    for number, layer in enumerate(encoder.layers):
        for name, parameter in layer.named_parameters():
            other = module.get_parameter(name.replace("_l0", f"_l{number}"))
            torch.testing.assert_close(parameter.grad, other.grad, rtol=0, atol=1e-11)


def by_the_formulas(
    decoder: MtLstmDecoder, source: Tensor, hidden: list[Tensor], cell: list[Tensor], ids: list[int]
) -> Tensor:
    """h~ of each token of one sequence: ``source`` (S, H), states (H,) per layer (specification §2)."""
    fed, written = torch.zeros(source.shape[1], dtype=source.dtype), []
    for word in ids:
        x = torch.cat([decoder.embedding.weight[word], fed])
        for number, layer in enumerate(decoder.cells):
            gates = layer.weight_ih @ x + layer.bias_ih + layer.weight_hh @ hidden[number] + layer.bias_hh
            i, f, g, o = gates.chunk(4)
            cell[number] = f.sigmoid() * cell[number] + i.sigmoid() * g.tanh()
            x = hidden[number] = o.sigmoid() * cell[number].tanh()
        attention = torch.softmax(source @ (decoder.query.weight @ x), 0)
        fed = torch.tanh(decoder.combine.weight @ torch.cat([source.T @ attention, x]))
        written.append(fed)
    return torch.stack(written)


@both_modes
def test_the_decoder_is_its_formulas(train: bool) -> None:
    encoder = encoder_of(6, 4).train(train)
    decoder = MtLstmDecoder(dataclasses.replace(encoder.config, init_range=0.5), 0.0).double().train(train)
    parameters = {**dict(encoder.named_parameters()), **dict(decoder.named_parameters())}
    parameters = {name: p for name, p in parameters.items() if not name.startswith("output")}

    def learnt(written: Tensor) -> dict[str, Tensor]:
        gradients = torch.autograd.grad((written * weight).sum(), list(parameters.values()))
        return dict(zip(parameters, gradients, strict=True))

    hidden, states = encoder.read(pack_lists(SOURCES))
    found = decoder(pack_lists(TARGETS), decoder.begin(hidden.top, hidden.rows, states))
    weight = torch.randn_like(found)
    gradients, rows = learnt(found), []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        alone, ends = encoder.read(pack_lists([source]))
        begin = ([end[part][0] for end in ends] for part in (0, 1))
        rows.append(by_the_formulas(decoder, alone.top, *begin, target))
    expected = torch.cat(rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for name, gradient in learnt(expected).items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=1e-12, msg=name)
