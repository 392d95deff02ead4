"""Everything named on the pages exists: files, headings, recipe keys, commands, flags."""

import dataclasses
import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import CycloptsError, MissingArgumentError

from firth.cli.app import app
from firth.finetuning.recipe import Finetune
from firth.option_names import RENAMED_FLAGS
from firth.pretraining.recipe import Pretrain
from firth.systems import SYSTEMS
from firth.tasks.table import TASKS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
    ]
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```", re.DOTALL)


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text("utf-8")), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", title.strip().lower())
        found.add(plain.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_CODE.sub("", page.read_text("utf-8"))):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in slugs(file)):
            broken.append(target)
    assert broken == []


def keys_of(cls: typing.Any, prefix: str) -> set[str]:
    """The dotted keys of a dataclass and the tables in it."""
    found = set()
    hints = typing.get_type_hints(cls)
    for each in dataclasses.fields(cls):
        key, kind = f"{prefix}{each.name}", hints[each.name]
        found.add(key)
        for variant in filter(dataclasses.is_dataclass, (kind, *typing.get_args(kind))):
            found |= keys_of(variant, f"{key}.")
    return found


def recipe_keys() -> set[str]:
    """Every key that any recipe may have."""
    found = keys_of(Pretrain, "") | keys_of(Finetune, "")
    for row in SYSTEMS.values():
        found |= keys_of(row.config, "encoder.") | keys_of(row.objective_config, "objective.")
    for task in TASKS.values():
        found |= keys_of(task.config, "head.")
    return found


# Tensor names of models, on the pages about formats.
_TENSORS = {"encoder.layer", "encoder.weight", "head.bias", "head.weight"}
TABLES = "init|optim|train|data|encoder|head|adapt|masking|objective"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "decisions.md"], ids=names)
def test_recipe_keys_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    found = re.findall(rf"(?<![\w./])((?:{TABLES})(?:\.[a-z_0-9]+)+)(?=[=`\s,;])", text)
    files = {
        name
        for name in found
        if name.rpartition(".")[2] in ("tsv", "txt", "json", "jsonl", "gz", "en", "de", "py", "md")
    }
    tensors = {name for name in found if re.match(r"(encoder|head)\.\w+\.\w+\.|encoder\.\w+\.", name)} | _TENSORS
    known = recipe_keys() | files | tensors
    assert sorted(set(found) - known) == []


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_flags_have_their_names_of_now(page: Path) -> None:
    text = page.read_text("utf-8")
    old = sorted(flag for flag in RENAMED_FLAGS if re.search(rf"firth [^`\n]*{flag}\b", text))
    assert old == []


def test_scripts_and_examples_have_the_flags_of_now() -> None:
    found = []
    for folder in ("scripts", "deploy", "recipes", "benchmarks"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in ("", ".sh", ".toml", ".yaml", ".py"):
                text = path.read_text("utf-8")
                found += [
                    f"{path.relative_to(ROOT)}: {flag}"
                    for flag in RENAMED_FLAGS
                    if re.search(rf"firth[^`\n]* {flag}\b", text)
                ]
    assert found == []


def test_every_command_has_a_page() -> None:
    commands = {name for name in app if not name.startswith("-")}
    assert commands == {path.stem for path in (ROOT / "docs" / "verbs").glob("*.md")}


_HISTORY = ("decisions.md",)
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'\n.*?\n\1\n", re.DOTALL)
_REDIRECTION = re.compile(r"\s(?:2?>>?|<)\s+\S+|\s&$")


def typed_commands(page: str) -> Iterator[str]:
    """The ``firth`` commands of a page's code blocks, without shell syntax."""
    for block in re.findall(r"^```\w*\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        text = _HERE_DOCUMENT.sub("\n", block.replace("\\\n", " "))
        for part in re.split(r"\n|\s\|\s|;\s|&&", text):
            if match := re.match(r"\s*(?:\S+=\S+\s+)*(?:\.venv/bin/)?firth\s(.*)", part):
                yield _REDIRECTION.sub("", match[1])


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_commands_of_code_blocks_are_complete(page: Path) -> None:
    """They exist, have all required arguments, and have only valid flags and values."""
    for command in typed_commands(page.read_text("utf-8")):
        try:
            app.parse_args(shlex.split(command, comments=True), exit_on_error=False, print_error=False)
        except CycloptsError as error:
            pytest.fail(f"firth {command}: {error}")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in _HISTORY], ids=names)
def test_commands_within_sentences_exist(page: Path) -> None:
    """Their flags exist too; a sentence may omit required arguments."""
    text = _CODE.sub("", page.read_text("utf-8"))
    for command in re.findall(r"`firth ([a-z][^`]*)`", text):
        if re.search(r"…|\.\.\.|\|", command):
            continue
        tokens = [token for token in shlex.split(_REDIRECTION.sub("", command)) if token not in ("--help", "--version")]
        try:
            app.parse_args(tokens, exit_on_error=False, print_error=False)
        except MissingArgumentError:
            continue
        except CycloptsError as error:
            pytest.fail(f"firth {command}: {error}")


def test_commands_are_found_in_pages() -> None:
    page = (
        "```sh\nA=1 firth embed m --out a.npy \\\n  < a.txt > b\necho x | firth predict m && firth models\n"
        "cat > a <<'EOF'\nfirth none\nEOF\n```\n"
    )
    assert [" ".join(c.split()) for c in typed_commands(page)] == ["embed m --out a.npy", "predict m", "models"]
