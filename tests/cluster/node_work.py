"""Functions that tests run as cells on nodes."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from firth.errors import InputError


def square(folder: Path, *, number: int) -> dict[str, Any]:
    """Square a number, and report the node's thread setting."""
    if number < 0:
        raise InputError("a number below 0")
    if number == 0:
        raise ZeroDivisionError("a mistake")
    print(f"working on {number}", file=sys.stderr)
    return {"square": number * number, "threads": os.environ["OMP_NUM_THREADS"]}


def killed(folder: Path, *, times: int) -> dict[str, Any]:
    """Kill its own process on the first ``times`` calls."""
    file = folder / "killed"
    before = int(file.read_text()) if file.is_file() else 0
    if before < times:
        file.write_text(str(before + 1))
        os.kill(os.getpid(), signal.SIGKILL)
    return {"killed": before}


def stopped(folder: Path, *, started: str) -> dict[str, Any]:
    """Wait to be stopped, and record that it was."""
    Path(started).touch()
    try:
        while True:
            time.sleep(0.1)
    except KeyboardInterrupt:
        (folder / "saved").touch()
        raise
