"""The memory of `firth serve` over 100,000 requests to a tiny model, in tenths, and while it warms up.

.venv/bin/python benchmarks/serve_memory.py      # about six minutes; --quick
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx2
import load
import measure
import peer_servers
import texts as material
from encode import write_folder
from peer_servers import FIRTH
from serve import resident_bytes

from firth.progress import Progress

CLIENTS, TENTHS, READINGS, SENTENCES = 32, 10, 10, 320
# Tenths of the requests that precede those that count.
WARM_UP = 1
MOST_GROWTH = 0.01
COLUMNS: measure.Columns = (
    ("name", "requests", "{}"),
    ("resident_mb", "resident, MB", "{:,.1f}"),
    ("most_mb", "at the most, MB", "{:,.1f}"),
    ("growth", "more than after the warm-up", "{:.2%}"),
    ("answered_per_s", "requests/s", "{:,.0f}"),
)


async def looked_at(port: int, questions: Sequence[load.Question], requests: int) -> list[dict[str, Any]]:
    """Rows of the server's memory over each tenth of the requests, and over the warm-up."""
    endless, rows, part = itertools.cycle(questions), list[dict[str, Any]](), requests // TENTHS
    async with load.clients(peer_servers.HOST, port, CLIENTS) as clients:
        with Progress("asking", (WARM_UP + TENTHS) * part, "requests") as progress:
            for number in range(1, WARM_UP + TENTHS + 1):
                found, seconds = list[float](), 0.0
                for _ in range(READINGS):
                    outcome = await load.closed(clients, itertools.islice(endless, part // READINGS))
                    progress.advance(part // READINGS)
                    if set(outcome.statuses) != {200}:
                        sys.exit(f"error: not every request was answered: {dict(outcome.statuses)}")
                    seconds += part // READINGS / outcome.rate
                    found.append(resident_bytes(httpx2.get(f"http://{peer_servers.HOST}:{port}/metrics").text) / 1e6)
                row = {"name": f"{number * part:,}", "resident_mb": fmean(found), "most_mb": max(found)}
                rows.append(row | {"answered_per_s": part / seconds})
                if number >= WARM_UP:
                    rows[-1]["growth"] = fmean(found) / rows[WARM_UP - 1]["resident_mb"] - 1
    return rows


def main(given: Sequence[str] | None = None) -> Path:
    parser = measure.arguments(str(__doc__).splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000, help="after the warm-up")
    options = measure.parsed(parser, given)
    requests = 300 if options.quick else options.requests
    tokenizer = material.tokenizer_for(options.data, 2000 if options.quick else material.VOCAB_SIZE)
    sentences = material.texts(options.data, "sentences", SENTENCES, tokenizer)
    with tempfile.TemporaryDirectory(prefix="firth-serve-") as place:
        folder = Path(place)
        write_folder(folder / "tiny", "tiny", tokenizer)
        with peer_servers.running(FIRTH, Path(sys.executable), folder / "tiny", "float32", folder / "home") as running:
            rows = load.run(looked_at(running.port, [FIRTH.question(text, 0) for text in sentences], requests))
    most = max(row["growth"] for row in rows[WARM_UP:])
    return measure.write(
        "serve-memory",
        title="The memory of a server",
        target=f"less than {MOST_GROWTH:.0%} more after 100,000 requests",
        about=f"`firth serve` with BERT-tiny in float32 and {CLIENTS} clients that ask for the vector of a sentence as "
        f"soon as they are answered, and all begin anew at every reading. A row has {READINGS} readings, their mean "
        f"and the most: batches come and go, and every ten seconds freed memory goes back to the system. After "
        f"{WARM_UP * requests // TENTHS:,} requests the mean grew by {most:.2%} at the most.",
        arguments=options,
        settings={"clients": CLIENTS, "sentences": len(sentences), "requests": requests, "warm_up": WARM_UP},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
