"""``make torture``: the whole campaign, resumable, any part alone; writes docs/robustness.md.

    python tests/torture/campaign.py --out runs/torture [--parts kills,mutations] [--mutations 250]

Every case has a name; its outcome is a line of results.jsonl, with the commit, and a case with a line there is not run
again. A part that was not rerun in full keeps the row of its last full run.
"""

import argparse
import json
import random
import re
import subprocess
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import torture
import torture_inputs
from torture import Case
from torture_harness import Server, Workplace
from torture_inputs import ASKS, COMMANDS, MORE_READS, READS

from firth.config import read_json
from firth.files import append_to, write_json, write_text
from firth.progress import Progress

PLANNED, SEED = "planned.json", 1

PROMISES = {
    "kills": "After a kill at any file-system event the next command leads to the same bytes, without litter",
    "signals": "After SIGTERM at any such event too; nothing half-written is left",
    "random": "After a kill at any moment, of any system's training, a resume leads to the same bytes, without litter",
    "processes": "Of two processes that train together one is killed: the other says so, and a resume is as without",
    "disk": "A disk that is full from any event on costs a line, no litter and nothing that was saved",
    "places": "A quota, a disk turned read-only, a deleted folder or a clock set back costs a line at most; the next "
    "command leads to the same bytes",
    "memory": "Memory does not grow with the number of lines or steps",
    "mutations": "A damaged file is named or changes no answer; no traceback, no hang, no memory beyond the limit",
    "hostile": "No file is executed, followed out of its folder, or shown raw",
    "network": "No command connects anywhere, starts a program or writes outside its folder",
    "concurrency": "Of two commands with one target one succeeds, the other says why not",
}

ABOUT = (
    "The table lists each promise, the cases that test it, how many were run and passed, and the commit. `make "
    "torture` runs them and writes this page. Each case runs a real command in its own process, in random order, so "
    "an incomplete run is a random sample. A part keeps the row of its last complete run; a second row of a part is a "
    "later run that was stopped. `make test` runs a seeded sample of each part."
)


def cases(part: str, workplace: Workplace, server: Server, folder: Path, n_mutations: int) -> Iterator[Case]:
    """The cases of one part."""
    if part in ("kills", "signals", "disk"):
        kind = {"kills": "kill", "signals": "stop", "disk": "disk"}[part]
        return torture.faults(workplace, server, folder, kind)
    if part == "random":
        return torture.random_kills(workplace, server, folder, torture_inputs.make_systems(workplace, server))
    if part == "processes":
        return torture.processes(workplace, server, folder)
    if part == "places":
        return torture.places(workplace, server, folder)
    if part == "memory":
        return torture.memory(workplace, server)
    if part == "mutations":
        return torture.mutations(workplace, server, 0, n_mutations)
    if part == "hostile":
        return torture.hostile(workplace, server)
    if part == "concurrency":
        return torture.concurrent(workplace, server)
    return torture.commands_work(part, workplace, server, [*COMMANDS, *ASKS])


@dataclass(frozen=True)
class Outcome:
    """What was wrong after a case, if anything, and the commit at which it was run."""

    problem: str
    commit: str


@dataclass(frozen=True)
class Row:
    """The page's row for a part; ``commits``: those at which it was run."""

    part: str
    cases: int
    run: int
    held: int
    commits: str

    @property
    def is_whole(self) -> bool:
        return self.run >= max(self.cases, 1)


Results = dict[tuple[str, str], Outcome]


def read_results(path: Path) -> Results:
    """The outcome of each case so far; a line that a kill truncated is skipped."""
    found = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one["part"], one["case"]] = Outcome(one["problem"], one["commit"])
    return found


def this_commit() -> str:
    """The commit of the working tree, with a + if it has uncommitted changes."""
    command = ("git", "describe", "--always", "--exclude", "*", "--dirty=+")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def read_rows(page: str) -> list[Row]:
    """The rows of a page."""
    row = re.compile(r"\| .* \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (.*) \| `make torture PARTS=(\w+)` \|")
    return [
        Row(found[5], *(int(found[i].replace(",", "")) for i in (1, 2, 3)), found[4])
        for found in map(row.fullmatch, page.splitlines())
        if found
    ]


def rows_of(results: Results, planned: Mapping[str, int], before: Sequence[Row]) -> list[Row]:
    """A row for each part: from its results or, if these are incomplete, from its last full run."""
    rows = []
    for part in PROMISES:
        found = [outcome for (of, _), outcome in results.items() if of == part]
        commits = ", ".join(dict.fromkeys(one.commit for one in found))  # in the order of the runs
        now = Row(part, planned.get(part, 0), len(found), sum(not one.problem for one in found), commits)
        earlier = [] if now.is_whole else [row for row in before if row.part == part and row.is_whole]
        rows += [*earlier, *([now] if found or not earlier else [])]
    return rows


