"""Shared by the tests that write out a model's equations."""

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from firth import packed
from firth.layers import attention, dropout
from firth.layers.dropout import kept_scale


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Tensor]]:
    """The factors that every dropout multiplied by, in call order: of units, and of attention weights."""
    seen: dict[str, list[Tensor]] = {"units": [], "weights": []}
    real_mask, real_kept = dropout.keep_mask, attention._kept

    def keep_mask(shape: Sequence[int], p: float, seed: Tensor) -> Tensor:
        mask = real_mask(shape, p, seed)
        seen["units"].append(mask.double() * kept_scale(p))
        return mask

    def kept(*args: Any) -> Tensor:
        seen["weights"].append(real_kept(*args))
        return seen["weights"][-1].clone()

    monkeypatch.setattr(packed, "SHORT_ROW", 0)
    monkeypatch.setattr(dropout, "keep_mask", keep_mask)
    monkeypatch.setattr(attention, "_kept", kept)
    return seen
