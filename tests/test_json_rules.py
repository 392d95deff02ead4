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
