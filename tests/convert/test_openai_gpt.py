"""GPT's released files: the order of their numbers, round trips, and what is refused."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth.convert.openai_gpt import read_openai, write_openai
from firth.errors import CheckpointError
from firth.models.config import GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import TiedLMConfig
from firth.objectives.next_token import TiedLM

WIDTH, N_PIECES, N_POSITIONS, N_LAYERS = 64, 11, 7, 2
# Restated from the specification: names and shapes in the order of the files.
LAYER = [
    ("attention.query_key_value.weight", (1, 64, 192)),
    ("attention.query_key_value.bias", (192,)),
    ("attention.output.weight", (1, 64, 64)),
    ("attention.output.bias", (64,)),
    ("attention_norm.weight", (64,)),
    ("attention_norm.bias", (64,)),
    ("feed_forward.weight", (1, 64, 256)),
    ("feed_forward.bias", (256,)),
    ("feed_forward_output.weight", (1, 256, 64)),
    ("feed_forward_output.bias", (64,)),
    ("feed_forward_norm.weight", (64,)),
    ("feed_forward_norm.bias", (64,)),
]
ORDER = [
    ("encoder.embeddings.positions.weight", (7, 64)),
    ("encoder.embeddings.pieces.weight", (11, 64)),
    *((f"encoder.blocks.{i}.{name}", shape) for i in range(N_LAYERS) for name, shape in LAYER),
]


def release(folder: Path) -> list[np.ndarray]:
    """Write files in the released format, split at arbitrary places; return the tensors in order."""
    rng = np.random.default_rng(0)
    tensors = [rng.standard_normal(shape).astype(np.float32) for _, shape in ORDER]
    flat = np.concatenate([tensor.ravel() for tensor in tensors])
    cuts = [5, 100, 100, 2000, 9999, 10000, 30000, 30001, 60000]
    folder.mkdir()
    for number, part in enumerate(np.split(flat, cuts)):
        np.save(folder / f"params_{number}.npy", part)
    (folder / "params_shapes.json").write_text(json.dumps([list(shape) for _, shape in ORDER]))
    return tensors


def test_every_tensor_is_where_it_belongs(tmp_path: Path) -> None:
    tensors = release(tmp_path / "m")
    config, state = read_openai(tmp_path / "m")
    assert config == GptConfig(vocab_size=N_PIECES, width=WIDTH, n_layers=2, n_heads=1, max_positions=N_POSITIONS)
    assert sorted(state) == sorted(TiedLM(Gpt(config), TiedLMConfig()).state_dict())
    for (name, shape), array in zip(ORDER, tensors, strict=True):
        expected = array[0].T if len(shape) == 3 else array
        assert np.array_equal(state[name].numpy(), expected), name


def test_there_and_back(tmp_path: Path) -> None:
    tensors = release(tmp_path / "m")
    config, state = read_openai(tmp_path / "m")
    (tmp_path / "again").mkdir()
    write_openai(tmp_path / "again", config, state, N_PIECES)
    files = sorted(path.name for path in (tmp_path / "again").iterdir())
    assert files == [*(f"params_{i}.npy" for i in range(10)), "params_shapes.json"]
    parts = [np.load(tmp_path / "again" / f"params_{i}.npy", allow_pickle=False) for i in range(10)]
    assert {part.dtype for part in parts} == {np.dtype(np.float32)} and {part.ndim for part in parts} == {1}
    assert np.array_equal(np.concatenate(parts), np.concatenate([tensor.ravel() for tensor in tensors]))
    shapes = json.loads((tmp_path / "again" / "params_shapes.json").read_text())
    assert shapes == [list(shape) for _, shape in ORDER]


def test_only_the_pieces_that_belong_there_are_written(tmp_path: Path) -> None:
    release(tmp_path / "m")
    config, state = read_openai(tmp_path / "m")
    (tmp_path / "again").mkdir()
    write_openai(tmp_path / "again", config, state, N_PIECES - 3)
    smaller, again = read_openai(tmp_path / "again")
    assert smaller.vocab_size == N_PIECES - 3
    name = "encoder.embeddings.pieces.weight"
    assert torch.equal(again[name], state[name][: N_PIECES - 3])


def test_heads_of_another_width_cannot_be_written(tmp_path: Path) -> None:
    config = GptConfig(vocab_size=5, width=64, n_layers=1, n_heads=2, max_positions=4)
    with pytest.raises(CheckpointError, match="heads of width 32; the released code has 64"):
        write_openai(tmp_path, config, Gpt(config).state_dict(), 5)
    assert list(tmp_path.iterdir()) == []


def test_another_epsilon_cannot_be_written(tmp_path: Path) -> None:
    config = GptConfig(vocab_size=5, width=64, n_layers=1, n_heads=1, max_positions=4, norm_epsilon=1e-2)
    with pytest.raises(CheckpointError, match="epsilon of 0.01; the released code has 1e-05"):
        write_openai(tmp_path, config, Gpt(config).state_dict(), 5)
    assert list(tmp_path.iterdir()) == []


def shapes(change: Callable[[list[Any]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "params_shapes.json"
        found = json.loads(file.read_text())
        changed = change(found)
        file.write_text(json.dumps(found if changed is None else changed))

    return edit


def swapped(found: list[Any]) -> None:
    """Swap two matrices of a layer. Swapped vectors of one shape (gains and biases) could not be detected."""
    found[2], found[4] = found[4], found[2]


def header(text: bytes) -> Callable[[Path], Any]:
    """A NumPy file whose header is ``text``, with no numbers after it."""
    return lambda folder: (folder / "params_3.npy").write_bytes(
        b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    )


def archive(folder: Path) -> None:
    """An archive of named arrays, under the file name of a single array."""
    np.savez(folder / "a.npz", a=np.zeros(4, np.float32))
    (folder / "a.npz").rename(folder / "params_3.npy")


def cut_short(folder: Path) -> None:
    file = folder / "params_3.npy"
    file.write_bytes(file.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: (m / "params_shapes.json").write_text("{"), "params_shapes.json: cannot be read as JSON"),
        (lambda m: (m / "params_shapes.json").write_bytes(b"\xff"), "params_shapes.json: cannot be read as JSON"),
        (shapes(lambda s: {"a": 1}), "expected a list of shapes"),
        (shapes(lambda s: [[1, -2]] * 14), "expected a list of shapes"),
        (shapes(lambda s: [[True, 2]] * 14), "expected a list of shapes"),
        (shapes(lambda s: s[:-1]), "has 25 shapes: expected 2, for positions and tokens, and 12 a layer"),
        (shapes(lambda s: s[:2]), "has 2 shapes"),
        (shapes(lambda s: s.__setitem__(0, [7])), "positions and tokens come first"),
        (shapes(lambda s: s.__setitem__(0, [7, 60])), "width 60: expected a multiple of 64"),
        (shapes(swapped), r"h0/attn/c_attn/w has shape \(1, 64, 64\), expected \(1, 64, 192\)"),
        (shapes(lambda s: s.__setitem__(1, [11, 63])), r"pieces has shape \(11, 63\), expected \(11, 64\)"),
        (shapes(lambda s: s.__setitem__(1, [12, 64])), r"hold [\d,]+ numbers, params_shapes.json says [\d,]+"),
        (lambda m: [(m / "params_3.npy").unlink(), os.mkfifo(m / "params_3.npy")], r"lacks params_3\.npy"),
        (lambda m: (m / "params_3.npy").unlink(), r"lacks params_3\.npy: expected params_0\.npy to params_9\.npy"),
        (lambda m: (m / "params_3.npy").write_bytes(b""), r"params_3\.npy cannot be read as an array"),
        (lambda m: (m / "params_3.npy").write_bytes(b"text"), r"params_3\.npy cannot be read as an array"),
        (
            lambda m: np.save(m / "params_3.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True),
            r"params_3\.npy cannot be read as an array",
        ),
        (header(b"[" * 9000), r"params_3\.npy cannot be read as an array"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (9" + b"0" * 17 + b",)}"), r"params_3\.npy cannot"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}" + b"("), r"params_3\.npy cannot"),
        (header(b"{'descr': '<f4', b'fortran_order': False, 'shape': (5,)}"), r"params_3\.npy cannot"),
        (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (05,)}"), r"params_3\.npy cannot"),
        (lambda m: (m / "params_3.npy").write_bytes(b"PK\x03\x04" + bytes(40)), r"params_3\.npy cannot be read"),
        (archive, r"params_3\.npy cannot be read as an array"),
        (cut_short, r"params_3\.npy cannot be read as an array"),
        (lambda m: (m / "params_3.npy").write_bytes(pickle.dumps([1, 2])), r"params_3\.npy cannot be read as an array"),
        (lambda m: np.save(m / "params_3.npy", np.zeros(4)), r"params_3\.npy holds float64 \(4,\), expected float32"),
        (lambda m: np.save(m / "params_3.npy", np.zeros((2, 2), np.float32)), r"params_3\.npy holds float32 \(2, 2\)"),
        (lambda m: np.save(m / "params_9.npy", np.zeros(4, np.float32)), "not of one make, or cut short"),
    ],
)
def test_what_does_not_fit_is_named(damage: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    release(tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_openai(tmp_path / "m")
    assert "\n" not in str(caught.value)
