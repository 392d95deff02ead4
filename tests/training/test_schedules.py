"""The published learning rate, by hand."""

import pytest

from firth.training.schedules import warmup_linear


def rate(step: int, warmup_steps: int = 10, total_steps: int = 100) -> float:
    return warmup_linear(step, peak_rate=2.0, warmup_steps=warmup_steps, total_steps=total_steps)


def test_rate_by_hand() -> None:
    assert rate(0) == 0
    assert rate(1) == pytest.approx(0.2)
    # The jump: from 0.9 peaks at the last step of the warm-up to the line that falls from step 0.
    assert rate(9) == pytest.approx(1.8)
    assert rate(10) == pytest.approx(1.8)
    assert rate(50) == pytest.approx(1.0)
    assert rate(99) == pytest.approx(0.02)
    assert rate(100) == rate(1000) == 0


def test_the_jump_is_downwards_where_the_warm_up_is_long() -> None:
    assert rate(59, warmup_steps=60) == pytest.approx(2 * 59 / 60)
    assert rate(60, warmup_steps=60) == pytest.approx(0.8)


def test_no_warm_up_begins_at_the_peak() -> None:
    assert rate(0, warmup_steps=0) == 2.0


def test_warm_up_longer_than_the_run_only_rises() -> None:
    rates = [rate(step, warmup_steps=1000, total_steps=50) for step in range(50)]
    assert rates == sorted(rates) and rates[-1] < 0.1
