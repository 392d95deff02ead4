"""The cases of the campaign: what is done to which command, and what must hold afterwards."""

import hashlib
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firth.training.checkpoint import list_checkpoints

SERVER = Path(__file__).with_name("torture_server.py")
LIMIT_S = 120.0
# Of a process that reads a damaged file of some kilobytes; torch alone takes most of it in addresses.
MEMORY = 12_000_000_000
HUNG, KILLED, TERMINATED = 97, -9, 130
_TIMES = ("elapsed_s", "tokens_per_s", "flops_per_s", "seconds")
_LITTER = re.compile(r"\.[0-9a-f]{16}\.tmp$|\.old$")


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str
    events: int = 0
    outside: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    peak_kb: int = 0

    @property
    def wrong(self) -> str:
        """What must never happen, whatever the input; empty if all is well."""
        if self.code == HUNG:
            return "it hangs"
        if "Traceback" in self.err or self.code in (98, 99) or self.code < 0 and self.code != KILLED:
            return f"exit {self.code}: {self.err[-300:]}"
        if self.outside:
            return f"it writes elsewhere: {', '.join(self.outside)}"
        if self.forbidden:
            return f"it executes or connects: {', '.join(self.forbidden)}"
        if self.code not in (0, KILLED) and "firth: " not in self.err:
            return f"exit {self.code} without a word"
        return ""


class Server:
    """The warm process; see torture_server.py."""

    def __init__(self, scratch: Path) -> None:
        # Libraries keep caches in the user's folders; here these are of the campaign.
        scratch.mkdir(parents=True, exist_ok=True)
        places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(scratch))
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **places, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def run(
        self, *commands: Sequence[object], root: Path, fault: dict[str, Any] | None = None, **more: Any
    ) -> list[Ran]:
        """Run commands side by side in the folder ``root``; the fault is of the first."""
        logs = root.parent / f"{root.name}-logs"
        logs.mkdir(exist_ok=True)
        requests = [
            {
                "command": [str(word) for word in command],
                "root": str(root),
                "fault": fault if not number else None,
                "limit_s": LIMIT_S,
                **{name: str(logs / f"{name}-{number}") for name in ("out", "err", "seen")},
                **more,
            }
            for number, command in enumerate(commands)
        ]
        for request in requests:
            Path(request["seen"]).unlink(missing_ok=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(requests), file=self._process.stdin, flush=True)
        codes = json.loads(self._process.stdout.readline())
        return [_ran(code, peak, request) for (code, peak), request in zip(codes, requests, strict=True)]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _ran(code: int, peak_kb: int, request: dict[str, Any]) -> Ran:
    out, err = (Path(request[name]).read_text("utf-8", "replace") for name in ("out", "err"))
    seen = Path(request["seen"])
    facts = json.loads(seen.read_text()) if seen.is_file() else {}
    return Ran(
        code,
        out,
        err,
        facts.get("events", 0),
        tuple(facts.get("outside", ())),
        tuple(facts.get("forbidden", ())),
        peak_kb,
    )


@dataclass(frozen=True)
class Command:
    """A command that writes ``out`` in its folder; ``resume``: what continues it once ``begun`` exists there."""

    name: str
    words: tuple[str, ...]
    resume: tuple[str, ...] = ()
    begun: str = "recipe.toml"
    out: str = "out"
    # Whether it starts processes of its own, which the harness otherwise takes for something foreign.
    starts: bool = False

    def following(self, root: Path) -> tuple[str, ...]:
        """What a user types after a fault."""
        begun = self.resume and (root / self.out / self.begun).is_file()
        return self.resume if begun else self.words


@dataclass
class Workplace:
    """Small inputs, made once, that cases copy."""

    folder: Path
    # What each command makes without a fault, in how many events, and in how many seconds.
    wholes: dict[str, tuple[dict[str, str], int]] = field(default_factory=dict)
    times_s: dict[str, float] = field(default_factory=dict)


