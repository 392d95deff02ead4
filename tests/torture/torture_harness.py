"""Run commands in processes of their own through torture_server.py; defines commands and workplaces."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("torture_server.py")
LIMIT_S = 120.0
HUNG, KILLED, TERMINATED = 97, -9, 130


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
        """What went wrong that must never happen, whatever the input; empty if nothing did."""
        if self.code == HUNG:
            return "it hangs"
        if self.code == -signal.SIGSYS:
            return "it connects, in code that is not Python"
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
    """The warm process; see torture_server.py. Not ``sealed`` if processes communicate over loopback."""

    def __init__(self, scratch: Path, *, sealed: bool = True) -> None:
        # Libraries keep caches in the user's folders; here these belong to the campaign.
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(scratch))
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), *["sealed"] * sealed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **places, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"

    def run(
        self, *commands: Sequence[object], root: Path, fault: dict[str, Any] | None = None, **more: Any
    ) -> list[Ran]:
        """Run commands concurrently in the folder ``root``; the fault hits the first."""
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
    # Whether it starts processes of its own, which the harness otherwise reports.
    starts: bool = False
    # How many of its events are tried, sampled at random; 0: all.
    most: int = 0

    def following(self, root: Path) -> tuple[str, ...]:
        """What a user types after a fault."""
        begun = self.resume and (root / self.out / self.begun).is_file()
        return self.resume if begun else self.words


@dataclass
class Workplace:
    """Small inputs, made once, for the cases to copy."""

    folder: Path
    # The result of each command without a fault, its number of events, and its seconds.
    wholes: dict[str, tuple[dict[str, str], int]] = field(default_factory=dict)
    times_s: dict[str, float] = field(default_factory=dict)
