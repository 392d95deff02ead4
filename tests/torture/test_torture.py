"""A short, seeded slice of the campaign that ``make torture`` runs whole."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torture
from torture import COMMANDS, Case, Server, Workplace

pytestmark = pytest.mark.slow
SEED = 1
BY_NAME = {command.name: command for command in COMMANDS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("scratch"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def workplace(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return torture.make_workplace(tmp_path_factory.mktemp("torture"), server)


def check(cases: list[Case], folder: Path) -> None:
    failed = {case.name: problem for case in cases if (problem := case.run(folder / "case"))}
    assert failed == {}


def some(cases: Iterator[Case], n: int) -> list[Case]:
    every = list(cases)
    return random.Random(SEED).sample(every, min(n, len(every)))


@pytest.mark.parametrize("kind", ["kill", "stop", "disk"])
@pytest.mark.parametrize(("name", "n"), [("pretrain", 2), ("convert", 2)])
def test_a_fault_at_any_moment_and_the_command_that_follows(
    server: Server, workplace: Workplace, tmp_path: Path, kind: str, name: str, n: int
) -> None:
    check(some(torture.faults(workplace, server, tmp_path, kind, [BY_NAME[name]]), n), tmp_path)
