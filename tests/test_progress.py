"""Progress lines: amounts, rates, time left; nothing is printed for short work."""

import io
import time
from pathlib import Path

import pytest

from firth import progress
from firth.progress import Progress, columns_of, format_count, format_duration


def test_durations_and_counts_are_short() -> None:
    assert [format_duration(s) for s in (0, 59.6, 75.2, 7261)] == ["0:00", "1:00", "1:15", "2:01:01"]
    assert [format_count(n) for n in (0, 7, 1234, 2.5e6, 3e9)] == ["0", "7", "1.23k", "2.5M", "3G"]


def test_wide_characters_take_two_columns_of_a_terminal() -> None:
    assert [columns_of(text) for text in ("", "abc", "고양이", "e\u0301")] == [0, 3, 6, 1]


def test_a_line_says_share_rate_and_time_left() -> None:
    progress = Progress("reading", 200, "B", stream=io.StringIO())
    progress.done = 50
    line = progress.line(progress._started_at_s + 10, "note")
    assert line.split("  ") == ["reading", " 25%", "50/200 B", "5 B/s", "0:30 left", "note"]


def test_work_that_was_done_before_does_not_count_as_fast() -> None:
    progress = Progress("training", 100, "steps", done=80, stream=io.StringIO())
    progress.done = 90
    assert "1 steps/s" in progress.line(progress._started_at_s + 10)


def test_short_work_is_silent() -> None:
    stream = io.StringIO()
    with Progress("reading", 10, "B", stream=stream) as progress:
        progress.advance(10)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("done", "expected"), [(10, "done"), (4, "stopped")])
def test_the_last_line_says_how_it_ended(done: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    stream = io.StringIO()
    with Progress("reading", 10, "B", stream=stream) as progress:
        monkeypatch.setattr(time, "monotonic", lambda: now_s + 5)
        progress.advance(done)
    assert expected in stream.getvalue().splitlines()[-1]


def test_progress_inside_larger_work_has_no_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_QUIET_FOR_S", 0.0)
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.0)
    with progress.part_of(shown.append), progress.Progress("training", 2, "steps", stream=stream) as inner:
        inner.message("step 1  loss 3")
        inner.advance(2)
    assert stream.getvalue() == "" and shown[0].startswith("training  100%")
    part = progress.named_part("run 2 of 3")
    with progress.part_of(shown.append), part, progress.Progress("training", 2, "steps", stream=stream) as inner:
        inner.advance(1)
    assert shown[-2].startswith("run 2 of 3  training   50%") and shown[-1].startswith("run 2 of 3  training  stopped")
    for name in ("", "run 2 of 3"):
        own = io.StringIO()
        with progress.named_part(name), progress.Progress("training", 2, "steps", stream=own) as inner:
            inner.advance(1)
        assert own.getvalue().startswith("training   50%")
    status = progress.Status(stream)
    status.show("fit 1 of 2")
    status.clear()
    assert stream.getvalue() == "fit 1 of 2\n"


def test_the_last_line_of_the_first_log_that_has_one_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_PLAIN_EVERY_S", 0.0)
    status = progress.Status(stream)
    logs = {name: tmp_path / name for name in ("missing", "empty", "begun", "later")}
    logs["empty"].write_text("\n")
    status.show_last_of(logs)
    assert stream.getvalue() == ""
    logs["begun"].write_text("x" * 5000 + "\ntraining  27%\r\n\n", "utf-8")
    logs["later"].write_text("training  5%\n")
    status.show_last_of(logs)
    logs["begun"].write_text("세 걸음" * 1000 + "\n끝", "utf-8")
    status.show_last_of({"begun": logs["begun"]})
    assert stream.getvalue() == "begun: training  27%  (and 3 more)\nbegun: 끝\n"
