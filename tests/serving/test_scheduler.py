"""The scheduler under a simulated clock: fair, bounded, in order; nothing is computed for departed clients."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.serving.cost import CostModel
from firth.serving.scheduler import OverloadError, QueuedRow, Request, Scheduler, SharedBatch, retry_after

SECONDS_A_TOKEN, SECONDS_A_BATCH = 1e-3, 5e-3
QUANTUM = 64


@dataclass
class Machine:
    """Runs batches in a time given by a formula, on a clock that nothing else advances."""

    now: float = 0.0
    batches: list[SharedBatch] = field(default_factory=list)
    models: dict[Hashable, CostModel] = field(default_factory=dict)

    def scheduler(self, **options: Any) -> Scheduler:
        chosen = {"quantum": QUANTUM} | options
        return Scheduler(lambda: self.now, self.cost, **chosen)

    def cost(self, kind: Hashable) -> CostModel:
        if kind not in self.models:
            self.models[kind] = CostModel()
            for tokens in (1, 10, 100, 1000):
                self.models[kind].learn(tokens, 0.0, SECONDS_A_BATCH + SECONDS_A_TOKEN * tokens)
        return self.models[kind]

    def step(self, scheduler: Scheduler) -> SharedBatch | None:
        batch = scheduler.next_batch()
        if batch is not None:
            seconds = SECONDS_A_BATCH + SECONDS_A_TOKEN * batch.tokens
            self.now += seconds
            scheduler.done(batch, seconds)
            self.batches.append(batch)
        return batch


def request(
    client: Hashable, *tokens: int, kind: Hashable = "a", within_s: float = 1e9, alone: bool = False
) -> Request:
    return Request(client, kind, [QueuedRow(n, None) for n in tokens], within_s, alone)


ROWS = st.lists(st.integers(1, 200), min_size=1, max_size=6)
REQUESTS = st.builds(
    lambda client, rows, kind, alone: request(client, *rows, kind=kind, alone=alone),
    st.integers(0, 4),
    ROWS,
    st.sampled_from("ab"),
    st.booleans(),
)


@given(st.lists(st.lists(REQUESTS, max_size=4), max_size=12))
def test_each_row_is_computed_once_and_in_order_whatever_comes_when(arrivals: list[list[Request]]) -> None:
    machine = Machine()
    scheduler = machine.scheduler()
    every = [one for some in arrivals for one in some]
    for some in arrivals:
        for one in some:
            scheduler.add(one)
        machine.step(scheduler)
    while machine.step(scheduler) is not None:
        pass
    assert len(scheduler) == scheduler.queued_tokens() == 0
    computed = [(taken.request.number, taken.index) for batch in machine.batches for taken in batch.rows]
    assert Counter(computed) == Counter((one.number, i) for one in every for i in range(len(one.rows)))
    for one in every:
        assert [i for number, i in computed if number == one.number] == list(range(len(one.rows)))


@given(st.lists(REQUESTS, min_size=1, max_size=30))
def test_a_batch_has_one_kind_and_takes_a_slice_or_a_turn_of_all_who_wait(requests: list[Request]) -> None:
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.1)
    for one in requests:
        scheduler.add(one)
    while True:
        waiting = [request for request in requests if request.next_row < len(request.rows)]
        longest = [max(row.tokens for row in request.rows) for request in waiting]
        turn_s = SECONDS_A_BATCH + SECONDS_A_TOKEN * sum(longest)
        if (batch := machine.step(scheduler)) is None:
            break
        assert {taken.request.kind for taken in batch.rows} == {batch.kind}
        if any(taken.request.alone for taken in batch.rows):
            assert len(batch.rows) == 1
        if len(batch.rows) > 1:
            limit_s = 0.1 if len(longest) == 1 else min(max(0.1, turn_s), 0.3)
            assert SECONDS_A_BATCH + SECONDS_A_TOKEN * batch.tokens <= limit_s + 1e-6


@given(st.lists(st.tuples(ROWS, st.sampled_from("ab")), min_size=1, max_size=20))
def test_requests_of_one_client_and_kind_end_in_the_order_they_came_in(asked: list[tuple[list[int], str]]) -> None:
    machine = Machine()
    scheduler = machine.scheduler()
    for rows, kind in asked:
        scheduler.add(request("one", *rows, kind=kind))
    while machine.step(scheduler) is not None:
        pass
    for kind in "ab":
        begun = [t.request.number for b in machine.batches for t in b.rows if b.kind == kind and t.index == 0]
        assert begun == sorted(begun)


def test_the_earliest_deadline_of_a_client_comes_first() -> None:
    machine = Machine()
    scheduler = machine.scheduler()
    for within_s in (30.0, 10.0, 20.0):
        scheduler.add(request("one", 500, within_s=within_s))
    while machine.step(scheduler) is not None:
        pass
    assert [batch.rows[0].request.deadline_s for batch in machine.batches] == [10.0, 20.0, 30.0]


@given(st.integers(1, 8), st.integers(1, 300), st.integers(1, 200), st.sampled_from("ab"))
def test_nobody_starves_among_clients_that_never_stop(others: int, their_row: int, row: int, kind: str) -> None:
    """The wait in batches is bounded by the number of clients and the debt left by the longest row."""
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.05)
    for n in range(others):
        scheduler.add(request(n, *[their_row] * 50))
    for _ in range(5):
        machine.step(scheduler)
    # This client already owes for a long row, and requests another.
    scheduler.add(request("late", 200, row, kind=kind))
    rounds = 2 * (1 + -(-200 // QUANTUM)) + 1
    before = len(machine.batches)
    for n in range((others + 1) * rounds):
        scheduler.add(request(f"new {n}", their_row))  # also a new client in each batch
        for other in range(others):
            scheduler.add(request(other, their_row))
        batch = machine.step(scheduler)
        assert batch is not None
        if any(t.request.client == "late" and t.index == 1 for t in batch.rows):
            break
    else:
        pytest.fail(f"still waiting after {len(machine.batches) - before} batches")


def test_nobodys_second_text_comes_before_anothers_first() -> None:
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.05)
    for client in range(32):
        for _ in range(3):
            scheduler.add(request(client, 10))
    while machine.step(scheduler) is not None:
        pass
    order = [taken.request.client for batch in machine.batches for taken in batch.rows]
    assert len(machine.batches) > 3 and max(len(batch.rows) for batch in machine.batches) < 32
    assert [sorted(order[begin : begin + 32]) for begin in (0, 32, 64)] == [list(range(32))] * 3


def test_a_client_with_thousands_of_texts_halves_what_others_get_at_most() -> None:
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.05)
    scheduler.add(request("bulk", *[40] * 500))
    for _ in range(500):
        scheduler.add(request("small", 10))
    for _ in range(60):
        machine.step(scheduler)
    shares = Counter[str]()
    for batch in machine.batches:
        for taken in batch.rows:
            shares[taken.request.client] += taken.row.tokens
    assert 0.8 < shares["bulk"] / shares["small"] < 1.25


def test_what_runs_alone_comes_last_but_not_never() -> None:
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.05)
    scheduler.add(request("map", 100, within_s=2.0, alone=True))
    for _ in range(400):
        scheduler.add(request("text", 10, within_s=1e9))
    while not any(taken.request.alone for batch in machine.batches for taken in batch.rows):
        machine.step(scheduler)
    assert 1 <= machine.now <= 1.2, "it waits for half of its time, and no longer"


@given(st.lists(st.tuples(ROWS, st.floats(0.01, 2.0)), min_size=1, max_size=20), st.data())
def test_late_and_left_rows_cost_nothing(asked: list[tuple[list[int], float]], data: st.DataObject) -> None:
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.05)
    requests = [request(n % 3, *rows, within_s=within_s) for n, (rows, within_s) in enumerate(asked)]
    for one in requests:
        scheduler.add(one)
    late, left = set[int](), set[int]()
    while True:
        late |= {one.number for one in scheduler.late()}
        gone = data.draw(st.sampled_from(requests))
        scheduler.leave(gone)
        left.add(gone.number)
        started_s = machine.now
        batch = machine.step(scheduler)
        if batch is None:
            break
        for taken in batch.rows:
            assert taken.request.deadline_s > started_s
            assert taken.request.number not in late | left
    assert scheduler.queued_tokens() == 0


def test_a_backlog_of_one_client_refuses_that_client_alone() -> None:
    machine = Machine()
    machine.cost("a")
    scheduler = machine.scheduler(max_wait_s=2.0, max_requests=5)
    scheduler.add(request("bulk", *[100] * 50))  # more than five seconds
    scheduler.admit("small", 1)
    with pytest.raises(OverloadError) as refused:
        scheduler.admit("bulk", 1)
    assert refused.value.reason == "queue" and refused.value.retry_s > 2
    with pytest.raises(OverloadError, match="requests"):
        scheduler.admit("small", 6)
    # Announced work counts like queued work until it is withdrawn.
    scheduler.announce("small", "a", 10_000)
    with pytest.raises(OverloadError, match="queue"):
        scheduler.admit("small", 1)
    scheduler.announce("small", "a", -10_000)
    scheduler.admit("small", 1)


def test_the_cost_model_finds_what_batches_cost() -> None:
    model = CostModel()
    for n in range(200):
        tokens, squares = 50 + 37 * (n % 23), 1000.0 * (n % 17) ** 2
        model.learn(tokens, squares, 0.004 + 2e-5 * tokens + 3e-9 * squares)
    assert model.predict(700, 90_000.0) == pytest.approx(0.004 + 0.014 + 0.00027, rel=1e-3)
    # For full slices of 0.1 s, with rows of the same lengths as before.
    mean_row = sum(1000.0 * (n % 17) ** 2 for n in range(200)) / sum(50 + 37 * (n % 23) for n in range(200))
    assert model.rate(0.1) == pytest.approx(0.96 / (2e-5 + 3e-9 * mean_row), rel=0.02)


def test_a_rate_is_what_was_measured_where_nothing_else_is_known() -> None:
    model = CostModel()
    assert model.rate(0.1) > 0
    model.learn(10, 100.0, 0.5)  # longer than a slice: no batch is full
    assert model.rate(0.1) == pytest.approx(20)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1e7), st.floats(1e-5, 10)), max_size=50))
def test_predictions_are_never_negative_and_grow_with_the_batch(seen: list[tuple[int, float, float]]) -> None:
    model = CostModel()
    for batch in seen:
        model.learn(*batch)
    assert 0 <= model.predict(1, 1.0) <= model.predict(100, 1e4) <= model.predict(5000, 1e7)


def test_retry_after_is_a_whole_second_at_least() -> None:
    assert [retry_after(s) for s in (0.0, 0.2, 1.0, 1.1)] == [1, 1, 1, 2]


def test_one_batch_serves_a_row_of_each_of_many_requests() -> None:
    """Ten turns of 25 tokens cost less in one batch than in slices; a long request's other rows wait their turn."""
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.1)
    for number in range(10):
        scheduler.add(request(number % 3, 25))
    batch = machine.step(scheduler)
    assert batch is not None and len(batch.rows) == 10
    scheduler.add(request(0, *[25] * 30))
    batch = machine.step(scheduler)
    assert batch is not None and SECONDS_A_BATCH + SECONDS_A_TOKEN * batch.tokens <= 0.1


