"""The cases of the campaign: which fault hits which command, and what must hold afterwards."""

import hashlib
import json
import lzma
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torture_harness import HUNG, TERMINATED, Command, Ran, Server, Workplace
from torture_inputs import COMMANDS, COVERED, MORE_READS, READS, WORDS

from firth.training.checkpoint import list_checkpoints

# Address-space limit of a process that reads a damaged file of some kilobytes; torch alone takes most of it.
MEMORY = 12_000_000_000
_TIMES = ("elapsed_s", "tokens_per_s", "flops_per_s", "seconds", "predict_ms")
_MILLISECONDS = re.compile(r"[\d.]+ ms")
_LITTER = re.compile(r"\.[0-9a-f]{16}\.tmp$|\.old$")


def fresh(workplace: Workplace, folder: Path) -> Path:
    """Make an empty folder with links to the inputs, which commands only read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in workplace.folder.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def essence(path: Path) -> dict[str, str]:
    """What must be equal: the names of all files, and their contents except times, dates and drawings.

    Only the newest checkpoint counts: a stop saves one at any step, so the older ones that are kept may differ.
    """
    if path.is_file():
        return {"": _digest(path)}
    older = [folder for _, folder in list_checkpoints(path / "checkpoints")[:-1]]
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and not set(older) & set(file.parents))
    return {str(file.relative_to(path)): _digest(file) for file in files}


def _digest(path: Path) -> str:
    if path.name in (".lock", "report.html", "README.md", "manifest.json") or ".tfevents." in path.name:
        return "there"
    data = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        lines = [data.decode()] if path.suffix == ".json" else data.decode().splitlines()
        # A kill may have truncated the last line.
        with suppress(ValueError):
            data = "\n".join(json.dumps(_timeless(json.loads(line)), sort_keys=True) for line in lines).encode()
    return hashlib.sha256(data).hexdigest()


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _timeless(v) for k, v in data.items() if k not in (*_TIMES, "log_offset")}
    if isinstance(data, list):
        return [_timeless(value) for value in data]
    return _MILLISECONDS.sub("", data) if isinstance(data, str) else data


def litter(root: Path) -> list[str]:
    """Half-written files and folders, and replaced ones."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_symlink() and _LITTER.search(p.name))


@dataclass(frozen=True)
class Case:
    """One case of one part. ``run(folder)`` returns what went wrong, or an empty string."""

    part: str
    name: str
    run: Callable[[Path], str]


def whole(workplace: Workplace, server: Server, command: Command, folder: Path) -> tuple[dict[str, str], int]:
    """The result of a command without a fault, and the number of its events."""
    if command.name not in workplace.wholes:
        root, began = fresh(workplace, folder), time.monotonic()
        (ran,) = server.run(command.words, root=root)
        assert ran.code == 0 and (not ran.wrong or command.starts), ran
        workplace.times_s[command.name] = time.monotonic() - began
        workplace.wholes[command.name] = essence(root / command.out), ran.events
    return workplace.wholes[command.name]


def faults(
    workplace: Workplace, server: Server, folder: Path, kind: str, commands: Sequence[Command] = COMMANDS
) -> Iterator[Case]:
    """A fault of one kind at each event of each command; what a user types next must then give the same result."""
    for command in commands:
        expected, n_events = whole(workplace, server, command, folder / "whole")
        for at in tried(command, n_events, kind):

            def run(root: Path, command: Command = command, at: int = at, expected: Any = expected) -> str:
                return with_fault(workplace, server, command, root, {"kind": kind, "at": at}, expected)

            yield Case({"kill": "kills", "stop": "signals", "disk": "disk"}[kind], f"{command.name}-{at}", run)


def tried(command: Command, n_events: int, kind: str) -> Sequence[int]:
    """The events of a command at which faults are injected."""
    events = range(1, n_events + 1)
    if not 0 < command.most < n_events:
        return events
    return sorted(random.Random(f"{command.name}/{kind}").sample(events, command.most))


