"""``firth models``."""

import json

from firth.systems import SIZES


def test_every_name_is_listed(firth) -> None:
    out = firth("models").out
    assert all(f"  {name} " in out for name in SIZES)
    assert "firth-mini-en" in out and "hub:google-bert/bert-base-uncased" in out and "make models" in out
    plain = json.loads(firth("models", "--json").out)
    assert [size["name"] for size in plain["sizes"]] == list(SIZES)
    assert plain["shipped"][0]["here"] in (True, False)