def test_a_long_row_lets_short_ones_of_other_clients_in() -> None:
    """No rows of its own client, no long rows, nothing that runs alone, and no more than a slice at a time."""
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.1)
    scheduler.add(request("bulk", 500, 30))
    running = scheduler.next_batch()
    assert running is not None and scheduler.is_long(running) and [row.row.tokens for row in running.rows] == [500]
    assert scheduler.predicted_s(running) == pytest.approx(SECONDS_A_BATCH + 500 * SECONDS_A_TOKEN, rel=0.01)
    scheduler.add(request("bulk", 10))
    scheduler.add(request("long", 400))
    scheduler.add(request("map", 10, alone=True))
    assert scheduler.next_between(running, 0.5) is None
    for name in "abc":
        scheduler.add(request(name, 40, 40))
    found = []
    while (short := scheduler.next_between(running, 0.5)) is not None:
        assert not scheduler.is_long(short) and scheduler.predicted_s(short) <= 0.1 + 1e-6
        found.append([taken.request.client for taken in short.rows])
    assert Counter(name for names in found for name in names) == {"a": 2, "b": 2, "c": 2}
    assert scheduler.queued_tokens() == 30 + 10 + 400 + 10


def test_a_pause_is_over_when_what_waits_would_take_longer() -> None:
    machine = Machine()
    scheduler = machine.scheduler(slice_s=0.1)
    scheduler.add(request("bulk", 500))
    running = scheduler.next_batch()
    assert running is not None
    scheduler.add(request("a", 40))
    assert scheduler.next_between(running, 0.04) is None
    assert scheduler.next_between(running, 0.05) is not None