def with_fault(
    workplace: Workplace, server: Server, command: Command, root: Path, fault: dict[str, Any], expected: dict[str, str]
) -> str:
    """What is wrong after a fault and the command that follows it."""
    fresh(workplace, root)
    (first,) = server.run(command.words, root=root, fault=fault)
    if first.wrong:
        return first.wrong
    if fault["kind"] == "disk" and first.code not in (0, 1, 2):
        return f"a full disk ends with exit {first.code}"
    if fault["kind"] == "stop" and first.code not in (0, TERMINATED):
        return f"SIGTERM ends with exit {first.code}: {first.err[-200:]}"
    if fault["kind"] not in ("kill", "time") and first.code and (left := litter(root)):
        return f"it leaves {', '.join(left)}"
    done = (root / command.out).exists() and essence(root / command.out) == expected
    if not done:
        (second,) = server.run(command.following(root), root=root)
        if second.wrong or second.code:
            return f"stuck: {second.wrong or second.err[-300:]}"
    found = essence(root / command.out)
    if found != expected:
        other = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        return f"not equal: {', '.join(other[:5])}"
    if not done and (left := litter(root)):
        return f"litter: {', '.join(left)}"
    return ""


PLACES = ("quota", "readonly", "removed", "clock")
_EVENTS_EACH, _TIMES_EACH, _WORKERS = 10, 30, 10


def places(
    workplace: Workplace, server: Server, folder: Path, commands: Sequence[Command] = COMMANDS, seed: int = 0
) -> Iterator[Case]:
    """Changes to the place where a command writes, starting at one of some sampled events."""
    for command in commands:
        expected, n_events = whole(workplace, server, command, folder / "whole")
        for kind in PLACES:
            events = random.Random(f"{seed}/{command.name}/{kind}").sample(
                range(1, n_events + 1), min(n_events, _EVENTS_EACH)
            )
            for at in events:

                def run(
                    root: Path, command: Command = command, kind: str = kind, at: int = at, expected: Any = expected
                ) -> str:
                    return with_place(workplace, server, command, root, kind, at, expected)

                yield Case("places", f"{command.name}-{kind}-{at}", run)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def with_place(
    workplace: Workplace,
    server: Server,
    command: Command,
    root: Path,
    kind: str,
    at: int,
    expected: dict[str, str],
) -> str:
    """What is wrong when a quota, a read-only disk, another person or the clock interferes."""
    fresh(workplace, root)
    (first,) = server.run(command.words, root=root, fault={"kind": kind, "at": at, "out": command.out})
    if first.wrong:
        return first.wrong
    if first.code not in ((0,) if kind == "clock" else (0, 1, 2)):
        return f"exit {first.code}: {first.err[-200:]}"
    if kind == "quota" and first.code and (left := litter(root)):
        return f"it leaves {', '.join(left)}"
    if kind == "removed":
        # It may have continued and succeeded; whoever deleted half of the output deletes the rest.
        _delete(root / command.out)
    # Nothing can be cleaned up on a read-only disk: the next command does it.
    if first.code or kind == "removed" or (kind == "readonly" and litter(root)):
        (second,) = server.run(command.following(root), root=root)
        if second.wrong or second.code:
            return f"stuck: {second.wrong or second.err[-300:]}"
    found = essence(root / command.out)
    if found != expected:
        other = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        return f"not equal: {', '.join(other[:5])}"
    return f"litter: {', '.join(left)}" if (left := litter(root)) else ""


def random_kills(
    workplace: Workplace, server: Server, folder: Path, commands: Sequence[Command], seed: int = 0
) -> Iterator[Case]:
    """Kills at random moments of the training of every system, whatever it is doing."""
    for command in commands:
        expected, _ = whole(workplace, server, command, folder / "whole")
        rng = random.Random(f"{seed}/{command.name}")
        for number in range(_TIMES_EACH):
            share = rng.uniform(0.02, 1)

            def run(root: Path, command: Command = command, share: float = share, expected: Any = expected) -> str:
                fault = {"kind": "time", "at": share * workplace.times_s[command.name]}
                return with_fault(workplace, server, command, root, fault, expected)

            yield Case("random", f"{command.name}-{number}", run)


_TWO = ("--processes", "2")
TWO_PROCESSES = Command(
    "two", ("pretrain", "recipe.toml", "--out", "out", *_TWO), ("pretrain", "--resume", "out", *_TWO), starts=True
)


