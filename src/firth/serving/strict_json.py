"""JSON exactly as in RFC 8259: no NaN, no duplicate keys, no half of a surrogate pair, no unlimited nesting."""

import json
import math
from typing import Any

from firth.errors import InputError
from firth.json_rules import JsonRuleError, refuse_constant, unique_keys

_DEPTH = 32


def parse_json(data: bytes) -> Any:
    """Parse UTF-8 text; InputError says what is wrong with it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the body is not UTF-8: byte {error.start} is wrong") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_constant=refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from None
    except JsonRuleError as error:
        raise InputError(f"the body has {error}") from None
    except RecursionError:
        raise InputError(f"the body is nested more than {_DEPTH} levels deep") from None
    _check(value, 0)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InputError(f"the body has the number {text[:40]}, which is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:
        raise InputError(f"the body has an integer of {len(text)} digits")
    return int(text)


def _check(value: Any, depth: int) -> None:
    if depth > _DEPTH:
        raise InputError(f"the body is nested more than {_DEPTH} levels deep")
    if isinstance(value, dict):
        for name, item in value.items():
            _check(name, depth)
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError("the body has half of a surrogate pair in a string") from None