def page(results: Results, planned: Mapping[str, int], before: str = "") -> str:
    """The recorded campaign as Markdown; ``planned``: how many cases each part has; ``before``: the page as it was."""
    rows = rows_of(results, planned, read_rows(before))
    bad = [f"- {part}, {case}: {one.problem}" for (part, case), one in sorted(results.items()) if one.problem]
    if bad or any(row.held < row.run for row in rows):
        outcome = ["What did not hold:", "", *bad]
    elif {row.part for row in rows if row.is_whole} == set(PROMISES):
        outcome = ["All cases passed." if all(row.is_whole for row in rows) else "All cases that were run passed."]
    else:
        outcome = ["All cases that were run passed. The cases that were not run are unknown, not passed."]
    return "\n".join(
        [
            "# Robustness",
            "",
            *textwrap.wrap(ABOUT, 120),
            "",
            *textwrap.wrap(_described(), 120),
            "",
            "| promise | cases | run | passed | commit | command |",
            "| --- | ---: | ---: | ---: | --- | --- |",
            *(
                f"| {PROMISES[row.part]} | {row.cases:,} | {row.run:,} | {row.held:,} | {row.commits} | "
                f"`make torture PARTS={row.part}` |"
                for row in rows
            ),
            "",
            *outcome,
            "",
        ]
    )


def _described() -> str:
    """A description of what is killed and what is damaged."""
    sampled = ", ".join(f"{command.most} events of {command.name}" for command in COMMANDS if command.most)
    return (
        f"Faults are put into every command that writes ({', '.join(command.name for command in COMMANDS)}) at every "
        f"file-system event of a small run, but for {sampled}, sampled at random; `firth study` and `firth demo`, "
        f"which take minutes at least, are such commands in a row. Without a network run these and the {len(ASKS)} "
        f"commands that only answer, all but `firth serve`: a socket of the Internet ends the process, also in "
        f"libraries that are not Python. The campaign damages {len(READS) + len(MORE_READS)} kinds of files: recipes, "
        "text, labels, tags, questions, predictions, vocabularies, corpora, checkpoints, models, baselines, indexes, "
        "word vectors, and the models of other tools."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/torture"))
    parser.add_argument("--parts", default=",".join(PROMISES))
    parser.add_argument("--mutations", type=int, default=250, help="damages of each kind of file")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--page", type=Path, default=Path("docs/robustness.md"))
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PROMISES]:
        parser.error(f"unknown parts {', '.join(unknown)}: expected {', '.join(PROMISES)}")
    out, until, commit = options.out.resolve(), time.monotonic() + 60 * options.minutes, this_commit()
    out.mkdir(parents=True, exist_ok=True)
    results = read_results(out / "results.jsonl")
    planned = read_json(out / PLANNED) if (out / PLANNED).is_file() else {}
    with ExitStack() as stack:
        server = talking = stack.enter_context(closing(Server(out / "scratch")))
        if "processes" in parts:  # processes that train together communicate over loopback
            talking = stack.enter_context(closing(Server(out / "scratch", sealed=False)))
        workplace = torture_inputs.make_workplace(out, server)
        torture_inputs.make_more(workplace, server)
        every = [
            case
            for part in parts
            for case in cases(
                part, workplace, talking if part == "processes" else server, out / "work", options.mutations
            )
        ]
        planned |= Counter(case.part for case in every)
        write_json(out / PLANNED, planned)
        todo = [case for case in every if (case.part, case.name) not in results]
        random.Random(SEED).shuffle(todo)
        with Progress("torture", len(todo), "cases") as progress, append_to(out / "results.jsonl") as log:
            for case in todo:
                if time.monotonic() > until:
                    break
                problem = case.run(out / "work" / "case")
                results[case.part, case.name] = Outcome(problem, commit)
                line = {"part": case.part, "case": case.name, "problem": problem, "commit": commit}
                log.write(json.dumps(line).encode() + b"\n")
                log.flush()
                if problem:
                    progress.message(f"{case.part}, {case.name}: {problem}")
                progress.advance(1)
    before = options.page.read_text("utf-8") if options.page.is_file() else ""
    write_text(options.page, page(results, planned, before))
    return 1 if any(outcome.problem for outcome in results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
