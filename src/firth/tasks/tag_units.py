"""What has a tag: the words of a text, or its characters, where entities begin and end inside words."""

import re
from collections.abc import Sequence
from dataclasses import replace
from unicodedata import category, is_normalized, normalize

from firth.metrics.tagging import entities
from firth.tasks.predictions import Entity
from firth.tasks.readers.files import Problems
from firth.tasks.tag_schemes import continued, scheme_of
from firth.text.records import Tagged

_LETTERS_OR_SIGN = re.compile(r"\w+|[^\w\s]")
_CHARACTER = re.compile(r"\S")
# Share of entities that begin or end inside a word up to which these are slips of an annotator.
_MOST_CUT = 0.05


def word_spans(text: str) -> list[tuple[int, int]]:
    """Split a raw text into words, for training and prediction alike: runs of letters and digits, other signs singly.

    A combining mark (of Devanagari, Thai, vocalised Arabic, decomposed accents) belongs to the character before it.
    """
    spans = list[tuple[int, int]]()
    for match in _LETTERS_OR_SIGN.finditer(text):
        start, end = match.span()
        if spans and spans[-1][1] == start:
            is_mark = category(text[start]).startswith("M")
            # Letters directly after a word of letters: a mark came between.
            if is_mark or (_is_letter(text[start]) and _is_letter(text[spans[-1][0]])):
                start = spans.pop()[0]
        spans.append((start, end))
    return spans


def character_spans(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """The characters of a text, or of a part, that are no white space; one that is decomposed (macOS) is one."""
    spans = [match.span() for match in _CHARACTER.finditer(text, start, len(text) if end is None else end)]
    if is_normalized("NFC", text):
        return spans
    found = list[tuple[int, int]]()
    for a, b in spans:
        if found and found[-1][1] == a and len(normalize("NFC", text[found[-1][0] : b])) == 1:
            a = found.pop()[0]
        found.append((a, b))
    return found


def unit_of(records: Sequence[Tagged]) -> str:
    """Whether tags belong to words or to characters."""
    words = (word for record in records for word in record.words)
    return "character" if all(len(word) == 1 or len(normalize("NFC", word)) == 1 for word in words) else "word"


def unit_of_entities(records: Sequence[Tagged]) -> str:
    """What to tag: characters where entities often begin or end inside a word, as before a Korean particle."""
    n_cut, n_entities, _ = _cut_entities(records)
    return "character" if n_cut > _MOST_CUT * n_entities else unit_of(records)


def in_units(records: Sequence[Tagged], unit: str, problems: Problems) -> list[Tagged]:
    """The records with a tag for each character, if characters are tagged.

    Notes entities that begin or end inside a word: only where they are known can the word be split there.
    """
    if unit_of(records) == "character":
        return list(records)
    n_cut, n_entities, shown = _cut_entities(records)
    if n_cut:
        does = (
            "each character is tagged" if unit == "character" else "the word is split there only if its tags are known"
        )
        problems.note(f"{n_cut:,} of {n_entities:,} entities begin or end inside a word, such as {shown}: {does}")
    return [by_character(record) for record in records] if unit == "character" else list(records)


def _cut_entities(records: Sequence[Tagged]) -> tuple[int, int, str]:
    """How many entities begin or end between two letters, of how many, and the first one in its word."""
    n_cut, n_entities, shown = 0, 0, ""
    if scheme_of(record.tags for record in records if record.tags is not None) == "plain":
        return n_cut, n_entities, shown
    for record in records:
        for _, first, last in entities(record.tags or ()):
            text, start, end = record.text, record.spans[first][0], record.spans[last - 1][1]
            n_entities += 1
            if any(0 < at < len(text) and _is_letter(text[at - 1]) and _is_letter(text[at]) for at in (start, end)):
                n_cut += 1
                if not shown:
                    whole = next(text[a:b] for a, b in word_spans(text) if a < end and start < b)
                    shown = f"{text[start:end]!r} in {whole!r}"
    return n_cut, n_entities, shown


def by_character(record: Tagged) -> Tagged:
    """The record with each character of its words by itself."""
    spans, tags = list[tuple[int, int]](), list[str]()
    for number, (start, end) in enumerate(record.spans):
        inside = character_spans(record.text, start, end)
        spans += inside
        if record.tags is not None:
            tag = record.tags[number]
            tags += [tag, *[continued(tag)] * (len(inside) - 1)]
    return replace(record, spans=tuple(spans), tags=None if record.tags is None else tuple(tags))


def _is_letter(character: str) -> bool:
    """Whether the pattern above matches a character as a letter or digit."""
    return character.isalnum() or character == "_"


def entities_of(record: Tagged, tags: Sequence[str], shares: Sequence[float], scheme: str) -> tuple[Entity, ...]:
    """The entities of a text whose words or characters are tagged in BIO; none for the scheme "plain"."""
    found = []
    for label, first, last in entities(tags) if scheme != "plain" else ():
        begin, end = record.spans[first][0], record.spans[last - 1][1]
        score = sum(shares[first:last]) / (last - first)
        found.append(Entity(label, begin, end, record.text[begin:end], score))
    return tuple(found)
