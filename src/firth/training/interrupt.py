"""Ctrl-C and SIGTERM as a wish to stop after the current step."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While open, the first signal only sets ``asked``; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Signals go to the main thread alone; elsewhere a run cannot be asked to stop.
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