WORDS = "the river a green hill market quiet garden old farmer walked 강가에서 시장에서 편지를 썼다"
RECIPE = """model = "bert-tiny"
[encoder]
width = 16
n_layers = 1
n_heads = 2
feed_forward_width = 32
max_positions = 32
[data]
corpus = "corpus"
length = 16
[train]
steps = 6
batch_tokens = 64
micro_batches = 2
log_every = 1
eval_every = 2
eval_batches = 2
save_every = 2
precision = "float32"
"""
FINETUNE = """task = "classify"
model = "./run"
[data]
train = "train.tsv"
dev = "dev.tsv"
[train]
epochs = 1
batch_examples = 8
precision = "float32"
"""


def make_workplace(folder: Path, server: Server) -> Workplace:
    """Text, labels, a tokenizer, a corpus, a run and a fine-tuned model; kept if they are there."""
    inputs = folder / "inputs"
    if not (inputs / "made").is_file():
        shutil.rmtree(inputs, ignore_errors=True)
        inputs.mkdir(parents=True)
        rng = random.Random(0)
        words = WORDS.split()
        documents = ["\n".join(" ".join(rng.choices(words, k=9)) + "." for _ in range(8)) for _ in range(40)]
        (inputs / "text.txt").write_text("\n\n".join(documents) + "\n", "utf-8")
        (inputs / "recipe.toml").write_text(RECIPE)
        (inputs / "finetune.toml").write_text(FINETUNE)
        for name, n in (("train", 24), ("dev", 8)):
            rows = [f"{' '.join(rng.choices(words, k=4))}\t{'ab'[i % 2]}\n" for i in range(n)]
            (inputs / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows), "utf-8")
        for made in (
            ("vocab", "text.txt", "--size", "80", "--workers", "1", "--out", "vocab"),
            ("prepare", "text.txt", "--tokenizer", "vocab", "--workers", "1", "--hold-out", "0.2", "--out", "corpus"),
            ("pretrain", "recipe.toml", "--out", "run"),
            ("finetune", "finetune.toml", "--out", "classifier"),
        ):
            (ran,) = server.run(made, root=inputs)
            assert ran.code == 0, ran.err
        (inputs / "made").touch()
    return Workplace(inputs)


COMMANDS = [
    Command("pretrain", ("pretrain", "recipe.toml", "--out", "out"), ("pretrain", "--resume", "out")),
    Command("finetune", ("finetune", "finetune.toml", "--out", "out"), ("finetune", "--resume", "out")),
    Command("average", ("average", "./run", "--last", "2", "--out", "out")),
    Command("convert", ("convert", "./classifier", "--out", "out")),
    Command(
        "embed",
        ("embed", "./run", "--input", "text.txt", "--out", "out"),
    ),
    Command("predict", ("predict", "./classifier", "--input", "dev.tsv", "--out", "out")),
    Command("vocab", ("vocab", "text.txt", "--size", "80", "--workers", "1", "--out", "out")),
    Command(
        "prepare",
        ("prepare", "text.txt", "--tokenizer", "vocab", "--workers", "1", "--hold-out", "0.2", "--out", "out"),
    ),
]


def fresh(workplace: Workplace, folder: Path) -> Path:
    """A folder of its own with links to the inputs, which commands only read."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in workplace.folder.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def essence(path: Path) -> dict[str, str]:
    """What must be equal: names of all files, and what they say but for times, dates and drawings.

    Of checkpoints the newest: a stop saves one wherever training is, so that another of the older ones is kept.
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
        # A kill may have cut the last line.
        with suppress(ValueError):
            data = "\n".join(json.dumps(_timeless(json.loads(line)), sort_keys=True) for line in lines).encode()
    return hashlib.sha256(data).hexdigest()


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _timeless(v) for k, v in data.items() if k not in (*_TIMES, "log_offset")}
    return [_timeless(value) for value in data] if isinstance(data, list) else data


