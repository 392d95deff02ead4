"""What a model's folder records about its training and the training data; no torch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from firth.errors import InputError
from firth.text.records import Record, Text

R = TypeVar("R", bound=Record)

# Key of a model's provenance: whether it learnt from pairs of texts (True) or from single ones (False).
PAIRS = "pairs"
# The part that computes BERT's summary vector of a text.
POOLER = "encoder.pooler"
_NEXT_SENTENCE = "objective.next_sentence"


def reads_pairs(records: Sequence[Any]) -> bool | None:
    """Whether examples are pairs of texts (True) or single texts (False); None if both, or no texts."""
    found = {_texts_of(record) for record in records}
    return found.pop() if len(found) == 1 else None


def learnt_columns(provenance: Mapping[str, Any]) -> str:
    """The columns of a model's training data; empty if they are not recorded."""
    recipe = provenance.get("recipe")
    data = recipe.get("data") if isinstance(recipe, Mapping) else None
    columns = data.get("columns") if isinstance(data, Mapping) else None
    return columns if isinstance(columns, str) else ""


def learnt_pairs(provenance: Mapping[str, Any]) -> bool | None:
    """Whether a model has learnt from pairs of texts (True) or from single ones (False); None if not recorded."""
    found = provenance.get(PAIRS)
    return found if isinstance(found, bool) else None


def pretrained_summary(system_name: str, provenance: Mapping[str, Any]) -> bool:
    """Whether pre-training trained an encoder's summary vector of a text: BERT's only with next-sentence prediction.

    True if nothing is known about it.
    """
    if not system_name.startswith("bert"):
        return True
    return system_name == "bert" and _next_sentence(provenance) is not False


def _next_sentence(provenance: Mapping[str, Any]) -> Any:
    """Whether pre-training predicted the next sentence; None if it is not known."""
    while provenance:  # a fine-tuned model records its base
        recipe = provenance.get("recipe", {})
        if _NEXT_SENTENCE in recipe:
            return recipe[_NEXT_SENTENCE]
        provenance = provenance.get("base", {}).get("provenance", {})
    return None


def trained_length(provenance: Mapping[str, Any]) -> int | None:
    """The longest sequences of a model's pre-training, in tokens; None if the folder does not record it."""
    while provenance:  # a fine-tuned model records its base
        recipe, base = provenance.get("recipe"), provenance.get("base")
        said = [recipe.get(f"data.{key}") for key in ("length", "long_length")] if isinstance(recipe, Mapping) else []
        if lengths := [n for n in said if isinstance(n, int) and n > 0]:
            return max(lengths)
        provenance = base.get("provenance", {}) if isinstance(base, Mapping) else {}
    return None


def check_pair(record: Record, pairs: bool | None) -> Record:
    """Return the record; InputError for one text if a model has learnt from two, or the reverse: half would be lost."""
    if (found := _texts_of(record)) is not None and found is not pairs is not None:
        raise InputError(_WRONG[found])
    return record


def check_each(records: Iterable[R], pairs: bool | None) -> Iterator[R]:
    """Yield the records of a file, each checked by ``check_pair``; an error names the place."""
    for record in records:
        try:
            check_pair(record, pairs)
        except InputError as error:
            raise InputError(f"{record.where}: {error}") from None
        yield record


_WRONG = {
    True: "a pair of texts, and the model has learnt from single texts: give it one, or name the column of the text, "
    "such as --columns text=COLUMN",
    False: 'a single text, and the model has learnt from pairs of texts: give it two, as {"text": …, "second": …} in '
    "JSON lines, or name their columns, such as --columns text=0,second=1",
}


def _texts_of(record: Record) -> bool | None:
    """Whether a record is a pair of texts (True) or a single one (False); None for neither."""
    return record.second is not None if isinstance(record, Text) else None


def check_pairs(records: Sequence[Record], pairs: bool | None) -> None:
    """Raise InputError if labelled records are pairs of texts but a model learnt from single ones, or the reverse."""
    if pairs is False:
        for _ in check_each(records, pairs):
            pass
    if pairs and records and all(isinstance(record, Text) and record.second is None for record in records):
        raise InputError(
            f"{records[0].where}: a single text, and the model has learnt from pairs of texts: name the columns of "
            "both, such as --columns text=0,second=1,label=2"
        )
