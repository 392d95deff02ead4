"""Run the server: listen, load, and handle signals until the end.

HTTP runs in a thread of its own; the main thread waits for signals, so that uvicorn and the command line do not compete
for them. SIGTERM and Ctrl-C: no new requests are accepted, accepted ones are finished, and models that are not loaded
yet are skipped; exit code 0. SIGHUP: every model is reloaded.
"""

import asyncio
import errno
import queue
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from firth.errors import ConfigError, FirthError
from firth.inference.precision import Precision
from firth.progress import say
from firth.serving.access import Access, is_loopback
from firth.serving.admin import apart, forget_garbage, leave_processors, loaded_again, reload_model, show_models, warm
from firth.serving.app import make_app
from firth.serving.asking import ServerState
from firth.serving.config import Limits
from firth.serving.engine import Engine
from firth.serving.hosted import load_hosted
from firth.serving.http1 import Http1Protocol
from firth.serving.metrics import Metrics

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BACKLOG = 2048
# Seconds that connections may take to close once all requests are answered.
CLOSING_S = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What is served, where, and for whom. ``models``: names and paths, the default first."""

    models: tuple[tuple[str, Path], ...]
    access: Access
    limits: Limits
    host: str = "127.0.0.1"
    port: int = 8080
    precision: Precision = "float32"
    threshold: float = 0.0
    accept_ids: bool = False


def named_models(given: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Parse ``NAME=PATH``, or a path, whose last part is then the name; ConfigError for a name given twice."""
    found: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals:
            name, path = _own_name(Path(one)), one
        if not path or not any(map(str.isalnum, name)) or any(not (c.isalnum() or c in "-_.") for c in name):
            raise ConfigError(
                f"{one!r}: expected NAME=PATH, with letters or digits, and maybe '-', '_' and '.', in the name"
            )
        if name in found:
            raise ConfigError(f"two models are called {name!r}: {found[name]} and {path}; give one another NAME=PATH")
        found[name] = Path(path)
    if not found:
        raise ConfigError("no model is given: firth serve NAME=PATH")
    return tuple(found.items())


def _own_name(path: Path) -> str:
    """The name of a folder; for a run's ``model``, the name of the run."""
    resolved = path.resolve()
    return resolved.parent.name if resolved.name == "model" else resolved.name


def make_state(served: Served) -> ServerState:
    """Make the state of a server that has loaded nothing yet."""
    return ServerState({}, Engine(served.limits, Metrics()), served.limits, served.accept_ids)


def load_models(served: Served, state: ServerState) -> None:
    """Load and warm up every model, or those before a signal to end; errors as in ``firth.load``."""
    for name, path in served.models:
        if state.engine.draining:
            return
        hosted = load_hosted(name, path, served.precision, served.threshold)
        warm(hosted)
        state.models[name] = hosted
        say(f"{name}: {hosted.predictor.system} for {hosted.task}, {', '.join(sorted(hosted.abilities))}")
    show_models(state)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket; ConfigError for a port in use, or an address that is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound
    except socket.gaierror:
        raise ConfigError(f"--host {host}: no such address") from None
    except OSError as error:
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} of {host} is in use: choose another one with --port")
    return ConfigError(f"--host {host} --port {port}: cannot listen: {error.strerror}")


def check_start(served: Served) -> None:
    """Check all that can go wrong at a start, without starting: port, models, and an answer from each."""
    listen(served.host, served.port).close()
    load_models(served, make_state(served))


def serve(served: Served) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    allow_many_files()
    state = make_state(served)
    with _signals(state) as wait, listen(served.host, served.port) as bound:
        # Before models are loaded, so that probes are told about it.
        server, thread, loop = start_http(make_app(state, served.access), bound)
        try:
            apart(lambda: load_models(served, state))
            if state.engine.draining:
                say("stopped while models were loading")
                return
            leave_processors(state)
            forget_garbage()
            state.engine.start()
            state.started = True
            say(_address(served, bound))
            if not served.access.keys and not served.access.hosts:
                say("give --allowed-host NAME too: until then pages of any site reach this server by DNS rebinding")
            _obey(lambda: wait(thread.is_alive), state, loop)
            asyncio.run_coroutine_threadsafe(state.engine.drained(), loop).result()
        finally:
            state.engine.draining = True
            try:
                if state.started:
                    state.engine.stop()
            finally:
                server.should_exit = True
                thread.join()
    say("stopped")


def allow_many_files() -> None:
    """Allow as many open files as the system permits: each connection is one, and 1,024 is the usual default."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != most:
        # Some systems call the limit infinite and refuse it; then the old one must suffice.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def start_http(
    app: ASGIApp, bound: socket.socket
) -> tuple[uvicorn.Server, threading.Thread, asyncio.AbstractEventLoop]:
    """Accept connections in a thread of its own.

    ConfigError if another process listens on the port by now: two sockets can be bound to it until one of them listens.
    """
    try:
        bound.listen(_BACKLOG)  # the event loop would not report a failure
    except OSError as error:
        raise _cannot_listen(bound.getsockname()[0], bound.getsockname()[1], error) from None
    config = uvicorn.Config(
        app,
        http=Http1Protocol,
        # The address of a client is that of its connection: any client can write X-Forwarded-For.
        proxy_headers=False,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=CLOSING_S,
    )
    server, loops = uvicorn.Server(config), queue.SimpleQueue[asyncio.AbstractEventLoop]()

    async def run() -> None:
        loops.put(asyncio.get_running_loop())
        await server.serve([bound])

    def run_all() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=run_all, name="http")
    thread.start()
    return server, thread, loops.get()


def _obey(wait: Callable[[], int], state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
    """Handle signals until one says to end."""
    while (number := wait()) == signal.SIGHUP:
        for name in list(state.models):
            if state.engine.draining:  # a signal to end arrived in the meantime
                break
            failed: Exception | None = None
            try:
                asyncio.run_coroutine_threadsafe(reload_model(state, name), loop).result()
            except Exception as error:
                failed = error
            say(loaded_again(name, failed))
    say(f"{signal.Signals(number).name}: {state.engine.in_flight} requests are finished, no new ones are taken")


@contextmanager
def _signals(state: ServerState) -> Iterator[Callable[[Callable[[], bool]], int]]:
    """A context in which signals are queued; yields a function that waits for the next one while its argument is true.

    A signal to end takes effect when it arrives, even during loading: no new requests are accepted. Ctrl-C while
    requests are being finished ends the server at once; supervisors may send SIGTERM as often as they like.
    """
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def note(number: int, frame: FrameType | None) -> None:
        if state.engine.draining and number == signal.SIGINT:
            raise KeyboardInterrupt("what was not finished is lost")
        state.engine.draining = state.engine.draining or number != signal.SIGHUP
        arrived.put(number)

    def wait(alive: Callable[[], bool]) -> int:
        while alive():
            try:
                # On some systems, a wait without a timeout would not let Python's signal handlers run.
                return arrived.get(timeout=0.5)
            except queue.Empty:
                continue
        raise FirthError("the server's HTTP thread ended by itself; the reason is above")

    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signals belong to the main thread")
    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _address(served: Served, bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    open_to_all = not served.access.keys and not is_loopback(served.host)
    return f"serving {', '.join(name for name, _ in served.models)} at http://{shown}:{port}" + (
        "; anyone who reaches this address may ask: it has no keys" if open_to_all else ""
    )
