"""What the recipes of pre-training and fine-tuning share: from a file, an object or arguments to checked plain data.

A recipe is resolved in one direction: its own keys (here), then the data it names, then the model. What follows from
those, and published defaults, is laid under what the recipe says; ``firth.config.from_dict`` then makes the frozen
object, which is checked once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.config import override, read_toml, to_dict, unknown_key
from firth.errors import ConfigError
from firth.option_names import FOREIGN_KEYS

# Further keys of a recipe: ``{"train.seed": 2}``, or as ``--set`` has them, ``["train.seed=2"]``.
Settings = Mapping[str, Any] | Sequence[str]


# Recipes of this package that have a name, beside their code; the published one is what the keys' own defaults are.
NAMED = {"small": Path(__file__).parent / "pretraining" / "small.toml", "published": None}


def read_recipe_file(path: str | Path) -> dict[str, Any]:
    """A recipe file as plain data; a name of ``NAMED`` is always the recipe of this package."""
    if str(path) in NAMED:
        named = NAMED[str(path)]
        return {} if named is None else read_toml(named)
    if not Path(path).suffix and not Path(path).exists():
        raise ConfigError(
            f"{path}: no such recipe; expected a file (.toml), or one of {', '.join(NAMED)}; "
            f"a model is given as --model {path}"
        )
    return read_toml(Path(path))


def plain_of(recipe: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """A recipe as plain data with ``arguments`` laid over it, by dotted key, and what errors call it.

    ``recipe``: a TOML file or the name of a recipe, a recipe object, plain data, or None. Arguments that are None were
    not given.
    """
    given = {key: str(value) if isinstance(value, Path) else value for key, value in arguments.items()}
    given = {key: value for key, value in given.items() if value is not None}
    if recipe is None:
        data, where = {}, "arguments"
    elif isinstance(recipe, str | Path):
        data, where = read_recipe_file(recipe), str(recipe)
    else:
        data, where = (to_dict(recipe) if dataclasses.is_dataclass(recipe) else dict(recipe)), "recipe"
    return override(data, given), where


def check_recipe(
    kind: type[Any],
    data: Mapping[str, Any],
    settings: Settings,
    where: str,
    *,
    tables: Sequence[str],
    needed: Mapping[str, str],
    foreign: Mapping[str, str] = FOREIGN_KEYS,
) -> dict[str, Any]:
    """Plain data with settings laid over it: known keys, a table wherever one belongs, and the keys that must be there.

    ``kind``: the recipe's dataclass. ``needed``: keys that are strings, each with advice for where it is missing.
    """
    plain = override(dict(data), settings)
    known = [field.name for field in dataclasses.fields(kind)]
    for key in plain:
        if key not in known:
            raise unknown_key(key, [*known, *(f"{t}.{k}" for t in tables for k in plain.get(t, ()))], where, foreign)
    for table in tables:
        if not isinstance(plain.setdefault(table, {}), dict):
            raise ConfigError(f"{where}: {table} must be a table of keys, not {plain[table]!r}")
    for key, advice in needed.items():
        if not isinstance(plain.get(key), str) or not plain[key]:
            raise ConfigError(f"{where}: key {key!r} is missing: {advice}")
    return plain


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one, table by table inside them too: what ``above`` says holds."""
    found = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            found[key] = laid_over(below[key], above[key])
    return found
