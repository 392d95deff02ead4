"""Write docs/recipe-keys.md from the dataclasses of recipes, so that no key, default or meaning is typed by hand.

.venv/bin/python scripts/recipe_keys.py
"""

import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firth.finetuning.recipe import Finetune
from firth.pretraining.recipe import Pretrain
from firth.systems import SYSTEMS
from firth.tasks.table import TASKS

OUT = Path("docs/recipe-keys.md")
HEAD = """# Recipe keys

Every key of a recipe, with its values, default and meaning. Set one with `--set KEY=VALUE`, or write it to a TOML file:
`optim.learning_rate` is `learning_rate` in the table `[optim]`. `--show-recipe` prints a command's complete recipe.

The defaults here are those of a key alone. A system, a task or a head preset has values of its own for some:
pre-training uses the recipe `small` for BERT sizes below base ([why](learning.md)), fine-tuning starts from the
published settings of the model's system.
"""


def write_page() -> str:
    """Write the page as Markdown."""
    parts = [HEAD, "## Pre-training", _table(Pretrain, "")]
    parts += _sections(Pretrain, "Pre-training")
    parts.append("### `encoder`, by system")
    for title, config in _by_class({name: row.config for name, row in SYSTEMS.items()}):
        parts += [f"{title}:", _table(config, "encoder.")]
    parts.append("### `objective`, by system")
    for title, config in _by_class({name: row.objective_config for name, row in SYSTEMS.items()}):
        rows = _table(config, "objective.")
        parts.append(f"{title}:\n\n{rows}" if dataclasses.fields(config) else f"{title}: none.")
    parts += ["## Fine-tuning", _table(Finetune, "")]
    parts += _sections(Finetune, "Fine-tuning")
    parts.append("### `head`, by kind of task")
    for title, config in _by_class({name: row.config for name, row in TASKS.items()}):
        parts += [f"{title}:", _table(config, "head.")]
    windows, networks = _parts_of_heads()
    parts += ["### `head.windows`", _table(windows, "head.windows.")]
    parts.append("### `head.network`, by `head.network.kind`")
    for network in networks:
        kind = next(field.default for field in dataclasses.fields(network) if field.name == "kind")
        parts += [f"`{kind}`:", _table(network, "head.network.")]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _sections(recipe: type, title: str) -> list[str]:
    """A section for each table of a recipe whose keys do not depend on the system or task."""
    hints = typing.get_type_hints(recipe)
    found = []
    for field in dataclasses.fields(recipe):
        if dataclasses.is_dataclass(hints[field.name]):
            found += [f"### {title}: `{field.name}`", _table(hints[field.name], f"{field.name}.")]
    return found


def _by_class(configs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each class once, with the names that share it."""
    for config in dict.fromkeys(configs.values()):
        yield ", ".join(f"`{name}`" for name, other in configs.items() if other is config), config


def _parts_of_heads() -> tuple[Any, list[Any]]:
    """The class of windows, and those of networks."""
    windows, networks = None, {}
    for row in TASKS.values():
        hints = typing.get_type_hints(row.config)
        windows = hints.get("windows", windows)
        network = hints["network"]
        networks |= dict.fromkeys(typing.get_args(network) or (network,))
    return windows, list(networks)


def _table(config: Any, prefix: str) -> str:
    hints = typing.get_type_hints(config)
    rows = [
        (f"`{prefix}{field.name}`", _values(hints[field.name]), _default(field), field.metadata.get("comment", ""))
        for field in dataclasses.fields(config)
        if not _is_table(hints[field.name])
    ]
    lines = [("key", "values", "default", "meaning"), ("---",) * 4, *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def _is_table(kind: Any) -> bool:
    return kind is Any or any(map(dataclasses.is_dataclass, (kind, *typing.get_args(kind))))


def _values(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return f"list of {_values(typing.get_args(kind)[0])}"
    if isinstance(kind, types.UnionType):
        return " or ".join(_values(one) for one in typing.get_args(kind))
    return {bool: "`true`, `false`", int: "integer", float: "number", str: "text"}.get(kind, kind.__name__)


def _default(field: Any) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    value = field.default
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    OUT.write_text(write_page(), "utf-8")
