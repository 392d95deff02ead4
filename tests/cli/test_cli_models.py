"""``firth models``."""

import json
from pathlib import Path

import pytest

from firth.names import BASELINE_NAMES, SHIPPED
from firth.systems import SIZES


def test_every_name_is_listed(firth) -> None:
    out = firth("models").out
    assert all(f"  {name} " in out for name in SIZES)
    assert all(name in out for name in SHIPPED) and "hub:google-bert/bert-base-uncased" in out
    assert all(f"  {name} " in out for name in BASELINE_NAMES)
    plain = json.loads(firth("models", "--json").out)
    assert [size["name"] for size in plain["sizes"]] == list(SIZES)
    assert plain["shipped"][0]["here"] in (True, False)


def test_a_model_that_is_not_here_is_said_to_be_made(firth, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("firth.cli.models.WEIGHTS", tmp_path)
    assert firth("models").out.count("make models") == len(SHIPPED)