def litter(root: Path) -> list[str]:
    """Half-written files and folders, and older ones that were replaced."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if not p.is_symlink() and _LITTER.search(p.name))


@dataclass(frozen=True)
class Case:
    """One try of one part. ``run(folder)`` returns what went wrong, or nothing."""

    part: str
    name: str
    run: Callable[[Path], str]


def whole(workplace: Workplace, server: Server, command: Command, folder: Path) -> tuple[dict[str, str], int]:
    """What a command makes without a fault, and how many events that takes."""
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
    """A fault of one kind at each event of each command; then what a user types next must lead to the same end."""
    for command in commands:
        expected, n_events = whole(workplace, server, command, folder / "whole")
        for at in range(1, n_events + 1):

            def run(root: Path, command: Command = command, at: int = at, expected: Any = expected) -> str:
                return with_fault(workplace, server, command, root, {"kind": kind, "at": at}, expected)

            yield Case({"kill": "kills", "stop": "signals", "disk": "disk"}[kind], f"{command.name}-{at}", run)


def with_fault(
    workplace: Workplace, server: Server, command: Command, root: Path, fault: dict[str, Any], expected: dict[str, str]
) -> str:
    """What is not as promised after a fault and the command that follows it."""
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
    """What happens to the place where a command writes, from one of some of its events on."""
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
    """What is not as promised when a quota, a read-only disk, another person or the clock comes in between."""
    fresh(workplace, root)
    (first,) = server.run(command.words, root=root, fault={"kind": kind, "at": at})
    if first.wrong:
        return first.wrong
    if first.code not in ((0,) if kind == "clock" else (0, 1, 2)):
        return f"exit {first.code}: {first.err[-200:]}"
    if kind == "quota" and first.code and (left := litter(root)):
        return f"it leaves {', '.join(left)}"
    if kind == "removed":
        # It may have gone on and ended well; whoever deleted the half of it deletes the rest.
        _delete(root / command.out)
    # Nobody can tidy a disk that is read-only: the next command does.
    if first.code or kind == "removed" or (kind == "readonly" and litter(root)):
        (second,) = server.run(command.following(root), root=root)
        if second.wrong or second.code:
            return f"stuck: {second.wrong or second.err[-300:]}"
    found = essence(root / command.out)
    if found != expected:
        other = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        return f"not equal: {', '.join(other[:5])}"
    return f"litter: {', '.join(left)}" if (left := litter(root)) else ""


# One entry a system: recipe tables that make it small, as in the contract tests, and the corpus that it reads.
SYSTEMS: dict[str, tuple[str, str]] = {
    "bert-ltr": (
        "corpus",
        'model = "bert-ltr-tiny"\n[encoder]\nwidth = 16\nn_layers = 1\nn_heads = 2\nfeed_forward_width = 32\n'
        "max_positions = 32\n",
    ),
    "gpt": ("corpus", 'model = "gpt-tiny"\n[encoder]\nwidth = 16\nn_layers = 1\nn_heads = 2\nmax_positions = 32\n'),
    "transformer": (
        "pairs",
        'model = "transformer-tiny"\n[encoder]\nwidth = 16\nn_heads = 2\nfeed_forward_width = 32\n',
    ),
    "vectors": ("words-corpus", 'model = "vectors-small"\n[encoder]\nwidth = 16\n'),
    "awd-lstm": ("corpus", 'model = "awd-lstm-tiny"\n[encoder]\nwidth = 12\nhidden_width = 16\n'),
    "elmo": (
        "words-corpus",
        'model = "elmo-mini"\n[objective]\nnegatives = 10\n[encoder]\nwidth = 8\ncells = 12\ncharacter_width = 4\n'
        "filters = [[1, 4], [2, 8]]\n",
    ),
    "cove": (
        "words-pairs",
        'model = "cove-small"\nvectors = "vectors.txt"\n[encoder]\nwidth = 16\nhidden_width = 12\n',
    ),
    "lstm": ("corpus", 'model = "lstm-small"\n[encoder]\nwidth = 12\ndropout = 0.1\n'),
}
_REST = """[data]
corpus = "{corpus}"
length = 16
[train]
steps = 6
batch_tokens = 64
micro_batches = 2
log_every = 1
eval_every = 2
eval_batches = 2
save_every = 2
precision = "float32"
"""


_SHARED = ("--workers", "1", "--hold-out", "0.2", "--out")
# What makes each corpus; the tokenizer first.
_CORPORA: dict[str, list[tuple[str, ...]]] = {
    "corpus": [],
    "pairs": [("prepare", "a.txt", "--second", "b.txt", "--tokenizer", "vocab", *_SHARED, "pairs")],
    "words-corpus": [("prepare", "text.txt", "--tokenizer", "words", *_SHARED, "words-corpus")],
    "words-pairs": [("prepare", "a.txt", "--second", "b.txt", "--tokenizer", "words", *_SHARED, "words-pairs")],
}
_WORD_VOCABULARY = ("vocab", "text.txt", "--size", "20", "--kind", "words", "--workers", "1", "--out", "words")


def make_systems(workplace: Workplace, server: Server, names: Sequence[str] = ("bert", *SYSTEMS)) -> list[Command]:
    """The commands that train systems by name, and their inputs; these are kept if they are there."""
    inputs, commands = workplace.folder, []
    lines = [line for line in (inputs / "text.txt").read_text("utf-8").splitlines() if line]
    for name, step in (("a.txt", 1), ("b.txt", -1)):
        (inputs / name).write_text("\n".join(" ".join(line.split()[::step]) for line in lines) + "\n", "utf-8")
    rng = random.Random(0)
    vectors = [f"{word} {' '.join(f'{rng.gauss(0, 1):.3f}' for _ in range(16))}" for word in sorted(set(WORDS.split()))]
    (inputs / "vectors.txt").write_text("\n".join(vectors) + "\n", "utf-8")
    for name in names:
        corpus, tables = SYSTEMS.get(name, ("corpus", ""))
        recipe = f"{name}.toml" if tables else "recipe.toml"
        if tables:
            (inputs / recipe).write_text(tables + _REST.format(corpus=corpus))
        for made in [_WORD_VOCABULARY, *_CORPORA[corpus]] if "words" in corpus else _CORPORA[corpus]:
            # Whole or not at all: what is there was made before.
            if not (inputs / made[-1]).exists():
                (ran,) = server.run(made, root=inputs)
                assert ran.code == 0, ran.err
        commands.append(
            Command(f"pretrain-{name}", ("pretrain", recipe, "--out", "out"), ("pretrain", "--resume", "out"))
        )
    return commands


def random_kills(
    workplace: Workplace, server: Server, folder: Path, commands: Sequence[Command], seed: int = 0
) -> Iterator[Case]:
    """Kills at random moments of the training of every system, in the middle of whatever it does."""
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
    """One of two processes that train together is killed: the other says so and ends, and a resume is as without."""
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


# Of a long input, against a quarter of it: more than the noise of an allocator would grow with the input.
_MOST_GROWTH, _LONG_S = 1.06, 3600.0


def memory(workplace: Workplace, server: Server, n_lines: int = 1_000_000, n_steps: int = 20_000) -> Iterator[Case]:
    """The most memory that a long prediction and a long training take, beside what a quarter of it takes."""

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


# What is read, and by which command; the file is what a case damages.
READS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"model/{name}": (f"classifier/model/{name}", ("predict", "./classifier", "--input", "dev.tsv"))
        for name in (
            "config.json",
            "firth.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt",
            "manifest.json",
        )
    },
    **{
        f"corpus/{name}": (f"corpus/{name}", ("pretrain", "recipe.toml", "--out", "out"))
        for name in ("manifest.json", "train-00000.ids.npy", "train-00000.documents.npy", "tokenizer/tokenizer.json")
    },
    **{
        f"checkpoint/{name}": (f"run/checkpoints/step-6/{name}", ("pretrain", "--resume", "run"))
        for name in ("train/state.json", "train/optimizer.safetensors", "model.safetensors", "manifest.json")
    },
    "recipe": ("recipe.toml", ("pretrain", "recipe.toml", "--show-recipe")),
    "run/recipe": ("run/recipe.toml", ("pretrain", "--resume", "run")),
    "labels": ("dev.tsv", ("predict", "./classifier", "--input", "dev.tsv")),
}
# A manifest covers them, so that the answer must be the same or an error.
COVERED = ("model/", "corpus/", "checkpoint/")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some damage: of disks, of editors, and of people who mean harm."""
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


