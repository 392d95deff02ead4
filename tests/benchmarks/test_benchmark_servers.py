"""The server comparison: how servers are started, which are measured, and which targets are met."""

import json
import sys
from argparse import Namespace
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httptools")
pytest.importorskip("uvloop")

# The imports below need the server's libraries.
from firth.machine import has_fast_bfloat16  # noqa: E402
from firth.progress import Progress  # noqa: E402

PRECISIONS = ("float32", "bfloat16") if has_fast_bfloat16() else ("float32",)

# A server of one vector: its command is this program, a port and the vector.
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, "ok")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(int(sys.argv[3]), json.loads(sys.argv[2]))

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def server_of(servers, vector: list[float], status: int = 200, program: str = SERVER):
    return servers.Server(
        None,
        lambda place: [place.python, "-c", program, str(place.port), json.dumps(vector), str(status)],
        "/embed",
        lambda text: {"text": text},
        list,
        ("torch",),
    )


def run_of(script, tmp_path: Path):
    """A run in which every text has the vector (0.6, 0.8)."""
    peers = script("serve_peers")
    texts = tuple((f"text {number}", 4) for number in range(8))
    work = peers.Material(texts, texts, ("a b",) * 2, alone=2, seconds=0.1, requests=10, checked=2)
    options = Namespace(envs=None)
    return peers.Run(options, tmp_path, work, np.array([[0.6, 0.8]] * 2), Progress("test", None, "loads"))


def test_who_is_measured(script, tmp_path: Path) -> None:
    servers, run = script("peer_servers"), run_of(script, tmp_path)
    # Vectors are compared by direction.
    run.contest("right", server_of(servers, [3.0, 4.0]), "float32")
    run.contest("other", server_of(servers, [4.0, 3.0]), "float32")
    run.contest("broken", server_of(servers, [], status=500), "float32")
    run.contest("ends", server_of(servers, [], program="raise SystemExit('no such model')"), "float32")
    run.contest("absent", servers.LITSERVE, "float32")
    (only,) = run.measured
    assert only.name == "right" and only.ready_s > 0 and only.peak > 0 and only.memory_bytes > 1e6
    assert set(only.loads) == {"alone", "sentences", "mixed", "own", "equal"}
    assert only.loads["sentences"]["statuses"] == {"200": 8}
    # The first one measured determines the load that is the same for all.
    assert run.equal_rate == only.loads["own"]["offered_per_s"] == only.loads["equal"]["offered_per_s"]
    assert [check["what"] for check in run.checks] == ["right"] and run.checks[0]["difference"] < 1e-6
    reasons = dict(note.split(": left out", 1) for note in run.notes)
    assert set(reasons) == {"other", "broken", "ends", "absent"}
    assert "differ by 0.28" in reasons["other"] and "status 500" in reasons["broken"]
    assert "no such model" in reasons["ends"] and "not installed" in reasons["absent"]


def test_a_server_is_stopped_with_its_processes(script, tmp_path: Path) -> None:
    servers, prepare = script("peer_servers"), script("prepare")
    # The listening process is a child for which its parent does not wait.
    program = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {SERVER!r}, *sys.argv[1:]])\n"
        "time.sleep(600)"
    )
    server = server_of(servers, [1.0], program=program)
    with servers.running(server, Path(sys.executable), tmp_path, "float32", tmp_path / "home") as running:
        family = prepare.tree_of(running.pid)
        assert servers.is_ready(running.port, "/health") and len(family) == 2
    assert not servers.is_ready(running.port, "/health")


def measured(tables, name: str, precision: str, **changes: Any):
    """A contestant with 100 texts and 1,000 tokens per second."""
    summary = {
        "answered_per_s": 100.0,
        "tokens_per_s": 1000.0,
        "statuses": {"200": 50},
        "answered_p50_ms": 10.0,
        "answered_p99_ms": 40.0,
        "offered_per_s": 70.0,
    }
    loads = {
        load: summary | changes.get(load, {})
        for load in ("alone", "sentences", "mixed", "own", "equal", "overload", "quiet", "beside")
    }
    return tables.Measured(name, precision, name.startswith("firth"), 4.0, 500_000_000, 1e11, loads)


def test_targets(script) -> None:
    tables = script("serve_tables")
    every = [
        measured(tables, "slow", "float32", sentences={"tokens_per_s": 100.0}, mixed={"tokens_per_s": 10.0}),
        measured(tables, "fast", "float32", sentences={"tokens_per_s": 600.0}, equal={"answered_p99_ms": 60.0}),
        # Another precision is not comparable with float32.
        measured(tables, "faster", "bfloat16", sentences={"tokens_per_s": 9000.0}),
        measured(
            tables,
            "firth serve, float32",
            "float32",
            overload={"statuses": {"200": 95, "429": 100}, "answered_per_s": 95.0, "refused_p99_ms": 30.0},
            beside={"answered_p99_ms": 70.0},
        ),
    ]
    processes = {"float32": tables.InProcess(1100.0, 1000.0, 9.0)}
    tiny = {"answered_per_s": 900.0, "statuses": {"200": 1000}}
    rows = {row["name"]: row for row in tables.targets(every, processes, tiny)["rows"]}
    met = {name: row["met"] == "yes" for name, row in rows.items()}
    assert met == {
        "tokens/s of one process, sentences, float32": True,
        "times the best peer, sentences, float32": True,
        "times the best peer, mixed, float32": False,
        "one client: p50 above one process, float32": True,
        "p99 at 70 % of capacity, float32": True,
        "p99 at equal load, of the best peer's, float32": False,
        "goodput at three times the capacity": True,
        "p99 of refusals": False,
        "p99 beside many long texts, times that without": True,
        "requests/s of a tiny model": False,
        "ready after": True,
    }
    assert rows["times the best peer, sentences, float32"]["measured"] == "1.7"
    assert rows["p99 at equal load, of the best peer's, float32"]["measured"] == "100%"


