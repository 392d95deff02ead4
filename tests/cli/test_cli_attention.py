"""``firth attention``."""

import json
from pathlib import Path

import numpy as np
import pytest

from firth import load


def test_a_picture_is_written(firth, tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "maps.png"
    result = firth("attention", tiny_run, "The old farmer.", "--second", "A mill?", "--out", out)
    n_pieces = len(load(tiny_run).attention("The old farmer.", "A mill?").pieces)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{out}: 2 layers with 2 heads each over {n_pieces} tokens\n"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_numbers_as_json(firth, tiny_run: Path) -> None:
    found = json.loads(firth("attention", tiny_run, "The old farmer.", "--json").out)
    expected = load(tiny_run).attention("The old farmer.")
    assert found["pieces"] == expected.pieces
    np.testing.assert_array_equal(np.array(found["weights"], np.float32), expected.weights)


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["a"], ["--out is missing", "--json"]),
        (["a", "--out", "x.png", "--json"], ["leave out --out, or --json"]),
        (["a", "--out", "x.jpg"], ["x.jpg", "new .png file"]),
        (["a", "--out", "absent/x.png"], ["absent/x.png", "new .png file"]),
        (["the old farmer " * 40, "--json"], ["at most 64", "shorten"]),
    ],
)
def test_what_cannot_be_shown(
    firth, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth("attention", tiny_run, *tokens)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_stays(firth, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("mine")
    assert "x.png" in firth("attention", tiny_run, "a", "--out", tmp_path / "x.png").complaint
    assert (tmp_path / "x.png").read_text() == "mine"
