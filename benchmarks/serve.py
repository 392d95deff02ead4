"""A server under load: latency and goodput at shares of its capacity, by an open-loop Poisson client.

.venv/bin/python benchmarks/serve.py MODEL [--seconds 8] [--tokens 16] [--shares 0.3 0.7 3]

Starts ``firth serve MODEL`` on loopback. First, 32 clients send requests as fast as they are answered: that is the
capacity. Then requests arrive at random times (Poisson) at shares of it, whether or not earlier ones are answered.
Compare figures within one run only; ``serve_peers.py`` records a comparison with other servers.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx2
import load

CONNECTIONS = 32
TEXT = "the old farmer walked to a green hill near our river before winter came and never forgot it"


def questions(path: str, n_words: int, seed: int) -> Iterator[load.Question]:
    """Texts of about this many tokens, each different."""
    rng, words = random.Random(seed), TEXT.split()
    while True:
        body = json.dumps({"inputs": " ".join(rng.choices(words, k=n_words))}).encode()
        yield load.Question(path, body, n_words + 2)


def resident_bytes(metrics: str) -> float:
    """The server's memory, from its metrics."""
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("firth_resident_bytes "))


async def measure(address: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All loads, one after the other."""
    seconds, path, words = arguments.seconds, arguments.path, arguments.tokens
    place = urlsplit(address)
    assert place.hostname is not None and place.port is not None

    def resident_mb() -> float:
        return round(resident_bytes(httpx2.get(f"{address}/metrics").text) / 1e6, 1)

    async with load.clients(place.hostname, place.port, CONNECTIONS) as clients:
        await load.closed(clients, questions(path, words, 0), min(seconds, 2))
        capacity = await load.closed(clients, questions(path, words, 0), seconds)
        found: dict[str, Any] = {"capacity": capacity.summary() | {"resident_mb": resident_mb()}}
        for share in arguments.shares:
            outcome = await load.opened(clients, questions(path, words, 1), share * capacity.rate, seconds)
            summary = outcome.summary() | {"resident_mb": resident_mb()}
            found.setdefault(f"{share:g} of capacity", []).append(summary)
        return found


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--path", default="/predict", help="/embed for a model without labels")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--tokens", type=int, default=16, help="words in a text")
    parser.add_argument("--shares", type=float, nargs="*", default=[0.3, 0.7, 3.0])
    arguments = parser.parse_args(given)
    command = [sys.executable, "-m", "firth", "serve", f"model={arguments.model}", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = next((line for line in server.stderr if line.startswith(("serving ", "firth: "))), "it ended")
        if not line.startswith("serving "):
            raise SystemExit(line.strip())
        print(json.dumps(load.run(measure(line.split(" at ")[1].strip(), arguments)), indent=2))
    finally:
        server.terminate()
        server.communicate()


if __name__ == "__main__":
    main()
