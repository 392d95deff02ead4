"""Predict the time of a batch, learnt while serving: c0 + c1 T + c2 Σ T², by least squares that forget old batches."""

from dataclasses import dataclass, field

import numpy as np

# Units of T and Σ T², so that the three coefficients are of similar magnitude.
_TOKENS, _SQUARES = 1e3, 1e6
# Weight of a batch relative to the next one: after a thousand batches, a thousandth of it is left.
_FORGET = 0.993
# Weight of the initial guess, in batches.
_PRIOR = 1e-3
# Tokens per second before anything was measured.
_FIRST_RATE = 1e4


@dataclass(slots=True)
class CostModel:
    """Seconds of a batch with T tokens in rows of lengths T_i: c0 + c1 T + c2 Σ T_i², without negative coefficients.

    Source: attention is quadratic in each row, all else is linear; c0 is the fixed cost of a call.
    """

    products: np.ndarray = field(default_factory=lambda: np.eye(3) * _PRIOR)
    sums: np.ndarray = field(default_factory=lambda: np.array([0.0, _TOKENS / _FIRST_RATE, 0.0]) * _PRIOR)
    tokens: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    # Python's floats: a prediction is made for every waiting row, and NumPy's scalars take several times as long.
    coefficients: tuple[float, float, float] = (0.0, _TOKENS / _FIRST_RATE, 0.0)

    def learn(self, tokens: int, squares: float, seconds: float) -> None:
        """Update the coefficients with a batch that was run."""
        x = np.array([1.0, tokens / _TOKENS, squares / _SQUARES])
        # Relative errors count: short batches are the most frequent, and the ones that wait for nothing else.
        weight = 1 / max(seconds, 1e-4)
        self.products = self.products * _FORGET + np.outer(x, x) * weight
        self.sums = self.sums * _FORGET + x * seconds * weight
        self.tokens, self.seconds = self.tokens * _FORGET + tokens, self.seconds * _FORGET + seconds
        self.squares = self.squares * _FORGET + squares
        c0, c1, c2 = _without_negatives(self.products, self.sums).tolist()
        self.coefficients = c0, c1, c2

    def predict(self, tokens: int, squares: float) -> float:
        """Predict the seconds that a batch will take."""
        c0, c1, c2 = self.coefficients
        return c0 + c1 * tokens / _TOKENS + c2 * squares / _SQUARES

    def rate(self, slice_s: float) -> float:
        """Tokens per second if batches of ``slice_s`` are full, as they are when many requests wait.

        At least the measured rate: batches under low load are small, and slower per token.
        """
        if not self.seconds:
            return _FIRST_RATE
        mean_row = self.squares / self.tokens
        c0, c1, c2 = self.coefficients
        each_s = c1 / _TOKENS + c2 * mean_row / _SQUARES
        full = (slice_s - c0) / each_s / slice_s if each_s > 0 else 0.0
        return max(full, self.tokens / self.seconds)


def _without_negatives(products: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The least-squares solution without negative coefficients: those that would be negative are set to 0."""
    kept = [0, 1, 2]
    while kept:
        part = np.linalg.lstsq(products[np.ix_(kept, kept)], sums[kept], rcond=None)[0]
        if (part >= 0).all():
            found = np.zeros(3)
            found[kept] = part
            return found
        kept.pop(int(part.argmin()))
    return np.zeros(3)
