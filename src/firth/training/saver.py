"""Save a run's checkpoints and its best model while training continues, from one process or from many."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from firth.errors import SaveError
from firth.files import write_folder
from firth.training.checkpoint import fill_checkpoint, save_checkpoint, save_share, staged_checkpoint
from firth.training.collectives import World, any_rank, barrier, join_texts, ranks_here, text_of_leader
from firth.training.writer import BackgroundWriter, copies, room_for_copies

_Result = TypeVar("_Result")
# ``save_model(folder, facts, weights)`` writes the files of a model folder.
SaveModel = Callable[[Path, dict[str, Any], dict[str, Tensor]], None]


@dataclass(kw_only=True)
class Saver:
    """Writes to the folder ``run``: within ``writing()`` in a thread, from copies; outside of it at once.

    ``keep``: number of checkpoints to keep. ``free``: returns the host's free memory in bytes, None if unknown;
    without room for copies, training waits while something is written. All processes call all methods but
    ``save_best`` together.
    """

    run: Path
    save_model: SaveModel
    keep: int
    free: Callable[[], float | None]
    world: World
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._writer: BackgroundWriter | None = None
        self._shares: _Shares | None = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A context in which a thread writes; at its end everything is written."""
        writer = self._writer = BackgroundWriter()
        try:
            yield
            self.complete()
        except BaseException:
            # The first error counts.
            with contextlib.suppress(Exception):
                writer.close()
            if self._shares is not None:
                self._shares.abandon()
                self._shares = None
            raise
        else:
            writer.close()
            # If these processes resume the run at once, each must find the same checkpoint.
            barrier(self.world)
        finally:
            self._writer = None

    def proceed(self) -> None:
        """Complete finished writes between two steps; raises the error of a failed one. Does not wait."""
        if self._writer is not None:
            self._writer.check()
        if self._shares is not None and not any_rank(not self._shares.written.done(), self.world):
            self.complete()

    def save_best(self, weights: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Replace the run's ``model`` folder; only the leading process writes it."""
        if self.world.leads:
            weights, _ = self._kept(weights, {})
            self._write(lambda: write_folder(self.run / "model", lambda to: self.save_model(to, facts, weights)))

    def save_whole(
        self, state: dict[str, Any], weights: dict[str, Tensor], optimizer: dict[str, Tensor], carry: dict[str, Tensor]
    ) -> None:
        """Write a checkpoint, all of which the leading process holds. ``carry``: see ``save_checkpoint``."""
        if not self.world.leads:
            return
        step, facts = state["step"], _facts(state)
        weights, optimizer = self._kept(weights, optimizer)

        def job() -> None:
            save_checkpoint(
                self.run / "checkpoints",
                step,
                save_model=lambda to: self.save_model(to, facts, weights),
                state=state,
                optimizer=optimizer,
                carry=carry,
                keep=self.keep,
            )

        self._write(job)

    def save_shares(
        self, state: dict[str, Any], weights: dict[str, Tensor], shares: dict[str, Tensor], carry: dict[str, Tensor]
    ) -> None:
        """Begin a checkpoint to which each process writes its share of the optimizer's state.

        ``proceed`` or ``complete`` moves it into place.
        """
        free = self.free()
        if free is not None:
            free /= ranks_here()
        crowded = self._writer is None or not room_for_copies([*weights.values(), *shares.values()], free)
        at_once = any_rank(crowded, self.world)
        if not at_once:
            weights, shares = copies(weights), copies(shares)
        elif self._writer is not None:
            self._write_at_once()
        rank, size, staged = self.world.rank, self.world.size, contextlib.ExitStack()
        folder: Path | None = None
        if self.world.leads:
            folder = staged.enter_context(staged_checkpoint(self.run / "checkpoints", state["step"], self.keep))
        train = Path(text_of_leader("" if folder is None else str((folder / "train").absolute())))
        facts = _facts(state)

        def job() -> str:
            try:
                save_share(train, shares, rank, size)
                if folder is not None:
                    fill_checkpoint(
                        folder, save_model=lambda to: self.save_model(to, facts, weights), state=state, carry=carry
                    )
            except OSError as error:
                return error.strerror or str(error)
            return ""

        self._shares = _Shares(train, staged, self._write(job))
        if at_once:
            self.complete()

    def complete(self) -> None:
        """Wait until each process has written its share of a checkpoint, then move the checkpoint into place."""
        shares = self._shares
        if shares is None:
            return
        error = shares.written.result()
        self._shares = None
        rank, size = self.world.rank + 1, self.world.size
        failed = join_texts([f"process {rank} of {size} could not finish it: {error}"] if error else [], self.world)
        if not failed:
            self._write(shares.staged.close)
            return
        shares.abandon()
        raise SaveError(f"{shares.train.parent.parent}: {failed[0]}; all processes need the same disk")

    def _write(self, job: Callable[[], _Result]) -> Future[_Result]:
        """Run a write job in the thread, or at once outside of ``writing``."""
        if self._writer is not None:
            return self._writer.submit(job)
        done = Future[_Result]()
        done.set_result(job())
        return done

    def _kept(
        self, weights: dict[str, Tensor], others: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Copies that the next step does not change; without memory for them, the tensors, to be written at once."""
        if self._writer is not None and room_for_copies([*weights.values(), *others.values()], self.free()):
            return copies(weights), copies(others)
        if self._writer is not None:
            self._write_at_once()
        return weights, others

    def _write_at_once(self) -> None:
        """Stop using the thread: from here on training waits while something is written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.tell("too little memory to copy the state: training waits while checkpoints are written")


def _facts(state: dict[str, Any]) -> dict[str, Any]:
    """The facts that a checkpoint's model folder records."""
    return {"step": state["step"], "dev": {}}


@dataclass(frozen=True, slots=True)
class _Shares:
    """A checkpoint that all processes are writing: into ``train`` of a folder that the leading one has ``staged``.

    ``written``: this process's error message; empty if there is none.
    """

    train: Path
    staged: contextlib.ExitStack
    written: Future[str]

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(_AbandonedError), self.staged:
            raise _AbandonedError


class _AbandonedError(Exception):
    """Raised to abandon a checkpoint that cannot be completed."""
