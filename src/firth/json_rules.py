"""What Python's JSON parser accepts and RFC 8259 does not, or leaves undefined: duplicate keys, NaN and Infinity."""

from typing import Any

from firth.errors import printable


class JsonRuleError(ValueError):
    """What the text has, as the end of a sentence such as "the body has …"."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, as ``object_pairs_hook`` of ``json.loads``; JsonRuleError for a key that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise JsonRuleError(f"the key {printable(name)!r} twice in one object")
            seen.add(name)
    return found


def refuse_constant(name: str) -> Any:
    """Raise JsonRuleError for NaN and ±Infinity, as ``parse_constant`` of ``json.loads``."""
    raise JsonRuleError(f"{name}, which is not a JSON number")
