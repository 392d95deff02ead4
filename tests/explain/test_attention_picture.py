"""Attention maps as pictures: their names, their size, and what cannot be drawn."""

from pathlib import Path

import numpy as np
import pytest

from firth.errors import ConfigError
from firth.inference.attention_maps import Attention
from firth.page import Report

pytest.importorskip("matplotlib")

from firth.explain.attention import MOST_LABELS, draw_attention, pooled, write_attention_picture  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"


def drawn(pieces: list[str], n_layers: int = 2, n_heads: int = 3) -> Attention:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(len(pieces)), (n_layers, n_heads, len(pieces))).astype(np.float32)
    return Attention(pieces, weights)


def names(attention: Attention) -> tuple[list[str], list[str], list[str]]:
    """The names beside the maps, those under them, and those in the figure."""
    (axes,) = draw_attention(attention).axes
    return (
        [label.get_text() for label in axes.get_yticklabels()],
        [label.get_text() for label in axes.get_xticklabels()],
        [text.get_text() for text in axes.texts],
    )


def test_every_map_is_there_with_the_names_of_its_pieces() -> None:
    attention = drawn(["[CLS]", "Paris", "고양이", "$5"])
    left, below, others = names(attention)
    assert left == ["[CLS]", "Paris", "고양이", r"\$5"] * 2 and below == ["[CLS]", "Paris", "고양이", r"\$5"] * 3
    assert others == ["head 1", "head 2", "head 3", "layer 1", "layer 2"]
    (axes,) = draw_attention(attention).axes
    maps = [np.asarray(image.get_array()) for image in axes.images]
    assert len(maps) == 6
    assert all(np.array_equal(a, b) for a, b in zip(maps, attention.weights.reshape(6, 4, 4), strict=True))


def test_no_weight_of_a_long_text_is_lost() -> None:
    weights = np.zeros((450, 230), np.float32)
    weights[449, 0], weights[0, 229], weights[223, 101] = 0.9, 0.8, 0.7
    small = pooled(weights, 200)
    assert max(small.shape) <= 200 and small[-1, 0] == weights[449, 0] and small[0, -1] == weights[0, 229]
    assert sorted(small[small > 0].tolist()) == sorted(weights[weights > 0].tolist())
    assert np.array_equal(pooled(weights[:200, :200], 200), weights[:200, :200])


def test_names_that_would_be_too_small_are_left_out() -> None:
    assert len(names(drawn(["a"] * MOST_LABELS))[0]) == 2 * MOST_LABELS
    left, below, others = names(drawn(["a"] * (MOST_LABELS + 1)))
    assert left == below == [] and len(others) == 5


@pytest.mark.parametrize("n_pieces", [1, 5, 30])
def test_the_file_is_a_picture(tmp_path: Path, n_pieces: int) -> None:
    path = tmp_path / "maps.png"
    write_attention_picture(drawn(["늙은"] * n_pieces), path)
    assert path.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"maps\.png cannot be written: No such file"):
        write_attention_picture(drawn(["a", "b"]), tmp_path / "nowhere" / "maps.png")


@pytest.mark.draws
def test_a_report_holds_it_and_needs_nothing_else(tmp_path: Path) -> None:
    pages = []
    for name in ("one.html", "two.html"):
        report = Report("A model")
        report.plot("Attention", draw_attention(drawn(["a", "b", "고양이"])))
        report.write(tmp_path / name)
        pages.append((tmp_path / name).read_text())
    assert pages[0] == pages[1]
    assert "data:image/png;base64," in pages[0] and "http" not in pages[0].replace("http://www.w3.org", "")
