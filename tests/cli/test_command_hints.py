"""Commands in messages, written as they must be typed."""

import os
import sys
from pathlib import Path

import pytest

from firth.cli import command_hints
from firth.cli.command_hints import as_typed

ROOT = Path(__file__).parents[2]


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, called by a path that is not on the PATH."""
    program = tmp_path / "bin" / "firth"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bin/firth", "models"])
    monkeypatch.setenv("PATH", os.defpath)
    return program


def test_a_path_is_printed_where_it_must_be_typed(called: Path) -> None:
    assert as_typed("next: firth pretrain --resume a; firth[report]; Firth reads runs/firth pretrain") == (
        "next: bin/firth pretrain --resume a; firth[report]; Firth reads runs/firth pretrain"
    )
    assert as_typed("firth fill-mask is firth 1") == "bin/firth fill-mask is firth 1"


def test_on_the_path_the_name_is_enough(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(called.parent))
    assert as_typed("firth vocab") == "firth vocab"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(sys, "argv", ["somewhere/__main__.py"])
    assert as_typed("firth vocab") == "firth vocab"


def test_extras_are_installed_from_where_the_package_is(called: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "models need it: pip install 'firth[hub]', or give a folder"
    assert as_typed(said) == f"models need it: bin/pip install -e '{ROOT}[hub]', or give a folder"
    monkeypatch.chdir(ROOT)
    assert as_typed(said) == "models need it: bin/pip install -e '.[hub]', or give a folder"
    monkeypatch.setattr(command_hints.firth.errors, "__file__", "/nowhere/lib/firth/errors.py")
    assert as_typed(said) == "models need it: bin/pip install 'firth[hub]', or give a folder"


def test_columns_are_a_flag_here() -> None:
    assert as_typed("say which is which, for example columns text=0,label=1") == (
        "say which is which, for example --columns text=0,label=1"
    )
    said = "found by content: --columns text=1,label=0; columns are counted from 0"
    assert as_typed(said) == said
