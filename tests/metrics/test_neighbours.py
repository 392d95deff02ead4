"""Nearest neighbours: by hand, against a slow loop, and with ties; principal components against eigenvalues."""

import numpy as np
import pytest

from firth.metrics.neighbours import correct_by_neighbours, principal_components, unit_vectors


def test_a_row_is_no_neighbour_of_its_own_and_length_is_no_matter() -> None:
    x = np.array([[1.0, 0.0], [5.0, 0.5], [0.0, 2.0], [0.1, 1.0], [0.0, 0.0]])
    gold = np.array(["a", "a", "b", "a", "b"])
    assert correct_by_neighbours(x, gold, 1).tolist() == [True, True, False, False, False]
    np.testing.assert_allclose(np.linalg.norm(unit_vectors(x), axis=1), [1, 1, 1, 1, 0])


def test_equals_a_slow_loop() -> None:
    rng = np.random.default_rng(3)
    x, gold, k = rng.normal(size=(40, 5)), rng.integers(0, 2, 40), 5
    for i, right in enumerate(correct_by_neighbours(x, gold, k)):
        cosine = [float(x[i] @ other / np.linalg.norm(x[i]) / np.linalg.norm(other)) for other in x]
        near = sorted((j for j in range(40) if j != i), key=lambda j: -cosine[j])[:k]
        assert right == (sum(gold[j] == gold[i] for j in near) > k / 2)


def test_of_equal_neighbours_the_earlier_ones_count() -> None:
    assert correct_by_neighbours(np.ones((5, 2)), np.array([1, 1, 1, 2, 2]), 2).tolist() == [True] * 3 + [False] * 2


@pytest.mark.parametrize(("k", "n_gold"), [(0, 3), (3, 3), (1, 2)])
def test_too_many_neighbours_are_refused(k: int, n_gold: int) -> None:
    with pytest.raises(ValueError, match="expected fewer neighbours than rows"):
        correct_by_neighbours(np.eye(3), np.arange(n_gold), k)


def test_principal_components_have_the_covariances_eigenvalues() -> None:
    x = np.random.default_rng(4).normal(size=(30, 6)) * np.arange(1, 7)
    found = principal_components(x, 2)
    largest = np.linalg.eigvalsh(np.cov(x.T))[::-1][:2]
    np.testing.assert_allclose(found.var(0, ddof=1), largest)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-12)
