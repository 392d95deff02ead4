"""Words and characters that have tags, and entities that begin or end inside words."""

import unicodedata
from pathlib import Path

import pytest

from firth.tasks.items import words_of
from firth.tasks.readers.files import Problems
from firth.tasks.readers.tagging import read_tagged_jsonl
from firth.tasks.tag_units import character_spans, in_units, unit_of, unit_of_entities, word_spans
from firth.text.records import Tagged


def test_entities_inside_words_are_tagged_by_character(tmp_path: Path) -> None:
    lines = (
        '{"text": "김연아는 서울에서", "entities": [{"start": 0, "end": 3, "label": "PS"}, '
        '{"start": 5, "end": 7, "label": "LC"}]}\n'
    )
    (tmp_path / "a.jsonl").write_text(lines, "utf-8")
    records = list(read_tagged_jsonl(tmp_path / "a.jsonl", Problems()))
    assert unit_of(records) == "word" and unit_of_entities(records) == "character"
    problems = Problems()
    (record,) = in_units(records, "character", problems)
    assert "".join(record.words) == "김연아는서울에서"
    assert record.tags == ("B-PS", "I-PS", "I-PS", "O", "B-LC", "I-LC", "O", "O")
    assert problems.report() == [
        "2 of 2 entities begin or end inside a word, such as '김연아' in '김연아는': each character is tagged"
    ]
    assert in_units([record], "character", Problems()) == [record]
    assert [record.text[a:b] for a, b in words_of(record.text, "character").spans] == list(record.words)
    # One slip among many leaves words as they are, and is noted.
    whole = [Tagged("Anna sings", ((0, 4), (5, 10)), ("B-PER", "O"))] * 40
    assert unit_of_entities([*whole, *records]) == "word"
    problems = Problems()
    assert in_units([*whole, *records], "word", problems) == [*whole, *records]
    assert "the word is split there only if its tags are known" in problems.report()[0]


def test_a_decomposed_syllable_is_one_character() -> None:
    text = unicodedata.normalize("NFD", "김 é ab")
    assert [unicodedata.normalize("NFC", text[a:b]) for a, b in character_spans(text)] == ["김", "é", "a", "b"]
    assert unit_of([Tagged(text, tuple(character_spans(text)))]) == "character"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("किताब, हिन्दी", "किताब , हिन्दी"),
        ("ที่นี่.", "ที่นี่ ."),
        ("كِتَابٌ!", "كِتَابٌ !"),
        ("cafe\u0301s e\u0301te\u0301 x_1", "cafe\u0301s e\u0301te\u0301 x_1"),
        ("!\u0301a \u0301 ❤\ufe0f", "!\u0301 a \u0301 ❤\ufe0f"),  # a mark on a sign, and one on nothing
    ],
)
def test_marks_belong_to_the_word_they_stand_on(text: str, words: str) -> None:
    assert [text[a:b] for a, b in word_spans(text)] == words.split(" ")
