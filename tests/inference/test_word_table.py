"""Nearest words: by hand, against all cosines, against gensim; which inputs a table accepts."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from vector_files import ngram_mean_of, write_fasttext, write_text

from firth.errors import CheckpointError, ConfigError, InputError
from firth.inference import word_table
from firth.inference.model import load_model
from firth.inference.word_table import Neighbour, WordTable, open_table
from firth.vectors.folder import VectorOptions, convert_vectors


def table_by_hand() -> WordTable:
    rows = torch.tensor([[9.0, 9.0], [1.0, 0.0], [2.0, 2.0], [0.0, 0.5], [-3.0, 0.0], [0.0, 0.0]])
    return WordTable(["<unk>", "east", "between", "north", "west", "nowhere"], rows, n_special=1)


def test_nearest_by_hand() -> None:
    table = table_by_hand()
    half = 0.5**0.5
    found = table.nearest("east", 3)
    assert [one.word for one in found[:1]] == ["between"]
    assert sorted((one.word, round(one.cosine, 6)) for one in found) == sorted(
        [("between", round(half, 6)), ("north", 0.0), ("west", -1.0)]
    )
    assert table.nearest("east", 9)[-1] == Neighbour("west", -1.0), "fewer are left than are asked for"
    # Nothing is near a vector of zeros, and memory is allocated only for the words that exist.
    assert len(table.nearest("east", 9)) == 3
    assert len(table.nearest("east", 10**15)) == 3
    with pytest.raises(InputError, match="'nowhere' is all zeros"):
        table.nearest("nowhere", 4)
    with pytest.raises(InputError, match="'<unk>' is not among the 5 words"):
        table.nearest("<unk>")
    with pytest.raises(ConfigError, match="top_k=0"):
        table.nearest("east", 0)


def test_a_decomposed_word_is_its_composed_one() -> None:
    table = WordTable(["강", "물"], torch.eye(2))
    assert table.nearest(unicodedata.normalize("NFD", "강"), 1) == [Neighbour("물", 0.0)]
    # A word that the vocabulary stores decomposed is found in that form.
    table = WordTable([unicodedata.normalize("NFD", "강"), "물"], torch.eye(2))
    assert table.nearest(table.words[0], 1) == [Neighbour("물", 0.0)]


def test_blocks_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "_AT_ONCE", 7)
    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(50, 6, generator=rng)
    table = WordTable([f"w{i}" for i in range(50)], rows, n_special=3)
    unit = torch.nn.functional.normalize(rows, dim=1)
    queries, without = unit[[5, 10, 20]], [[5, 6, 49], [10], []]
    for first in (0, 20):
        scores = queries @ unit.T
        scores[:, :3] = -torch.inf
        scores[:, 3 + first if first else 50 :] = -torch.inf
        for row, some in enumerate(without):
            scores[row, some] = -torch.inf
        expected = scores.topk(10, 1)
        values, best = table.best(queries, without, 10, first)
        torch.testing.assert_close(values, expected.values)
        assert torch.equal(best, expected.indices)


def test_words_are_looked_up_as_the_model_reads_them(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a", [(b"oslo", [1.0, 2.0]), (b"bergen", [1.0, 1.0])])
    convert_vectors(path, tmp_path / "lower")
    assert [one.word for one in open_table(tmp_path / "lower").nearest("Oslo")] == ["bergen"]
    convert_vectors(path, tmp_path / "cased", VectorOptions(lowercase=False))
    with pytest.raises(InputError, match="'Oslo' is not among the 2 words"):
        open_table(tmp_path / "cased").nearest("Oslo")


def test_a_new_word_has_the_vector_of_its_ngrams(tmp_path: Path) -> None:
    matrix = np.random.default_rng(2).normal(size=(3 + 20, 5)).astype(np.float32)
    path = write_fasttext(tmp_path / "a.bin", [b"the", b"cat", b"dog"], matrix, n_buckets=20)
    convert_vectors(path, tmp_path / "m")
    wanted = ngram_mean_of("cats", matrix[3:])
    # Also of a word that is longer than the encoder's rows of characters.
    long = open_table(tmp_path / "m").unit("한국어" * 9)
    expected = ngram_mean_of("한국어" * 9, matrix[3:])
    np.testing.assert_allclose(long, expected / np.linalg.norm(expected), atol=1e-6)
    for table in (open_table(tmp_path / "m"), word_table.table_of(load_model(tmp_path / "m").loaded)):
        np.testing.assert_allclose(table.unit("cats"), wanted / np.linalg.norm(wanted), atol=1e-6)
        assert len(table.nearest("cats")) == 3
    assert load_model(tmp_path / "m").nearest("cats", 1) == open_table(tmp_path / "m").nearest("cats", 1)


def test_any_model_of_whole_words_will_do(tiny_run: Path, tiny_word_corpus: Path, tmp_path: Path) -> None:
    from firth.pretraining.run import pretrain, resolve

    data = {
        "model": "lstm-small",
        "encoder": {"width": 8},
        "data": {"length": 16, "corpus": str(tiny_word_corpus)},
        "train": {"steps": 1, "precision": "float32", "batch_tokens": 256},
    }
    pretrain(resolve(data, [], "test"), tmp_path / "run", tell=lambda text: None)
    table = open_table(tmp_path / "run")
    assert table.rows.shape[1] == 8
    assert len(table.nearest(table.words[10], 4)) == 4
    with pytest.raises(ConfigError, match="bert models .* have no vectors of whole words"):
        open_table(tiny_run)


def test_a_damaged_folder(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a", [(b"x", [1.0, 2.0]), (b"y", [1.0, 1.0])])
    convert_vectors(path, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"width": 2', '"width": 3'))
    with pytest.raises(CheckpointError, match="do not belong together"):
        open_table(tmp_path / "m")


@pytest.mark.parametrize("name", ["word2vec_pre_kv_c", "euclidean_vectors.bin"])
def test_nearest_words_against_gensim(shared_data: Path, tmp_path: Path, name: str) -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim (extra: vectors) is not here")
    path = shared_data / "word-vectors" / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    convert_vectors(path, tmp_path / "m", VectorOptions(lowercase=False))
    table = open_table(tmp_path / "m")
    theirs = gensim.KeyedVectors.load_word2vec_format(str(path), binary=name.endswith(".bin"))
    for word in ("the", "government", "Sydney" if "Sydney" in theirs else "sydney"):
        if word not in theirs:
            continue
        found = table.nearest(word, 10)
        expected = theirs.most_similar(word, topn=10)
        np.testing.assert_allclose([one.cosine for one in found], [value for _, value in expected], atol=1e-5)
        assert {one.word for one in found[:8]} <= {other for other, _ in theirs.most_similar(word, topn=12)}
