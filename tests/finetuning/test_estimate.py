"""The estimated time of a fine-tuning: its operations over the rate of the machine."""

from pathlib import Path
from typing import Any

import pytest

from firth.finetuning import estimate as module
from firth.finetuning.estimate import estimate_s, extrapolate_s
from firth.finetuning.resolve import resolve
from firth.machine import find_machine


def test_time_grows_with_epochs_seeds_and_examples(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_machine("auto").device.type != "cpu":
        pytest.skip("on a GPU nothing is estimated")
    monkeypatch.setattr(module, "_matrix_rate", lambda width: 1e6 * width)
    monkeypatch.setattr(module, "_SAMPLE", 8)
    rows = [f"the old farmer walked home\t{'ab'[n % 2]}\n" for n in range(40)]

    def of(n: int = 20, **said: Any) -> float:
        train = tmp_path / f"{n}.tsv"
        train.write_text("text\tlabel\n" + "".join(rows[:n]))
        data = {"train": str(train), "dev": str(train), "choose_on": "dev"}
        plain = {"model": str(tiny_run), "task": "classify", "data": data, "train": {"epochs": 1.0}}
        return estimate_s(resolve(plain | said, [], "test"))

    # The dev file, which has the same examples here, is read twice, forwards: in two thirds of the time of an epoch.
    read = 2 / 3
    one = of() / (1 + read)
    assert one > 0
    assert of(train={"epochs": 2.0, "seeds": 3}) == pytest.approx((6 + read) * one)
    assert of(40) == pytest.approx((2 + 2 * read) * one)
    # A frozen encoder reads each example once, forwards.
    assert of(adapt={"frozen_groups": -1}, train={"epochs": 9.0}) == pytest.approx((1 / 3 + read) * one)


def test_the_rate_of_this_machine_is_measured() -> None:
    assert 1e6 < module._matrix_rate(64) < 1e15


def test_an_extrapolated_time_grows_with_the_examples_that_are_read() -> None:
    # 100 and 300 labels are read equally often; 100,000 labels far more often than 10,000.
    assert extrapolate_s(300, {100: {"seconds": 10.0}}, same_epochs=False) == pytest.approx(12, rel=0.05)
    assert extrapolate_s(100_000, {10_000: {"seconds": 10.0}}, same_epochs=False) == pytest.approx(120)
    # A small encoder reads 100 labels 112 times, 1,000 labels 12 times (in the same time), and 10,000 five times.
    few, thousand = {"seconds": 10.0, "epochs": 112.0}, {"seconds": 10.0, "epochs": 12.0}
    assert extrapolate_s(1000, {100: few}, same_epochs=False) == pytest.approx(12)
    assert extrapolate_s(10_000, {100: few, 1000: thousand}, same_epochs=False) == pytest.approx(48, rel=0.01)
    # Epochs that the user gives are the same for all.
    assert extrapolate_s(1000, {100: {"seconds": 10.0, "epochs": 3.0}}, same_epochs=True) == pytest.approx(120)
