"""How `make audit` reports what it found, and what it did not look up."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HOLE = {"id": "CVE-1", "fix_versions": ["2.0"]}


@pytest.mark.parametrize(
    ("dependencies", "code", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "audit: no known vulnerability in 1 dependencies"),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            0,
            "audit: no known vulnerability in 1 dependencies; not looked up: b",
        ),
        ([{"name": "b", "skip_reason": "not found"}], 0, "audit skipped: the index knows none of the 1 dependencies"),
        ([{"name": "a", "version": "1", "vulns": [HOLE]}], 1, "a 1: CVE-1, mended in 2.0"),
    ],
)
def test_says_what_was_found_and_what_was_not_looked_up(
    dependencies: list[dict[str, Any]], code: int, said: str
) -> None:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.verdict(dependencies) == (code, said)
