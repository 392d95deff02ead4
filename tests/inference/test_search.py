"""Search by cosine: exact, mapped, and with the model that made the index."""

import json
from pathlib import Path

import numpy as np
import pytest

import firth
from firth.errors import CheckpointError, ConfigError, InputError
from firth.inference import search
from firth.inference.search import ABOUT, VECTORS, Index, build_index
from firth.manifest import MANIFEST

LINES = ["the river", "", "a green hill near the market", "the river", "never forgot the queen 강가에서"]


@pytest.fixture
def index(tiny_run: Path, tmp_path: Path) -> Index:
    model = firth.load(tiny_run)
    assert build_index(model, str(tiny_run), LINES, tmp_path / "index", layer=1, pool="max") == len(LINES)
    return Index(tmp_path / "index")


def test_every_text_is_compared(index: Index, tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = firth.load(tiny_run)
    vectors = model.embed(LINES, layer=1, pool="max")
    query = model.embed("a hill", layer=1, pool="max")
    expected = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    expected[LINES.index("")] = 0  # a blank line keeps its place, and is similar to nothing
    for block in (2, 100):
        monkeypatch.setattr(search, "_BLOCK", block)
        hits = index.nearest(index.embed(model, "a hill"), len(LINES) + 3)
        assert [hit.line - 1 for hit in hits] == np.lexsort((np.arange(len(LINES)), -expected)).tolist()
        assert [hit.text for hit in hits] == [LINES[hit.line - 1] for hit in hits]
        np.testing.assert_allclose([hit.cosine for hit in hits], np.sort(expected)[::-1], rtol=1e-5)
    # Equal texts come in file order, and a text finds itself.
    same = index.nearest(index.embed(model, "the river"), 2)
    assert [hit.line for hit in same] == [1, 4] and same[0].cosine == pytest.approx(1, abs=1e-5)


def test_another_model_is_refused(index: Index, tiny_run: Path) -> None:
    model = firth.load(tiny_run)
    index.check_model(model)
    model.loaded.objective.encoder.embeddings.pieces.weight.data.normal_()
    with pytest.raises(ConfigError, match="was built with another model"):
        index.check_model(model)


def test_damage_and_what_is_no_index_are_refused(index: Index, tmp_path: Path, tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="tiny.* is not an index: firth search .* --texts FILE"):
        Index(tiny_run)
    vectors = (index.folder / VECTORS).read_bytes()
    (index.folder / VECTORS).write_bytes(bytes([vectors[0] ^ 1]) + vectors[1:])
    with pytest.raises(CheckpointError, match="vectors.f32 does not match its checksum"):
        Index(index.folder)
    # Without the checksums, the sizes still show it.
    (index.folder / MANIFEST).unlink()
    Index(index.folder)
    (index.folder / search.LINES).write_bytes(b"")
    with pytest.raises(CheckpointError, match="is damaged"):
        Index(index.folder)
    (index.folder / ABOUT).write_text(json.dumps({"format": "other"}))
    with pytest.raises(CheckpointError, match="of this version"):
        Index(index.folder)
    with pytest.raises(InputError, match="no texts"):
        build_index(firth.load(tiny_run), str(tiny_run), [], tmp_path / "empty")
    assert not (tmp_path / "empty").exists()
