"""The report of a run: made from its log, one file."""

from pathlib import Path

import pytest

from firth.jobs.pretrain import recipe_of
from firth.jobs.run_report import write_run_report


def test_a_run_is_drawn_from_its_log(tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.jsonl").write_bytes((tiny_run / "log.jsonl").read_bytes())
    page = write_run_report(tmp_path, recipe_of(tiny_run)).read_text()
    for part in ("masked LM: loss", "next sentence: accuracy", "Held-out text", "tokens/s", "peak_rate", "<svg"):
        assert part in page


def test_a_run_that_was_stopped_at_once_has_a_report_too(tiny_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "log.jsonl").write_text("")
    assert "Recipe" in write_run_report(tmp_path, recipe_of(tiny_run)).read_text()
