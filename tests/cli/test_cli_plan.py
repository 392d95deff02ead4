"""``firth plan``: what it prints."""

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
    assert "--recipe small --model bert-tiny --corpus corpus --out runs/a --minutes 5" in result.out


def test_a_corpus_needs_no_vocabulary(firth, tiny_corpus: Path) -> None:
    result = firth("plan", tiny_corpus)
    assert "firth vocab" not in result.out and f"--corpus {tiny_corpus}" in result.out
    assert json.loads(firth("plan", tiny_corpus, "--json").out)["vocabulary"] == 300


def test_refusals(firth, tmp_path: Path) -> None:
    assert firth("plan", tmp_path / "no.txt").code == 2
    assert "--minutes=-1" in firth("plan", tmp_path, "--minutes", "-1").complaint