def processes(workplace: Workplace, server: Server, folder: Path, seed: int = 0) -> Iterator[Case]:
    """One of two training processes is killed: the other reports it and ends, and a resumed run has the same result."""
    expected, _ = whole(workplace, server, TWO_PROCESSES, folder / "whole")
    rng = random.Random(seed)
    for number in range(_WORKERS):
        share = rng.uniform(0.02, 1)

        def run(root: Path, share: float = share) -> str:
            fresh(workplace, root)
            fault = {"kind": "worker", "at": share * workplace.times_s[TWO_PROCESSES.name]}
            (first,) = server.run(TWO_PROCESSES.words, root=root, fault=fault)
            if first.code == HUNG or "Traceback" in first.err:
                return first.wrong
            if first.code not in (0, 1):
                return f"exit {first.code}: {first.err[-300:]}"
            if first.code:
                (second,) = server.run(TWO_PROCESSES.following(root), root=root)
                if second.code or "Traceback" in second.err:
                    return f"stuck: exit {second.code}: {second.err[-300:]}"
            if essence(root / "out") != expected:
                return "not equal"
            return f"litter: {', '.join(left)}" if (left := litter(root)) else ""

        yield Case("processes", f"worker-{number}", run)


# Peak memory of a long input over that of a quarter of it: more than allocator noise would be growth with the input.
_MOST_GROWTH, _LONG_S = 1.06, 3600.0


def memory(workplace: Workplace, server: Server, n_lines: int = 1_000_000, n_steps: int = 20_000) -> Iterator[Case]:
    """Peak memory of a long prediction and a long training, compared with a quarter of each."""

    def predict(root: Path, n: int) -> Ran:
        fresh(workplace, root)
        rng, words = random.Random(0), WORDS.split()
        with open(root / "long.txt", "w", encoding="utf-8") as file:
            for _ in range(n):
                print(*rng.choices(words, k=rng.randint(1, 40)), file=file)
        command = ("predict", "./classifier", "--input", "long.txt", "--out", "out")
        (ran,) = server.run(command, root=root, limit_s=_LONG_S)
        return ran

    def train(root: Path, n: int) -> Ran:
        fresh(workplace, root)
        settings = [f"train.steps={n}", "train.save_every=0", "train.eval_every=0", "train.precision=auto"]
        settings += ["data.short_share=0.5", "data.instances=pairs", "train.log_every=100"]
        flags = [word for setting in settings for word in ("--set", setting)]
        (ran,) = server.run(("pretrain", "recipe.toml", "--out", "out", *flags), root=root, limit_s=_LONG_S)
        return ran

    for name, make, n in (("predict", predict, n_lines), ("pretrain", train, n_steps)):

        def run(root: Path, make: Any = make, n: int = n) -> str:
            quarter, long = make(root, n // 4), make(root, n)
            if problem := quarter.wrong or long.wrong or long.code and long.err[-300:]:
                return str(problem)
            if long.peak_kb > _MOST_GROWTH * quarter.peak_kb:
                return f"{quarter.peak_kb // 1000} MB for a quarter, {long.peak_kb // 1000} MB for all"
            return ""

        yield Case("memory", f"{name}-{n}", run)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Sampled damage, as by disks, editors and attackers."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 4, 100)))
    kind = rng.randrange(9)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:at] + bytes(rng.randrange(256) for _ in range(end - at)) + data[end:]
    if kind == 3:
        return data[:at] + data[at:end] * 3 + data[end:]
    if kind == 4:
        return data[:at] + bytes(100) + data[at:]
    if kind == 5:
        odd = (b"[" * 3000, b"9" * 5000, b"-1", b"1e999", b"null", b"\xff\xfe", b"../")
        return data[:at] + rng.choice(odd) + data[at:]
    if kind == 6:
        return re.sub(rb"\d+", lambda m: rng.choice((m[0], b"0", b"99999999999", b"-7", b"1e400")), data, count=20)
    if kind == 7:
        return b""
    return bytes(reversed(data))


def mutations(
    workplace: Workplace, server: Server, seed: int, n_each: int, kinds: Iterable[str] = (*READS, *MORE_READS)
) -> Iterator[Case]:
    """Damaged files of every kind: reported, or without effect; no traceback, no hang, no unbounded memory."""
    for kind in kinds:
        for number in range(n_each):

            def run(root: Path, kind: str = kind, number: int = number) -> str:
                return with_damage(workplace, server, root, kind, random.Random(f"{seed}/{kind}/{number}"))

            yield Case("mutations", f"{kind.replace('/', '-')}-{number}", run)


