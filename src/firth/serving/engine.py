"""The engine: one thread that runs the batches of all models, and the interface between it and the routes.

A question is tokenised in one of two threads, queued, computed row by row in batches that it may share with others, and
answered by the tokenizer threads again; for a short body, the event loop's thread does their part. A search
(generation, translation) runs in a thread of its own, and each of its steps is a row in the queue.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from firth.serving.config import Limits
from firth.serving.forward import CALLED, Forward, Job, Prepared, cost_of
from firth.serving.hosted import Hosted
from firth.serving.metrics import Metrics
from firth.serving.refusals import RefusalError
from firth.serving.scheduler import OverloadError, QueuedRow, Request, Scheduler, SharedBatch, retry_after

if TYPE_CHECKING:
    from firth.inference.decoding import Through

_TOKENIZER_THREADS = 2
# A body of at most this many bytes is tokenised in the event loop's own thread: handing it to another takes longer.
_SMALL_BYTES = 1024
# Searches that run at the same time, of all clients and of one; further ones wait.
_SEARCHES, _SEARCHES_A_CLIENT = 16, 4
# Seconds between returns of freed memory to the system: batches of ever new sizes leave gaps, which made a server grow
# for as long as requests came; with a return after every batch it would be a tenth slower.
_GIVE_BACK_S = 10.0

T = TypeVar("T")


@dataclass(slots=True)
class Caller:
    """A client, its deadline for an answer (``time.monotonic``), and what answering has taken so far."""

    client: Hashable
    deadline_s: float
    body_bytes: int = 0
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    tokens: int = 0
    unknown: int = 0
    windows: int = 1
    cut: bool = False


@dataclass(eq=False, slots=True)
class _Ticket:
    """The outputs that a queued request waits for. ``begun_s``: when the computation of its first row began."""

    future: "Future[list[Any]]"
    outputs: list[Any]
    missing: int
    begun_s: float = 0.0
    inference_s: float = 0.0


@dataclass(slots=True)
class _Pauses:
    """The pauses of a long batch: predicted seconds that others may still take, and seconds that they have taken.

    Others get as long as the batch itself, which then takes at most twice its own time.
    """

    left_s: float
    seconds: float = 0.0


@dataclass(eq=False)
class Engine:
    """Runs batches on a thread of its own, from ``start`` to ``stop``.

    ``one_thread``: whether PyTorch computes only on that thread; it may change at any time.
    """

    limits: Limits
    metrics: Metrics
    in_flight: int = 0
    draining: bool = False
    one_thread: bool = False
    _tickets: dict[Request, _Ticket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            time.monotonic,
            cost_of,
            slice_s=self.limits.slice_ms / 1e3,
            max_wait_s=self.limits.max_queue_ms / 1e3,
            max_requests=self.limits.requests,
        )
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self.tokenizers = ThreadPoolExecutor(_TOKENIZER_THREADS, "tokenizer")
        self.searches = ThreadPoolExecutor(_SEARCHES, "search")
        # By client, for as long as one of its searches, or texts of it that are only tokenised, run or wait.
        self._turns: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        self._tokenizer_turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()
        # Learning from labels runs for one client at a time, in a thread that no search waits for.
        self.learners = ThreadPoolExecutor(1, "learner")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current batch; requests that still wait get 503."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:  # a caller that leaves meanwhile drops its request too
            for ticket in self._tickets.values():
                ticket.future.set_exception(_stopping())
            self._tickets.clear()
        self.tokenizers.shutdown(wait=False, cancel_futures=True)
        self.searches.shutdown(wait=False, cancel_futures=True)
        self.learners.shutdown(wait=False, cancel_futures=True)

    # The engine's thread

    def _loop(self) -> None:
        import torch

        from firth.machine import give_back

        usual, given_back_s = torch.get_num_threads(), time.monotonic()
        while True:
            with self._changed:
                batch = self._next()
                while batch is None and not self._stopped:
                    self._changed.wait()
                    batch = self._next()
                if self._stopped:
                    return
                assert batch is not None
                # A called function may hook the layers itself, and must not see other rows there.
                called = isinstance(batch.kind, Forward) and batch.kind.what in CALLED
                long = not called and self.scheduler.is_long(batch)
            # Each thread has its own setting, which no other thread can change.
            if torch.get_num_threads() != (threads := 1 if self.one_thread else usual):
                torch.set_num_threads(threads)
            self._run(batch, long)
            if time.monotonic() - given_back_s > _GIVE_BACK_S:
                give_back()
                given_back_s = time.monotonic()

    def _next(self) -> SharedBatch | None:
        self._drop_late()
        return self._begun(self.scheduler.next_batch())

    def _drop_late(self) -> None:
        for request in self.scheduler.late():
            self._drop(request, "late", _late())

    def _begun(self, batch: SharedBatch | None) -> SharedBatch | None:
        """Record when requests stop waiting; the caller holds the lock."""
        now = time.monotonic()
        for taken in batch.rows if batch else ():
            ticket = self._tickets[taken.request]
            ticket.begun_s = ticket.begun_s or now
        return batch

    def _run(self, batch: SharedBatch, long: bool) -> None:
        forward = batch.kind
        assert isinstance(forward, Forward)
        pauses = _Pauses(self.scheduler.predicted_s(batch) if long else 0.0)
        started_s = time.monotonic()
        with forward.hosted.between_layers(lambda: self._let_in(batch, pauses)) if long else nullcontext():
            outputs = _outputs(forward, [taken.row.work for taken in batch.rows])
        seconds = time.monotonic() - started_s - pauses.seconds
        with self._changed:
            if forward.what not in CALLED:
                self.scheduler.done(batch, seconds)
            for request in {taken.request for taken in batch.rows} & self._tickets.keys():
                self._tickets[request].inference_s += seconds
            for taken, output in zip(batch.rows, outputs, strict=True):
                self._deliver(taken.request, taken.index, output)
        self.metrics.batch(batch.tokens, len(batch.rows), seconds)

    def _let_in(self, batch: SharedBatch, pauses: "_Pauses") -> None:
        """Compute what other clients wait for, in the middle of a long batch."""
        started_s = time.monotonic()
        while pauses.left_s > 0:
            with self._changed:
                self._drop_late()
                short = self._begun(self.scheduler.next_between(batch, pauses.left_s))
            if short is None:
                break
            self._run(short, long=False)
            pauses.left_s -= self.scheduler.predicted_s(short)
        pauses.seconds += time.monotonic() - started_s

    def _deliver(self, request: Request, index: int, output: Any) -> None:
        ticket = self._tickets.get(request)
        if ticket is None:  # its client left while it was computed
            return
        if isinstance(output, Exception):
            self.scheduler.leave(request)
            del self._tickets[request]
            ticket.future.set_exception(output)
            return
        ticket.outputs[index] = output
        ticket.missing -= 1
        if not ticket.missing:
            del self._tickets[request]
            ticket.future.set_result(ticket.outputs)

    def _drop(self, request: Request, reason: str, error: Exception | None) -> None:
        """Drop a request; the caller holds the lock."""
        ticket = self._tickets.pop(request, None)
        if ticket is not None:
            self.metrics.dropped(reason)
            if error is not None:
                ticket.future.set_exception(error)

    # Callers

    def _queue(self, caller: Caller, forward: Forward, rows: "list[QueuedRow]", alone: bool) -> tuple[Request, _Ticket]:
        request = Request(caller.client, forward, rows, caller.deadline_s, alone)
        ticket = _Ticket(Future(), [None] * len(rows), len(rows))
        # It cannot be cancelled from here on: a caller that no longer wants it leaves the queue.
        ticket.future.set_running_or_notify_cancel()
        with self._changed:
            if self._stopped:
                raise _stopping()
            self._tickets[request] = ticket
            self.scheduler.add(request)
            self._changed.notify_all()
        return request, ticket

    def _leave(self, request: Request) -> None:
        with self._changed:
            self.scheduler.leave(request)
            self._drop(request, "left", None)

    def admit(self, caller: Caller) -> None:
        """Raise RefusalError if a client's request would wait too long."""
        try:
            with self._changed:
                self.scheduler.admit(caller.client, self.in_flight)
        except OverloadError as error:
            raise self._overloaded(error.reason, error.retry_s) from None

    def admit_long(self, caller: Caller) -> None:
        """Like ``admit``, but only for a long body: a short one costs nothing if nothing is to be computed."""
        if not _is_small(caller):
            self.admit(caller)

    def check_in_flight(self) -> None:
        """Raise RefusalError if too many requests are in flight; costs nothing, so that it can come first."""
        if self.in_flight > self.limits.requests:
            raise self._overloaded("requests", 1.0)

    def _overloaded(self, reason: str, retry_s: float) -> RefusalError:
        seconds = retry_after(retry_s)
        what = (
            f"{self.limits.requests} requests are in flight"
            if reason == "requests"
            else f"your requests would wait longer than {self.limits.max_queue_ms} ms"
        )
        message = f"overloaded: {what}; try again in {seconds} s"
        return RefusalError(429, reason, message, headers={"Retry-After": str(seconds)})

    async def aside(self, caller: Caller, make: Callable[[], T]) -> T:
        """Return what ``make`` returns. For a long body it is called in a tokenizer thread, so as not to block others.

        RefusalError 504 if that takes longer than the caller waits.
        """
        if _is_small(caller):
            return make()
        try:
            async with _until_deadline(caller):
                return await self.in_thread(self.tokenizers, make)
        except TimeoutError:
            raise _late() from None

    async def in_thread(self, threads: ThreadPoolExecutor, make: Callable[[], T]) -> T:
        """Return what ``make`` returns, called in one of some threads; RefusalError 503 once they are stopped."""
        try:
            called = asyncio.get_running_loop().run_in_executor(threads, make)
        except RuntimeError:
            raise _stopping() from None
        try:
            return await called
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the client has left
                raise
            raise _stopping() from None

    @asynccontextmanager
    async def tokenizer_turn(self, caller: Caller) -> AsyncIterator[None]:
        """A context that one request of a client holds at a time: the tokenizer threads have no queue that is fair.

        RefusalError 504 after the deadline.
        """
        turn = self._tokenizer_turns.setdefault(caller.client, asyncio.Lock())
        try:
            async with _until_deadline(caller):
                await turn.acquire()
        except TimeoutError:
            raise _late() from None
        try:
            yield
        finally:
            turn.release()

    async def ask(self, job: Job, caller: Caller) -> Any:
        """Return the answers to a question. If cancelled, it leaves the queue: waiting rows are not computed."""
        self.admit(caller)
        started_s = time.monotonic()
        prepared = job.prepare() if _is_small(caller) else await self._announced(caller, job)
        caller.tokenize_s += time.monotonic() - started_s
        caller.tokens += sum(row.tokens for row in prepared.rows)
        caller.unknown += prepared.unknown
        caller.windows, caller.cut = max(caller.windows, prepared.windows), caller.cut or prepared.cut
        outputs: list[Any] = []
        if prepared.rows:
            if not _is_small(caller):  # for a small one, nothing came in between
                self.admit(caller)
            outputs = await self._outputs(caller, job.forward, list(prepared.rows), job.alone)
        return await self.aside(caller, lambda: prepared.answers(outputs))

    async def _announced(self, caller: Caller, job: Job) -> Prepared:
        """Prepare a question; until its tokens are known, an estimate from its bytes is announced."""
        key, estimate = (caller.client, job.forward), max(caller.body_bytes // 4, 1)
        with self._changed:
            self.scheduler.announce(*key, estimate)
        try:
            return await self.aside(caller, job.prepare)
        finally:
            with self._changed:
                self.scheduler.announce(*key, -estimate)

    async def _outputs(self, caller: Caller, forward: Forward, rows: "list[QueuedRow]", alone: bool) -> list[Any]:
        request, ticket = self._queue(caller, forward, rows, alone)
        try:
            seconds = caller.deadline_s - time.monotonic()
            return await asyncio.wait_for(asyncio.wrap_future(ticket.future), max(seconds, 0.0))
        except TimeoutError:
            raise _late() from None
        finally:
            self._leave(request)
            _add_times(caller, request, ticket)

    async def search(self, caller: Caller, hosted: Hosted, run: Callable[["Through"], T]) -> T:
        """Call ``run(through)`` in a thread of its own; each step that it passes to ``through`` is a row in the queue.

        A row has as many tokens as the step reads: long prompts share no batch, and count for their client. Only a few
        searches of a client run at once, so that none takes all threads; RefusalError 504 after the deadline.
        """
        self.admit(caller)
        left, steps = threading.Event(), list[Request]()

        def through(step: Callable[[], Any], tokens: int) -> Any:
            request, ticket = self._queue(caller, hosted.step(), [QueuedRow(max(tokens, 1), step)], False)
            steps[:] = [request]
            try:
                # Checked after the step is recorded: a caller that leaves later sees it and takes it out of the queue.
                if left.is_set():
                    raise _late()
                return ticket.future.result(max(caller.deadline_s - time.monotonic(), 0.0))[0]
            except TimeoutError:
                raise _late() from None
            finally:
                self._leave(request)
                _add_times(caller, request, ticket)

        turn = self._turns.setdefault(caller.client, asyncio.Semaphore(_SEARCHES_A_CLIENT))
        try:
            async with _until_deadline(caller), turn:
                return await self.in_thread(self.searches, lambda: run(through))
        except TimeoutError:
            raise _late() from None
        finally:
            left.set()
            self._end_steps(steps)

    def _end_steps(self, steps: list[Request]) -> None:
        """Drop the step that a search waits for, which frees its thread for another search."""
        with self._changed:
            for request in steps:
                self.scheduler.leave(request)
                self._drop(request, "left", _late())

    def waiting(self) -> tuple[int, int]:
        """Requests and tokens in the queue."""
        with self._changed:
            return len(self.scheduler), self.scheduler.queued_tokens()

    async def drained(self) -> bool:
        """Wait until no request is in flight; False if that takes longer than ``limits.drain_s``."""
        until_s = time.monotonic() + self.limits.drain_s
        while self.in_flight and time.monotonic() < until_s:
            await asyncio.sleep(0.02)
        return not self.in_flight


def _until_deadline(caller: Caller) -> asyncio.Timeout:
    """A context that raises TimeoutError once the caller no longer waits."""
    return asyncio.timeout(max(caller.deadline_s - time.monotonic(), 0.0))


def _add_times(caller: Caller, request: Request, ticket: _Ticket) -> None:
    caller.queue_s += max(ticket.begun_s - request.arrived_s, 0.0) if ticket.begun_s else 0.0
    caller.inference_s += ticket.inference_s


def _is_small(caller: Caller) -> bool:
    return caller.body_bytes <= _SMALL_BYTES


def _outputs(forward: Forward, works: list[Any]) -> list[Any]:
    """Run each work, and return its output or the exception that it raised: a failing text does not affect others."""
    import torch

    try:
        with torch.inference_mode():
            return forward.run(works)
    except Exception as error:
        if len(works) == 1:
            return [error]
    return [one for work in works for one in _outputs(forward, [work])]


def _late() -> RefusalError:
    return RefusalError(
        504, "deadline", "there was no answer within the time allowed (x-timeout-ms, or the server's own)"
    )


def _stopping() -> RefusalError:
    return RefusalError(503, "stopping", "the server is shutting down", headers={"Retry-After": "5"})
