"""P8: how long until a program can begin: imports and ``--help``, each in a fresh process.

.venv/bin/python benchmarks/startup.py
"""

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import measure

from firth.bench.measure import in_turn

COMMANDS = {
    "import firth": ["-c", "import firth"],
    "firth --help": ["-m", "firth", "--help"],
    "import firth; firth.load": ["-c", "import firth; firth.load"],
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


def starting(command: Sequence[str]) -> Callable[[], None]:
    """A function that runs the command in a new Python to its end."""

    def run() -> None:
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)

    return run


def possible(name: str) -> bool:
    """Whether what a line imports is installed."""
    wanted = [package for package in ("sentence_transformers", "transformers") if package in name]
    return not wanted or importlib.util.find_spec(wanted[0]) is not None


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    commands = {name: command for name, command in COMMANDS.items() if possible(name)}
    if options.quick:
        commands = {name: command for name, command in commands.items() if "firth" in name and "load" not in name}
    spreads = in_turn({name: starting(command) for name, command in commands.items()}, options.repeats)
    rows = [
        {"name": name, "seconds": spread.median, "least_s": spread.least, "most_s": spread.most,
         "all_s": list(spread.seconds)}
        for name, spread in spreads.items()
    ]  # fmt: skip
    return measure.write(
        "startup",
        title="Until a program can begin",
        target="P8, import firth in less than 0.2 s, firth --help in less than 0.4 s",
        about="A new Python each time, from its start to its end, files in memory already.",
        arguments=options,
        settings={},
        checks=[],
        tables=[measure.table("", COLUMNS, rows)],
        notes=[f"{name}: left out, it is not installed." for name in COMMANDS if not possible(name)],
    )


if __name__ == "__main__":
    main()
