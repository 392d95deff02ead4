"""Servers of the same encoder: how to install, start, query (for one text's vector) and stop each of them.

Peers run in their own environments (``peers/NAME.txt`` has the versions), so that none limits another's packages.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import load
import numpy as np
from prepare import tree_of

PEERS = Path(__file__).with_name("peers")
SOURCE = Path(__file__).resolve().parent.parent / "src"
HOST = "127.0.0.1"
# A server that is not ready by then counts as failed.
START_S, STOP_S = 180.0, 20.0
_LOOK_EVERY_S = 0.02
# Peers use no network, and write only to the folder that they are given.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "BENTOML_DO_NOT_TRACK": "True",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip


class ServerError(Exception):
    """A server did not start; the message has its last lines."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a server is started with. ``home``: the folder for everything it writes."""

    python: Path
    folder: Path
    precision: str
    port: int
    home: Path


@dataclass(frozen=True, slots=True)
class Server:
    """A server: its environment (None: this program's), its command, and the request for the vector of a text."""

    environment: str | None
    command: Callable[[Place], Sequence[str | Path]]
    path: str
    body: Callable[[str], Any]
    vector: Callable[[Any], Any]
    packages: tuple[str, ...]
    variables: Callable[[Place], Mapping[str, str]] = field(default=lambda place: {})
    ready: str = "/health"

    def question(self, text: str, tokens: int) -> load.Question:
        """A request for the vector of a text."""
        return load.Question(self.path, json.dumps(self.body(text)).encode(), tokens)

    def unit_vector(self, body: bytes) -> np.ndarray:
        """The vector of an answer, normalised to length 1."""
        vector = np.asarray(self.vector(json.loads(body)), np.float64)
        return vector / np.linalg.norm(vector)


def _script(name: str, *more: str) -> Callable[[Place], Sequence[str | Path]]:
    """A server of ``peers/``."""
    return lambda p: [p.python, PEERS / f"serve_{name}.py", p.folder, p.precision, str(p.port), *more]


def _fastapi(*more: str) -> Server:
    packages = ("fastapi", "uvicorn", "transformers", "torch")
    return Server("fastapi", _script("fastapi", *more), "/embed", lambda text: {"text": text}, list, packages)


FIRTH = Server(
    None,
    lambda p: [
        p.python,
        "-m",
        "firth",
        "serve",
        f"model={p.folder}",
        "--port",
        str(p.port),
        "--precision",
        p.precision,
    ],
    "/embed",
    lambda text: {"inputs": text},
    lambda answer: answer[0],
    ("fastapi", "uvicorn", "torch"),
    lambda p: {"PYTHONPATH": str(SOURCE)},
    "/ready",
)
FASTAPI = _fastapi()
# The number of concurrent forward passes with the most texts per second on two cores; they share torch's threads.
FORWARDS = 2
FASTAPI_TUNED = _fastapi(str(FORWARDS))
LITSERVE = Server(
    "litserve",
    _script("litserve"),
    "/embed",
    lambda text: {"text": text},
    list,
    ("litserve", "fastapi", "uvicorn", "transformers", "torch"),
)
BENTOML = Server(
    "bentoml",
    lambda p: [
        p.python, "-m", "bentoml", "serve", "serve_bentoml:Embed", "--working-dir", PEERS, "--host", HOST,
        "--port", str(p.port),
    ],
    "/embed",
    lambda text: {"texts": [text]},
    lambda answer: answer[0],
    ("bentoml", "uvicorn", "transformers", "torch"),
    lambda p: {"FOLDER": str(p.folder), "PRECISION": p.precision, "BENTOML_HOME": str(p.home)},
    "/readyz",
)  # fmt: skip
INFINITY = Server(
    "infinity",
    lambda p: [
        p.python.with_name("infinity_emb"), "v2", "--model-id", p.folder, "--served-model-name", "model",
        "--engine", "torch", "--device", "cpu", "--dtype", p.precision, "--host", HOST, "--port", str(p.port),
    ],
    "/embeddings",
    lambda text: {"model": "model", "input": text},
    lambda answer: answer["data"][0]["embedding"],
    ("infinity-emb", "fastapi", "uvicorn", "sentence-transformers", "transformers", "torch"),
    lambda p: {"INFINITY_HOME": str(p.home)},
)  # fmt: skip


def python_of(server: Server, environments: Path | None) -> Path | None:
    """The interpreter of a server's environment; None if it is not installed."""
    if server.environment is None:
        return Path(sys.executable)
    if environments is None:
        return None
    python = environments.absolute() / server.environment / "bin" / "python"
    return python if python.is_file() else None


def install(environments: Path) -> None:
    """Make the environments of all peers; existing ones are brought to the requested versions."""
    for requirements in sorted(PEERS.glob("*.txt")):
        folder = environments.absolute() / requirements.stem
        print(f"installing {requirements.name} in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "-r", requirements], check=True)


def versions(server: Server, python: Path) -> dict[str, str]:
    """The versions of the packages that a peer consists of, by package and environment, without this program's own.

    Environments may have different versions of a package: infinity-emb requires an older transformers.
    """
    if server.environment is None:
        return {}
    program = (
        "import importlib.metadata as m, json, sys\nprint(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", program, *server.packages], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return {f"{name} ({server.environment})": version for name, version in found.items()}


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready; ``ready_s``: seconds from the start of its program until it was ready."""

    port: int
    pid: int
    ready_s: float


@contextmanager
def running(server: Server, python: Path, folder: Path, precision: str, home: Path) -> Iterator[Running]:
    """Start a server, wait until it is ready, and stop all its processes at the end; ServerError if it fails."""
    home.mkdir(parents=True, exist_ok=True)
    place = Place(python, folder.absolute(), precision, free_port(), home)
    # This program's module path does not apply to a peer; the number of threads is the same for all.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= _OFFLINE | {"HF_HOME": str(home)} | server.variables(place)
    with open(home / "log", "w+", encoding="utf-8", errors="replace") as log:
        started_s = time.monotonic()
        program = subprocess.Popen(
            [str(part) for part in server.command(place)],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=home, env=variables,
        )  # fmt: skip
        try:
            while not is_ready(place.port, server.ready):
                if program.poll() is not None or time.monotonic() > started_s + START_S:
                    raise ServerError(_last_line(home / "log"))
                time.sleep(_LOOK_EVERY_S)
            _same_share(program.pid)
            yield Running(place.port, program.pid, time.monotonic() - started_s)
        finally:
            stop(program)


def stop(program: "subprocess.Popen[bytes]") -> None:
    """End a program and all processes that it started."""
    every = tree_of(program.pid) - {program.pid}
    program.terminate()
    try:
        program.wait(STOP_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
    for pid in every:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _same_share(pid: int) -> None:
    """Give all processes of a server the CPU share of this program's group.

    Linux divides CPU time among sessions: a server whose workers form one of their own would compete with its client.
    """
    try:
        nice = Path("/proc/self/autogroup").read_text("ascii").split()[-1]
        for each in tree_of(pid):
            Path(f"/proc/{each}/autogroup").write_text(nice, "ascii")
    except (OSError, IndexError):
        return  # another system, or not permitted


def is_ready(port: int, path: str) -> bool:
    """Whether a server reports that it is ready."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        port: int = bound.getsockname()[1]
        return port


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
