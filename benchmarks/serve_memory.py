"""The memory of `firth serve` over 100,000 requests to a tiny model, at every tenth of them.

.venv/bin/python benchmarks/serve_memory.py      # about six minutes; --quick
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
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

CLIENTS, TENTHS, SENTENCES = 32, 10, 320
# Of the requests, before the first look: by then nearly every size of batch has had its kernels compiled.
WARM_UP = 0.5
MOST_GROWTH = 0.01
COLUMNS: measure.Columns = (
    ("name", "requests", "{}"),
    ("resident_mb", "resident, MB", "{:,.1f}"),
    ("growth", "more than at first", "{:.2%}"),
    ("answered_per_s", "requests/s", "{:,.0f}"),
)


async def looked_at(port: int, questions: Sequence[load.Question], requests: int) -> list[dict[str, Any]]:
    """A row for the server's memory after the warm-up, and one after each tenth of the requests."""
    endless, rows = itertools.cycle(questions), list[dict[str, Any]]()
    warm_up, part = round(WARM_UP * requests), requests // TENTHS
    async with load.clients(peer_servers.HOST, port, CLIENTS) as clients:
        with Progress("asking", warm_up + requests, "requests") as progress:
            for number, n in enumerate([warm_up, *[part] * TENTHS]):
                outcome = await load.closed(clients, itertools.islice(endless, n))
                progress.advance(n)
                if set(outcome.statuses) != {200}:
                    sys.exit(f"error: not every request was answered: {dict(outcome.statuses)}")
                resident_mb = resident_bytes(httpx2.get(f"http://{peer_servers.HOST}:{port}/metrics").text) / 1e6
                rows.append(
                    {
                        "name": f"{number * part:,}", "resident_mb": resident_mb,
                        "growth": resident_mb / rows[0]["resident_mb"] - 1 if rows else 0.0,
                        "answered_per_s": outcome.rate,
                    }
                )  # fmt: skip
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
    most = max(row["growth"] for row in rows)
    return measure.write(
        "serve-memory",
        title="The memory of a server",
        target=f"less than {MOST_GROWTH:.0%} more after 100,000 requests",
        about=f"`firth serve` with BERT-tiny in float32 and {CLIENTS} clients that ask for the vector of a sentence as "
        f"soon as they are answered. Before the first look there were {round(WARM_UP * requests):,} requests. At the "
        f"most memory was {most:.2%} above the first look.",
        arguments=options,
        settings={"clients": CLIENTS, "sentences": len(sentences), "requests": requests, "warm_up": WARM_UP},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
    )


if __name__ == "__main__":
    main()
