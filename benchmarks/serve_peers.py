"""`firth serve` beside FastAPI with transformers, LitServe, BentoML and infinity-emb, under equal load.

.venv/bin/python benchmarks/serve_peers.py --envs ~/peers --install      # once: an environment for each peer
.venv/bin/python benchmarks/serve_peers.py --envs ~/peers                # about 20 minutes; --quick

Every server returns the vector of one text (the mean of its tokens) from the same BERT with random weights. They are
started one after the other on loopback, checked for equal vectors, and sent the same texts by 32 clients with their
own addresses; ``firth serve`` gets further loads.
"""

import asyncio
import itertools
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import load
import measure
import numpy as np
import peer_servers
import texts as material
from encode import write_folder
from peer_servers import BENTOML, FASTAPI, FASTAPI_TUNED, FIRTH, INFINITY, LITSERVE, Running, Server, ServerError
from prepare import memory_of_tree
from serve_tables import OURS, InProcess, Measured, comparison, firth_alone, latencies, targets

import firth
from firth.bench.measure import matrix_products
from firth.bench.synthetic import plain_texts
from firth.machine import has_fast_bfloat16
from firth.progress import Progress
from firth.text.tokenizer import Tokenizer

CLIENTS = 32
# Distance of a text's vector (normalised to length 1) from Firth's in float32 in one process.
TOLERANCE = 1e-2
# Shares of a server's own capacity, and of the first contestant's capacity for the load that is equal for all.
SHARE = 0.7
OVERLOAD = 3.0
INTERACTIVE_SHARE = 0.3
BULK = (32, 510)  # texts and their tokens, without the two special ones

# The first one's capacity sets the load that is equal for all: it is the slowest of the common choices.
CONTESTANTS: Mapping[str, tuple[Server, str]] = {
    "FastAPI + transformers, float32, as users write it": (FASTAPI, "float32"),
    OURS["float32"]: (FIRTH, "float32"),
    "FastAPI + transformers, float32, tuned": (FASTAPI_TUNED, "float32"),
    "LitServe, float32": (LITSERVE, "float32"),
    "BentoML, float32": (BENTOML, "float32"),
    "infinity-emb, float32": (INFINITY, "float32"),
    OURS["bfloat16"]: (FIRTH, "bfloat16"),
    "FastAPI + transformers, bfloat16, tuned": (FASTAPI_TUNED, "bfloat16"),
    "LitServe, bfloat16": (LITSERVE, "bfloat16"),
    "BentoML, bfloat16": (BENTOML, "bfloat16"),
    "infinity-emb, bfloat16": (INFINITY, "bfloat16"),
}


@dataclass(frozen=True, slots=True)
class Material:
    """The texts of all loads with their token counts (special tokens included), and the size of each load."""

    sentences: tuple[tuple[str, int], ...]
    mixed: tuple[tuple[str, int], ...]
    long: tuple[str, ...]
    alone: int
    seconds: float
    requests: int
    checked: int = 4

    @property
    def probes(self) -> list[str]:
        """Texts of several lengths whose vectors are compared."""
        ordered = sorted(self.mixed, key=lambda one: one[1])
        return [ordered[round(i)][0] for i in np.linspace(0, len(ordered) - 1, self.checked)]


def material_of(options: Namespace, tokenizer: Tokenizer) -> Material:
    """Texts of every load."""

    def of(kind: str, n: int) -> tuple[tuple[str, int], ...]:
        found = material.texts(options.data, kind, n, tokenizer)
        return tuple((text, len(ids) + 2) for text, ids in zip(found, tokenizer.ids_many(found), strict=True))

    quick = options.quick
    n, length = (4, 62) if quick else BULK
    return Material(
        of("sentences", 64 if quick else options.sentences),
        of("mixed", 32 if quick else options.mixed),
        tuple(plain_texts(tokenizer, [length] * n)),
        alone=10 if quick else 40,
        seconds=0.5 if quick else options.seconds,
        requests=300 if quick else options.requests,
    )


def asked(server: Server, texts: Sequence[tuple[str, int]]) -> list[load.Question]:
    """A request for each text."""
    return [server.question(text, tokens) for text, tokens in texts]


# -- Loads of every server -------------------------------------------------------------------------------------


