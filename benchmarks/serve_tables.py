"""The tables of ``serve_peers.py``: the measurements, and which targets they meet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import measure

OURS = {"float32": "firth serve, float32", "bfloat16": "firth serve, bfloat16"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A contestant's loads by name. ``peak``: operations per second of a matrix product, timed just before."""

    name: str
    precision: str
    ours: bool
    ready_s: float
    memory_bytes: int
    peak: float
    loads: Mapping[str, Mapping[str, Any]]

    def facts(self) -> dict[str, Any]:
        """Plain data, for the record."""
        return {
            "name": self.name, "precision": self.precision, "ready_s": self.ready_s,
            "memory_mb": self.memory_bytes / 1e6, "peak": self.peak, "loads": self.loads,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class InProcess:
    """The same work by ``model.embed`` in one process: tokens per second, and milliseconds for one sentence alone."""

    sentences_per_s: float
    mixed_per_s: float
    alone_ms: float


def _ours(measured: Sequence[Measured], precision: str) -> Measured:
    return next(each for each in measured if each.name == OURS[precision])


def _peers(measured: Sequence[Measured], precision: str) -> list[Measured]:
    return [each for each in measured if not each.ours and each.precision == precision]


def comparison(measured: Sequence[Measured], processes: Mapping[str, InProcess]) -> dict[str, Any]:
    """Throughput of every contestant, and of one process without a server."""
    rows = []
    for each in measured:
        ours = _ours(measured, each.precision).loads
        row = each.facts()
        for load in ("sentences", "mixed"):
            tokens_per_s = each.loads[load]["tokens_per_s"]
            row[f"{load}_texts_per_s"] = each.loads[load]["answered_per_s"]
            row[f"{load}_tokens_per_s"] = tokens_per_s
            if not each.ours and tokens_per_s:
                row[f"{load}_times"] = ours[load]["tokens_per_s"] / tokens_per_s
        rows.append(row)
    for precision, process in processes.items():
        rows.append(
            {
                "name": f"model.embed in one process, {precision}",
                "sentences_tokens_per_s": process.sentences_per_s,
                "mixed_tokens_per_s": process.mixed_per_s,
            }
        )
    columns: measure.Columns = (
        ("name", "", "{}"),
        ("sentences_texts_per_s", "sentences/s", "{:.1f}"),
        ("sentences_tokens_per_s", "tokens/s", "{:,.0f}"),
        ("sentences_times", "Firth is", "{:.1f}×"),
        ("mixed_tokens_per_s", "mixed, tokens/s", "{:,.0f}"),
        ("mixed_times", "Firth is", "{:.1f}×"),
        ("ready_s", "ready after, s", "{:.1f}"),
        ("memory_mb", "resident, MB", "{:,.0f}"),
    )
    return measure.table("32 clients (*Firth is*: so many times as fast, at equal precision)", columns, rows)


def latencies(measured: Sequence[Measured]) -> dict[str, Any]:
    """Milliseconds of every contestant, for single requests and at random times."""
    rows = []
    for each in measured:
        row: dict[str, Any] = {"name": each.name, "alone_p50": each.loads["alone"]["answered_p50_ms"]}
        for load in ("own", "equal"):
            found = each.loads[load]
            row |= {
                f"{load}_rate": found["offered_per_s"],
                f"{load}_p50": found.get("answered_p50_ms"),
                f"{load}_p99": found.get("answered_p99_ms"),
                f"{load}_n": sum(found["statuses"].values()),
                f"{load}_lost": sum(n for status, n in found["statuses"].items() if status != "200") or None,
            }
        rows.append(row)
    columns: measure.Columns = (
        ("name", "", "{}"),
        ("alone_p50", "one client, p50", "{:.1f}"),
        ("own_rate", "70 % of its own capacity, requests/s", "{:.1f}"),
        ("own_p50", "p50", "{:.0f}"),
        ("own_p99", "p99", "{:.0f}"),
        ("own_lost", "not answered", "{}"),
        ("equal_p50", "equal load, p50", "{:.0f}"),
        ("equal_p99", "p99", "{:.0f}"),
        ("equal_n", "requests", "{}"),
        ("equal_lost", "not answered", "{}"),
    )
    return measure.table("Milliseconds of a sentence", columns, rows)


def firth_alone(
    measured: Sequence[Measured], processes: Mapping[str, InProcess], tiny: Mapping[str, Any]
) -> dict[str, Any]:
    """The loads that only ``firth serve`` was given."""
    loads = _ours(measured, "float32").loads

    def row(name: str, load: str) -> dict[str, Any]:
        found = loads[load]
        return {
            "name": name,
            "offered": found["offered_per_s"],
            "answered": found["answered_per_s"],
            "p50": found.get("answered_p50_ms"),
            "p99": found.get("answered_p99_ms"),
            "refused": found["statuses"].get("429", 0),
            "refused_p99": found.get("refused_p99_ms"),
            "statuses": found["statuses"],
        }

    rows = [
        row("three times its capacity", "overload"),
        row("30 % of its capacity", "quiet"),
        row("the same, beside a client with requests of 32 texts of 512 tokens", "beside"),
        {
            "name": f"BERT-tiny, {sum(tiny['statuses'].values()):,} requests of 32 clients",
            "answered": tiny["answered_per_s"],
            "p50": tiny.get("answered_p50_ms"),
            "p99": tiny.get("answered_p99_ms"),
        },
    ]
    columns: measure.Columns = (
        ("name", "", "{}"),
        ("offered", "offered/s", "{:.1f}"),
        ("answered", "answered/s", "{:,.1f}"),
        ("p50", "p50, ms", "{:.0f}"),
        ("p99", "p99, ms", "{:.0f}"),
        ("refused", "refused", "{:,}"),
        ("refused_p99", "p99 of refusals, ms", "{:.1f}"),
    )
    return measure.table("`firth serve` in float32 alone", columns, rows)


def targets(
    measured: Sequence[Measured], processes: Mapping[str, InProcess], tiny: Mapping[str, Any]
) -> dict[str, Any]:
    """Each target with its measurement, and whether it is met."""
    rows: list[dict[str, Any]] = []

    def row(name: str, wanted: str, value: float, form: str, met: Callable[[float], bool]) -> None:
        rows.append(
            {"name": name, "wanted": wanted, "measured": form.format(value), "value": value,
             "met": "yes" if met(value) else "**no**"}
        )  # fmt: skip

    for precision in processes:
        ours, peers = _ours(measured, precision).loads, [each.loads for each in _peers(measured, precision)]
        process = processes[precision]
        share = ours["sentences"]["tokens_per_s"] / process.sentences_per_s
        row(f"tokens/s of one process, sentences, {precision}", "≥ 90 %", share, "{:.0%}", lambda x: x >= 0.9)
        for load, least in (("sentences", 1.5), ("mixed", 5.0)):
            if peers:
                best = max(each[load]["tokens_per_s"] for each in peers)
                times = ours[load]["tokens_per_s"] / best
                row(f"times the best peer, {load}, {precision}", f"≥ {least:g}", times, "{:.1f}", least.__le__)
        more = ours["alone"]["answered_p50_ms"] - process.alone_ms
        row(f"one client: p50 above one process, {precision}", "≤ 3 ms", more, "{:.1f} ms", lambda x: x <= 3)
        p99 = ours["own"]["answered_p99_ms"]
        row(f"p99 at 70 % of capacity, {precision}", "≤ 250 ms", p99, "{:.0f} ms", lambda x: x <= 250)
        if peers:
            best = min(each["equal"].get("answered_p99_ms", float("inf")) for each in peers)
            ratio = ours["equal"]["answered_p99_ms"] / best
            row(f"p99 at equal load, of the best peer's, {precision}", "≤ 50 %", ratio, "{:.0%}", lambda x: x <= 0.5)
    alone = _ours(measured, "float32")
    goodput = alone.loads["overload"]["answered_per_s"] / alone.loads["sentences"]["answered_per_s"]
    row("goodput at three times the capacity", "≥ 90 %", goodput, "{:.0%}", lambda x: x >= 0.9)
    refused = alone.loads["overload"].get("refused_p99_ms", 0.0)
    row("p99 of refusals", "≤ 20 ms", refused, "{:.1f} ms", lambda x: x <= 20)
    ratio = alone.loads["beside"]["answered_p99_ms"] / alone.loads["quiet"]["answered_p99_ms"]
    row("p99 beside many long texts, times that without", "≤ 2", ratio, "{:.1f}", lambda x: x <= 2)
    row("requests/s of a tiny model", "≥ 1,500", tiny["answered_per_s"], "{:,.0f}", lambda x: x >= 1500)
    row("ready after", "≤ 5 s", alone.ready_s, "{:.1f} s", lambda x: x <= 5)
    columns: measure.Columns = (
        ("name", "target", "{}"),
        ("wanted", "aimed at", "{}"),
        ("measured", "measured", "{}"),
        ("met", "met", "{}"),
    )
    return measure.table("Targets of `firth serve`", columns, rows)
