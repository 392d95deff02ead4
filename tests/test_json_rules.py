"""Rules of RFC 8259 that Python's parser does not enforce."""

import json
from typing import Any

import pytest

from firth.json_rules import JsonRuleError, refuse_constant, unique_keys


def parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' twice in one object"),
        ("[NaN]", "NaN, which is not a JSON number"),
        ("-Infinity", "-Infinity, which is not a JSON number"),
    ],
)
def test_what_the_standard_forbids_is_named(text: str, found: str) -> None:
    with pytest.raises(JsonRuleError, match=found):
        parsed(text)


def test_one_key_in_two_objects_is_allowed() -> None:
    assert parsed('[{"a": 1}, {"a": {"a": null}}]') == [{"a": 1}, {"a": {"a": None}}]


class Counted(str):
    """A key that counts how often it is compared with another key."""

    n_compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.n_compared += 1
        return str.__eq__(self, other)


def test_a_key_twice_is_found_without_comparing_all_with_all() -> None:
    names = [Counted(n) for n in [*range(1000), 999]]
    with pytest.raises(JsonRuleError, match="'999' twice"):
        unique_keys([(name, None) for name in names])
    assert Counted.n_compared < 10 * len(names)