async def vectors(server: Server, port: int, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors of texts; RuntimeError if a request fails."""
    found = []
    async with load.clients(peer_servers.HOST, port, 1) as (client,):
        for text in texts:
            answer = await client.ask(server.question(text, 0))
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status} instead of a vector: {answer.body[:200]!r}")
            found.append(server.unit_vector(answer.body))
    return np.stack(found)


async def loads(
    server: Server, port: int, work: Material, equal_rate: float | None, progress: Progress
) -> dict[str, dict[str, Any]]:
    """The loads of every server, by name. ``equal_rate``: requests per second; None: ``SHARE`` of its own capacity."""
    sentences, mixed = asked(server, work.sentences), asked(server, work.mixed)
    found: dict[str, load.Outcome] = {}
    async with load.clients(peer_servers.HOST, port, CLIENTS) as clients:
        await load.closed(clients, sentences[:CLIENTS])
        progress.advance(1, "one client")
        found["alone"] = await load.closed(clients[:1], sentences[: work.alone])
        progress.advance(1, "32 clients")
        found["sentences"] = await load.closed(clients, sentences)
        progress.advance(1, "mixed lengths")
        found["mixed"] = await load.closed(clients, mixed)
        own = SHARE * found["sentences"].rate
        for name, rate in (("own", own), ("equal", own if equal_rate is None else equal_rate)):
            progress.advance(1, f"{rate:.1f} requests a second")
            found[name] = await load.opened(clients, itertools.cycle(sentences), rate, work.seconds)
    summaries = {name: outcome.summary() for name, outcome in found.items()}
    summaries["own"]["offered_per_s"] = own
    summaries["equal"]["offered_per_s"] = own if equal_rate is None else equal_rate
    return summaries


# -- Loads of firth serve alone --------------------------------------------------------------------------------


async def further(port: int, work: Material, capacity: float, progress: Progress) -> dict[str, dict[str, Any]]:
    """Overload, and a client with many long texts beside clients with one sentence each."""
    sentences, found = asked(FIRTH, work.sentences), dict[str, load.Outcome]()
    bulk = load.Question(FIRTH.path, json.dumps({"inputs": work.long}).encode())
    rates = {"overload": OVERLOAD * capacity, "quiet": INTERACTIVE_SHARE * capacity}
    rates["beside"] = rates["quiet"]
    async with load.clients(peer_servers.HOST, port, CLIENTS + 1) as (greedy, *clients):
        for name, rate in rates.items():
            progress.advance(1, name)
            asking = asyncio.create_task(load.closed([greedy], itertools.repeat(bulk) if name == "beside" else ()))
            found[name] = await load.opened(clients, itertools.cycle(sentences), rate, work.seconds)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    return {name: outcome.summary() | {"offered_per_s": rates[name]} for name, outcome in found.items()}


async def many(port: int, work: Material) -> dict[str, Any]:
    """The summary of ``requests`` to a tiny model."""
    endless = itertools.cycle(asked(FIRTH, work.sentences))
    async with load.clients(peer_servers.HOST, port, CLIENTS) as clients:
        await load.closed(clients, itertools.islice(endless, work.requests // 10))
        return (await load.closed(clients, itertools.islice(endless, work.requests))).summary()


def in_process(folder: Path, precision: str, work: Material) -> InProcess:
    """The same texts through ``model.embed`` in this process."""
    model = firth.load(folder, precision=precision)
    sentences, mixed = [text for text, _ in work.sentences], [text for text, _ in work.mixed]
    model.embed(sentences[:CLIENTS])

    def seconds(texts: Sequence[str]) -> float:
        started_s = time.perf_counter()
        model.embed(list(texts))
        return time.perf_counter() - started_s

    alone = [seconds([text]) for text in sentences[: work.alone]]
    tokens = [sum(n for _, n in texts) for texts in (work.sentences, work.mixed)]
    return InProcess(
        tokens[0] / seconds(sentences), tokens[1] / seconds(mixed), float(np.median(alone)) * 1e3,
    )  # fmt: skip


# -- The run ---------------------------------------------------------------------------------------------------


def matrix_rate() -> float:
    """Operations per second of the float32 matrix product: what this machine achieves at this time."""
    product = matrix_products()["matrix product, float32"]
    product.run()
    started_s = time.perf_counter()
    product.run()
    return product.flops / (time.perf_counter() - started_s)


@dataclass(eq=False)
class Run:
    """The results of one run so far. ``folder``: for models and the files that servers write."""

    options: Namespace
    folder: Path
    work: Material
    expected: np.ndarray
    progress: Progress

    def __post_init__(self) -> None:
        self.measured, self.notes, self.checks = list[Measured](), list[str](), list[dict[str, Any]]()
        self.versions: dict[str, str] = {}
        self.equal_rate: float | None = None

    def contest(self, name: str, server: Server, precision: str) -> None:
        """Measure one contestant; one that cannot run, or returns other vectors, is noted with the reason."""
        python = peer_servers.python_of(server, self.options.envs)
        if python is None:
            self.notes.append(f"{name}: left out, not installed.")
            return
        peak = matrix_rate()
        home = self.folder / name.replace("/", " ")
        try:
            with peer_servers.running(server, python, self.folder / "model", precision, home) as running:
                found = self._measure(name, server, precision, running, peak)
            self.versions |= peer_servers.versions(server, python)
        except (ServerError, RuntimeError) as error:
            self.notes.append(f"{name}: left out: {error}.")
            return
        if found is not None:
            self.measured.append(found)

    def _measure(self, name: str, server: Server, precision: str, running: Running, peak: float) -> Measured | None:
        ours, port = server is FIRTH, running.port
        found = load.run(vectors(server, port, self.work.probes))
        difference = float(np.linalg.norm(found - self.expected, axis=1).max())
        if not ours and not difference <= TOLERANCE:
            self.notes.append(f"{name}: left out: its vectors differ by {difference:.2g}.")
            return None
        self.checks.append(measure.check(name, difference, TOLERANCE))
        done = load.run(loads(server, port, self.work, self.equal_rate, self.progress))
        self.equal_rate = self.equal_rate or done["equal"]["offered_per_s"]
        if name == OURS["float32"]:
            done |= load.run(further(port, self.work, done["sentences"]["answered_per_s"], self.progress))
        memory, _ = memory_of_tree(running.pid)
        return Measured(name, precision, ours, running.ready_s, memory, peak, done)


def run(options: Namespace, folder: Path) -> Path:
    size = "tiny" if options.quick else options.size
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    write_folder(folder / "model", size, tokenizer)
    write_folder(folder / "tiny", "tiny", tokenizer)
    work = material_of(options, tokenizer)
    expected = firth.load(folder / "model").embed(work.probes)
    chosen = {
        name: contestant for name, contestant in CONTESTANTS.items()
        if not options.only or contestant[0] is FIRTH or any(part in name for part in options.only)
    }  # fmt: skip
    processes: dict[str, InProcess] = {}
    until_s = time.monotonic() + 60 * options.minutes
    with Progress("measuring", None, "loads") as progress:
        progress.advance(1, f"{work.requests:,} requests")
        with peer_servers.running(FIRTH, Path(sys.executable), folder / "tiny", "float32", folder / "many") as running:
            tiny = load.run(many(running.port, work))
        state = Run(options, folder, work, expected / np.linalg.norm(expected, axis=1, keepdims=True), progress)
        for name, (server, precision) in chosen.items():
            if precision == "bfloat16" and not has_fast_bfloat16():
                state.notes.append(f"{name}: left out, this CPU has no bfloat16 units.")
                continue
            if time.monotonic() > until_s:
                state.notes.append(f"{name}: left out, {options.minutes:g} minutes were over.")
                continue
            state.contest(name, server, precision)
            if name == OURS[precision]:
                processes[precision] = in_process(folder / "model", precision, work)
    return write(options, size, state, processes, tiny)


def write(options: Namespace, size: str, state: Run, processes: Mapping[str, InProcess], tiny: dict[str, Any]) -> Path:
    """Write the record."""
    work, peaks = state.work, [each.peak for each in state.measured]
    totals = {"sentences": sum(n for _, n in work.sentences), "mixed": sum(n for _, n in work.mixed)}
    where = "SST-2 and SQuAD" if material.real(options.data) else "made-up words in the lengths of SST-2 and SQuAD"
    first = state.measured[0]
    return measure.write(
        "serve",
        title=f"Servers under load: BERT-{size}",
        target="",
        about=f"Each server answers with the vector of one text. {CLIENTS} clients ask as soon as they are answered: "
        f"{len(work.sentences)} sentences ({totals['sentences']:,} tokens), then {len(work.mixed)} texts of mixed "
        f"lengths ({min(n for _, n in work.mixed)} to {max(n for _, n in work.mixed)} tokens, {totals['mixed']:,} in "
        f"all; {where}). Then sentences arrive at random times (Poisson) for {work.seconds:g} s, at {SHARE:.0%} of the "
        f"server's own capacity, and at a rate that is equal for all, {SHARE:.0%} of the capacity of *{first.name}* "
        f"({first.loads['equal']['offered_per_s']:.1f} a second). Latencies count from when a request was due. "
        f"*Tuned*: {peer_servers.FORWARDS} requests compute at a time and share torch's threads, where FastAPI's pool "
        "would let 40. Servers run one after the other, each once, beside the client on the same cores; the matrix "
        f"product that was timed before each had between {min(peaks) / 1e9:,.0f} and {max(peaks) / 1e9:,.0f} GFLOP/s.",
        arguments=options,
        settings={
            "size": size, "clients": CLIENTS, "sentences": len(work.sentences), "mixed": len(work.mixed),
            "tokens": totals, "seconds": work.seconds, "requests": work.requests, "real": material.real(options.data),
        },
        checks=state.checks,
        tables=[
            comparison(state.measured, processes),
            latencies(state.measured),
            firth_alone(state.measured, processes, tiny),
            targets(state.measured, processes, tiny),
        ],
        notes=state.notes,
        peers=state.versions or None,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path | None:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--envs", type=Path, help="folder of the peers' environments; without it, Firth alone")
    parser.add_argument("--install", action="store_true", help="make these environments, and end")
    parser.add_argument("--only", nargs="*", default=[], help="contestants besides Firth whose names have one of these")
    parser.add_argument("--size", default="base", help="tiny, mini, small, medium, base, large")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further contestant begins")
    parser.add_argument("--sentences", type=int, default=320, help="sentences that 32 clients ask for")
    parser.add_argument("--mixed", type=int, default=80, help="texts of mixed lengths")
    parser.add_argument("--seconds", type=float, default=14.0, help="of each load at random times")
    parser.add_argument("--requests", type=int, default=20_000, help="to a tiny model")
    options = measure.parsed(parser, arguments)
    if options.install:
        if options.envs is None:
            parser.error("--install: where? expected --envs FOLDER")
        peer_servers.install(options.envs)
        return None
    with tempfile.TemporaryDirectory(prefix="firth-serve-") as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    main()
