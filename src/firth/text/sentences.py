"""Split paragraphs into sentences by rule, for English and Korean (and other text with the same marks)."""

import re
from unicodedata import normalize

_CLOSERS = "\"'”’»›」』)]）】》〉"
_OPENERS = "\"'“‘«‹「『([（【《〈¿¡"
_FULL_WIDTH = "。！？｡"
# Sentence ends of Devanagari, Arabic, Urdu, Armenian and Ethiopic.
_OTHER_ENDS = "।॥؟۔։።"

# A possible end of a sentence: marks, closing quotes or brackets, then a gap or the next character directly.
_CANDIDATE = re.compile(rf"([.!?…{_FULL_WIDTH}{_OTHER_ENDS}]++)([{re.escape(_CLOSERS)}]*+)(\s*+)")
_LOOK_BACK = 64  # characters needed to recognise an abbreviation or number; the bound keeps hostile text linear


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name or number always follows these.
_TITLES = _words(
    "mr mrs ms dr prof st rev hon gen col maj capt cmdr lt sgt cpl pvt adm gov sen rep pres supt messrs mme "
    "mlle fr vs cf viz e.g i.e al ca approx mt ft"
)
# Abbreviations if a number follows, otherwise words.
_BEFORE_NUMBER = _words(
    "no nos fig figs eq vol vols pp p ch sec art op jan feb mar apr jun jul aug sep sept oct nov dec"
)
# These may also end a sentence if followed by a word that often starts one.
_EITHER = _words("etc inc ltd co corp bros jr sr dept univ assn est ed eds ave blvd rd")
_STARTERS = _words(
    "The A An This That These Those He She It We They I You His Her Its Our Their My In On At By For From "
    "With After Before During When While If As But And Or So Yet However There Here What Who Why How Some "
    "Many Most Although Though Since Because Then Thus Also Another Both Each One"
)
_DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]|(?:[A-Z]\.?-)?[A-Z]")
_NEXT_WORD = re.compile(r"[^\W\d_]+")
_DATE = re.compile(r"\d{4}\.\s*\d{1,2}(?:\.\s*\d{1,2})?$")

# Letters of the longest decomposed syllable, and characters needed to recognise a quoting particle.
_SYLLABLE, _LOOK_AHEAD = 3, 12
_KOREAN_ENDINGS = frozenset("다요까죠")
_KOREAN_QUOTING = ("라고", "라며", "라는", "하고", "이라고", "이라며", "고 ", "며 ")


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, in order; only white space between them is lost.

    A paragraph of one sentence is returned unchanged; a blank one gives no sentences.
    """
    sentences: list[str] = []
    start = 0
    for match in _CANDIDATE.finditer(paragraph):
        if match.end() < len(paragraph) and _ends_sentence(paragraph, start, match):
            sentences.append(paragraph[start : match.end(2)].strip())
            start = match.end()
    if start == 0:
        return [paragraph] if paragraph.strip() else []
    sentences.append(paragraph[start:].strip())
    return sentences


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    marks, closing, gap = match.groups()
    following = text[match.end()]
    if not gap:
        return _ends_without_gap(text, match, following)
    if not _can_begin(text, match.end(), following):
        return False
    if closing and normalize("NFC", text[match.end() : match.end() + _LOOK_AHEAD]).startswith(_KOREAN_QUOTING):
        return False
    if marks != "." or closing:
        return True
    return _full_stop_ends(text, start, match, following)


def _ends_without_gap(text: str, match: re.Match[str], following: str) -> bool:
    """Whether a sentence ends without a space after it, as in Chinese and Japanese, and often in Korean text."""
    marks, closing, _ = match.groups()
    if marks[-1] in _FULL_WIDTH:
        # Directly after a closing quote, the surrounding sentence may continue.
        return not closing and (following.isalnum() or following in _OPENERS)
    if closing or not _is_hangul(following):
        return False
    before = normalize("NFC", text[max(match.start() - _SYLLABLE, 0) : match.start()])
    return before[-1:] in _KOREAN_ENDINGS


def _is_hangul(character: str) -> bool:
    """Whether a character is a syllable, or the first letter of a decomposed one (NFD, as macOS writes text)."""
    return "가" <= character <= "힣" or "\u1100" <= character <= "\u1112"


def _can_begin(text: str, at: int, following: str) -> bool:
    if following in _OPENERS:
        while at < len(text) and text[at] in _OPENERS:
            at += 1
        if at == len(text):
            return False
        following = text[at]
    return following.isalnum() and not following.islower()


def _full_stop_ends(text: str, start: int, match: re.Match[str], following: str) -> bool:
    """Whether one full stop before a gap ends a sentence, rather than an abbreviation or a number."""
    stop = match.start()
    start = max(start, stop - _LOOK_BACK)
    before = text[start:stop].rsplit(maxsplit=1)
    if not before:
        return False
    word = before[-1].lstrip(_OPENERS)
    if word.isdecimal():
        # "1. Introduction", "1924. 10. 1.", but not "in 1924. The".
        return len(before) > 1 and not following.isdecimal() and not _DATE.search(text, start, stop)
    lower = word.lower()
    if lower in _TITLES:
        return False
    if lower in _BEFORE_NUMBER:
        return not following.isdecimal()
    if lower in _EITHER or _DOTTED.fullmatch(word):
        next_word = _NEXT_WORD.match(text, match.end())
        return next_word is not None and next_word.group() in _STARTERS
    return True