def with_damage(workplace: Workplace, server: Server, root: Path, kind: str, rng: random.Random) -> str:
    """What is wrong when a damaged file is read."""
    name, command = (READS | MORE_READS)[kind]
    fresh(workplace, root)
    top = Path(name).parts[0]
    (root / top).unlink()
    if (workplace.folder / top).is_dir():
        shutil.copytree(workplace.folder / top, root / top)
    before = (workplace.folder / name).read_bytes()
    after = mutated(before, rng)
    (root / name).write_bytes(after)
    (ran,) = server.run(command, root=root, memory=MEMORY)
    if ran.wrong:
        return ran.wrong
    if ran.code == 0 and after != before and kind.startswith(COVERED) and not _same_meaning(name, before, after):
        (plain,) = server.run(command, root=fresh(workplace, root))
        if ran.out != plain.out and "damaged" not in ran.err:
            return "another answer, and no word about it"
    return ""


def _same_meaning(name: str, before: bytes, after: bytes) -> bool:
    if not name.endswith(".json"):
        return False
    try:
        return json.loads(before) == json.loads(after)
    except (ValueError, RecursionError):
        return False


# Libraries' caches in the user's folders: matplotlib's font cache and PyTorch's cache of compiled code.
_CACHES = ("matplotlib", "torchinductor")


def commands_work(
    part: str, workplace: Workplace, server: Server, commands: Sequence[Command] = COMMANDS
) -> Iterator[Case]:
    """Every command without a network: none connects, starts a program or writes elsewhere."""
    for command in commands:

        def run(root: Path, command: Command = command) -> str:
            fresh(workplace, root)
            (ran,) = server.run(command.words, root=root)
            if ran.wrong or ran.code:
                return ran.wrong or f"exit {ran.code}: {ran.err[-300:]}"
            # Also what native code writes, which no audit hook sees.
            strange = sorted(path.name for path in server.scratch.iterdir() if not path.name.startswith(_CACHES))
            return f"it writes into its user's folders: {', '.join(strange)}" if strange else ""

        yield Case(part, command.name, run)


def concurrent(workplace: Workplace, server: Server, commands: Sequence[Command] = COMMANDS) -> Iterator[Case]:
    """Two instances of a command with one target: one succeeds, the other says why not, and the result is complete."""
    for command in commands:

        def run(root: Path, command: Command = command) -> str:
            expected, _ = whole(workplace, server, command, root)
            fresh(workplace, root)
            both = server.run(command.words, command.words, root=root)
            for ran in both:
                if ran.wrong:
                    return ran.wrong
            if sorted(ran.code for ran in both) != [0, 2]:
                return f"exits {[ran.code for ran in both]}"
            if essence(root / command.out) != expected:
                return "not equal"
            return f"litter: {', '.join(left)}" if (left := litter(root)) else ""

        yield Case("concurrency", command.name, run)


# A pickle that would make a folder if it were ever unpickled.
_PICKLE = b"cos\nmkdir\n(Vexecuted\ntR."
_CONTROL = "\x1b[2J\x1b]0;owned\x07"


