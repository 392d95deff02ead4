"""Progress on stderr with speed and time left: a live bar on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TextIO

from firth.errors import printable

_PLAIN_EVERY_S = 10.0
_QUIET_FOR_S = 2.0
# Bytes at the end of a log that are searched for its last line.
_LINE_BYTES = 4096

# Receives the progress line if the work is part of a larger job.
_SHOWN_BY: ContextVar[Callable[[str], None] | None] = ContextVar("shown_by", default=None)


def say(text: str) -> None:
    """Print a message for the user on stderr, safe for a terminal whatever files it quotes."""
    print(printable(text), file=sys.stderr, flush=True)


def silent(text: str) -> None:
    """Drop a message: a replacement for ``say`` where nothing should be printed."""


def format_duration(seconds: float) -> str:
    """Format seconds: ``75.2`` -> ``1:15``, ``7261`` -> ``2:01:01``."""
    whole = max(0, round(seconds))
    hours, minutes, left = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def format_count(n: float) -> str:
    """Format a count: ``1234567`` -> ``1.23M``."""
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= limit:
            return f"{n / limit:.3g}{suffix}"
    return f"{n:.3g}"


def columns_of(text: str) -> int:
    """Count the terminal columns of a text: wide characters, such as Hangul, take two, and combining ones none."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


class Progress:
    """Counts the work done, and shows its speed and the time left.

    Nothing is written in the first two seconds, so short work stays silent. ``total`` may be None
    if it is not known; then only the amount and the speed are shown.
    """

    def __init__(self, title: str, total: float | None, unit: str, *, done: float = 0.0, stream: TextIO | None = None):
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self._first = done
        self._stream = sys.stderr if stream is None else stream
        self._shown_by = _SHOWN_BY.get()
        self._live = self._shown_by is None and self._stream.isatty()
        self._started_at_s = time.monotonic()
        self._written_at_s = self._started_at_s
        self._wrote = False

    def __enter__(self) -> "Progress":
        return self

    def advance(self, amount: float, note: str = "") -> None:
        """Count ``amount`` more units; ``note`` is shown at the end of the line."""
        self.done += amount
        now_s = time.monotonic()
        every_s = 0.2 if self._live or self._shown_by else _PLAIN_EVERY_S
        if now_s - self._started_at_s >= _QUIET_FOR_S and (not self._wrote or now_s - self._written_at_s >= every_s):
            self._write(self.line(now_s, note))
            self._written_at_s = now_s

    def line(self, now_s: float, note: str = "") -> str:
        """The text to show at monotonic time ``now_s``."""
        elapsed_s = max(now_s - self._started_at_s, 1e-9)
        rate = (self.done - self._first) / elapsed_s
        parts = [self.title]
        if self.total:
            share = min(self.done / self.total, 1.0)
            parts.append(f"{share:4.0%}")
            parts.append(f"{format_count(self.done)}/{format_count(self.total)} {self.unit}")
        else:
            parts.append(f"{format_count(self.done)} {self.unit}")
        parts.append(f"{format_count(rate)} {self.unit}/s")
        if self.total and rate > 0:
            parts.append(f"{format_duration(max(self.total - self.done, 0) / rate)} left")
        if note:
            parts.append(note)
        return "  ".join(parts)

    def message(self, text: str) -> None:
        """Write a separate line without disturbing the bar. Not shown if the work is part of a larger job."""
        if self._shown_by is not None:
            return
        if self._live and self._wrote:
            self._stream.write("\r\x1b[K")
        self._stream.write(printable(text) + "\n")
        self._stream.flush()

    def _write(self, text: str) -> None:
        if self._shown_by is not None:
            self._shown_by(text)
            self._wrote = True
            return
        self._stream.write(f"\r\x1b[K{text}" if self._live else text + "\n")
        self._stream.flush()
        self._wrote = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wrote and kind is None:
            ended = "done" if not self.total or self.done >= self.total else "stopped"
            took = format_duration(time.monotonic() - self._started_at_s)
            self._write(f"{self.title}  {ended}  {format_count(self.done)} {self.unit} in {took}")
        if self._live and self._wrote:
            self._stream.write("\n")
            self._stream.flush()


@contextlib.contextmanager
def part_of(show: Callable[[str], None]) -> Iterator[None]:
    """A context in which progress is shown only by ``show(line)``: for parts of a larger job, which has one line."""
    token = _SHOWN_BY.set(show)
    try:
        yield
    finally:
        _SHOWN_BY.reset(token)


@contextlib.contextmanager
def named_part(name: str) -> Iterator[None]:
    """A context in which the line of a larger job begins with ``name``; nothing changes without one, or a name."""
    show = _SHOWN_BY.get()
    with contextlib.nullcontext() if show is None or not name else part_of(lambda line: show(f"{name}  {line}")):
        yield


class Status:
    """One line of free text on stderr about current work: rewritten on a terminal, every ten seconds elsewhere."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._written_at_s = time.monotonic()
        self._wrote = False

    def show(self, text: str) -> None:
        """Show a new text, if the last one has been visible long enough."""
        now_s = time.monotonic()
        if now_s - self._written_at_s < (0.2 if self._live else _PLAIN_EVERY_S):
            return
        self._stream.write(f"\r\x1b[K{printable(text)}" if self._live else printable(text) + "\n")
        self._stream.flush()
        self._written_at_s, self._wrote = now_s, True

    def show_last_of(self, logs: Mapping[str, Path]) -> None:
        """Show the last line of the first log that has one, with its name, for work done by other processes."""
        lines = ((name, _last_line(log)) for name, log in logs.items())
        first = next(((name, line) for name, line in lines if line), None)
        if first is not None:
            others = f"  (and {len(logs) - 1} more)" if len(logs) > 1 else ""
            self.show(f"{first[0]}: {first[1]}{others}")

    def clear(self) -> None:
        """Clear the line, so that another kind of line can be printed."""
        if self._live and self._wrote:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._wrote = False


def _last_line(path: Path) -> str:
    """The last line of a log that is not blank; empty if there is none, or no file."""
    try:
        with open(path, "rb") as file:
            file.seek(-min(_LINE_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
