"""Connect to a Ray cluster, or start one on this machine, and check that its nodes can do the work."""

import contextlib
import importlib.metadata
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.errors import ConfigError, TrainingError
from firth.workers import cpu_count

ADDRESS = "RAY_ADDRESS"
# Bytes for shared objects of a Ray started here: texts and weights never go through it, and Ray accepts no less.
_STORE = 80 << 20
# Seconds for a head to answer at its port, and how many failures in a row mean that it is lost.
_ANSWER_S, _FAILURES = 5.0, 3
# Variables of Ray's authentication, and the token of a Ray started here: one per process, since Ray remembers it.
_AUTHENTICATION, _OWN_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"), secrets.token_hex(32)
# The variable that says what breakpoint() calls.
_DEBUGGER = "PYTHONBREAKPOINT"
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")


@dataclass(frozen=True, slots=True)
class Node:
    """A node that can run calls: its id, CPUs and GPUs."""

    id: str
    cpus: int
    gpus: int


@dataclass(slots=True)
class Cluster:
    """A connected Ray cluster. ``head``: host and port that answer while it is alive; None for one started here."""

    address: str
    head: tuple[str, int] | None
    _failures: int = 0

    def nodes(self) -> list[Node]:
        """The nodes that are alive and have CPUs."""
        import ray

        alive = [(node["NodeID"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
        found = [Node(id, int(has.get("CPU", 0)), int(has.get("GPU", 0))) for id, has in alive]
        return [node for node in found if node.cpus]

    @property
    def cpus(self) -> int:
        """CPUs of all nodes, in use or not."""
        return sum(node.cpus for node in self.nodes())

    @property
    def gpus(self) -> int:
        """GPUs of all nodes, in use or not."""
        return sum(node.gpus for node in self.nodes())

    @property
    def lost(self) -> bool:
        """Whether the head did not answer when it was last asked."""
        return self._failures > 0

    def check(self) -> None:
        """Raise TrainingError if the head no longer answers: Ray itself would end this process without a message."""
        if self.head is None:
            return
        try:
            socket.create_connection(self.head, timeout=_ANSWER_S).close()
            self._failures = 0
        except OSError:
            self._failures += 1
        if self._failures >= _FAILURES:
            raise TrainingError(f"the head of the Ray cluster at {self.address} no longer answers")


def connect_to(on: str, out: Path, tell: Callable[[str], None]) -> contextlib.AbstractContextManager[Cluster | None]:
    """Like ``connect``, but yields None if ``on`` names no cluster: the work is then done here."""
    return connect(on, out, tell) if on else contextlib.nullcontext()


@contextlib.contextmanager
def connect(on: str, out: Path, tell: Callable[[str], None]) -> Iterator[Cluster]:
    """Connect to the cluster that ``--on`` names, for work whose results go to the folder ``out``.

    ``on``: ray (the cluster at RAY_ADDRESS, else a Ray on this machine for the duration of the context) or
    ray://HOST:10001. ConfigError without Ray, without a cluster at the address, for other versions, and if a node does
    not see ``out``.
    """
    if on != "ray" and not on.startswith("ray://"):
        raise ConfigError(f"--on {on}: expected ray or an address such as ray://head:10001")
    address = os.environ.get(ADDRESS, "") if on == "ray" else on
    # Read by Ray when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(f"--on {on} needs ray: pip install 'firth[cluster]'") from None
    if ray.is_initialized():
        raise ConfigError("this process is connected to Ray already: call ray.shutdown() first")
    head = _head(address)
    before, debugger = signal.getsignal(signal.SIGTERM), os.environ.get(_DEBUGGER)
    _hush()
    with contextlib.nullcontext() if address else own_token():
        try:
            ray.init(**_options(address))
        except Exception as error:
            with contextlib.suppress(Exception):
                ray.shutdown()
            raise _refused(address, error) from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)  # Ray sets its own, which would not let runs save
            if debugger is None:
                os.environ.pop(_DEBUGGER, None)  # Ray's would remain after its connection has ended
        cluster = Cluster(address or "this machine", head or _gcs(address))
        try:
            _check_nodes(cluster, out)
            n = len(cluster.nodes())
            where = f"{n} node{'s'[: n > 1]}, which all see {out.absolute()}"
            tell(f"Ray at {cluster.address}: {cluster.cpus} CPUs on {where}")
            yield cluster
        finally:
            # If the head is lost, shutting down would wait for it.
            if not cluster.lost:
                ray.shutdown()


@contextlib.contextmanager
def own_token() -> Iterator[None]:
    """A context in which a Ray started here has a token of its own, unless the user has configured authentication.

    Ray itself would write one to the home folder and demand it of every node that this process starts from then on,
    even for clusters that have none: their heads could place nothing there.
    """
    before = {name: os.environ.get(name) for name in _AUTHENTICATION}
    if not any(before.values()):
        os.environ[_AUTHENTICATION[1]] = _OWN_TOKEN  # Ray itself then sets the mode
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _options(address: str) -> dict[str, Any]:
    import logging

    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address:
        return {"address": address, **quiet}
    return {
        "address": "local",
        "num_cpus": cpu_count(),
        "object_store_memory": _STORE,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        **quiet,
    }


def _hush() -> None:
    """Keep Ray's own messages off stdout, where results go: what matters in them is reported here."""
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda data, ignore_prefix: None


def _head(address: str) -> tuple[str, int] | None:
    """Host and port of an address, which must answer; None for an address without them, such as auto."""
    host, colon, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not (colon and port.isascii() and port.isdecimal()):
        return None
    head = host.strip("[]"), int(port)
    try:
        socket.create_connection(head, timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"no Ray cluster answers at {address} ({why}): is it running (ray start --head)?") from None
    return head


def _gcs(address: str) -> tuple[str, int] | None:
    """Host and port of the head, for a cluster that Ray itself found."""
    import ray

    return _head(ray.get_runtime_context().gcs_address) if address and not address.startswith("ray://") else None


def _refused(address: str, error: Exception) -> ConfigError:
    """Return the error that says in one line why there is no connection."""
    found: BaseException | None = error
    while found is not None:
        if len(versions := _VERSIONS.findall(str(found))) == 2:
            theirs, ours = (f"Ray {ray} and Python {python}" for ray, python in versions)
            return ConfigError(f"the cluster at {address} has {theirs}, this process {ours}: install the same versions")
        found = found.__cause__ or found.__context__
    why = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ConfigError(f"no Ray cluster answers at {address or 'this machine'}: {why}")


def _check_nodes(cluster: Cluster, out: Path) -> None:
    """Raise ConfigError for a node without this version of Firth, or one that does not see a file near ``out``."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A nested function, so that Ray sends its code along: a node may have no Firth to import it from.
    def look(marker: str, here: str) -> tuple[str, str, str]:
        import importlib.metadata as installed
        import os.path
        import socket

        try:
            version = installed.version("firth")
        except installed.PackageNotFoundError:
            version = ""
        missing = [path for path in (marker, here) if not os.path.exists(path)]
        return socket.gethostname(), version, missing[0] if missing else ""

    nodes = cluster.nodes()
    if not nodes:
        raise ConfigError(f"the Ray cluster at {cluster.address} has no node with CPUs")
    # The folder itself is new: use the nearest one above it that exists.
    above = next(folder for folder in out.absolute().parents if folder.is_dir())
    marker = above / f".firth-{secrets.token_hex(8)}"
    marker.touch(exist_ok=False)
    try:
        looking = [
            ray.remote(look)
            .options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False))
            .remote(str(marker), os.getcwd())
            for node in nodes
        ]
        found = ray.get(looking)
    except ray.exceptions.RayError as error:
        raise ConfigError(f"a node of the Ray cluster does not answer: {str(error).splitlines()[0]}") from None
    finally:
        marker.unlink(missing_ok=True)
    ours = importlib.metadata.version("firth")
    for host, version, missing in found:
        if version != ours:
            has = f"Firth {version}" if version else "no Firth"
            raise ConfigError(f"node {host} of the Ray cluster has {has}: install {ours} there, as here")
        if missing:
            where = above if missing == str(marker) else missing
            raise ConfigError(f"node {host} does not see {where}: give folders that every node shares, such as on NFS")