def mutations(workplace: Workplace, server: Server, seed: int, n_each: int) -> Iterator[Case]:
    """Damaged files of every kind: named, or of no effect; no traceback, no hang, no unbounded memory."""
    for kind in READS:
        for number in range(n_each):

            def run(root: Path, kind: str = kind, number: int = number) -> str:
                return with_damage(workplace, server, root, kind, random.Random(f"{seed}/{kind}/{number}"))

            yield Case("mutations", f"{kind.replace('/', '-')}-{number}", run)


def with_damage(workplace: Workplace, server: Server, root: Path, kind: str, rng: random.Random) -> str:
    """What is not as promised when a file is damaged and read."""
    name, command = READS[kind]
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


def commands_work(
    part: str, workplace: Workplace, server: Server, commands: Sequence[Command] = COMMANDS
) -> Iterator[Case]:
    """Every command without a network: none connects, or starts a program, or writes elsewhere."""
    for command in commands:

        def run(root: Path, command: Command = command) -> str:
            fresh(workplace, root)
            (ran,) = server.run(command.words, root=root)
            return ran.wrong or (f"exit {ran.code}: {ran.err[-300:]}" if ran.code else "")

        yield Case(part, command.name, run)


def concurrent(workplace: Workplace, server: Server, commands: Sequence[Command] = COMMANDS) -> Iterator[Case]:
    """Two of a command into one target: one succeeds, the other says why not, and the result is whole."""
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


