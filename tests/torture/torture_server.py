"""Runs Firth's commands with injected faults, each in a child process forked from a warm one.

Requests and answers are lines of JSON on stdin and stdout. Python reports every file-system event of a process to an
audit hook before it happens; a fault is injected at the event of a given number, counted under the folder ``root``:

    kill      SIGKILL: as a power cut, or the system's out-of-memory killer
    stop      SIGTERM: as when the system shuts down
    disk      from this event on, everything that takes disk space fails: the disk is full
    quota     the same, with the error of a quota
    readonly  from this event on, every change fails: the disk was mounted read-only
    removed   somebody else deletes the output
    socket    a library opens a connection of its own accord
    clock     from this event on, the clock is an hour behind

Two kinds strike at a time in seconds: ``time`` kills the process wherever it is, ``worker`` a process it started.

As ``torture_server.py sealed`` the server and everything it starts die when they create an Internet socket, even in
native code, which no audit hook sees.

Reports are written without plots: drawing takes most of a small run's time and touches no file.
"""

import ctypes
import errno
import importlib
import json
import os
import pkgutil
import platform
import resource
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import firth

# By machine: the system's numbers of the architecture and of the call socket(2).
_CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod"}
AT_TIMES = ("time", "worker")
FAILS = {"disk": errno.ENOSPC, "quota": errno.EDQUOT, "readonly": errno.EROFS}
TAKES_ROOM = {"open", "os.mkdir", "os.link", "os.symlink"}
NETWORK = {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "socket.sendmsg"}
EXECUTES = {"os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"}
# matplotlib lists the system's fonts once.
FONTS = {"fc-list", "system_profiler"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """Counts the events of this process, and injects the fault."""

    def __init__(self, root: str, fault: dict[str, Any]):
        self.root, self.fault = root, fault
        self.n_events = 0
        self.blind = False
        self.outside: list[str] = []
        self.forbidden: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.blind:
            return
        if event in NETWORK or event in EXECUTES:
            what = os.path.basename(str(arguments[0])) if event == "subprocess.Popen" else event
            if what not in FONTS:
                self.forbidden.append(what)
            return
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(flags, int) and flags & _WRITES):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        place = os.path.abspath(os.fsdecode(path))
        if not place.startswith(self.root):
            if not place.startswith(("/dev/", "/proc/", os.environ["HOME"])):
                self.outside.append(f"{event} {place}")
            return
        self.n_events += 1
        if self.n_events < self.fault.get("at", 1 << 60):
            return
        kind = self.fault["kind"]
        if kind in FAILS:
            if event in TAKES_ROOM or kind == "readonly":
                raise OSError(FAILS[kind], os.strerror(FAILS[kind]), place)
        elif self.n_events == self.fault["at"]:
            self._strike(kind)

    def _strike(self, kind: str) -> None:
        if kind == "removed":
            self.blind = True  # deletions here are not events
            out = Path(self.root, self.fault["out"])
            if out.is_dir():
                shutil.rmtree(out, ignore_errors=True)
            else:
                out.unlink(missing_ok=True)
            self.blind = False
        elif kind == "socket":
            ctypes.CDLL(None).socket(socket.AF_INET, socket.SOCK_STREAM, 0)
        elif kind == "clock":
            now = time.time
            time.time = lambda: now() - 3600
        else:
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)


def child(request: dict[str, Any]) -> int:
    """Run one command in this process, which is a fork."""
    for name, number in (("out", 1), ("err", 2)):
        descriptor = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    os.dup2(os.open(request.get("stdin", os.devnull), os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if memory := request.get("memory"):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(request["root"])
    fault = request.get("fault") or {}
    watch = Watch(request["root"], {} if fault.get("kind") in AT_TIMES else fault)
    sys.addaudithook(watch)
    from firth.cli import main

    if fault.get("kind") == "time":
        # The default action ends the process wherever it is, as SIGKILL does.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, fault["at"])
    try:
        code = main(request["command"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 99
    seen = {"events": watch.n_events, "outside": watch.outside[:5], "forbidden": watch.forbidden[:5]}
    sys.stdout.flush()
    sys.stderr.flush()
    watch.blind = True  # from here on only the harness writes
    # Whole or not at all: a timed fault may strike here too.
    whole = Path(request["seen"] + ".whole")
    whole.write_text(json.dumps(seen))
    whole.rename(request["seen"])
    return code


def seal() -> None:
    """Make Internet sockets end this process and those it starts by SIGSYS, with a seccomp(2) filter."""
    architecture, call = _CALLS[platform.machine()]
    allow, kill = (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x80000000)
    program = [
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 0, 5, architecture),  # if it is another: allow
        (0x20, 0, 0, 0),  # load the system call number
        (0x15, 0, 3, call),  # if it is another: allow
        (0x20, 0, 0, 16),  # load its first argument, the address family
        (0x15, 2, 0, socket.AF_INET),
        (0x15, 1, 0, socket.AF_INET6),
        allow,
        kill,
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    filters = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, argument, pointer in ((38, 1, None), (22, 2, ctypes.byref(head))):  # no new privileges; the filter
        if libc.prctl(option, argument, pointer, 0, 0):
            raise OSError(ctypes.get_errno(), "the process cannot be sealed")


def serve() -> None:
    """Answer requests until stdin ends."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Import the whole package before any fork: nothing is imported twice, and no library has started threads yet.
    for module in pkgutil.walk_packages(firth.__path__, "firth."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("firth.page").Report.plot = lambda self, title, figure: None
    # PyTorch's optimizers import it on first use, and it makes an empty temporary folder.
    importlib.import_module("torch._dynamo")
    platform.processor()  # calls uname once
    importlib.import_module("matplotlib.font_manager")  # reads the system's fonts, for reports
    sys.modules["torch"].set_num_threads(1)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for one in request:
            pid = os.fork()
            if pid == 0:
                code = 98
                try:
                    code = child(one)
                finally:
                    os._exit(code)
            pids.append(pid)
        print(json.dumps([waited(pid, one) for pid, one in zip(pids, request, strict=True)]), flush=True)


def waited(pid: int, request: dict[str, Any]) -> tuple[int, int]:
    """The exit status of a child and its peak memory in kilobytes.

    The status is its exit code, minus the signal that killed it, or 97 if it took too long.
    """
    fault, began = request.get("fault") or {}, time.monotonic()
    strikes = fault.get("kind") == "worker"
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return (-signal.SIGKILL if code == -signal.SIGALRM else code), used.ru_maxrss
        elapsed_s = time.monotonic() - began
        if strikes and elapsed_s > fault["at"] and (started := _children(pid)):
            strikes = False
            os.kill(started[-1], signal.SIGKILL)
        if elapsed_s > request["limit_s"]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 97, 0
        time.sleep(0.005)


def _children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


if __name__ == "__main__":
    if "sealed" in sys.argv:
        seal()
    serve()
