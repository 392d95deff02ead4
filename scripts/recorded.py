"""What every record in docs/results/ says of where it was made."""

import platform
import subprocess

import torch

from firth.machine import find_machine


def commit() -> str:
    """The commit of this clone, shortened."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def made_on(precision: str = "auto") -> dict[str, str]:
    """Machine, PyTorch and commit. ``precision``: of the run, which decides the machine's path."""
    machine = f"{platform.machine()}, {find_machine(precision).path}"
    return {"machine": machine, "torch": torch.__version__, "commit": commit()}
