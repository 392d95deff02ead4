"""A server under load: latency and goodput at shares of its capacity, by an open-loop Poisson client.

.venv/bin/python benchmarks/serve.py MODEL [--seconds 8] [--tokens 16] [--shares 0.3 0.7 3]

Starts ``firth serve MODEL`` on loopback. First 32 connections ask as fast as they are answered: that is the capacity.
Then requests arrive at random times (Poisson) at shares of it, whether or not earlier ones are answered. A latency
counts from the time at which a request was due, not from when it was sent: a server that stalls is charged for all
that would have come meanwhile (no coordinated omission). Figures of one run are for comparison with one another.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np

CONNECTIONS = 32
TEXT = "the old farmer walked to a green hill near our river before winter came and never forgot it"


@dataclass
class Outcome:
    """Of one load: answers by status, and seconds from when each was due, of answered and of refused ones."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    answered_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    def note(self, status: int, latency_s: float) -> None:
        self.statuses[status] += 1
        (self.answered_s if status == 200 else self.refused_s).append(latency_s)

    def summary(self) -> dict[str, Any]:
        """Answers a second, and percentiles in milliseconds."""
        found: dict[str, Any] = {"answered_per_s": len(self.answered_s) / self.seconds, "statuses": dict(self.statuses)}
        for name, values in (("answered", self.answered_s), ("refused", self.refused_s)):
            if values:
                p50, p99 = np.percentile(values, (50, 99)) * 1e3
                found |= {f"{name}_p50_ms": round(float(p50), 2), f"{name}_p99_ms": round(float(p99), 2)}
        return found


def bodies(n_tokens: int, rng: random.Random) -> bytes:
    """A text of about so many tokens, another one each time."""
    return json.dumps({"inputs": " ".join(rng.choices(TEXT.split(), k=n_tokens))}).encode()


async def closed(client: httpx2.AsyncClient, path: str, seconds: float, n_tokens: int) -> Outcome:
    """As many requests as are answered, from ``CONNECTIONS`` connections."""
    outcome, rng, begun_s = Outcome(), random.Random(0), time.monotonic()

    async def connection() -> None:
        while (due_s := time.monotonic()) < begun_s + seconds:
            response = await client.post(path, content=bodies(n_tokens, rng))
            outcome.note(response.status_code, time.monotonic() - due_s)

    await asyncio.gather(*[connection() for _ in range(CONNECTIONS)])
    outcome.seconds = time.monotonic() - begun_s
    return outcome


async def opened(client: httpx2.AsyncClient, path: str, rate: float, seconds: float, n_tokens: int) -> Outcome:
    """Requests at Poisson times, ``rate`` a second."""
    outcome, rng, begun_s = Outcome(), random.Random(1), time.monotonic()

    async def request(due_s: float) -> None:
        response = await client.post(path, content=bodies(n_tokens, rng))
        outcome.note(response.status_code, time.monotonic() - due_s)

    due_s, tasks = begun_s, list[asyncio.Task[None]]()
    while (due_s := due_s + rng.expovariate(rate)) < begun_s + seconds:
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        tasks.append(asyncio.create_task(request(due_s)))
    await asyncio.gather(*tasks)
    outcome.seconds = time.monotonic() - begun_s
    return outcome


def resident_bytes(metrics: str) -> float:
    """The server's memory, of its metrics."""
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("firth_resident_bytes "))


async def measure(address: str, path: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All loads, one after the other."""
    seconds, tokens = arguments.seconds, arguments.tokens
    limits = httpx2.Limits(max_connections=512, max_keepalive_connections=512)
    async with httpx2.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        await closed(client, path, min(seconds, 2), tokens)

        async def resident() -> float:
            return resident_bytes((await client.get("/metrics")).text)

        capacity = (await closed(client, path, seconds, tokens)).summary()
        found: dict[str, Any] = {"capacity": capacity | {"resident_mb": round(await resident() / 1e6, 1)}}
        for share in arguments.shares:
            load = await opened(client, path, share * capacity["answered_per_s"], seconds, tokens)
            summary = load.summary() | {"resident_mb": round(await resident() / 1e6, 1)}
            found.setdefault(f"{share:g} of capacity", []).append(summary)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--path", default="/predict", help="/embed for a model without labels")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--tokens", type=int, default=16, help="words in a text")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.3, 0.7, 3.0])
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "firth", "serve", f"model={arguments.model}", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = next((line for line in server.stderr if line.startswith(("serving ", "firth: "))), "it ended")
        if not line.startswith("serving "):
            raise SystemExit(line.strip())
        print(json.dumps(asyncio.run(measure(line.split(" at ")[1].strip(), arguments.path, arguments)), indent=2))
    finally:
        server.terminate()
        server.communicate()


if __name__ == "__main__":
    main()
