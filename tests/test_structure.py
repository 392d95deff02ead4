"""The rules of the source tree: which part may import which, what is public, what is forbidden."""

import ast
import builtins
import dis
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import hypothesis
import pytest

import firth

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "firth"

SOURCE_PAGE = ROOT / "docs" / "source.md"

# Parts that may import less than their row allows.
NARROWER = {
    "training": frozenset({"errors", "option_names", "config", "manifest", "files", "progress", "packed", "data"}),
}
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve"}
MOST_PUBLIC_NAMES = 30


def import_order(page: str) -> tuple[frozenset[str], ...]:
    """The rows of the page's table, each with the parts that its first column names in backquotes."""
    rows = re.findall(r"^\| (`[^|]*) \|", page, flags=re.MULTILINE)
    return tuple(frozenset(re.findall(r"`(\w+)`", row)) for row in rows)


# A part imports only parts from rows above its own; parts in one row do not import each other.
ORDER = import_order(SOURCE_PAGE.read_text(encoding="utf-8"))


def allowed(part: str) -> frozenset[str] | None:
    """The parts that ``part`` may import besides itself; None when ORDER does not know it."""
    if part in NARROWER:
        return NARROWER[part]
    lower: frozenset[str] = frozenset()
    for line in ORDER:
        if part in line:
            return lower
        lower |= line
    return None


