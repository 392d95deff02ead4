"""Classify vectors by their nearest neighbours, and reduce them to principal components."""

import numpy as np
from jaxtyping import Bool, Float


def unit_vectors(x: Float[np.ndarray, "n H"]) -> Float[np.ndarray, "n H"]:
    """Each vector divided by its length; zero vectors stay zero."""
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def correct_by_neighbours(x: Float[np.ndarray, "n H"], gold: np.ndarray, k: int) -> Bool[np.ndarray, " n"]:
    """Whether more than half of each row's ``k`` nearest other rows, by cosine, have its class.

    Ties go to the earlier rows, so shuffle rows that are sorted by class.
    """
    if not 0 < k < len(x) == len(gold):
        raise ValueError(f"k={k} of {len(x)} rows with {len(gold)} classes: expected fewer neighbours than rows")
    unit = unit_vectors(x)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    found: Bool[np.ndarray, " n"] = (gold[nearest] == gold[:, None]).mean(1) > 0.5
    return found


def principal_components(x: Float[np.ndarray, "n H"], n: int = 2) -> Float[np.ndarray, "n k"]:
    """The first ``n`` principal components of the rows; their signs are arbitrary."""
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, :n] * s[:n]
