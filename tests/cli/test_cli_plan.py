"""``firth plan``: what it prints."""

import dataclasses
import json
from pathlib import Path

import pytest

from firth import plan as planning
from firth.pretraining.length import Pace


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(step_s=0.25, step_tokens=2000.0, epoch_steps=1.0, dev_batches=0)
    monkeypatch.setattr(planning, "measure_pace", lambda *rest, **more: pace)


def test_reasons_and_the_commands_that_follow(firth, tiny_text: Path) -> None:
    result = firth("plan", tiny_text, "--minutes", 5)
    assert result.code == 0 and f"{tiny_text}: about" in result.out
    for name in ("vocabulary", "model", "reads", "memory", "loss"):
        assert f"\n  {name} " in result.out
    assert f"next: firth vocab {tiny_text} --size 4000 --out vocab" in result.out
    # Forty epochs of so little text take less than five minutes, and that is what the command asks for.
    assert "40 epochs: done after" in result.out
    assert "--recipe small --model bert-tiny --corpus corpus --out runs/a --epochs 40\n" in result.out
    result = firth("plan", tiny_text, "--minutes", 0.1, "--threads", 1)
    assert "--corpus corpus --out runs/a --minutes 0.1 --threads 1\n" in result.out


def test_memory_may_choose(firth, tiny_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = planning._size
    monkeypatch.setattr(
        planning, "_size", lambda *rest: dataclasses.replace(measured(*rest), memory=1e9, tokens_per_weight=5.0)
    )
    for free, told in ((2e9, False), (5e8, True)):
        monkeypatch.setattr(planning, "free_memory", lambda device, free=free: free)
        monkeypatch.setattr(planning, "choose_size", lambda sizes, free: sizes[0])
        printed = firth("plan", tiny_text, "--minutes", 10_000).out
        assert "parameters: the largest that fits into memory; " in printed
        assert ("warning: not even the smallest model fits into the free memory" in printed) is told


def test_a_corpus_needs_no_vocabulary(firth, tiny_corpus: Path) -> None:
    result = firth("plan", tiny_corpus)
    assert "firth vocab" not in result.out and f"--corpus {tiny_corpus}" in result.out
    assert json.loads(firth("plan", tiny_corpus, "--json").out)["vocabulary"] == 300


def test_refusals(firth, tmp_path: Path) -> None:
    assert firth("plan", tmp_path / "no.txt").code == 2
    assert "--minutes=-1" in firth("plan", tmp_path, "--minutes", "-1").complaint


def test_the_cost_on_many_devices(firth, tiny_text: Path) -> None:
    asked = ("--model", "bert-base", "--device", "h100", "--devices", 1, 16)
    result = firth("plan", *asked, "--tokens", "1e9", "--price-per-hour", 3)
    assert result.code == 0 and "on h100: 989 TFLOP/s, 3,350 GB/s, 80 GB; 8 a node" in result.out
    assert "\n1 device\n" in result.out and "\n16 devices\n" in result.out
    for name in ("time", "speed", "step", "communication", "memory", "checkpoint", "money"):
        assert result.out.count(f"\n  {name} ") == 2
    told = json.loads(firth("plan", tiny_text, *asked, "--epochs", 2, "--network-gbits", 8, "--json").out)
    assert told["device"]["network"] == 1e9 and [run["devices"] for run in told["runs"]] == [1, 16]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (("--model", "bert-base"), "add --devices 8 64"),
        ((), "TEXT is missing"),
        (("--devices", 8), "--devices also needs --model bert-large"),
        (("--devices", 8, "--model", "bert-base"), "--devices also needs --device a100-40gb"),
        (("--devices", 8, "--model", "bert-base", "--device", "h100"), "give either --tokens, or TEXT"),
        (("--devices", 8, "--minutes", 3), "--minutes is for this machine"),
        (
            ("--devices", 8, "--model", "bert-base", "--device", "h100", "--tokens", 1e9, "--network-gbits", 0),
            "--network-gbits=0: expected more than 0",
        ),
    ],
)
def test_what_a_cost_needs_is_said(firth, asked: tuple[object, ...], complaint: str) -> None:
    result = firth("plan", *asked)
    assert result.code == 2 and complaint in result.complaint
