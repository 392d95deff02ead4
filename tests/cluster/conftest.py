"""A Ray cluster of several nodes on this machine, for tests that are skipped without Ray."""

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import ADDRESS, NODE, python_path

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skipped = ""
    if importlib.util.find_spec("ray") is None:
        skipped = "Ray is not installed (make test-cluster)"
    elif "FIRTH_TEST_CLUSTER" not in os.environ:
        skipped = "several minutes: run by make test-cluster"
    for item in items:
        if HERE in item.path.parents:
            # Ray leaves files and sockets open; Python warns whenever it collects them.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            if skipped:
                item.add_marker(pytest.mark.skip(reason=skipped))


@pytest.fixture(scope="session")
def client_port() -> int:
    """The port on which the cluster answers clients outside its nodes."""
    with socket.socket() as free:
        free.bind((ADDRESS, 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="session")
def nodes(client_port: int) -> Iterator[Any]:
    """A head without CPUs and two nodes of one CPU each; a test that removes a node adds another."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ["PYTHONPATH"] = python_path()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    # A node is given up after 18 seconds of silence rather than after more than a minute.
    waits = {"period_ms": 1000, "timeout_ms": 5000, "failure_threshold": 3}
    os.environ |= {f"RAY_health_check_{name}": str(value) for name, value in waits.items()}
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": client_port, **NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, **NODE)
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def on(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The value of ``--on`` for this cluster, as this process reads it."""
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    yield "ray"
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()
