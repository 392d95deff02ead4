"""Rewrite commands in messages as they must be typed here: where firth is, and how an extra is installed."""

import re
import shutil
import sys
from functools import cache, partial
from pathlib import Path

import firth.errors

_EXTRA = re.compile(r"pip install 'firth\[([a-z,]+)\]'")
# File readers name the option; on the command line it is a flag.
_COLUMNS = re.compile(r"(?<![-\w])columns (?=(?:text|second|label)=)")


def program() -> str:
    """How firth is called: by its name if PATH finds it, else by the path that was typed."""
    typed = sys.argv[0]
    if Path(typed).name != "firth":  # another program, such as python -m firth
        return "firth"
    found = shutil.which("firth")
    return "firth" if found is not None and Path(found).resolve() == Path(typed).resolve() else typed


def as_typed(text: str) -> str:
    """Rewrite the commands in a message as they must be typed here."""
    called = program()
    text = _EXTRA.sub(partial(_installed, program=called), _COLUMNS.sub("--columns ", text))
    return text if called == "firth" else _commands().sub(lambda _: f"{called} ", text)


@cache
def _commands() -> re.Pattern[str]:
    """Match the start of a command in a message: the program's name before the name of a command."""
    from firth.cli.app import app  # not at the top: its commands import this module

    verbs = "|".join(re.escape(name) for name in app if not name.startswith("-"))
    return re.compile(rf"(?<![\w./:-])firth (?=(?:{verbs})\b)")


def _installed(found: re.Match[str], program: str) -> str:
    """How an extra is installed: from the clone that contains the package, or by its name."""
    pip = "pip" if program == "firth" else str(Path(program).with_name("pip"))
    root = Path(firth.errors.__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        return f"{pip} install 'firth[{found[1]}]'"
    place = "." if root.resolve() == Path.cwd().resolve() else str(root)
    return f"{pip} install -e '{place}[{found[1]}]'"
