"""The examples on the documentation's clients page, each run unchanged against a running server."""

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import PATIENT, Server, serving

PAGE = Path(__file__).resolve().parents[3] / "docs" / "serving-clients.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
# Warnings in other projects are theirs to fix.
pytestmark = pytest.mark.filterwarnings("ignore")
# The address of the page's server.
ADDRESS = "localhost:8080"


@pytest.fixture(scope="module")
def page_server(served_folders: dict[str, Path]) -> Iterator[Server]:
    """A server of the models named on the page."""
    with serving(f"spam={served_folders['classify']}", f"story={served_folders['gpt']}", *PATIENT) as running:
        yield running


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_every_protocol_has_an_example() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
    paths = " ".join(re.findall(rf"{ADDRESS}(/\S*)", " ".join(text for _, text in BLOCKS)))
    assert all(path in paths for path in ("/predict", "/embed", "/v1", "/feature-extraction", "/v2/models"))


@pytest.mark.parametrize("block", blocks("sh"))
def test_the_commands_are_answered(page_server: Server, block: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    commands = block.replace("\\\n", " ").replace(ADDRESS, page_server.address.removeprefix("http://")).splitlines()
    assert commands
    for command in commands:
        assert command.startswith("curl ")
        command = command.replace("curl ", "curl --silent --fail ", 1)
        found = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=600)
        assert json.loads(found.stdout)


@pytest.mark.parametrize("block", blocks("python"))
def test_the_programs_run(page_server: Server, block: str) -> None:
    for library in re.findall(r"^from (\w+) import", block, flags=re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed: make test-serve")
    names: dict[str, Any] = {}
    answers = 0
    for line in ast.parse(block.replace(ADDRESS, page_server.address.removeprefix("http://"))).body:
        if isinstance(line, ast.Expr):
            # Reads a stream to its end; any other result lists its fields, rows or labels.
            answers += bool(list(eval(compile(ast.Expression(line.value), PAGE.name, "eval"), names)))
        else:
            exec(compile(ast.Module([line], []), PAGE.name, "exec"), names)
    assert answers == 2
