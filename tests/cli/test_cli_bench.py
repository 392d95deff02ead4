"""``firth bench``."""

import json
from pathlib import Path

import pytest

from firth.bench import measure


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PRODUCT", (8, 8, 8))


def test_a_table_of_rates(firth, tiny_run: Path) -> None:
    result = firth("bench", "--model", tiny_run, "--repeats", 1)
    assert result.code == 0
    head, names, *lines = result.out.splitlines()
    assert head.startswith(f"{tiny_run} on ") and "CPU cores in use; torch " in head
    assert names.split() == ["tokens/s", "FLOP/s", "%", "of", "peak", "spread"]
    assert any(line.startswith("  encode  ") and line.count("%") == 3 for line in lines)
    assert lines[-1].startswith("  loader, one thread  ")


def test_json_has_every_time(firth, tiny_run: Path) -> None:
    result = firth("bench", "--model", tiny_run, "--repeats", 2, "--json")
    found = json.loads(result.out)
    assert found["model"] == str(tiny_run) and found["machine"]["torch"]
    assert {rate["name"] for rate in found["rates"]} > {"encode", "pre-training step", "loader, one thread"}
    assert all(len(rate["all_s"]) == 2 for rate in found["rates"])


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--model", "bert-huge"], ["bert-huge", "firth models lists the names"]),
        (["--model", "no/such"], ["no/such"]),
        (["--repeats", "0"], ["--repeats"]),
    ],
)
def test_wrong_usage(firth, arguments: list[str], parts: list[str]) -> None:
    result = firth("bench", *arguments)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == []
