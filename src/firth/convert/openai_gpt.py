"""The released OpenAI GPT: ten arrays without names, and a list of the shapes to split them into.

params_shapes.json               the shapes of all tensors, in order
params_0.npy … params_9.npy      their values concatenated, float32, cut into ten at arbitrary points
encoder_bpe_40000.json, vocab_40000.bpe

Source: openai/finetune-transformer-lm train.py; specification of checkpoint formats §3. Positions come first, gains
before biases; matrices are (1, in, out). The special tokens are not in the files: their code initialises them randomly.
The files do not give the number of heads: heads are 64 wide.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from tokenize import TokenError

import numpy as np
import torch
from torch import Tensor

from firth.config import read_whole
from firth.convert.renames import Turned
from firth.errors import CheckpointError
from firth.files import write_text
from firth.models.config import GptConfig

SHAPES = "params_shapes.json"
N_FILES = 10
HEAD_WIDTH = 64
# What NumPy raises for damaged files: it parses their headers as Python.
_BROKEN = (OSError, ValueError, EOFError, SyntaxError, TypeError, MemoryError, TokenError)

_BLOCK = "encoder.blocks.{i}."
_PIECES, _POSITIONS = "encoder.embeddings.pieces.weight", "encoder.embeddings.positions.weight"
# The tensors of a layer, in order: their name, ours, and their shape in hidden sizes (0: the leading axis of size 1).
_LAYER: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    (Turned("attn/c_attn/w"), "attention.query_key_value.weight", (0, 1, 3)),
    ("attn/c_attn/b", "attention.query_key_value.bias", (3,)),
    (Turned("attn/c_proj/w"), "attention.output.weight", (0, 1, 1)),
    ("attn/c_proj/b", "attention.output.bias", (1,)),
    ("ln_1/g", "attention_norm.weight", (1,)),
    ("ln_1/b", "attention_norm.bias", (1,)),
    (Turned("mlp/c_fc/w"), "feed_forward.weight", (0, 1, 4)),
    ("mlp/c_fc/b", "feed_forward.bias", (4,)),
    (Turned("mlp/c_proj/w"), "feed_forward_output.weight", (0, 4, 1)),
    ("mlp/c_proj/b", "feed_forward_output.bias", (1,)),
    ("ln_2/g", "feed_forward_norm.weight", (1,)),
    ("ln_2/b", "feed_forward_norm.bias", (1,)),
)


def read_openai(folder: Path) -> tuple[GptConfig, dict[str, Tensor]]:
    """Read the sizes and tensors (float32, our names) of a released model; CheckpointError names what does not fit."""
    shapes = _read_shapes(folder / SHAPES)
    config = _config(shapes, folder / SHAPES)
    flat = _read_numbers(folder, [math.prod(shape) for shape in shapes])
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    state: dict[str, Tensor] = {}
    for (theirs, ours, _), part, shape in zip(_tensors(config), np.split(flat, ends[:-1]), shapes, strict=True):
        tensor = torch.from_numpy(part.reshape(shape))
        state[ours] = (tensor[0].T if isinstance(theirs, Turned) else tensor).contiguous()
    return config, state


# Epsilon of the layer norms in their code.
_EPSILON = 1e-5


def write_openai(folder: Path, config: GptConfig, state: Mapping[str, Tensor], n_pieces: int) -> None:
    """Write the files of a model into an existing folder, with only the first ``n_pieces`` tokens.

    CheckpointError for heads that are not 64 wide, which the files cannot record.
    """
    if config.width != HEAD_WIDTH * config.n_heads:
        raise CheckpointError(
            f"the model has heads of width {config.width // config.n_heads}; the released code has {HEAD_WIDTH} and "
            "its files do not say another: keep it in a model folder"
        )
    if config.norm_epsilon != _EPSILON:
        raise CheckpointError(
            f"the model's layer norms have an epsilon of {config.norm_epsilon:g}; the released code has {_EPSILON:g} "
            "and its files do not say another: keep it in a model folder"
        )
    parts, shapes = [], []
    for theirs, ours, shape in _tensors(config, n_pieces):
        tensor = state[ours][:n_pieces] if ours == _PIECES else state[ours]
        parts.append((tensor.T if isinstance(theirs, Turned) else tensor).float().cpu().numpy().ravel())
        shapes.append(list(shape))
    for number, part in enumerate(np.array_split(np.concatenate(parts), N_FILES)):
        np.save(folder / f"params_{number}.npy", part, allow_pickle=False)
    write_text(folder / SHAPES, json.dumps(shapes) + "\n")


def _tensors(config: GptConfig, n_pieces: int = 0) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield their name, our name and their shape of every tensor, in the order of the files."""
    width = config.width
    yield "positions", _POSITIONS, (config.max_positions, width)
    yield "pieces", _PIECES, (n_pieces or config.vocab_size, width)
    for i in range(config.n_layers):
        for theirs, ours, widths in _LAYER:
            name = _BLOCK.replace("{i}", str(i)) + ours
            yield type(theirs)(f"h{i}/{theirs}"), name, tuple(n * width or 1 for n in widths)


