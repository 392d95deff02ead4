"""The published test model of bilm-tf, and the vectors that the original code computed with it.

Three rows of ten batches, with the state of each row carried over: lm_embeddings_r.hdf5 has the top layer of sentence b
of row r, forward and backward.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.convert.elmo import read_elmo, spaced_words
from firth.data.rows import pack_words
from firth.formats.table import open_model
from firth.models.bilm import Bilm
from firth.packed import Carry, Hidden
from firth.systems import SYSTEMS
from firth.text.open_words import opened

h5py = pytest.importorskip("h5py")

ROWS = (0, 1, 2)
# Their vectors have 16 numbers per direction; ours add up the same terms in another order.
NEAR = 1e-5


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    found = shared_data / "elmo-fixture"
    if not found.is_dir():
        pytest.skip("the published test model of ELMo is not beside the repository")
    return found


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Bilm:
    encoder = open_model(folder).objective.encoder
    assert isinstance(encoder, Bilm)
    return encoder.eval()


@pytest.fixture(scope="module")
def sentences(folder: Path) -> list[list[str]]:
    return json.loads((folder / "bilm-lm_embeddings_sentences.json").read_text())


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[np.ndarray]]:
    found = []
    for row in ROWS:
        with h5py.File(folder / f"bilm-lm_embeddings_{row}.hdf5") as file:
            found.append([np.concatenate(file[str(batch)][()], 1) for batch in range(len(file))])
    return found


@torch.no_grad()
def read(encoder: Bilm, texts: list[str], carry: Carry | None) -> Hidden:
    tokenizer = opened(spaced_words([]))
    layout = SYSTEMS["elmo"].layout(tokenizer)
    return encoder(pack_words([layout.single(ids) for ids in tokenizer.ids_many(texts)], tokenizer), carry=carry)


def words_of(hidden: Hidden, row: int) -> np.ndarray:
    """The top layer of a row without its sentence markers."""
    return hidden.top[int(hidden.rows.offsets[row]) + 1 : int(hidden.rows.offsets[row + 1]) - 1].numpy()


def test_the_state_carried_on_gives_the_published_vectors(
    encoder: Bilm, sentences: list[list[str]], expected: list[list[np.ndarray]]
) -> None:
    carry, worst = None, 0.0
    for batch in range(len(sentences[0])):
        hidden = read(encoder, [sentences[row][batch] for row in ROWS], carry)
        carry = hidden.carry
        for row in ROWS:
            found = words_of(hidden, row)
            assert found.shape == expected[row][batch].shape
            worst = max(worst, float(np.abs(found - expected[row][batch]).max()))
    assert worst < NEAR


def test_without_the_state_only_the_first_batch_agrees(
    encoder: Bilm, sentences: list[list[str]], expected: list[list[np.ndarray]]
) -> None:
    for batch, agrees in ((0, True), (1, False), (9, False)):
        hidden = read(encoder, [sentences[row][batch] for row in ROWS], None)
        far = max(float(np.abs(words_of(hidden, row) - expected[row][batch]).max()) for row in ROWS)
        assert (far < NEAR) == agrees


def test_rows_beyond_a_batch_keep_their_state(
    encoder: Bilm, sentences: list[list[str]], expected: list[list[np.ndarray]]
) -> None:
    """Three rows, then two, then three again: each row resumes from its own state."""
    carry = read(encoder, [sentences[row][0] for row in ROWS], None).carry
    carry = read(encoder, [sentences[row][1] for row in ROWS[:2]], carry).carry
    assert carry is not None and all(state.shape[1] == 3 for state in carry.values())
    hidden = read(encoder, [sentences[0][2], sentences[1][2], sentences[2][1]], carry)
    for row, batch in ((0, 2), (1, 2), (2, 1)):
        np.testing.assert_allclose(words_of(hidden, row), expected[row][batch], atol=NEAR, rtol=0)


def test_a_batch_may_have_more_rows_than_the_state(
    encoder: Bilm, sentences: list[list[str]], expected: list[list[np.ndarray]]
) -> None:
    carry = read(encoder, [sentences[0][0]], None).carry
    hidden = read(encoder, [sentences[0][1], sentences[1][0]], carry)
    np.testing.assert_allclose(words_of(hidden, 0), expected[0][1], atol=NEAR, rtol=0)
    np.testing.assert_allclose(words_of(hidden, 1), expected[1][0], atol=NEAR, rtol=0)


def test_the_sizes_are_those_of_the_options(folder: Path) -> None:
    config, state = read_elmo(folder / "bilm-options.json", folder / "bilm-lm_weights.hdf5", 4)
    assert (config.width, config.cells, config.n_layers, config.residual) == (16, 64, 2, False)
    assert config.filters == ((1, 4), (2, 8), (3, 16), (4, 32), (5, 64))
    assert sum(tensor.numel() for tensor in state.values()) == 105_120
