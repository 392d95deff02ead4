"""Connections to a Ray cluster, and the messages if none is possible."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import node_work
import pytest
from ray_nodes import NODE, python_path

from firth.cluster import connection
from firth.cluster.addresses import interface_of
from firth.cluster.connection import connect
from firth.errors import ConfigError, TrainingError
from firth.studies.cells import StudyCell, run_cells


def refused(on: str, out: Path) -> str:
    with pytest.raises(ConfigError) as caught, connect(on, out, lambda _: None):
        raise AssertionError("there is a connection")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_ray_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray  # noqa: F401  # which sets a harmless variable of its own

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setattr(connection, "cpu_count", lambda: 1)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    before, told = dict(os.environ), list[str]()
    facts = run_cells([StudyCell("a", node_work.square, {"number": 3})], tmp_path / "out", 0, told.append, "ray")
    assert facts == {"a": {"square": 9, "threads": "1"}}, told
    assert told[0] == f"Ray at this machine: 1 CPUs on 1 node, which all see {tmp_path / 'out'}"
    # Nothing is left: neither a token in the home folder nor variables that nodes started later would inherit.
    assert not list((tmp_path / "home").iterdir())
    changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
    assert changed <= {"RAY_USAGE_STATS_ENABLED"}


def test_a_cluster_of_which_this_machine_is_no_node(tmp_path: Path, nodes: Any, client_port: int) -> None:
    told: list[str] = []
    facts = run_cells(
        [StudyCell("a", node_work.square, {"number": 3})], tmp_path, 0, told.append, f"ray://127.0.0.2:{client_port}"
    )
    assert facts == {"a": {"square": 9, "threads": "1"}} and "2 CPUs on 2 nodes" in told[0]


def test_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused("ray", tmp_path / "out") == "--on ray needs ray: pip install 'firth[cluster]'"


def test_nothing_answers_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    found = refused(f"ray://{place}", tmp_path / "out")
    assert found == f"no Ray cluster answers at ray://{place} (Connection refused): is it running (ray start --head)?"
    monkeypatch.setenv("RAY_ADDRESS", place)
    assert refused("ray", tmp_path / "out").startswith(f"no Ray cluster answers at {place} ")


def test_another_version(tmp_path: Path, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    theirs, python = ray.__version__, ".".join(map(str, sys.version_info[:3]))
    monkeypatch.setattr(ray, "__version__", "2.1.0")
    found = refused(on, tmp_path / "out")
    assert (
        f"has Ray {theirs} and Python {python}, this process Ray 2.1.0 and Python {python}: install the same" in found
    )


def test_nodes_that_cannot_do_the_work(tmp_path: Path, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hidden(type(tmp_path)):  # type: ignore[misc]
        """A folder whose files are hidden from everyone else."""

        def touch(self, *, exist_ok: bool = True, **others: Any) -> None:
            pass

    (tmp_path / "shared").mkdir()
    found = refused(on, Hidden(tmp_path / "shared" / "out"))
    assert found.endswith(f" does not see {tmp_path / 'shared'}: give folders that every node shares, such as on NFS")
    monkeypatch.setattr(connection.importlib.metadata, "version", lambda name: "9.9")
    assert refused(on, tmp_path / "out").endswith(" of the Ray cluster has Firth 0.1.0: install 9.9 there, as here")
    assert not list(tmp_path.rglob(".firth-*"))


def test_a_head_that_is_killed(tmp_path: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reports it in one line, and the run resumes without a cluster once the ranks have ended."""
    from ray.cluster_utils import Cluster

    from firth.pretraining.run import resume

    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **NODE})
    try:
        cluster.add_node(num_cpus=1, **NODE)
        run = tmp_path / "run"
        sizes = {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 64, "max_positions": 64}
        keys = [f"encoder.{name}={value}" for name, value in sizes.items()]
        keys += ["data.length=32", "train.batch_tokens=128", "train.save_every=20", "train.precision=float32"]
        command = [
            sys.executable,
            "-m",
            "firth",
            "pretrain",
            "--recipe",
            "published",
            "--model",
            "bert-tiny",
            "--corpus",
        ]
        command += [str(tiny_corpus), "--out", str(run), "--steps", "1000", "--on", "ray"]
        command += [part for key in keys for part in ("--set", key)]
        # The command waits longer for the head than the nodes do: Ray must not end it before it prints its message.
        environment = {**os.environ, "RAY_ADDRESS": cluster.address, "RAY_gcs_rpc_server_reconnect_timeout_s": "60"}
        going = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        give_up_s = time.monotonic() + 120
        while not (run / "checkpoints" / "step-20").is_dir() and time.monotonic() < give_up_s and going.poll() is None:
            time.sleep(0.05)
        cluster.head_node.kill_gcs_server()
        said, errors = going.communicate(timeout=120)
        last = errors.strip().splitlines()[-1]
        assert going.returncode == 1 and said == "", errors
        assert last.startswith("firth: the head of the Ray cluster at ") and f"--resume {run}" in last
        assert "Traceback" not in errors
        step = 0
        while not step:
            try:
                step = resume(run, lambda _: None, processes=1).step
            except ConfigError as error:  # the ranks have not ended yet
                assert "in use" in str(error) and time.monotonic() < give_up_s + 120
                time.sleep(1)
        assert step == 1000
    finally:
        cluster.shutdown()


def test_a_head_that_does_not_answer_once_may_be_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = connection.Cluster("somewhere", ("127.0.0.1", 1))
    answers = iter([OSError(), OSError(), None, OSError(), OSError(), OSError()])

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        if (error := next(answers)) is not None:
            raise error
        return socket.socket()

    monkeypatch.setattr(connection.socket, "create_connection", connected)
    for _ in range(5):
        found.check()
    with pytest.raises(TrainingError, match="the head of the Ray cluster at somewhere no longer answers"):
        found.check()
    assert found.lost


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.2") == interface_of("127.0.0.1") == "lo"
    assert interface_of("198.51.100.7") == ""