def imported_names(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, ``from a import b`` as ``a.b``.

    ``package`` holds the names that leading dots stand for.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = (*start, *(node.module.split(".") if node.module else ()))
            yield from ((node.lineno, ".".join((*base, alias.name))) for alias in node.names)


def modules(source: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(source.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def import_violations(source: Path) -> list[str]:
    """One line per import under the package folder ``source`` that violates ORDER."""
    found = []
    for path, tree in modules(source):
        inside = path.relative_to(source)
        part = inside.parts[0].removesuffix(".py")
        if part == "__init__":  # the public names of the whole package
            continue
        may = allowed(part)
        if may is None:
            found.append(f"{inside}: {part} has no place in ORDER")
            continue
        for line, name in imported_names(tree, (source.name, *inside.parts[:-1])):
            top, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if top == source.name and target not in {part, "__version__", *may}:
                found.append(f"{inside}:{line}: {part} must not import {target or source.name}")
    return found


def unsafe_reads(source: Path) -> list[str]:
    """One line per place under ``source`` that can read a pickle."""
    found = []
    for path, tree in modules(source):
        where = path.relative_to(source)
        for line, name in imported_names(tree, ()):
            if name.partition(".")[0] in PICKLES or name == "torch.load":
                found.append(f"{where}:{line}: import of {name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                true_flags = {k.arg for k in node.keywords if ast.unparse(k.value) == "True"}
                if ast.unparse(node.func) == "torch.load" and "weights_only" not in true_flags:
                    found.append(f"{where}:{node.lineno}: torch.load without weights_only=True")
                if "allow_pickle" in true_flags:
                    found.append(f"{where}:{node.lineno}: allow_pickle=True")
    return found


def write_tree(folder: Path, files: dict[str, str]) -> Path:
    """A package folder ``firth`` with these files."""
    for name, text in files.items():
        path = folder / "firth" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "firth"


def test_no_generated_example_has_a_deadline() -> None:
    assert hypothesis.settings().deadline is None, "tests/conftest.py sets it: a busy machine fails no test"


def test_imports_go_to_the_left() -> None:
    assert import_violations(SOURCE) == []


def test_import_checker_accepts_what_is_right(tmp_path: Path) -> None:
    source = write_tree(
        tmp_path,
        {
            "__init__.py": "from firth.cli import main\n",
            "errors.py": "import os\n",
            "progress.py": "from firth import config, errors\n",
            "text/records.py": "from . import reading\nfrom ..errors import InputError\n",
            "training/trainer.py": "from firth.data.batch import Batch\nfrom firth.training import optim\n",
            "finetuning/run.py": "from firth.training.trainer import Trainer\nfrom firth import __version__\n",
        },
    )
    assert import_violations(source) == []


@pytest.mark.parametrize(
    ("name", "text", "bad"),
    [
        ("errors.py", "from firth.config import x", "config"),
        ("config.py", "import firth.progress", "progress"),
        ("text/a.py", "def f():\n    from firth.metrics import x", "metrics"),
        ("layers/a.py", "from ..models.bert import Bert", "models"),
        ("models/a.py", "from firth import data", "data"),
        ("training/a.py", "from firth.layers import x", "layers"),
        ("progress.py", "from firth.packed import Rows", "packed"),
        ("objectives/deep/a.py", "from ...training import x", "training"),
        ("cli/a.py", "from firth import load", "load"),
        ("pretraining/a.py", "import firth", "firth"),
    ],
)
def test_import_checker_finds_what_is_wrong(tmp_path: Path, name: str, text: str, bad: str) -> None:
    (violation,) = import_violations(write_tree(tmp_path, {name: text}))
    assert violation.startswith(f"{name}:") and violation.endswith(f" must not import {bad}")


def test_import_checker_knows_every_part(tmp_path: Path) -> None:
    source = write_tree(tmp_path, {"utils/a.py": ""})
    assert import_violations(source) == ["utils/a.py: utils has no place in ORDER"]


def test_public_names_are_few_sorted_and_importable() -> None:
    names = list(firth.__all__)
    assert names == sorted(set(names), key=str.casefold)
    assert 0 < len(names) <= MOST_PUBLIC_NAMES
    assert [name for name in names if not hasattr(firth, name)] == []


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    # Imported submodules become attributes of the package; they are not part of its public interface.
    shown = [
        name
        for name in dir(firth)
        if not name.startswith("_")
        and (name in firth.__all__ or not isinstance(sys.modules.get(f"firth.{name}"), ModuleType))
    ]
    assert sorted(shown, key=str.casefold) == [name for name in firth.__all__ if not name.startswith("_")]


def test_package_configuration_and_command_line_start_without_torch() -> None:
    names = ["firth"]
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("firth", *path.relative_to(SOURCE).with_suffix("").parts)
        if re.search(r"\.cli\.|(\.|_)config$", ".".join(parts)) and parts[-1] != "__main__":
            names.append(".".join(parts).removesuffix(".__init__"))
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'importing {name} imports torch')\n"
    )
    command = [sys.executable, "-c", program, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_source_page_names_every_part() -> None:
    parts = {
        p.name.removesuffix(".py")
        for p in SOURCE.iterdir()
        if p.name not in {"__init__.py", "__pycache__"} and (p.suffix == ".py" or any(p.rglob("*.py")))
    }
    named = [part for row in ORDER for part in row]
    assert sorted(named) == sorted(parts)


def test_import_order_is_read_from_the_table() -> None:
    page = "Text `no`.\n\n| parts | what |\n| --- | --- |\n| `a`, `b` | first `x` |\n| `c` | later |\n"
    assert import_order(page) == (frozenset({"a", "b"}), frozenset({"c"}))


def test_nothing_reads_pickles() -> None:
    assert unsafe_reads(SOURCE) == []


def test_pickle_checker_finds_every_way(tmp_path: Path) -> None:
    text = (
        "import pickle\nfrom pickle import load\nimport torch\n"
        "torch.load(p)\ntorch.load(p, weights_only=False)\ntorch.load(p, weights_only=True)\n"
        "np.load(p, allow_pickle=True)\nfrom torch import load\n"
    )
    found = unsafe_reads(write_tree(tmp_path, {"a.py": text}))
    assert sorted(int(line.split(":")[1]) for line in found) == [1, 2, 4, 5, 7, 8]


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports test files by their base names alone."""
    counts = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, n in counts.items() if n > 1] == []


def undefined_names(module: ModuleType, code: CodeType) -> Iterator[str]:
    """Global names that a module's functions read and nothing defines."""
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL" and name not in vars(module) and not hasattr(builtins, name):
            yield f"{module.__name__}, {code.co_name}: {name}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from undefined_names(module, constant)


def test_no_function_reads_a_name_that_nothing_defines() -> None:
    """The linter cannot check this: to it, the shape letters in annotations are undefined names."""
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.name == "__main__.py":
            continue
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        found += undefined_names(module, compile(path.read_bytes(), path, "exec"))
    assert found == []


def test_an_undefined_name_is_found() -> None:
    code = compile("def f():\n    return [Path(x) for x in len('a')]", "m.py", "exec")
    assert list(undefined_names(ModuleType("m"), code)) in (["m, f: Path"], ["m, <listcomp>: Path"])
