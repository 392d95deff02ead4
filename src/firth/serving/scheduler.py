"""Choose what the engine computes next: rows of many requests, shared fairly among clients; pure Python.

An idle engine runs what arrives at once; while it is busy, arrivals queue. When it is free, it takes rows by deficit
round robin over clients, counted in tokens (Shreedhar & Varghese 1995), the earliest deadline first within a client,
until the batch's predicted time reaches a slice, or more while many requests wait. A request's rows may go into several
batches. A row that takes longer than a slice by itself pauses between layers, where rows of other clients are computed.
Rows of clients that left, or whose deadline has passed, are dropped before they are computed.

Time (``clock``) and the cost of a batch are parameters: nothing here depends on models, threads or HTTP.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from firth.serving.cost import CostModel

# Tokens that a client may have computed before it is the next one's turn: about one long row.
QUANTUM = 512
# How much a client may save up while others have rows that fit a batch better.
_MOST_SAVED = 4  # quanta
# Maximum time of a batch while many requests wait, in slices.
_MOST_SLICES = 3


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """An indivisible unit of work: it goes through a model in one batch. ``work`` belongs to the caller."""

    tokens: int
    work: Any


@dataclass(eq=False, slots=True)
class Request:
    """Rows to compute for one client by ``deadline_s`` (of the scheduler's clock).

    ``kind``: rows of equal kind may share a batch. ``alone``: they share none, and come last.
    ``arrived_s``, ``number`` and the fields after them are set by the scheduler: ``tokens_left`` counts the tokens of
    the rows that no batch has taken yet.
    """

    client: Hashable
    kind: Hashable
    rows: Sequence[QueuedRow]
    deadline_s: float
    alone: bool = False
    arrived_s: float = 0.0
    number: int = 0
    next_row: int = 0
    tokens_left: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """A row of a batch: number ``index`` of its request."""

    request: Request
    index: int

    @property
    def row(self) -> QueuedRow:
        return self.request.rows[self.index]


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """Rows of one kind that are computed together."""

    kind: Hashable
    rows: tuple[Taken, ...]

    @property
    def tokens(self) -> int:
        return sum(taken.row.tokens for taken in self.rows)

    @property
    def squares(self) -> float:
        return float(sum(taken.row.tokens**2 for taken in self.rows))


class OverloadError(Exception):
    """Too much work is waiting to accept a client's next request. ``retry_s``: seconds until it should be less."""

    def __init__(self, reason: Literal["queue", "requests"], retry_s: float):
        super().__init__(reason)
        self.reason: Literal["queue", "requests"] = reason
        self.retry_s = retry_s


@dataclass(eq=False, slots=True)
class _Client:
    """A client with rows in the queue, earliest deadline first; ``deficit``: tokens it may still have computed."""

    name: Hashable
    requests: list[Request] = field(default_factory=list)
    deficit: int = 0

    def add(self, request: Request) -> None:
        place = len(self.requests)
        while place and _order(self.requests[place - 1]) > _order(request):
            place -= 1
        self.requests.insert(place, request)

    def first(self, kind: Hashable) -> Request | None:
        """The most urgent request of a kind that may share a batch."""
        return next((r for r in self.requests if r.kind == kind and not r.alone), None)


def _order(request: Request) -> tuple[bool, float, int]:
    return request.alone, request.deadline_s, request.number


class Scheduler:
    """The queue. Not thread-safe: callers that share it must hold a lock.

    ``slice_s``: predicted seconds that a batch may take, unless a single row takes longer; up to three times as many
    while many requests wait. ``max_wait_s``: predicted seconds in the queue beyond which a client's further requests
    are refused. ``max_requests``: of all clients. ``costs``: what batches of a kind cost; kinds may share a
    ``CostModel``.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        costs: Callable[[Hashable], CostModel],
        *,
        slice_s: float = 0.1,
        max_wait_s: float = 2.0,
        max_requests: int = 512,
        quantum: int = QUANTUM,
    ):
        self.clock, self.costs, self.slice_s = clock, costs, slice_s
        self.max_wait_s, self.max_requests, self.quantum = max_wait_s, max_requests, quantum
        self._ring: deque[_Client] = deque()
        self._clients: dict[Hashable, _Client] = {}
        # Tokens that were announced but not tokenised yet, by client and kind.
        self._announced: dict[tuple[Hashable, Hashable], int] = {}
        self._numbers = 0

    # What is waiting

    def __len__(self) -> int:
        return sum(len(client.requests) for client in self._ring)

    def queued_tokens(self) -> int:
        """Tokens that wait, including those of texts that are still being tokenised."""
        return sum(r.tokens_left for c in self._ring for r in c.requests) + sum(self._announced.values())

    def wait_s(self, client: Hashable) -> float:
        """Predicted seconds until a client's queued work is done, including other clients' fair share.

        Another client's backlog counts only as far as round robin serves it first: a client with an empty queue
        does not wait for somebody else's thousand texts.
        """
        seconds: dict[Hashable, float] = {}
        for (name, kind), tokens in self._announced.items():
            seconds[name] = seconds.get(name, 0.0) + self._alone_s(kind, tokens)
        if client not in self._clients and client not in seconds:
            return 0.0
        for waiting in self._ring:
            work = sum(self._alone_s(r.kind, r.tokens_left) for r in waiting.requests)
            seconds[waiting.name] = seconds.get(waiting.name, 0.0) + work
        own = seconds.pop(client, 0.0)
        return own + sum(min(own, other) for other in seconds.values())

    def _alone_s(self, kind: Hashable, tokens: int) -> float:
        return tokens / self.costs(kind).rate(self.slice_s)

    # In and out

    def admit(self, client: Hashable, requests: int) -> None:
        """Raise OverloadError if a client's next request would wait too long, or ``requests`` are too many."""
        if requests > self.max_requests:
            raise OverloadError("requests", 1.0)
        wait_s = self.wait_s(client)
        if wait_s > self.max_wait_s:
            raise OverloadError("queue", wait_s - self.max_wait_s)

    def announce(self, client: Hashable, kind: Hashable, tokens: int) -> None:
        """Count tokens that are about to arrive; negative ``tokens`` take them back."""
        key = (client, kind)
        self._announced[key] = self._announced.get(key, 0) + tokens
        if self._announced[key] <= 0:
            del self._announced[key]

    def add(self, request: Request) -> None:
        """Queue a request with at least one row."""
        assert request.rows, "a request without rows has its answer already"
        request.arrived_s, request.number = self.clock(), self._numbers
        request.tokens_left = sum(row.tokens for row in request.rows)
        self._numbers += 1
        client = self._clients.get(request.client)
        if client is None:
            client = self._clients[request.client] = _Client(request.client, deficit=self.quantum)
            self._ring.append(client)
        client.add(request)

    def leave(self, request: Request) -> None:
        """Remove a request whose client has left: its waiting rows will not be computed."""
        client = self._clients.get(request.client)
        if client is not None and request in client.requests:
            client.requests.remove(request)
            self._forget_idle()

    def late(self) -> list[Request]:
        """Remove and return the requests whose deadline has passed."""
        now, found = self.clock(), list[Request]()
        for client in self._ring:
            late = [request for request in client.requests if request.deadline_s <= now]
            if late:
                found += late
                client.requests = [request for request in client.requests if request.deadline_s > now]
        if found:
            self._forget_idle()
        return found

    def next_batch(self) -> SharedBatch | None:
        """The rows to compute now; None if nothing waits. Call ``late`` first: what it leaves is in time."""
        leader = self._leader(lambda client: True)
        if leader is None:
            return None
        first = leader.requests[0]
        if first.alone:
            self._pay(leader, first)
            batch = SharedBatch(first.kind, (Taken(first, first.next_row - 1),))
        else:
            batch = SharedBatch(first.kind, tuple(self._fill(leader, first.kind, self._limit_s(first.kind))))
        self._served(batch)
        return batch

    def predicted_s(self, batch: SharedBatch) -> float:
        """Predict the seconds that a batch will take."""
        return self.costs(batch.kind).predict(batch.tokens, batch.squares)

    def is_long(self, batch: SharedBatch) -> bool:
        """Whether a row of the batch takes longer than a slice by itself, so that others need not wait for its end."""
        longest = max(taken.row.tokens for taken in batch.rows)
        return self.costs(batch.kind).predict(longest, float(longest**2)) > self.slice_s

    def next_between(self, running: SharedBatch, limit_s: float) -> SharedBatch | None:
        """The rows to compute in a pause of a long batch, predicted to take ``limit_s`` or less; None if none fit.

        They belong to clients without rows in the paused batch: a client does not overtake itself.
        """
        inside = {taken.request.client for taken in running.rows}
        limit_s = min(limit_s, self.slice_s)

        def fits(client: _Client) -> bool:
            first = client.requests[0]
            tokens = first.rows[first.next_row].tokens
            short = self.costs(first.kind).predict(tokens, float(tokens**2)) <= limit_s
            return short and not first.alone and client.name not in inside

        leader = self._leader(fits)
        if leader is None:
            return None
        kind = leader.requests[0].kind
        batch = SharedBatch(kind, tuple(self._fill(leader, kind, limit_s, inside)))
        self._served(batch)
        return batch

    def done(self, batch: SharedBatch, seconds: float) -> None:
        """Update the cost model with the time that a batch took."""
        self.costs(batch.kind).learn(batch.tokens, batch.squares, seconds)

    # Fair shares

    def _leader(self, fits: Callable[[_Client], bool]) -> _Client | None:
        """The client that decides the next batch's kind: the first in the ring that fits and has tokens to spend."""
        while fitting := [client for client in self._ring if fits(client)]:
            for client in [client for client in fitting if not self._comes_last(client)] or fitting:
                if client.deficit <= 0:
                    client.deficit += self.quantum
                if client.deficit > 0:
                    return client
                # It still owes for a long row: its turn is over.
                self._ring.remove(client)
                self._ring.append(client)
        return None

    def _served(self, batch: SharedBatch) -> None:
        """Move clients with rows in a batch, as its leader has, to the end of the ring, which bounds others' waits."""
        served = {taken.request.client for taken in batch.rows}
        self._ring = deque(sorted(self._ring, key=lambda client: client.name in served))
        self._forget_idle()

    def _comes_last(self, client: _Client) -> bool:
        """Whether a client has only requests that run alone, and has waited for less than half of its time."""
        first = client.requests[0]
        return first.alone and self.clock() < (first.arrived_s + first.deadline_s) / 2

    def _grant(self) -> None:
        """Give a quantum to all clients that wait, also for other kinds: it is not their fault that they wait."""
        for client in self._ring:
            client.deficit = min(client.deficit + self.quantum, _MOST_SAVED * self.quantum)

    def _fill(
        self, leader: _Client, kind: Hashable, limit_s: float, without: Collection[Hashable] = ()
    ) -> Iterator[Taken]:
        """Take rows of a kind, the leader's first, until ``limit_s`` is reached or none are left."""
        cost, tokens, squares, empty = self.costs(kind), 0, 0.0, True
        others = [client for client in self._from(leader) if client.name not in without]
        while True:
            asking = [client for client in others if client.first(kind) is not None]
            if not asking:
                return
            able = [client for client in asking if client.deficit > 0]
            if not able:
                self._grant()
            for client in able:  # a row each, so that nobody's second one comes before another's first
                request = client.first(kind)
                assert request is not None
                more = request.rows[request.next_row].tokens
                if not empty and cost.predict(tokens + more, squares + more**2) > limit_s:
                    return
                tokens, squares, empty = tokens + more, squares + more**2, False
                self._pay(client, request)
                yield Taken(request, request.next_row - 1)

    def _limit_s(self, kind: Hashable) -> float:
        """Predicted seconds that a batch may take: the time for one row of each waiting request, within limits.

        Requests that wait for one another are all answered sooner by one batch than by several.
        """
        waiting = [r for client in self._ring for r in client.requests if r.kind == kind and not r.alone]
        rows = [request.rows[request.next_row].tokens for request in waiting]
        turn_s = self.costs(kind).predict(sum(rows), float(sum(n * n for n in rows)))
        return min(max(turn_s, self.slice_s), _MOST_SLICES * self.slice_s)

    def _from(self, leader: _Client) -> list[_Client]:
        clients = list(self._ring)
        place = clients.index(leader)
        return clients[place:] + clients[:place]

    def _pay(self, client: _Client, request: Request) -> None:
        """Take a request's next row, and charge its client for it."""
        tokens = request.rows[request.next_row].tokens
        client.deficit -= tokens
        request.tokens_left -= tokens
        request.next_row += 1
        if request.next_row == len(request.rows):
            client.requests.remove(request)

    def _forget_idle(self) -> None:
        """Remove clients without rows from the ring, with what they had saved or owed."""
        if all(client.requests for client in self._ring):
            return
        self._ring = deque(client for client in self._ring if client.requests)
        self._clients = {client.name: client for client in self._ring}


def retry_after(seconds: float) -> int:
    """Whole seconds for the header ``Retry-After``."""
    return max(1, math.ceil(seconds))