# A pickle that would make a folder, were it ever read as one.
_PICKLE = b"cos\nmkdir\n(Vexecuted\ntR."
_CONTROL = "\x1b[2J\x1b]0;owned\x07"


def _hostile_files() -> dict[str, tuple[Callable[[Path], None], tuple[str, ...]]]:
    """By name: what is done to the copied inputs, and the command that meets it."""
    predict = ("predict", "./classifier", "--input", "dev.tsv")

    def to(name: str, data: bytes) -> Callable[[Path], None]:
        return lambda root: (root / name).write_bytes(data) and None

    def link(name: str) -> Callable[[Path], None]:
        def make(root: Path) -> None:
            (root / name).unlink(missing_ok=True)
            (root / name).symlink_to(root.parent / "precious")

        return make

    def name_of_a_shard(root: Path) -> None:
        path = root / "corpus" / "manifest.json"
        path.write_text(path.read_text().replace('"train-00000"', '"../../precious"'))

    def folder_of_links(root: Path) -> None:
        shutil.rmtree(root / "run" / "checkpoints")
        (root / "run" / "checkpoints").symlink_to(root.parent)

    resume = ("pretrain", "--resume", "run")
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
        "bomb": (
            lambda root: (root / "t.txt.xz").write_bytes(_bomb()) and None,
            ("vocab", "t.txt.xz", "--size", "80", "--workers", "1", "--out", "out"),
        ),
    }


def _bomb() -> bytes:
    """A few kilobytes that unpack to a line of 64 megabytes."""
    return lzma.compress(b"a" * (1 << 26))


def hostile(workplace: Workplace, server: Server) -> Iterator[Case]:
    """Files made to do harm: none is executed, followed out of its folder, or shown raw."""
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
