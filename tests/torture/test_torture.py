"""A short, seeded slice of the campaign that ``make torture`` runs in full.

tests/contract/test_several_processes.py covers killing one of two processes; test_machine.py covers memory.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import campaign
import pytest
import torture
import torture_inputs
from campaign import Outcome, Row
from torture import Case
from torture_harness import KILLED, Server, Workplace
from torture_inputs import COMMANDS, READS

SEED = 1
BY_NAME = {command.name: command for command in COMMANDS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("scratch"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def workplace(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return torture_inputs.make_workplace(tmp_path_factory.mktemp("torture"), server)


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


def test_a_kill_at_any_moment(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    commands = torture_inputs.make_systems(workplace, server, ["lstm"])
    check(some(torture.random_kills(workplace, server, tmp_path, commands), 2), tmp_path)


def test_a_place_that_changes_meanwhile(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    check(some(torture.places(workplace, server, tmp_path, [BY_NAME["convert"], BY_NAME["vocab"]]), 6), tmp_path)


def test_damaged_files_are_named_or_of_no_effect(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    check(some(torture.mutations(workplace, server, SEED, 10, READS), 12), tmp_path)


def test_no_command_connects_executes_or_writes_elsewhere(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    check(list(torture.commands_work("network", workplace, server, [BY_NAME["predict"]])), tmp_path)


def test_hostile_files_do_no_harm(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    check(list(torture.hostile(workplace, server)), tmp_path)


def test_two_commands_of_one_target(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    check(list(torture.concurrent(workplace, server, [BY_NAME["convert"]])), tmp_path)


def test_the_harness_notices_what_it_is_for(server: Server, workplace: Workplace, tmp_path: Path) -> None:
    """A command that is killed and not repaired gives an unequal result; one that writes elsewhere is detected."""
    command = BY_NAME["convert"]
    expected, n_events = torture.whole(workplace, server, command, tmp_path / "whole")
    assert n_events > 10
    root = torture.fresh(workplace, tmp_path / "cut")
    (ran,) = server.run(command.words, root=root, fault={"kind": "kill", "at": n_events // 2})
    assert ran.code == KILLED and torture.litter(root)
    wrong = {**expected, "config.json": "another"}
    problem = torture.with_fault(workplace, server, command, tmp_path / "x", {"kind": "kill", "at": 3}, wrong)
    assert problem.startswith(("not equal: config.json", "stuck"))
    (ran,) = server.run(command.words, root=torture.fresh(workplace, root), fault={"kind": "socket", "at": 3})
    assert ran.wrong == "it connects, in code that is not Python"
    (ran,) = server.run((*command.words[:-1], str(tmp_path / "elsewhere")), root=root)
    assert "it writes elsewhere" in ran.wrong


def test_a_part_that_was_not_run_whole_again_keeps_the_row_of_when_it_was() -> None:
    planned = dict.fromkeys(campaign.PROMISES, 2)
    every = {(part, case): Outcome("", "a1") for part in planned for case in "xy"}
    whole = campaign.page(every, planned)
    assert whole.endswith("All cases passed.\n")
    assert campaign.read_rows(whole) == [Row(part, 2, 2, 2, "a1") for part in planned]
    again = {("kills", "x"): Outcome("", "b2"), ("kills", "y"): Outcome("", "b2+")}
    part_of_it = campaign.page(again, {"kills": 3}, whole)
    earlier, now, *others = campaign.read_rows(part_of_it)
    assert (earlier, now) == (Row("kills", 2, 2, 2, "a1"), Row("kills", 3, 2, 2, "b2, b2+")) and len(others) == 10
    assert part_of_it.endswith("All cases that were run passed.\n")
    all_of_it = campaign.page(again, {"kills": 2}, part_of_it)
    assert campaign.read_rows(all_of_it) == [Row("kills", 2, 2, 2, "b2, b2+"), *others]
    bad = campaign.page({("kills", "x"): Outcome("stuck", "b2")}, planned, whole)
    assert bad.endswith("What did not hold:\n\n- kills, x: stuck\n")
    assert "unknown, not passed" in campaign.page(again, {"kills": 2})
