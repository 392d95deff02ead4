"""Stop cleanly on Ctrl-C and SIGTERM: before the next micro-batch, with everything saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Stopped(BaseException):
    """Raised where a run can stop at once; see ``StopRequest.at_once``."""


class StopRequest:
    """A context in which the first signal only sets ``asked``; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Only the main thread receives signals; in other threads a run cannot be asked to stop.
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
        if self._at_once:
            raise Stopped

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which a signal raises Stopped: for waits, which can stop without leaving a partial state."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
