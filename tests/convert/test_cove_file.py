"""The released CoVe encoder: a flat table of a PyTorch LSTM's weights; errors name tensors that do not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from firth.convert.cove import is_mtlstm, read_mtlstm
from firth.data.rows import pack_lists
from firth.errors import CheckpointError
from firth.formats.table import find_format, open_model
from firth.models.mtlstm import MtLstm


def released(width: int = 6, hidden_width: int = 4) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return dict(nn.LSTM(width, hidden_width, 2, bidirectional=True).state_dict())


def written(path: Path, state: dict[str, Any], *, legacy: bool = False) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("legacy", [True, False])
def test_numbers_are_those_of_the_file(legacy: bool, tmp_path: Path) -> None:
    """The 2017 file format and the current one; the encoder computes what PyTorch's module computes."""
    file = written(tmp_path / "wmtlstm-8f474287.pth", released(), legacy=legacy)
    assert is_mtlstm(file) and find_format(file).format.key == "cove"
    config, state = read_mtlstm(file, vocab_size=9)
    assert (config.vocab_size, config.width, config.hidden_width, config.n_layers) == (9, 6, 4, 2)
    assert len(state) == 16
    encoder, module = MtLstm(config).eval(), nn.LSTM(6, 4, 2, bidirectional=True)
    encoder.load_state_dict({name.removeprefix("encoder."): t for name, t in state.items()} | {"words": encoder.words})
    module.load_state_dict(released())
    row = [4, 5, 6, 7, 8]
    expected = module(encoder.words[row][:, None])[0][:, 0]
    torch.testing.assert_close(encoder(pack_lists([row])).top, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_hh_l1_reverse": torch.zeros(16, 5)}, r"weight_hh_l1_reverse has shape \(16, 5\), expected \(16, 4\)"),
        ({"bias_ih_l0": torch.zeros(15)}, r"bias_ih_l0 has shape \(15,\), expected \(16,\)"),
        ({"weight_ih_l1": torch.zeros(16, 6)}, r"weight_ih_l1 has shape \(16, 6\), expected \(16, 8\)"),
        ({"weight_ih_l0": torch.zeros(16)}, "weight_ih_l0 is no matrix"),
        ({"bias_hh_l0": torch.zeros(16, dtype=torch.int64)}, "bias_hh_l0 is no tensor of real numbers"),
        ({"bias_hh_l0": None}, "lacks bias_hh_l0"),
        ({"weight_ih_l2": torch.zeros(16, 8)}, "lacks weight_hh_l2, bias_ih_l2"),
        ({"linear.weight": torch.zeros(2, 2)}, "has unknown linear.weight"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in (released() | change).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        read_mtlstm(written(tmp_path / "x.pth", state), vocab_size=9)


def test_a_file_without_words_is_not_a_model_yet(tmp_path: Path) -> None:
    file = written(tmp_path / "x.pth", released())
    with pytest.raises(CheckpointError, match="no words in it: firth convert .*x.pth --vectors FILE --out DIR"):
        open_model(file)


def test_other_tables_are_not_taken_for_it(tmp_path: Path) -> None:
    file = written(tmp_path / "x.pth", {"weight": torch.zeros(2)})
    assert not is_mtlstm(file) and not is_mtlstm(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        find_format(file)
    (tmp_path / "y.pth").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="y.pth cannot be read"):
        find_format(tmp_path / "y.pth")
