"""``make torture``: the whole campaign, resumable, any part alone; writes docs/robustness.md.

    python tests/torture/campaign.py --out runs/torture [--parts kills,mutations] [--mutations 250]

Every case has a name; what came of it is a line of results.jsonl, and a case with a line there is not run again.
"""

import argparse
import json
import random
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
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


def read_results(path: Path) -> dict[tuple[str, str], str]:
    """What came of each case so far; a line that a kill cut short is left out."""
    found = {}
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            one = json.loads(line)
        except ValueError:
            continue
        found[one["part"], one["case"]] = one["problem"]
    return found


def page(results: dict[tuple[str, str], str], planned: dict[str, int]) -> str:
    """The recorded campaign as Markdown; ``planned``: how many cases each part has."""
    tries, held = Counter(part for part, _ in results), Counter(part for (part, _), bad in results.items() if not bad)
    rows = [
        f"| {PROMISES[part]} | {planned.get(part, 0):,} | {tries[part]:,} | {held[part]:,} | "
        f"`make torture PARTS={part}` |"
        for part in PROMISES
    ]
    bad = [f"- {part}, {case}: {problem}" for (part, case), problem in sorted(results.items()) if problem]
    if bad:
        outcome = ["What did not hold:", "", *bad]
    elif all(tries[part] >= planned.get(part, 1) for part in PROMISES):
        outcome = ["The campaign ran whole. Everything held."]
    else:
        outcome = ["Everything that was tried held. The cases that were not run are unknown, not passed."]
    return "\n".join(
        [
            "# Robustness",
            "",
            "What is promised, how many cases the campaign has, how many of them were run, and how many held.",
            "`make torture` runs it and writes this page; a case is a real command in a process of its own. Cases run",
            "in a shuffled order, so that a part of them is a sample of the whole. A seeded slice of each part is part",
            "of `make test`.",
            "",
            *textwrap.wrap(_described(), 120),
            "",
            "| promise | cases | run | held | command |",
            "| --- | ---: | ---: | ---: | --- |",
            *rows,
            "",
            *outcome,
            "",
        ]
    )


def _described() -> str:
    """What is killed, and what is damaged."""
    sampled = ", ".join(f"{command.most} events of {command.name}" for command in COMMANDS if command.most)
    return (
        f"Faults are put into every command that writes ({', '.join(command.name for command in COMMANDS)}) at every "
        f"file-system event of a small run, but for {sampled}, drawn at random; `firth study` and `firth demo`, which "
        f"take minutes at least, are such commands in a row. Without a network run these and the {len(ASKS)} commands "
        f"that only answer, all but `firth serve`: a socket of the Internet ends the process, also in libraries that "
        f"are not Python. The campaign damages {len(READS) + len(MORE_READS)} kinds of files: recipes, "
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
    out, until = options.out.resolve(), time.monotonic() + 60 * options.minutes
    out.mkdir(parents=True, exist_ok=True)
    results = read_results(out / "results.jsonl")
    planned = read_json(out / PLANNED) if (out / PLANNED).is_file() else {}
    with ExitStack() as stack:
        server = talking = stack.enter_context(closing(Server(out / "scratch")))
        if "processes" in parts:  # those that train together talk over loopback
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
                problem = results[case.part, case.name] = case.run(out / "work" / "case")
                log.write(json.dumps({"part": case.part, "case": case.name, "problem": problem}).encode() + b"\n")
                log.flush()
                if problem:
                    progress.message(f"{case.part}, {case.name}: {problem}")
                progress.advance(1)
    write_text(options.page, page(results, planned))
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
