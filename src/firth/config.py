"""Convert frozen dataclasses to TOML or JSON and back, strictly, and apply typed overrides ``a.b=c``.

An unknown key is an error that names the nearest known one. Other tools' spellings are not
accepted, but the error gives Firth's name for the key. Nothing in this module imports torch.

The comment that ``--show-recipe`` prints beside a key is defined once, in the field's metadata:
``steps: int = option(1000, "optimizer steps")``.
"""

import copy
import dataclasses
import difflib
import errno
import json
import math
import os
import stat
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from firth.errors import ConfigError, InputError
from firth.option_names import FOREIGN_KEYS, RENAMED_KEYS

C = TypeVar("C")

# Maximum nesting depth of the tables and lists of a file. Ours have four levels.
_DEPTH = 64
_TOO_DEEP = f"nested more than {_DEPTH} levels deep"
# Integers must be smaller in magnitude: tensor libraries use 64 bits.
_INTEGERS = 1 << 63
# Maximum size of a configuration or a list of tokens; the largest known ones are a tenth of it.
_MOST_BYTES = 1 << 28
_STREAMS = (Path("/dev/fd"), Path("/proc/self/fd"))


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The valid range of a number. ``text``: what an error says was expected."""

    text: str
    holds: Callable[[float], bool]


COUNT = Bounds("at least 1 and less than 2^31", lambda x: 1 <= x < 1 << 31)
OPTIONAL_COUNT = Bounds("0 or more and less than 2^31", lambda x: 0 <= x < 1 << 31)
# For counts of parts that are built one by one, and for the sides of a matrix: bounded, so that the total size can be
# computed before anything is built.
DEPTH = Bounds("at least 1 and at most 1,000", lambda x: 1 <= x <= 1000)
WIDTH = Bounds("at least 1 and at most 1,000,000", lambda x: 1 <= x <= 1_000_000)
OPTIONAL_WIDTH = Bounds("0 or more and at most 1,000,000", lambda x: 0 <= x <= 1_000_000)
AMOUNT = Bounds("0 or more", lambda x: 0 <= x < math.inf)
# Standard deviation of initial weights, within the range of float32.
DEVIATION = Bounds("0 to 1,000,000", lambda x: 0 <= x <= 1_000_000)
POSITIVE = Bounds("more than 0", lambda x: 0 < x < math.inf)
SHARE = Bounds("a share, 0 to 1", lambda x: 0 <= x <= 1)
PART = Bounds("more than 0 and at most 1", lambda x: 0 < x <= 1)
FRACTION = Bounds("more than 0 and less than 1", lambda x: 0 < x < 1)
RATE = Bounds("at least 0 and less than 1", lambda x: 0 <= x < 1)


def option(default: Any, comment: str, bounds: Bounds | None = None) -> Any:
    """Declare a dataclass field with a default and the comment shown beside its key; see ``check_bounds``."""
    if isinstance(default, (list, dict)):
        raise TypeError("a default must be immutable: use a tuple")
    return dataclasses.field(default=default, metadata={"comment": comment, "bounds": bounds})


def required(comment: str, bounds: Bounds | None = None) -> Any:
    """Declare a dataclass field without a default, with the comment shown beside its key."""
    return dataclasses.field(metadata={"comment": comment, "bounds": bounds})


def check_bounds(config: Any, table: str = "") -> None:
    """Raise ConfigError for a number outside its field's bounds; ``table``: the recipe table, for the message."""
    for field in dataclasses.fields(config):
        bounds, value = field.metadata.get("bounds"), getattr(config, field.name)
        if bounds is not None and value is not None and not bounds.holds(value):
            raise ConfigError(f"{table and table + '.'}{field.name}={value}: expected {bounds.text}")


