"""What a model's folder says of the data that it has learnt from; no torch."""

from collections.abc import Mapping
from typing import Any

from firth.errors import InputError
from firth.tasks.readers.texts import parse_columns
from firth.text.records import Record, Text

# Key of a model's provenance: whether it learnt from pairs of texts (True) or from single ones (False).
PAIRS = "pairs"


def learnt_columns(provenance: Mapping[str, Any]) -> str:
    """The columns of the data that a model has learnt from; empty where nothing says them."""
    recipe = provenance.get("recipe")
    data = recipe.get("data") if isinstance(recipe, Mapping) else None
    columns = data.get("columns") if isinstance(data, Mapping) else None
    return columns if isinstance(columns, str) else ""


def learnt_pairs(provenance: Mapping[str, Any]) -> bool | None:
    """Whether a model has learnt from pairs of texts (True) or from single ones (False); None where nothing says it."""
    found = provenance.get(PAIRS)
    if isinstance(found, bool):
        return found
    columns = learnt_columns(provenance)  # folders of earlier versions say no more
    return parse_columns(columns).second is not None if columns else None


def check_pair(record: Record, pairs: bool | None) -> Record:
    """The record; InputError for a pair of texts where a model has learnt from single ones: half would be lost."""
    if pairs is False and isinstance(record, Text) and record.second is not None:
        raise InputError(
            "a pair of texts, and the model has learnt from single texts: give it a text, or a list of texts"
        )
    return record
