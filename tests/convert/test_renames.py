"""Foreign tensor names by table: reversible, and errors name whatever does not fit."""

import pytest
import torch
from torch import Tensor

from firth.convert.renames import Rename, Turned, expand, to_ours, to_theirs
from firth.errors import CheckpointError

TABLE: tuple[Rename, ...] = (
    ("emb.w", "embedding.weight"),
    (("l.{i}.q", "l.{i}.k"), "blocks.{i}.qk"),
    ("l.{i}.o", "blocks.{i}.out"),
    ("head.w", "head.weight"),
    ("head.tied", None),
)
ROWS = expand(TABLE, 2)


def ours() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {
        "embedding.weight": (5, 3),
        "blocks.0.qk": (6, 3),
        "blocks.0.out": (3,),
        "blocks.1.qk": (6, 3),
        "blocks.1.out": (3,),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_rows_are_made_for_each_layer() -> None:
    assert ROWS == [
        (("emb.w",), "embedding.weight"),
        (("l.0.q", "l.0.k"), "blocks.0.qk"),
        (("l.1.q", "l.1.k"), "blocks.1.qk"),
        (("l.0.o",), "blocks.0.out"),
        (("l.1.o",), "blocks.1.out"),
        (("head.w",), "head.weight"),
        (("head.tied",), None),
    ]


def test_joint_tensors_lie_below_one_another() -> None:
    state = ours()
    theirs = to_theirs(state, ROWS)
    assert set(theirs) == {"emb.w", "l.0.q", "l.0.k", "l.0.o", "l.1.q", "l.1.k", "l.1.o"}
    assert torch.equal(theirs["l.1.q"], state["blocks.1.qk"][:3])
    assert torch.equal(theirs["l.1.k"], state["blocks.1.qk"][3:])


def test_there_and_back_is_the_identity() -> None:
    state = ours()
    again = to_ours(to_theirs(state, ROWS), ROWS, state, "here")
    assert list(again) == list(state)
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())


def test_a_repeat_of_another_tensor_is_left_out() -> None:
    state = ours()
    theirs = to_theirs(state, ROWS) | {"head.tied": torch.zeros(1)}
    assert set(to_ours(theirs, ROWS, state, "here")) == set(state)


def test_what_is_missing_is_named() -> None:
    state = ours()
    theirs = to_theirs(state, ROWS)
    del theirs["l.1.k"], theirs["emb.w"]
    with pytest.raises(CheckpointError, match=r"x\.bin lacks emb\.w, l\.1\.k \(2 missing, 0 unknown"):
        to_ours(theirs, ROWS, state, "x.bin")


def test_what_is_unknown_is_named() -> None:
    state = ours()
    theirs = to_theirs(state, ROWS) | {"surprise": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"x\.bin has unknown surprise \(0 missing, 1 unknown"):
        to_ours(theirs, ROWS, state, "x.bin")


def test_a_tensor_of_a_part_that_this_model_lacks_is_unknown() -> None:
    """A row in the table is not enough: this objective has no head."""
    state = ours()
    theirs = to_theirs(state, ROWS) | {"head.w": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"unknown head\.w"):
        to_ours(theirs, ROWS, state, "x.bin")


def test_both_are_named_and_long_lists_are_cut() -> None:
    state = ours()
    theirs = {f"n{i}": torch.zeros(1) for i in range(9)}
    with pytest.raises(CheckpointError, match=r"lacks .* and has unknown n0, n1, n2, n3, n4 \(7 missing, 9 unknown"):
        to_ours(theirs, ROWS, state, "x.bin")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("emb.w", (5, 4)), ("emb.w", (15,)), ("l.0.k", (2, 3)), ("l.0.q", (3, 4)), ("l.1.o", ())],
)
def test_another_shape_is_named(name: str, shape: tuple[int, ...]) -> None:
    state = ours()
    theirs = to_theirs(state, ROWS) | {name: torch.zeros(shape)}
    with pytest.raises(CheckpointError, match=rf"x\.bin: .*{name}.* has shape .*, expected"):
        to_ours(theirs, ROWS, state, "x.bin")


def test_parts_of_the_right_size_together_only_are_named() -> None:
    """Otherwise, queries with a row taken from the keys would pass."""
    state = ours()
    theirs = to_theirs(state, ROWS) | {"l.0.q": torch.zeros(4, 3), "l.0.k": torch.zeros(2, 3)}
    with pytest.raises(CheckpointError, match=r"x\.bin: l\.0\.q has shape \(4, 3\), expected \(3, 3\)"):
        to_ours(theirs, ROWS, state, "x.bin")


def test_a_tensor_of_ours_without_a_row_is_our_own_mistake() -> None:
    with pytest.raises(KeyError, match="new"):
        to_theirs({"new": torch.zeros(1)}, ROWS)


def test_a_turned_matrix_lies_the_other_way_round_and_comes_back() -> None:
    table: tuple[Rename, ...] = ((Turned("l.{i}.w"), "blocks.{i}.weight"), ("l.{i}.b", "blocks.{i}.bias"))
    rows = expand(table, 2)
    state = {
        f"blocks.{i}.{part}": torch.randn(shape) for i in (0, 1) for part, shape in (("weight", (2, 3)), ("bias", 2))
    }
    theirs = to_theirs(state, rows)
    assert torch.equal(theirs["l.1.w"], state["blocks.1.weight"].T) and theirs["l.1.w"].is_contiguous()
    assert torch.equal(theirs["l.1.b"], state["blocks.1.bias"])
    again = to_ours(theirs, rows, state, "here")
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    with pytest.raises(CheckpointError, match=r"l\.0\.w has shape \(2, 3\), expected \(3, 2\)"):
        to_ours(theirs | {"l.0.w": torch.zeros(2, 3)}, rows, state, "here")
