"""The log of a run: complete lines, truncated to the position of a checkpoint."""

import json
import os
from pathlib import Path

import pytest

from firth.errors import CheckpointError
from firth.training.log import Log, read_log


def test_events_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.write("train", 20, mlm_loss=6.25, note="손실")
    log.write("dev", 20, loss=1e-7)
    log.close()
    assert read_log(path) == [
        {"event": "train", "step": 20, "mlm_loss": 6.25, "note": "손실"},
        {"event": "dev", "step": 20, "loss": 1e-7},
    ]
    assert "손실" in path.read_text("utf-8")


def test_opening_at_an_offset_cuts_what_came_after(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.write("train", 1)
    offset = log.sync()
    assert offset == path.stat().st_size == log.offset
    log.write("train", 2, lost=True)
    log.close()
    whole = path.read_bytes()
    again = Log(path, offset)
    assert path.read_bytes() == whole[:offset]
    assert again.offset == offset
    again.write("train", 2, lost=True)
    again.close()
    assert path.read_bytes() == whole


def test_a_new_run_begins_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("old\n")
    Log(path).close()
    assert path.read_bytes() == b""


def test_every_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = Log(path)
    log.write("train", 1)
    assert json.loads(path.read_text())["step"] == 1
    log.close()


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert [event["step"] for event in read_log(path)] == [1, 2]


def test_a_process_that_does_not_lead_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log(None, 40)
    log.write("train", 1, loss=2.0)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_the_place_of_a_log_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(CheckpointError, match="is no regular file: delete it"):
        read_log(tmp_path / "log.jsonl")