def _read_shapes(file: Path) -> list[tuple[int, ...]]:
    try:
        shapes = json.loads(read_whole(file))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}") from None
    right = isinstance(shapes, list) and all(
        isinstance(shape, list) and shape and all(type(n) is int and 0 < n < 2**31 for n in shape) for shape in shapes
    )
    if not right:
        raise CheckpointError(f"{file}: expected a list of shapes, each a list of whole numbers above 0")
    return [tuple(shape) for shape in shapes]


def _config(shapes: list[tuple[int, ...]], file: Path) -> GptConfig:
    """Infer the sizes from the shapes, and check every shape."""
    n_layers, rest = divmod(len(shapes) - 2, len(_LAYER))
    if n_layers < 1 or rest:
        raise CheckpointError(
            f"{file} has {len(shapes)} shapes: expected 2, for positions and tokens, and {len(_LAYER)} a layer"
        )
    if len(shapes[0]) != 2 or len(shapes[1]) != 2:
        raise CheckpointError(f"{file}: positions and tokens come first, (rows, width) each, not {shapes[:2]}")
    (n_positions, width), (n_pieces, _) = shapes[:2]
    if width % HEAD_WIDTH:
        raise CheckpointError(f"{file}: width {width}: expected a multiple of {HEAD_WIDTH}, the width of a head")
    config = GptConfig(
        vocab_size=n_pieces, width=width, n_layers=n_layers, n_heads=width // HEAD_WIDTH, max_positions=n_positions
    )
    for (theirs, _, expected), shape in zip(_tensors(config), shapes, strict=True):
        if shape != expected:
            raise CheckpointError(f"{file}: {theirs} has shape {shape}, expected {expected}")
    return config


def _read_numbers(folder: Path, sizes: list[int]) -> np.ndarray:
    """Read all numbers of the ten files; there must be as many as the shapes require."""
    parts = []
    for number in range(N_FILES):
        file = folder / f"params_{number}.npy"
        if not file.is_file():
            raise CheckpointError(f"{folder} lacks {file.name}: expected params_0.npy to params_9.npy")
        try:
            # Not np.load, which would also accept archives and pickles.
            with open(file, "rb") as opened:
                part = np.lib.format.read_array(opened, allow_pickle=False)
        except _BROKEN as error:
            raise CheckpointError(f"{file} cannot be read as an array of numbers: {error}") from None
        if part.ndim != 1 or part.dtype != np.float32:
            raise CheckpointError(f"{file} holds {part.dtype} {part.shape}, expected float32 numbers in one row")
        parts.append(part)
    found = sum(len(part) for part in parts)
    if found != sum(sizes):
        raise CheckpointError(
            f"{folder}: params_0.npy to params_9.npy hold {found:,} numbers, {SHAPES} says {sum(sizes):,}: not of one "
            "make, or cut short"
        )
    return np.concatenate(parts)
