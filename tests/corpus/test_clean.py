"""The rules that examine one document at a time: what each removes and what it keeps."""

import numpy as np
import pytest

from firth.corpus.clean import OPTIONAL, REASONS, Cleaning, code, document_reasons, paragraph_reasons
from firth.corpus.fingerprints import fingerprint
from firth.errors import ConfigError

ENGLISH = "The river was wide and it was the first of the two that he had to cross with the old farmer on that day."
GERMAN = "Der Fluss war breit, und es war der erste von den zwei Flüssen, die er mit dem alten Bauern nicht überquerte."
KOREAN = "그 강은 넓었고, 그가 늙은 농부와 함께 그날 건너야 했던 두 강 가운데 첫 번째였다."
JAPANESE = "その川は広く、彼が年老いた農夫とその日に渡らなければならなかった二つの川のうちの最初であった。"
CHINESE = "那條河很寬，是他和老農夫那天必須渡過的兩條河中的第一條。"
NAMES = {0: "", **{code(name): name for name in REASONS}}


def reasons_of(paragraphs: list[str], *rules: str) -> list[str]:
    found = paragraph_reasons(fingerprint([paragraphs]), rules or OPTIONAL)
    return [NAMES[number] for number in found.tolist()]


@pytest.mark.parametrize(
    ("paragraph", "reason"),
    [
        (ENGLISH, ""),
        (KOREAN, ""),
        (JAPANESE, ""),
        ("1998", ""),
        ("History.", ""),
        ('"Yes", he said - "no!"', ""),
        ("| Name | Year | Place |", "tables"),
        ("Name\tYear\tPlace\tSize", "tables"),
        ("either | or", ""),
        ("1998 2001 2004 2010, 3 of 4", "numbers"),
        ("In 1998, 2001, 2004 and 2010 it was closed.", ""),
        ("f(x) = {a_1^2 + b_2^2} / [c-d] * (x + y)", "symbols"),
        ("for (i=0;i<n;++i) { x[i] += *(y++); }", "symbols"),
    ],
)
def test_a_paragraph_by_itself(paragraph: str, reason: str) -> None:
    assert reasons_of([ENGLISH, paragraph, ENGLISH]) == ["", reason, ""]
    kept = [name for name in OPTIONAL if name != reason]
    assert reasons_of([ENGLISH, paragraph, ENGLISH], *kept) == ["", "", ""]


def test_a_list_is_a_run_of_five() -> None:
    items = ["Apples and pears", "• Oranges.", "Plums (ripe)", "사과와 배", "Cherries"]
    assert reasons_of([ENGLISH, *items, ENGLISH]) == ["", *["lists"] * 5, ""]
    assert reasons_of([ENGLISH, *items[:4], ENGLISH, *items[:4]]) == [""] * 10
    assert reasons_of(["History.", "A word", ENGLISH] * 5) == [""] * 15


def test_verse_and_dialogue_are_no_lists() -> None:
    verse = [
        "Shall I compare thee to a summer's day?",
        "Thou art more lovely and more temperate:",
        "Rough winds do shake the darling buds of May,",
        "And summer's lease hath all too short a date:",
        "Sometime too hot the eye of heaven shines,",
        "And often is his gold complexion dimmed;",
    ]
    assert reasons_of(verse) == [""] * 6
    assert reasons_of(["“No.”", "“Yes!”", "“Why?”", "“Because…”", "“Ah.”", "“So.”"]) == [""] * 6


@pytest.mark.parametrize(
    "sentence", ["यह एक छोटा वाक्य है।", "هل هذه جملة قصيرة؟", "یہ ایک جملہ ہے۔", "Սա նախադասություն է։"]
)
def test_sentences_of_other_scripts_are_no_lists(sentence: str) -> None:
    assert reasons_of([sentence] * 6) == [""] * 6


def test_a_run_ends_with_its_document() -> None:
    block = fingerprint([["one", "two", "three"], ["four", "five", "six"]])
    assert not paragraph_reasons(block, OPTIONAL).any()


def test_documents_that_were_decoded_wrongly() -> None:
    block = fingerprint([[ENGLISH, "caf\ufffd"], ["caf\ufffd"], []])
    found = document_reasons(block, Cleaning(rules=("damaged",)))
    assert [NAMES[number] for number in found.tolist()] == ["", "damaged", ""]
    assert not document_reasons(block, Cleaning()).any()


TEXTS = {"en": ENGLISH, "de": GERMAN, "ko": KOREAN, "ja": JAPANESE, "zh": CHINESE}


@pytest.mark.parametrize("language", TEXTS)
def test_languages(language: str) -> None:
    found = document_reasons(fingerprint([[text] for text in TEXTS.values()]), Cleaning(languages=(language,)))
    assert [name for name, number in zip(TEXTS, found, strict=True) if not number] == [language]


def test_scripts_and_languages_add_up() -> None:
    block = fingerprint([[text] for text in TEXTS.values()])
    found = document_reasons(block, Cleaning(scripts=("hangul",), languages=("en",)))
    assert [name for name, number in zip(TEXTS, found, strict=True) if not number] == ["en", "ko"]
    found = document_reasons(block, Cleaning(scripts=("latin",)))
    assert {NAMES[number] for number in found.tolist()} == {"", "other-script"}
    assert found.tolist()[:2] == [0, 0] and np.all(found[2:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": ("near",)}, "no rule of cleaning called 'near'; known: damaged"),
        ({"scripts": ("roman",)}, "no script called 'roman'; known: latin"),
        ({"languages": ("xx",)}, "no language called 'xx'; known: ar"),
        ({"similarity": 0.1}, "similarity=0.1: expected 0.3 to 1"),
        ({"remove_overlap": True}, "--against"),
        ({"memory": 100}, "memory=100: expected at least"),
    ],
)
def test_options_that_cannot_be(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cleaning(**options)
