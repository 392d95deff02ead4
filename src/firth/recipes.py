"""What the recipes of pre-training and fine-tuning share: from a file, an object or arguments to checked plain data.

A recipe is resolved in one direction: its own keys (here), then the data it names, then the model. The recipe's keys
override what follows from these and the published defaults; ``firth.config.from_dict`` then makes the frozen object,
which is checked once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firth.config import override, read_toml, to_dict, unknown_key
from firth.errors import ConfigError
from firth.option_names import FOREIGN_KEYS

# Further keys of a recipe: ``{"train.seed": 2}`` or, as for ``--set``, ``["train.seed=2"]``.
Settings = Mapping[str, Any] | Sequence[str]


# The package's named recipes, stored beside their code; ``published`` consists of the keys' own defaults.
NAMED = {"small": Path(__file__).parent / "pretraining" / "small.toml", "published": None}


def read_recipe_file(path: str | Path) -> dict[str, Any]:
    """Read a recipe file as plain data; a name in ``NAMED`` always means the recipe of this package."""
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
    """Return a recipe as plain data, overridden by ``arguments`` (by dotted key), and its name for error messages.

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
    """Merge settings into plain data and check it: only known keys, tables where they belong, all required keys.

    ``kind``: the recipe's dataclass. ``needed``: required string keys, each with advice for when it is missing.
    """
    plain = override(dict(data), settings)
    known = [field.name for field in dataclasses.fields(kind)]
    for table in tables:
        if not isinstance(plain.setdefault(table, {}), dict):
            raise ConfigError(f"{where}: {table} must be a table of keys, not {plain[table]!r}")
    for key in plain:
        if key not in known:
            raise unknown_key(key, [*known, *(f"{t}.{k}" for t in tables for k in plain[t])], where, foreign)
    for key, advice in needed.items():
        if not isinstance(plain.get(key), str) or not plain[key]:
            raise ConfigError(f"{where}: key {key!r} is missing: {advice}")
    return plain


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; values of ``above`` take precedence."""
    found = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            found[key] = laid_over(below[key], above[key])
    return found
