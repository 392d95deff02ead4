"""Split and sample labelled data by hashing: the same on every machine, whatever the order of the records."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from unicodedata import normalize

from firth.data.hashing import seed_of
from firth.errors import ConfigError, InputError
from firth.text.records import Choice, Question, Record, Tagged, Text

R = TypeVar("R", bound=Record)
# Share of the examples above which held-out groups are chosen by size.
_MOST_HELD = 0.25


def hold_out(records: Sequence[R], share: float = 0.1) -> tuple[list[R], list[R]]:
    """Split records into (training, held out): hold out about ``share`` of them, with at least one on each side.

    Records of one group, and records without a group whose texts are equal, stay together (see also
    ``is_divided``). Whole groups are held out in the order of their hash until the share is reached, or
    smallest first if that would be more than a quarter of all records; both sides keep the given order.
    """
    if not 0.0 < share < 1.0:
        raise ConfigError(f"share={share}: expected more than 0 and less than 1")
    if len(records) == 1:
        raise InputError(
            "there is 1 example: holding one out requires at least two; use more examples (of tagged text: an empty "
            "line after each sentence), or select on a dev file: --set data.choose_on=dev"
        )
    keys = [split_key]
    if any(isinstance(record, Question | Choice) for record in records):
        # One article is divided by its passages, and one passage by its examples.
        keys += [_passage_key, content_key]
    for key_of in keys:
        sizes = Counter(map(key_of, records))
        if len(sizes) > 1:
            break
    else:
        one = "of one dialogue or document" if any(record.group for record in records) else "of the same text"
        raise InputError(
            f"{len(records)} examples are all {one}: holding one out requires at least two; "
            "use more examples, or select on a dev file: --set data.choose_on=dev"
        )
    n = max(1, round(share * len(records)))
    held = _first_keys(sizes, n, seed_of("hold out"), most=len(sizes) - 1)
    if sum(sizes[key] for key in held) > max(2 * n, _MOST_HELD * len(records)):
        # A few long documents: the smallest ones leave more to learn from.
        held, n_held = set[str](), 0
        for key in sorted(sizes, key=lambda key: (sizes[key], seed_of("hold out", key), key)):
            if len(held) == len(sizes) - 1 or n_held >= n:
                break
            held.add(key)
            n_held += sizes[key]
    return [r for r in records if key_of(r) not in held], [r for r in records if key_of(r) in held]


def is_divided(train: Sequence[Record], held: Sequence[Record]) -> bool:
    """Whether ``hold_out`` had to divide a group of questions, since there was no other."""
    return not set(map(split_key, train)).isdisjoint(map(split_key, held))


def limit(records: Sequence[R], n: int, seed: int) -> list[R]:
    """Sample ``n`` of the records (all if there are fewer) by hash, in the given order.

    Groups are taken whole until ``n`` is reached, so there may be a few more; of records without a group
    exactly ``n`` are taken.
    """
    if n < 1:
        raise ConfigError(f"limit={n}: expected at least 1")
    units, seen = [], Counter[str]()
    for record in records:
        key = split_key(record)
        seen[key] += 1
        units.append(key if record.group else f"{key}/{seen[key]}")
    taken = _first_keys(Counter(units), n, seed, most=len(units))
    return [record for record, unit in zip(records, units, strict=True) if unit in taken]


def split_key(record: Record) -> str:
    """The key that is hashed to place a record: records with equal keys stay together."""
    if record.group:
        return f"group/{record.group}"
    return _passage_key(record)


def numbers_by(records: Sequence[R], key: Callable[[R], str]) -> dict[str, list[int]]:
    """The indices of the records with each key."""
    found: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        found.setdefault(key(record), []).append(number)
    return found


def _passage_key(record: Record) -> str:
    """The text of a record: all questions about a passage, and all choices about one, stay together."""
    passage = record.context if isinstance(record, Question) else record.text if isinstance(record, Choice) else ""
    return f"text/{normalize('NFC', passage)}" if passage else content_key(record)


def content_key(record: Record) -> str:
    """The content of an example without its answer: equal for equal examples."""
    match record:
        case Text():
            said = f"{record.text}/{record.second or ''}"
        case Tagged():
            said = record.text
        case Question():
            said = f"{record.context}/{record.question}"
        case Choice():
            said = f"{record.text}/{record.question}/{record.choices}"
    # Composed and decomposed Hangul are one text.
    return f"text/{normalize('NFC', said)}"


def _first_keys(sizes: Mapping[str, int], n: int, seed: int, most: int) -> set[str]:
    """Keys in the order of their hash until they cover ``n`` records, at most ``most`` keys."""
    keys, n_taken = set[str](), 0
    for key in sorted(sizes, key=lambda key: (seed_of(seed, key), key)):
        if n_taken >= n or len(keys) == most:
            break
        keys.add(key)
        n_taken += sizes[key]
    return keys
