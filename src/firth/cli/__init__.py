"""The command line: one thin file per command; this one maps outcomes to messages and exit codes.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage or
input, 130 interrupted.
"""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from firth.errors import FirthError, harmless, printable

INTERRUPTED = 130
_HELP = ("--help", "-h")
_WRONG_PATHS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's own) and return its exit code."""
    # Set before torch is loaded: threads that wait by spinning take the CPU from the threads they wait for. Beside
    # another busy process on two cores, that made training forty times slower. A short spin, 60 microseconds, saves a
    # system call at the end of most operations: without it, one sentence takes a quarter longer.
    # The user's own setting is kept.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # A closed stream is None, and the next file that is opened would get its descriptor.
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # open until the process ends
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115  # open until the process ends
    if sys.stdout is None:
        return _fail("standard output is closed: give it a place, such as >/dev/null", 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # do not fail on characters the encoding lacks
    given = sys.argv[1:] if tokens is None else tokens
    with _terminate_like_interrupt(), _harmless_on_terminals(given):
        try:
            # Not at the top: worker processes import this module when they start, and need none of the commands.
            from firth.cli.app import run

            code = run(given)
            sys.stdout.flush()
            return code
        except FirthError as error:
            return _fail(str(error), error.exit_code)
        except KeyboardInterrupt as stop:
            if tokens is None:
                # The process is ending: another Ctrl-C must not print a traceback.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            return _fail(f"interrupted: {stop}" if str(stop) else "interrupted", INTERRUPTED)
        except BrokenPipeError:
            _drop_stdout()
            return 1
        except OSError as error:
            _drop_stdout()
            return _fail(_reason(error), 2 if isinstance(error, _WRONG_PATHS) else 1)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            return _fail(_out_of_memory(given), 1)


def _fail(message: str, code: int) -> int:
    """Print an error in one line; returns the exit code."""
    # Not at the top: startup must be fast.
    from firth.cli.command_hints import as_typed

    print("firth: " + " ".join(as_typed(printable(message)).split("\n")), file=sys.stderr, flush=True)
    return code


def _reason(error: OSError) -> str:
    # Errors in writing files name the file: without a name, it is the results on stdout.
    where = f"{error.filename}: " if error.filename else "stdout: " if error.errno == errno.ENOSPC else ""
    what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return where + what


# Messages of PyTorch's allocators, the C++ library and the system's threads.
_NO_MEMORY = ("can't allocate memory", "out of memory", "bad_alloc", "bad allocation", "can't start new thread")
_LESS_MEMORY = {
    "pretrain": "a smaller train.batch_tokens, or --set train.recompute=true",
    "finetune": "a smaller train.batch_tokens, or --set train.recompute=true",
    "probe": "a smaller train.batch_tokens",
    "vocab": "fewer --workers, or less text",
    "prepare": "fewer --workers",
    "extend": "less text",
    "vectors": "a smaller --width or --max-words",
    **dict.fromkeys(("average", "convert", "plan"), "a smaller model"),
}


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY)


def _out_of_memory(tokens: Sequence[str]) -> str:
    helps = _LESS_MEMORY.get(tokens[0] if tokens else "", "a smaller model, or --precision auto")
    return f"there is not enough memory (see also ulimit -v): what helps is {helps}"


def _drop_stdout() -> None:
    """Give up on stdout, which cannot be written, so that the interpreter does not try again at exit."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Terminal(io.TextIOWrapper):
    """Standard output on a terminal, with what would control the terminal escaped in results."""

    def write(self, text: str) -> int:
        super().write(harmless(text))
        return len(text)

    def isatty(self) -> bool:
        # Libraries ask this before they write control characters, such as for a list of commands in colours.
        return False


@contextmanager
def _harmless_on_terminals(tokens: Sequence[str]) -> Iterator[None]:
    """A context in which standard output on a terminal is a ``_Terminal``, except for the help of a command."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper) or not stream.isatty() or not {*_HELP}.isdisjoint(tokens):
        yield
        return
    stream.flush()
    sys.stdout = terminal = _Terminal(
        stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=stream.line_buffering
    )
    try:
        yield
    finally:
        sys.stdout = stream
        with suppress(OSError):  # the terminal may have been closed
            terminal.detach()


@contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """A context in which SIGTERM acts like Ctrl-C: open files and folders are cleaned up before the process ends."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
