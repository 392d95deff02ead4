"""Interleaved timing, throughput, % of peak, and the facts of a machine."""

import json
from collections.abc import Iterator

import pytest
import torch

from firth.bench import measure
from firth.bench.measure import Spread, Work, in_turn, machine_facts, matrix_products, rates, version_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A clock that only the work itself advances."""
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(measure, "PRODUCT", (2, 3, 4))
    yield now


def test_contestants_take_turns(clock: list[float]) -> None:
    order = list[str]()

    def work(name: str, seconds: list[float]) -> None:
        order.append(name)
        clock[0] += seconds.pop(0)

    a, b = [9.0, 1.0, 5.0, 2.0], [9.0, 3.0, 4.0, 8.0]
    spreads = in_turn({"a": lambda: work("a", a), "b": lambda: work("b", b)}, 3)
    assert order == ["a", "b"] * 4
    # The first run of each is a warm-up and does not count.
    assert spreads == {"a": Spread((1.0, 5.0, 2.0)), "b": Spread((3.0, 4.0, 8.0))}
    assert (spreads["a"].median, spreads["a"].least, spreads["a"].most) == (2.0, 1.0, 5.0)


def test_shares_are_of_the_best_product_of_the_same_run(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def taking(seconds: float) -> None:
        clock[0] += seconds

    products = {
        "matrix product, slow": Work(lambda: taking(2.0), flops=100.0),
        "matrix product, fast": Work(lambda: taking(1.0), flops=200.0),
    }
    monkeypatch.setattr(measure, "matrix_products", lambda device: products)
    found = rates({"x": Work(lambda: taking(4.0), 40, 80.0), "y": Work(lambda: taking(1.0), 5)}, 2)
    assert [rate.name for rate in found] == [*products, "x", "y"]
    assert [rate.tokens_per_s for rate in found] == [None, None, 10.0, 5.0]
    assert [rate.flops_per_s for rate in found] == [50.0, 200.0, 20.0, None]
    assert [rate.share for rate in found] == [0.25, 1.0, 0.1, None]
    facts = json.loads(json.dumps(found[2].facts()))
    assert facts["all_s"] == [4.0, 4.0] and facts["seconds"] == 4.0 and facts["share"] == 0.1


@pytest.mark.parametrize("fast", [False, True])
def test_products_in_the_types_of_the_machine(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    monkeypatch.setattr(measure, "has_fast_bfloat16", lambda: fast)
    monkeypatch.setattr(measure, "PRODUCT", (2, 3, 4))
    products = matrix_products()
    assert list(products) == ["matrix product, float32", *["matrix product, bfloat16"] * fast]
    for work in products.values():
        work.run()
        assert work.flops % (2 * 2 * 3 * 4) == 0 and work.flops > 0


def test_facts_of_the_machine() -> None:
    facts = json.loads(json.dumps(machine_facts()))
    assert facts["processor"] and facts["cores"] >= 1 and facts["threads"] == torch.get_num_threads()
    assert facts["torch"] == torch.__version__ and facts["card"] is None
    assert version_of("torch") is not None and version_of("no-such-package") is None
