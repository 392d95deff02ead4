"""GloVe: its counts by hand, its gradient against autograd, its objective, and what the vectors learn."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.errors import ConfigError, InputError
from firth.folder import read_model
from firth.inference.word_table import open_table
from firth.vectors import glove
from firth.vectors.folder import VectorOptions
from firth.vectors.glove import Counts, GloveTraining, count_pairs, fit, pair_weights, train_glove

ANIMALS, PLACES = ["cat", "dog", "고양이", "hen"], ["river", "market", "harbour", "mill"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(1)
    lines = [" ".join(rng.choice(words) for _ in range(10)) for _ in range(200) for words in (ANIMALS, PLACES)]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\nThe Cat, once.\n", "utf-8")
    return tmp_path / "t.txt"


@pytest.mark.parametrize("block", [1 << 19, 4])
def test_counts_are_those_by_hand(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glove, "_BLOCK", block)
    lines = ["a b x a c", "c a", "b"]
    (tmp_path / "w").write_text("\n".join(lines) + "\n")
    words, expected = ["a", "b", "c"], np.zeros((3, 3))
    for line in lines:
        known = [words.index(w) for w in line.split() if w in words]
        for i, first in enumerate(known):
            for j, second in enumerate(known):
                if i != j and abs(i - j) <= 2:
                    expected[first, second] += 1 / abs(i - j)
    found = count_pairs(tmp_path / "w", words, 2, 8)
    table = np.zeros((3, 3))
    table[found.rows, found.columns] = found.values
    assert table == pytest.approx(expected) and len(found.values) == np.count_nonzero(expected)


def test_the_weights_are_equation_9() -> None:
    x = torch.tensor([1.0, 50.0, 100.0, 400.0])
    assert pair_weights(x, 100, 0.75).tolist() == pytest.approx([0.01**0.75, 0.5**0.75, 1, 1])


def test_one_update_is_adagrad_on_the_gradient_of_equation_8() -> None:
    """Vectors' gradients are clipped and multiplied by the learning rate, those of biases are neither (specification
    §2); the sums of squares are those after the counts of the update."""
    training = GloveTraining(width=3, learning_rate=0.1)
    torch.manual_seed(0)
    table = torch.randn(8, 4)  # four words, four contexts
    rows, columns = torch.tensor([0, 1, 0, 0]), torch.tensor([4, 6, 5, 4])
    logs, weights = torch.tensor([0.3, 1.0, -0.5, 500.0]), torch.tensor([0.1, 1.0, 0.4, 0.7])
    expected = table.clone().requires_grad_()
    misses = (expected[rows, :3] * expected[columns, :3]).sum(1) + expected[rows, 3] + expected[columns, 3] - logs
    gradients = []  # one for each count
    for cost in 0.5 * weights * misses.square():
        (one,) = torch.autograd.grad(cost, expected, retain_graph=True)
        gradients.append(torch.cat([0.1 * one[:, :3].clamp(-100, 100), one[:, 3:]], 1))
    assert max(one[:, :3].abs().max() for one in gradients) == pytest.approx(10.0), "one is clipped"
    updated, squares = table.clone(), torch.full_like(table, 2.0)
    glove._update(updated, squares, rows, columns, logs, weights, training)
    sums = 2.0 + torch.stack(gradients).square().sum(0)
    torch.testing.assert_close(squares, sums)
    torch.testing.assert_close(updated, table - torch.stack(gradients).sum(0) / sums.sqrt())


def test_the_logarithms_of_the_counts_are_fitted() -> None:
    """Counts that a model of this form generates are fitted almost exactly."""
    rng = np.random.default_rng(0)
    w, c = rng.normal(size=(2, 12, 2))
    logs = w @ c.T
    rows, columns = np.divmod(np.arange(144), 12)
    counts = Counts(rows, columns, np.exp(logs[rows, columns]).astype(np.float32))
    before = fit(counts, 12, GloveTraining(width=4, epochs=1, x_max=1.0))
    after = fit(counts, 12, GloveTraining(width=4, epochs=400, x_max=1.0, learning_rate=0.1))
    assert before.shape == after.shape == (12, 4)
    # Words with equal counts get equal w + w̃; here no two words have equal counts, so the spread shows learning.
    assert np.linalg.norm(after - after.mean(0)) > 5 * np.linalg.norm(before - before.mean(0))


def test_words_of_like_company_come_near(text: Path, tmp_path: Path) -> None:
    report = train_glove([text], tmp_path / "m", GloveTraining(width=8, epochs=30, x_max=10.0), VectorOptions())
    assert (report.words, report.width) == (8, 8)
    table = open_table(tmp_path / "m")
    for words in (ANIMALS, PLACES):
        assert {one.word for one in table.nearest(words[0], 3)} == set(words[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "t.txt"]
    train_glove([text], tmp_path / "n", GloveTraining(width=8, epochs=30, x_max=10.0), VectorOptions())
    a, b = (read_model(tmp_path / name).objective.state_dict() for name in "mn")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_cannot_be_learned_from(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b c\n")
    with pytest.raises(InputError, match="0 of 3 words occur 5 times: give more text, or --min-count 1"):
        train_glove([tmp_path / "t.txt"], tmp_path / "m", GloveTraining(), VectorOptions())
    (tmp_path / "u.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="no two words"):
        train_glove([tmp_path / "u.txt"], tmp_path / "m", GloveTraining(min_count=1), VectorOptions())
    assert not (tmp_path / "m").exists()
    with pytest.raises(ConfigError, match="width"):
        GloveTraining(width=0)
    for rate in (0.0, 1e30):  # both would leave the first, random vectors as they are
        with pytest.raises(ConfigError, match="learning_rate=.*: expected more than 0 and at most 1"):
            GloveTraining(learning_rate=rate)
