"""The published learning-rate schedules, computed by hand."""

import math
from typing import Literal

import pytest

from firth.training.config import OptimConfig
from firth.training.schedules import SCHEDULES, inverse_sqrt, linear, rate_of


def rate(step: int, warmup: float = 10, total: int = 100) -> float:
    return 2 * linear(step, warmup, total)


def test_rate_by_hand() -> None:
    assert rate(0) == 0
    assert rate(1) == pytest.approx(0.2)
    # The jump: from 0.9 of the peak at the last warm-up step to the line that falls from step 0.
    assert rate(9) == pytest.approx(1.8)
    assert rate(10) == pytest.approx(1.8)
    assert rate(50) == pytest.approx(1.0)
    assert rate(99) == pytest.approx(0.02)
    assert rate(100) == rate(1000) == 0


def test_the_jump_is_downwards_where_the_warm_up_is_long() -> None:
    assert rate(59, warmup=60) == pytest.approx(2 * 59 / 60)
    assert rate(60, warmup=60) == pytest.approx(0.8)


def test_no_warm_up_begins_at_the_peak() -> None:
    assert rate(0, warmup=0) == 2.0
    for name in ("gpt_linear", "cosine", "constant"):
        assert SCHEDULES[name](0, 0, 100) == 1.0


def test_warm_up_longer_than_the_run_only_rises() -> None:
    rates = [rate(step, warmup=1000, total=50) for step in range(50)]
    assert rates == sorted(rates) and rates[-1] < 0.1


def test_part_of_a_step_of_warm_up_is_none_for_bert() -> None:
    assert rate(0, warmup=0.9) == 2.0


def test_gpts_by_hand() -> None:
    """x is the completed share of the updates, w the warm-up share."""
    for step in (0, 1, 5, 10, 11, 60, 99):
        x, w = step / 100, 0.1
        assert SCHEDULES["gpt_linear"](step, 10, 100) == pytest.approx((x / w if x <= w else 1) * (1 - x))
        expected = x / w if x <= w else 0.5 * (1 + math.cos(math.pi * x))
        assert SCHEDULES["cosine"](step, 10, 100) == pytest.approx(expected)
        assert SCHEDULES["constant"](step, 10, 100) == pytest.approx(x / w if x <= w else 1)


def test_inverse_square_root_is_the_published_formula() -> None:
    """From the first step to far beyond the warm-up; the base model's peak is 7.0e-4."""
    peak = 512**-0.5 * 4000**-0.5
    assert peak == pytest.approx(6.99e-4, rel=1e-3)
    for number in (1, 2000, 4000, 16000, 100_000):
        formula = 512**-0.5 * min(number**-0.5, number * 4000**-1.5)
        assert peak * inverse_sqrt(number - 1, 4000, 100_000) == pytest.approx(formula)
    assert inverse_sqrt(15_999, 4000, 100_000) == pytest.approx(0.5)


def test_the_slanted_triangle_is_the_published_formula() -> None:
    """Howard & Ruder 2018, equation 3, with T = 200, cut_frac = 0.1, ratio = 32; at its start, cut and end."""
    slanted = SCHEDULES["slanted"]
    assert slanted(0, 20, 200) == pytest.approx(1 / 32)
    assert slanted(20, 20, 200) == 1
    assert slanted(200, 20, 200) == pytest.approx(1 / 32)
    for t in range(200):
        p = t / 20 if t < 20 else 1 - (t - 20) / (20 * (1 / 0.1 - 1))
        assert slanted(t, 20, 200) == pytest.approx((1 + p * 31) / 32)


def test_the_slanted_triangle_of_very_short_runs() -> None:
    slanted = SCHEDULES["slanted"]
    # The cut rounds down to 2 of 25 updates, and the published line would fall below zero before the end.
    assert slanted(24, 2.5, 25) == 1 / 32 < slanted(15, 2.5, 25) < slanted(2, 2.5, 25) == 1
    assert [slanted(step, 0.5, 5) for step in range(5)] == sorted((slanted(s, 0.5, 5) for s in range(5)), reverse=True)
    assert slanted(0, 0.5, 5) == slanted(0, 0, 5) == 1
    assert slanted(4, 5, 5) == pytest.approx((1 + 0.8 * 31) / 32) and slanted(5, 5, 5) == 1


def test_the_rate_of_a_run_follows_its_options() -> None:
    optim = OptimConfig(learning_rate=3.0, warmup_share=0.25, schedule="constant")
    assert [rate_of(optim, 8)(step) for step in (0, 1, 2, 7)] == [0, 1.5, 3, 3]


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_stays_between_nothing_and_the_peak(name: str) -> None:
    rates = [SCHEDULES[name](step, 12.5, 100) for step in range(120)]
    assert min(rates) >= 0 and 0.5 < max(rates) <= 1


@pytest.mark.parametrize("kind", ["linear", "gpt_linear", "cosine", "constant", "inverse_sqrt", "slanted"])
def test_a_run_of_one_step_learns(kind: Literal["linear"]) -> None:
    optim = OptimConfig(learning_rate=3.0, warmup_share=0.002, schedule=kind)
    assert rate_of(optim, 1)(0) == pytest.approx(3.0)
