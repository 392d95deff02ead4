"""P8: start-up time: imports and ``--help``, each in a fresh process.

.venv/bin/python benchmarks/startup.py
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import measure

from firth.bench.measure import in_turn
from firth.bench.run import VOCAB_SIZE, bench_recipe, write_random_model
from firth.bench.synthetic import plain_corpus, plain_tokenizer

COMMANDS = {
    "import firth": ["-c", "import firth"],
    "firth --help": ["-m", "firth", "--help"],
    "import firth; firth.load": ["-c", "import firth; firth.load"],
    "firth fill-mask, one text, BERT-mini": ["-m", "firth", "fill-mask", "MODEL", "a [MASK] b"],
    "python": ["-c", ""],
    "import torch": ["-c", "import torch"],
    "import transformers": ["-c", "import transformers"],
    "from transformers import BertModel": ["-c", "from transformers import BertModel"],
    "import sentence_transformers": ["-c", "import sentence_transformers"],
}
COLUMNS: measure.Columns = (
    ("name", "", "{}"),
    ("seconds", "seconds", "{:.3f}"),
    ("least_s", "least", "{:.3f}"),
    ("most_s", "most", "{:.3f}"),
)


def starting(command: Sequence[str], place: Path) -> Callable[[], None]:
    """A function that runs the command in a new Python process to its end, in the folder ``place``."""

    def run() -> None:
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL, cwd=place)

    return run


def write_model(folder: Path) -> None:
    """A BERT-mini with random weights: how it answers does not matter here."""
    tokenizer = plain_tokenizer(VOCAB_SIZE)
    corpus = plain_corpus(folder / "corpus", tokenizer, 2_000)
    write_random_model(folder / "MODEL", bench_recipe("bert-mini", corpus, 4096), tokenizer)


def possible(name: str) -> bool:
    """Whether the packages that a line imports are installed."""
    wanted = [package for package in ("sentence_transformers", "transformers") if package in name]
    return not wanted or importlib.util.find_spec(wanted[0]) is not None


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    commands = {name: command for name, command in COMMANDS.items() if possible(name)}
    if options.quick:
        commands = {name: command for name, command in commands.items() if name in ("import firth", "firth --help")}
    with tempfile.TemporaryDirectory(prefix="firth-startup-") as place:
        if any("MODEL" in command for command in commands.values()):
            write_model(Path(place))
        works = {name: starting(command, Path(place)) for name, command in commands.items()}
        spreads = in_turn(works, options.repeats)
    rows = [
        {"name": name, "seconds": spread.median, "least_s": spread.least, "most_s": spread.most,
         "all_s": list(spread.seconds)}
        for name, spread in spreads.items()
    ]  # fmt: skip
    return measure.write(
        "startup",
        title="Until a program can begin",
        target="import firth in less than 0.2 s, firth --help in less than 0.4 s, one text in less than 2 s",
        about="A new Python each time, from its start to its end, files in memory already.",
        arguments=options,
        settings={},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
        notes=[f"{name}: left out, it is not installed." for name in COMMANDS if not possible(name)],
    )


if __name__ == "__main__":
    main()