def unknown_key(key: str, known: Sequence[str], where: str, foreign: Mapping[str, str] = FOREIGN_KEYS) -> ConfigError:
    """Return the error for an unknown key; it names the nearest key, or Firth's name for another tool's spelling.

    ``known``: the keys of the same table. If Firth's name would belong to that table, it is suggested only if known.
    """
    if key in RENAMED_KEYS:
        return ConfigError(f"{where}: unknown key {key!r}: it is now called {RENAMED_KEYS[key]!r}")
    table, _, last = key.rpartition(".")
    here = foreign.get(last, key)
    its_table = here.rpartition(".")[0]
    if here != key and (here in known or its_table != table or here.startswith("--")):
        return ConfigError(f"{where}: unknown key {key!r}: here it is {here!r}")
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or difflib.get_close_matches(
        last, [name.rsplit(".", 1)[-1] for name in known], n=1, cutoff=0.6
    )
    hint = f": did you mean {near[0]!r}?" if near else f". Known keys: {', '.join(sorted(known))}"
    return ConfigError(f"{where}: unknown key {key!r}{hint}")


def _type_name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)).replace("typing.", "")


def _convert(value: Any, kind: Any, key: str, where: str, foreign: Mapping[str, str]) -> Any:
    """Convert ``value`` to ``kind``; ConfigError names the key and what was expected."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, int) and abs(value) >= _INTEGERS:
        raise ConfigError(f"{where}: {key}: expected a whole number below 2^63")
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {key} must be a table of keys, not {value!r}")
        return from_dict(kind, value, where, prefix=f"{key}.", foreign=foreign)
    if origin in (typing.Union, types.UnionType) and all(map(dataclasses.is_dataclass, arguments)):
        return _convert(value, _variant(value, arguments, key, where), key, where, foreign)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (a for a in arguments if a is not type(None))
        return _convert(value, inner, key, where, foreign)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{where}: {key} = {value!r}: expected one of {', '.join(map(repr, arguments))}")
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(v, arguments[0], f"{key}[{i}]", where, foreign) for i, v in enumerate(value))
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {key} = {value!r}: expected a finite number")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: {key} = {value!r}: expected {_type_name(kind)}")


def _variant(value: Any, variants: Sequence[Any], key: str, where: str) -> Any:
    """Choose among several dataclasses by a table's ``kind``, which is the default of each one's field of that name.

    A key that only other variants have is an error that names their kinds.
    """
    if isinstance(value, tuple(variants)):
        return type(value)
    by_kind = {variant.__dataclass_fields__["kind"].default: variant for variant in variants}
    names = ", ".join(map(repr, by_kind))
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} must be a table of keys with {key}.kind, one of {names}, not {value!r}")
    kind = value.get("kind", next(iter(by_kind)))
    if kind not in by_kind:
        raise ConfigError(f"{where}: {key}.kind = {kind!r}: expected one of {names}")
    for name in value:
        others = [repr(other) for other, variant in by_kind.items() if name in variant.__dataclass_fields__]
        if others and repr(kind) not in others:
            raise ConfigError(f"{where}: {key}.{name} is for {key}.kind={' or '.join(others)}, not {kind!r}")
    return by_kind[kind]


def from_dict(
    cls: type[C],
    data: Mapping[str, Any],
    where: str,
    *,
    prefix: str = "",
    kinds: Mapping[str, type] | None = None,
    foreign: Mapping[str, str] = FOREIGN_KEYS,
) -> C:
    """Build dataclass ``cls`` from plain data; unknown, missing and ill-typed keys are errors.

    ``where`` (a file name, ``--set``) and ``prefix`` (the table's dotted name) go into messages.
    ``kinds``: types of fields whose type depends on other values. ``foreign``: other tools' names for the keys.
    """
    hints = typing.get_type_hints(cls) | dict(kinds or {})
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # C is always a dataclass
    for key in data:
        if key not in fields:
            raise unknown_key(prefix + key, [prefix + name for name in fields], where, foreign)
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(data[name], hints[name], prefix + name, where, foreign)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}: key {prefix + name!r} is missing")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a dataclass to plain data for JSON or TOML; fields that are None (which TOML lacks) are omitted."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return to_dict(value)
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return value

    pairs = ((f.name, plain(getattr(config, f.name))) for f in dataclasses.fields(config))
    return {name: value for name, value in pairs if value is not None}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data, with or without a byte order mark.

    ConfigError names the file and line of a syntax error.
    """
    try:
        if is_open_stream(path):
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        else:
            data = read_whole(path)
        return _parse_toml(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except FileNotFoundError:
        hint = "" if path.suffix else f"; a model is given as --model {path}"
        raise ConfigError(f"{path}: no such recipe file{hint}") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder, expected a recipe file (.toml); a model is given as --model {path}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML to plain data of bounded depth; ValueError, for invalid TOML its TOMLDecodeError."""
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(data)
    return data


def _check_depth(data: Any) -> None:
    """Raise ValueError for data nested too deeply to print or copy safely."""
    level = [data]
    for _ in range(_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def to_toml(config: Any, *, comments: bool = False) -> str:
    """Format a dataclass as TOML; with ``comments``, each key is followed by its comment."""
    text = tomli_w.dumps(to_dict(config))
    if not comments:
        return text
    notes = _comments(config)
    lines, table = [], ""
    # Not splitlines: it would also split at other characters that a string may contain, such as U+0085.
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("[") and line.endswith("]") and " " not in line:
            table = line.strip("[]") + "."
        key = table + line.split(" = ", 1)[0] if " = " in line else ""
        lines.append(f"{line}  # {notes[key]}" if key in notes else line)
    return "\n".join(lines) + "\n"


def _comments(config: Any, prefix: str = "") -> dict[str, str]:
    notes = {}
    for field in dataclasses.fields(config):
        if "comment" in field.metadata:
            notes[prefix + field.name] = field.metadata["comment"]
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            notes |= _comments(value, f"{prefix}{field.name}.")
    return notes


def parse_override(text: str) -> tuple[list[str], Any]:
    """Parse ``"train.steps=100"`` to ``(["train", "steps"], 100)``; a value that is not TOML is a string."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text!r}: expected key=value, for example --set train.steps=100")
    try:
        value = _parse_toml(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    except ValueError as error:
        raise ConfigError(f"--set {key}: {error}") from None
    return key.strip().split("."), value


def override(data: dict[str, Any], settings: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """Apply settings to a copy of plain recipe data.

    ``settings``: ``{"a.b": c}``, or strings such as ``"a.b=c"``; one string is one setting.
    """
    result = copy.deepcopy(data)
    if isinstance(settings, str):
        settings = [settings]
    if isinstance(settings, Mapping):
        pairs = [(key.split("."), value) for key, value in settings.items()]
    else:
        pairs = [parse_override(text) for text in settings]
    for (*tables, last), value in pairs:
        target = result
        for name in tables:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise ConfigError(f"setting {'.'.join([*tables, last])!r}: {name!r} is a value, not a table")
        target[last] = copy.deepcopy(value)
    return result


def is_open_stream(path: Path) -> bool:
    """Whether a path names a stream that another command writes to this process, such as ``<(command)`` in a shell.

    It can be read only once; its writer already exists, unlike that of a named pipe, which may not.
    """
    return path == Path("/dev/stdin") or path.parent in _STREAMS


def read_whole(path: Path) -> bytes:
    """Read all bytes of a descriptive file: a configuration, a list of tokens.

    OSError if it is larger than any such file, or is a pipe, on which a read would wait for the writer.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, expected at most {_MOST_BYTES:,}", str(path))
        return file.read()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file, with or without a byte order mark; InputError if missing or invalid."""
    try:
        data = json.loads(read_whole(path).decode("utf-8-sig"))
        _check_depth(data)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except RecursionError:
        raise InputError(f"{path}: cannot be read as JSON: {_TOO_DEEP}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data