def test_tables(script) -> None:
    tables = script("serve_tables")
    every = [
        measured(tables, "peer", "float32", mixed={"tokens_per_s": 250.0}, equal={"statuses": {"200": 40, "0": 3}}),
        measured(tables, "firth serve, float32", "float32"),
    ]
    processes = {"float32": tables.InProcess(1100.0, 1000.0, 9.0)}
    peer, ours, process = tables.comparison(every, processes)["rows"]
    assert peer["sentences_times"] == 1.0 and peer["mixed_times"] == 4.0 and "mixed_times" not in ours
    assert process["name"] == "model.embed in one process, float32" and process["sentences_tokens_per_s"] == 1100.0
    assert [row["equal_lost"] for row in tables.latencies(every)["rows"]] == [3, None]


def test_the_record(script, tmp_path: Path) -> None:
    peers, tables, run = script("serve_peers"), script("serve_tables"), run_of(script, tmp_path)
    run.measured = [measured(tables, "peer", "float32"), measured(tables, "firth serve, float32", "float32")]
    run.notes, run.versions = ["BentoML, float32: left out, not installed."], {"litserve": "0.2"}
    processes = {"float32": tables.InProcess(1100.0, 1000.0, 9.0)}
    tiny = {"answered_per_s": 900.0, "statuses": {"200": 1000}}
    options = Namespace(quick=True, out=tmp_path, data=Path("nowhere"))
    record = json.loads(peers.write(options, "tiny", run, processes, tiny).read_text("utf-8"))
    assert record["name"] == "serve" and record["notes"] == run.notes
    assert record["machine"]["peers"] == {"litserve": "0.2"}
    assert record["settings"]["tokens"] == {"sentences": 32, "mixed": 32}
    every, times, alone, aims = record["tables"]
    assert [row["name"] for row in every["rows"]][:2] == ["peer", "firth serve, float32"]
    assert every["rows"][0]["loads"]["own"]["answered_p99_ms"] == 40.0, "the record has all that was measured"
    assert [row["alone_p50"] for row in times["rows"]] == [10.0, 10.0]
    assert alone["rows"][-1]["name"].startswith("BERT-tiny, 1,000 requests") and len(aims["rows"]) == 11
    assert "*peer* (70.0 a second)" in record["about"]


def test_firth_alone(script, tmp_path: Path) -> None:
    path = script("serve_peers").main(["--quick", "--data", "nowhere", "--out", str(tmp_path)])
    record = json.loads(path.read_text("utf-8"))
    names = [row["name"] for row in record["tables"][0]["rows"]]
    served = [f"firth serve, {precision}" for precision in PRECISIONS]
    assert names == [*served, *(f"model.embed in one process, {precision}" for precision in PRECISIONS)]
    assert len(record["notes"]) == 11 - len(served)
    assert all("not installed" in note or "no bfloat16 units" in note for note in record["notes"])
    assert record["quick"] is True and [check["what"] for check in record["checks"]] == served
    first = record["tables"][0]["rows"][0]["loads"]
    assert set(first) == {"alone", "sentences", "mixed", "own", "equal", "overload", "quiet", "beside"}
    assert first["sentences"]["statuses"] == {"200": 64} and first["sentences"]["tokens_per_s"] > 0
    targets = record["tables"][3]["rows"]
    # Missing peers have no targets.
    assert len(targets) == 5 + 3 * len(served) and not any("peer" in row["name"] for row in targets)


def test_memory_is_looked_at_all_the_way(script, tmp_path: Path) -> None:
    path = script("serve_memory").main(["--quick", "--data", "nowhere", "--out", str(tmp_path)])
    record = json.loads(path.read_text("utf-8"))
    rows = record["tables"][0]["rows"]
    assert [row["name"] for row in rows] == [str(30 * number) for number in range(1, 12)]
    assert ["growth" in row for row in rows] == [True] * 11 and rows[0]["growth"] == 0
    assert all(row["resident_mb"] > 50 and row["answered_per_s"] > 0 for row in rows)


def test_versions_of_one_package_in_two_environments_are_both_told(script) -> None:
    servers, python, found = script("peer_servers"), Path(sys.executable), dict[str, str]()
    for environment in ("one", "other"):
        found |= servers.versions(replace(server_of(servers, [1.0]), environment=environment), python)
    assert found == {"torch (one)": version("torch"), "torch (other)": version("torch")}
    assert servers.versions(servers.FIRTH, python) == {}


def test_installing_asks_where(script, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        script("serve_peers").main(["--install"])
    assert stop.value.code == 2 and "--install: where? expected --envs FOLDER" in capsys.readouterr().err


def test_every_peer_has_versions_to_install(script) -> None:
    servers, contestants = script("peer_servers"), script("serve_peers").CONTESTANTS
    wanted = {server.environment for server, _ in contestants.values()} - {None}
    assert wanted == {path.stem for path in servers.PEERS.glob("*.txt")}
    for path in servers.PEERS.glob("*.txt"):
        lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
        assert lines and all("==" in line for line in lines)