def _hostile_files() -> dict[str, tuple[Callable[[Path], None], tuple[str, ...]]]:
    """By name: the change to the copied inputs, and the command that then reads them."""
    predict = ("predict", "./classifier", "--input", "dev.tsv")

    def to(name: str, data: bytes) -> Callable[[Path], None]:
        return lambda root: (root / name).write_bytes(data) and None

    def link(name: str) -> Callable[[Path], None]:
        def make(root: Path) -> None:
            (root / name).unlink(missing_ok=True)
            (root / name).symlink_to(root.parent / "precious")

        return make

    def pipe(name: str) -> Callable[[Path], None]:
        def make(root: Path) -> None:
            (root / name).unlink(missing_ok=True)
            os.mkfifo(root / name)

        return make

    def holes(name: str, n_bytes: int) -> Callable[[Path], None]:
        def make(root: Path) -> None:
            with open(root / name, "ab") as file:
                file.truncate(n_bytes)

        return make

    def name_of_a_shard(root: Path) -> None:
        path = root / "corpus" / "manifest.json"
        path.write_text(path.read_text().replace('"train-00000"', '"../../precious"'))

    def hard_link(root: Path) -> None:
        shutil.rmtree(root / "run" / "checkpoints" / "step-6")  # so that there is something to resume
        (root / "run" / "log.jsonl").unlink()
        os.link(root.parent / "precious", root / "run" / "log.jsonl")

    def folder_of_links(root: Path) -> None:
        shutil.rmtree(root / "run" / "checkpoints")
        (root / "run" / "checkpoints").symlink_to(root.parent)

    resume = ("pretrain", "--resume", "run")
    into_corpus = ("--tokenizer", "vocab", "--workers", "1", "--out", "out")
    return {
        "pickle as weights": (to("classifier/model/model.safetensors", _PICKLE), predict),
        "pickle as tokenizer": (to("classifier/model/tokenizer.json", _PICKLE), predict),
        "pickle as shard": (to("corpus/train-00000.ids.npy", _PICKLE), ("pretrain", "recipe.toml", "--out", "out")),
        "pickle as model": (to("model.bin", _PICKLE), ("convert", "./model.bin", "--out", "out")),
        "link as lock": (link("run/.lock"), resume),
        "link as log": (link("run/log.jsonl"), resume),
        "link as checkpoints": (folder_of_links, resume),
        "shard outside": (name_of_a_shard, ("pretrain", "recipe.toml", "--out", "out")),
        "brackets": (to("recipe.toml", b"model = " + b"[" * 5000), ("pretrain", "recipe.toml", "--show-recipe")),
        "digits": (to("recipe.toml", b"seed = " + b"9" * 5000), ("pretrain", "recipe.toml", "--show-recipe")),
        "control characters": (
            to("train.tsv", f"text\t{_CONTROL}\na\tb\n".encode()),
            ("finetune", "finetune.toml", "--out", "out"),
        ),
        "hard link as log": (hard_link, resume),
        "pipe as model": (pipe("classifier/model/firth.json"), predict),
        "pipe as vocabulary": (pipe("classifier/model/tokenizer.json"), predict),
        "pipe as recipe": (pipe("recipe.toml"), ("pretrain", "recipe.toml", "--out", "out")),
        "pipe as labels": (pipe("train.tsv"), ("finetune", "finetune.toml", "--out", "out")),
        "pipe as dev": (pipe("dev.tsv"), ("finetune", "finetune.toml", "--out", "out")),
        "pipe as text": (pipe("text.txt"), ("vocab", "text.txt", "--size", "80", "--workers", "1", "--out", "out")),
        "pipe as lines": (pipe("lines.txt"), ("embed", "./run", "--input", "lines.txt", "--out", "out")),
        "pipe as vectors": (pipe("vectors.txt"), ("vectors", "convert", "vectors.txt", "--out", "out")),
        "holes as vocabulary": (holes("vocab/tokenizer.json", 1 << 33), ("prepare", "text.txt", *into_corpus)),
        "holes as labels": (holes("dev.tsv", 1 << 33), predict),
        "holes as lines": (holes("holes.txt", 1 << 33), ("embed", "./run", "--input", "holes.txt", "--out", "out")),
        "bomb as labels": (
            lambda root: (root / "dev.tsv.xz").write_bytes(_bomb()) and None,
            ("predict", "./classifier", "--input", "dev.tsv.xz"),
        ),
        "bomb": (
            lambda root: (root / "t.txt.xz").write_bytes(_bomb()) and None,
            ("vocab", "t.txt.xz", "--size", "80", "--workers", "1", "--out", "out"),
        ),
    }


def _bomb() -> bytes:
    """A few kilobytes that decompress to a line of 64 megabytes."""
    return lzma.compress(b"a" * (1 << 26))


def hostile(workplace: Workplace, server: Server) -> Iterator[Case]:
    """Malicious files: none is executed, followed out of its folder, or shown raw."""
    for name, (prepare, command) in _hostile_files().items():

        def run(root: Path, prepare: Any = prepare, command: Any = command) -> str:
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(workplace.folder, root)
            precious = root.parent / "precious"
            precious.write_text("mine")
            prepare(root)
            (ran,) = server.run(command, root=root, memory=MEMORY)
            if ran.wrong:
                return ran.wrong
            if precious.read_text() != "mine" or (root / "executed").exists():
                return "it has done harm"
            if "\x1b" in ran.err + ran.out:
                return "control characters reach the terminal"
            return "" if len(ran.err) < 5000 else "a message of many kilobytes"

        yield Case("hostile", name.replace(" ", "-"), run)
