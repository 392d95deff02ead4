"""Write ``log.jsonl``, one event per line, and TensorBoard events on request."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from firth.errors import CheckpointError, ConfigError, SaveError
from firth.files import append_to


class Log:
    """Appends events to a file. ``offset`` is its length in bytes, which a checkpoint stores.

    Opening at an offset truncates the file: a resumed run rewrites what came after its last
    checkpoint. ``step`` is that of the checkpoint (TensorBoard drops later events). If the path
    is None, events are discarded (in processes that do not lead).
    """

    def __init__(self, path: Path | None, offset: int = 0, tensorboard: bool = False, step: int = 0):
        self._writer = _tensorboard(path.parent, step) if path is not None and tensorboard else None
        self._file: BinaryIO = append_to(path) if path is not None else open(os.devnull, "ab")  # noqa: SIM115  # closed by close
        if path is not None:
            self._file.truncate(offset)
            self._file.seek(offset)

    @property
    def offset(self) -> int:
        return self._file.tell()

    def write(self, event: str, step: int, **values: Any) -> None:
        """Write one event, e.g. ``write("train", 20, mlm_loss=6.1)``; numbers go to TensorBoard too."""
        line = {"event": event, "step": step, **values}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._not_written(error) from None
        if self._writer:
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._writer.add_scalar(f"{event}/{name}", value, step)

    def sync(self) -> int:
        """Flush to disk; returns the offset."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._not_written(error) from None
        return self.offset

    def _not_written(self, error: OSError) -> SaveError:
        return SaveError(
            f"{self._file.name} could not be written: {error.strerror}. Make room, then resume: checkpoints are whole"
        )

    def close(self) -> None:
        if self._writer:
            self._writer.close()
        # A full disk was already reported when the line was written.
        with contextlib.suppress(OSError):
            self._file.close()


def _tensorboard(folder: Path, step: int) -> Any:
    return summary_writer()(str(folder), purge_step=step + 1)  # it drops that step too


def summary_writer() -> Any:
    """The class that writes for TensorBoard; ConfigError if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("train.tensorboard needs TensorBoard: pip install 'firth[track]'") from None
    return SummaryWriter


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read all events of a run, oldest first; skips a last line that a kill cut short."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no regular file: delete it")
    events = []
    for line in path.read_bytes().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events
