"""``firth serve`` as a process."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Tests must not fail because a busy machine makes the server refuse or time out.
PATIENT = ("--set", "timeout_ms=600000", "--set", "max_queue_ms=600000")


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A process, its address, and its output so far."""

    process: subprocess.Popen[str]
    address: str
    said: list[str]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def resident_bytes(self) -> int:
        """The resident memory of the process, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """Run ``firth serve`` on a free port. At the end it must stop by itself, without errors in its log."""
    command = [sys.executable, "-m", "firth", "serve", *arguments, "--port", "0"]
    process, said, reader = subprocess.Popen(command, stderr=subprocess.PIPE, text=True), list[str](), None
    assert process.stderr is not None
    try:
        for line in process.stderr:
            said.append(line)
            if line.startswith("serving "):
                break
        else:
            raise AssertionError("the server did not start: " + "".join(said))
        # A full pipe would block the server.
        reader = threading.Thread(target=said.extend, args=(process.stderr,))
        reader.start()
        yield Server(process=process, address=line.split(" at ")[1].strip(), said=said)
        process.terminate()
        assert process.wait(60) == 0
        reader.join()
        assert not [line for line in said if line.startswith("request ")], said
    finally:
        process.kill()
        process.wait()
        if reader is not None:
            reader.join()
        process.stderr.close()
