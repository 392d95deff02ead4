"""Ctrl-C and SIGTERM sent to real processes: their messages, and that a resumed run gives the same result."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Small blocks, so that the test text makes several shards, in processes although it is little.
# Ctrl-C reaches a command started from a terminal; a background job inherits that SIGINT is ignored.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import firth.corpus.prepare as p, firth.workers
p.BLOCK_CHARACTERS, firth.workers.LITTLE_TEXT = 8000, 0
from firth.cli import main
sys.exit(main())
"""
COMMAND = [sys.executable, "-c", PROGRAM]


@contextmanager
def started(*tokens: object) -> Iterator["subprocess.Popen[str]"]:
    """Start the command in a process group of its own, as a terminal would."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, tokens)], start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s, "nothing happens"
        time.sleep(0.005)


def interrupt(process: "subprocess.Popen[str]", number: int = signal.SIGINT) -> str:
    """Send SIGINT to the whole group, as Ctrl-C does; returns the message."""
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("firth: ")]
    assert line.startswith("firth: interrupted: ")
    return line


def finish(*tokens: object) -> None:
    done = subprocess.run([*COMMAND, *map(str, tokens)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_vocab_leaves_nothing(tmp_path: Path, number: int) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A long text takes a while.\n" * 1_000_000)
    with started("vocab", text, "--out", tmp_path / "vocab") as process:
        wait_for(lambda: any(path.name.endswith(".tmp") for path in tmp_path.iterdir()), process)
        assert "run the same command again" in interrupt(process, number)
    assert list(tmp_path.iterdir()) == [text]


def test_prepare_goes_on_to_the_same_corpus(tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    command = ["prepare", tiny_text, "--tokenizer", tiny_vocab]
    out = tmp_path / "c"
    finish(*command, "--workers", 1, "--out", tmp_path / "whole")
    with started(*command, "--workers", 2, "--out", out) as process:
        wait_for(lambda: (out / "progress.jsonl").is_file(), process)
        assert "the same command resumes" in interrupt(process)
    assert not (out / "manifest.json").exists()
    finish(*command, "--workers", 1, "--out", out)
    assert contents(out) == contents(tmp_path / "whole")
    assert len(list(out.glob("train-*.ids.npy"))) > 2


def test_pretrain_goes_on_to_the_same_model(firth, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = [
        "encoder.width=32",
        "encoder.feed_forward_width=64",
        "data.length=32",
        "train.batch_tokens=256",
        "train.precision=float32",
        "train.log_every=1",
        "train.eval_every=20",
    ]
    command = ["pretrain", "--model", "bert-tiny", "--corpus", tiny_corpus, "--steps", 40, "--threads", 1]
    command += [token for setting in settings for token in ("--set", setting)] + ["--out"]
    with started(*command, run) as process:
        wait_for(lambda: (run / "log.jsonl").is_file() and (run / "log.jsonl").stat().st_size > 0, process)
        message = interrupt(process)
    again = f"firth pretrain --resume {run}"
    assert "checkpoint saved" in message and message.endswith(again)
    finish(*shlex.split(again)[1:], "--threads", 1)
    assert firth(*command, tmp_path / "whole").code == 0
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "whole")]
    assert weights[0] == weights[1]
    assert losses(run) == losses(tmp_path / "whole")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def losses(run: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]
