"""Read tagged words or characters: CoNLL columns, CoNLL-U, JSONL, KLUE-NER, and plain text.

Readers return the tags of the file unchanged; ``in_bio`` detects their scheme, checks their order and
converts entities to BIO.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import name, normalize

from firth.errors import InputError
from firth.tasks.readers.files import (
    Problems,
    check_records,
    columns_text,
    kind_of,
    list_field,
    make_each,
    name_of,
    read_jsonl,
    read_lines,
    text_field,
)
from firth.tasks.readers.texts import composed
from firth.tasks.tag_schemes import OUTSIDE, find_violation, respelled, scheme_of, split_tag, to_bio
from firth.tasks.tag_units import word_spans
from firth.text.records import Tagged

DOCUMENT_START = "-DOCSTART-"
# A no-break space or an ideographic space belongs to its word.
_BLANKS = re.compile("[ \t]+")
# How the Unicode names of characters begin that are no words by themselves.
_SYLLABLES = ("HANGUL", "CJK", "HIRAGANA", "KATAKANA")
# Comments that tools write before a sentence, whatever the number of columns.
_COMMENTS = ("# id ", "# sent_id", "# text", "# newdoc")
_KLUE_HEADER = "##"


def in_bio(records: Iterable[Tagged], problems: Problems) -> list[Tagged]:
    """Convert entity tags to BIO (plain tags stay) and note the scheme detected.

    The scheme is detected over all sentences together. A sentence that breaks it goes to ``problems``.
    """
    kept = list(records)
    spelled = respelled(tag for record in kept for tag in record.tags or ())
    if example := max((tag for tag in spelled if tag != spelled[tag]), default=None):
        problems.note(f"tags such as {example} are read as {spelled[example]}")
        kept = [
            replace(record, tags=None if record.tags is None else tuple(spelled.get(tag, tag) for tag in record.tags))
            for record in kept
        ]
    scheme = scheme_of(record.tags for record in kept if record.tags is not None)
    problems.note(f"tags are {scheme}" + (", converted to BIO" if scheme in ("IOB1", "BIOES") else ""))
    if scheme == "plain" and {tag for record in kept for tag in record.tags or ()} <= {*"BIESO"}:
        problems.note("tags such as B and I are learned as plain ones: for entities write B-NAME, I-NAME and O")

    def make(record: Tagged) -> Tagged:
        if record.tags is None or scheme == "plain":
            return record
        problem = find_violation(record.tags, scheme)
        if problem:
            raise InputError(f"{record.where}: {problem} (the scheme of the file); correct the tags")
        return replace(record, tags=to_bio(record.tags, scheme))

    return list(make_each(kept, make, problems))


@dataclass(slots=True)
class _Block:
    """The lines of one sentence with their numbers, and the document (or the name) they belong to."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    group: str = ""
    id: str = ""


def _joined(words: list[str], glued: Collection[int] = ()) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Join words by spaces (none after those that are ``glued``); returns the text and the spans of its words.

    Single characters of Korean, Chinese and Japanese text are not words: they are joined as they are.
    """
    text, spans = "", []
    if _are_characters(words):
        glued = range(len(words))
    for i, word in enumerate(words):
        spans.append((len(text), len(text) + len(word)))
        text += word if i in glued or i == len(words) - 1 else word + " "
    return text, tuple(spans)


def _are_characters(tokens: Sequence[str]) -> bool:
    """Whether the tokens of a sentence are its characters: several single ones, and among them Hangul, Han or kana."""
    single = len(tokens) > 1 and all(len(token) == 1 or len(normalize("NFC", token)) == 1 for token in tokens)
    return single and any(name(normalize("NFC", token), "").startswith(_SYLLABLES) for token in tokens)


def _read_tag(tag: str, where: str) -> str:
    """A tag as labels are read; InputError if it is empty."""
    if not (found := composed(tag)):
        raise InputError(f"{where}: found no tag; add it")
    return found


# -- CoNLL -------------------------------------------------------------------------------------------------


def read_conll(
    path: Path, problems: Problems, *, word: int = 0, tag: int = -1, labelled: bool = True
) -> Iterator[Tagged]:
    """Read CoNLL: one word per line, a blank line after each sentence; tab-separated if the first line has a tab.

    Otherwise blanks and tabs separate columns. ``word`` and ``tag`` are column numbers from 0, or from -1 at the end. A
    ``-DOCSTART-`` line starts a document. A comment precedes the first word of a sentence and starts with "# ".
    """
    places = (word, tag if labelled else word)

    def make(sentence: _Columns) -> Tagged:
        rows = [_conll_row(f"{path}:{n}", columns, sentence.width, places) for n, columns in sentence.lines]
        text, spans = _joined([row[0] for row in rows])
        tags = tuple(_read_tag(found, where) for _, found, where in rows) if labelled else None
        return Tagged(text, spans, tags, rows[0][2], group=sentence.group)

    sentences = _without_numbers(path, _conll_sentences(path), word)
    return check_records(path, make_each(sentences, make, problems), problems)


@dataclass(slots=True)
class _Columns:
    """The lines of one sentence as columns, with line numbers; ``width``: number of columns of the first word."""

    lines: list[tuple[int, list[str]]]
    width: int
    group: str


def _conll_sentences(path: Path) -> Iterator[_Columns]:
    lines, group = list[tuple[int, list[str]]](), ""
    width, by_tab, numbered = _layout_of(read_lines(path))
    for number, line in numbered:
        if not line.strip() or line.startswith(DOCUMENT_START):
            if lines:
                yield _Columns(lines, width, group)
                lines = []
            group = f"{path.name}:{number}" if line.strip() else group
        elif not lines and _is_comment(line, width, by_tab):
            continue
        else:
            lines.append((number, _split(line, by_tab)))
    if lines:
        yield _Columns(lines, width, group)


def _without_numbers(path: Path, sentences: Iterable[_Columns], word: int) -> Iterator[_Columns]:
    """The same sentences; InputError if their words are numbers that count them, as in Naver's files and CoNLL-X.

    The first sentence of three words or more tells.
    """
    known = False
    for sentence in sentences:
        n = len(sentence.lines)
        if n > 2 and not known and sentence.width > 2 and -sentence.width <= word < sentence.width:
            known = True
            words = [columns[word] for _, columns in sentence.lines if len(columns) == sentence.width]
            if words in ([str(i) for i in range(n)], [str(i + 1) for i in range(n)]):
                raise InputError(
                    f"{path}:{sentence.lines[0][0]}: column {word} numbers the words, expected the words themselves; "
                    f"name the columns, such as word={word + 1},tag={sentence.width - 1}"
                )
        yield sentence


def _layout_of(lines: Iterator[tuple[int, str]]) -> tuple[int, bool, Iterator[tuple[int, str]]]:
    """The number of columns, whether tabs separate them, and all lines again.

    Read from the first line that is certainly a word: one that begins with "# " may be a comment.
    """
    ahead, width, by_tab = list[tuple[int, str]](), 0, False
    for number, line in lines:
        ahead.append((number, line))
        if line.strip() and not line.startswith((DOCUMENT_START, "# ")):
            by_tab = "\t" in line
            width = len(_split(line, by_tab))
            break
    return width, by_tab, chain(ahead, lines)


def _split(line: str, by_tab: bool) -> list[str]:
    return line.split("\t") if by_tab else _BLANKS.split(line.strip(" \t"))


def _is_comment(line: str, width: int, by_tab: bool) -> bool:
    """Whether a line is a comment: not the word "#", which has the usual columns and no "name = value".

    Where blanks separate columns, a tab marks a comment, such as MultiCoNER's id and domain.
    """
    if not line.startswith("# "):
        return False
    named = " = " in line or line.startswith(_COMMENTS) or ("\t" in line and not by_tab)
    return named or len(_split(line, by_tab)) != width


def _conll_row(where: str, columns: list[str], width: int, places: tuple[int, int]) -> tuple[str, str, str]:
    """(word, tag, where)."""
    if len(columns) != width:
        raise InputError(f"{where}: found {columns_text(len(columns))}, expected {width} as before; correct the line")
    n_needed = max(place + 1 if place >= 0 else -place for place in places)
    same = places[0] != places[1] and places[0] % width == places[1] % width
    if width < n_needed or same:
        raise InputError(
            f"{where}: found {columns_text(width)}, expected a word in column {places[0]} and its tag in column "
            f"{places[1]}; name the columns, or separate them by tabs or spaces"
        )
    word, tag = (columns[place].strip() for place in places)
    if not word:
        raise InputError(
            f"{where}: found an empty word; fill it in or remove the line; if each line has a character, name "
            "--format klue"
        )
    return word, tag, where


def read_conllu(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Tagged]:
    """Read CoNLL-U: sentences with the universal part-of-speech tag (UPOS) of each syntactic word.

    Multi-word tokens (``1-2``) and empty nodes (``1.1``) are skipped as the format defines: the
    words of the former follow, the latter are not in the text. ``# newdoc`` starts a document.
    """

    def make(block: _Block) -> Tagged:
        return _conllu_sentence(path, block, labelled)

    return check_records(path, make_each(_conllu_blocks(path), make, problems), problems)


def _conllu_blocks(path: Path) -> Iterator[_Block]:
    block, n_words = _Block(), 0
    for number, line in read_lines(path):
        if not line.strip():
            if n_words:
                yield block
                block, n_words = _Block(group=block.group), 0
            continue
        if line.startswith("# newdoc"):
            name = line.partition("=")[2].strip()
            block.group = name or f"{path.name}:{number}"
        n_words += not line.startswith("#")
        block.lines.append((number, line))
    if n_words:
        yield block


def _conllu_sentence(path: Path, block: _Block, labelled: bool) -> Tagged:
    words, tags, glued, sentence_id = list[str](), list[str](), set[int](), ""
    inside: tuple[int, bool, str] | None = None  # multi-word token: its last word, no space after it, its form
    for number, line in block.lines:
        where = f"{path}:{number}"
        if line.startswith("#"):
            sentence_id = line.partition("=")[2].strip() if line.startswith("# sent_id") else sentence_id
            continue
        columns = line.split("\t")
        if len(columns) != 10:
            raise InputError(
                f"{where}: found {columns_text(len(columns))}, expected the 10 of CoNLL-U, separated by tabs"
            )
        name, form, tag, space = columns[0], columns[1], columns[3], columns[9]
        if re.fullmatch(r"\d+\.\d+", name):
            continue
        if re.fullmatch(r"\d+-\d+", name):
            inside = (int(name.partition("-")[2]), "SpaceAfter=No" in space, form)
            continue
        if name != str(len(words) + 1):
            raise InputError(f"{where}: found the word number {name!r}, expected {len(words) + 1}; correct the numbers")
        words.append(form)
        if labelled:
            tags.append(_read_tag("" if tag == "_" else tag, where))
        if _is_glued(len(words), form, space, inside):
            glued.add(len(words) - 1)
        if inside and len(words) == inside[0]:
            inside = None
    first = next(number for number, line in block.lines if not line.startswith("#"))
    text, spans = _joined(words, glued)
    return Tagged(text, spans, tuple(tags) if labelled else None, f"{path}:{first}", sentence_id, block.group)


def _is_glued(number: int, form: str, space: str, inside: tuple[int, bool, str] | None) -> bool:
    """Whether no space follows a word; within a multi-word token, whether its form continues after the word."""
    if inside is None:
        return "SpaceAfter=No" in space
    last, glued_behind, whole = inside
    return glued_behind if number == last else form in whole


# -- JSONL -------------------------------------------------------------------------------------------------


def read_tagged_jsonl(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Tagged]:
    """Read objects of ``tokens`` and ``tags`` (or ``ner_tags``), or ``text`` and ``entities`` (start, end, label).

    A text is split into words at white space, punctuation and entity boundaries; ``end`` is
    the character after the entity, and its tags are BIO. ``id`` and ``group`` are optional. Tokens that are single
    characters, spaces between them, are a text as it is written.
    """

    def make(item: tuple[int, dict[str, Any]]) -> Tagged:
        number, row = item
        where = f"{path}:{number}"
        record = _from_tokens(row, where, labelled) if "tokens" in row else _from_text(row, where, labelled)
        tags = None if record.tags is None else tuple(_read_tag(tag, where) for tag in record.tags)
        return replace(record, tags=tags, where=where, id=name_of(row, "id", where), group=name_of(row, "group", where))

    return check_records(path, make_each(read_jsonl(path, problems), make, problems), problems)


def _from_tokens(row: dict[str, Any], where: str, labelled: bool) -> Tagged:
    tokens = list_field(row, "tokens", where)
    bad = [token for token in tokens if not isinstance(token, str) or not token]
    blank = [token for token in tokens if not bad and token.isspace()]
    # A space at an end is none between words.
    by_character = bool(blank) and all(len(token) == 1 for token in tokens) and not {tokens[0], tokens[-1]} & {*blank}
    if bad or not tokens or (blank and not by_character):
        found = f"{[*bad, *blank][0]!r} in 'tokens'" if bad or blank else "no tokens"
        raise InputError(
            f"{where}: found {found}, expected words, or single characters with spaces between them; correct the row"
        )
    if not labelled:
        return Tagged(*(_of_characters((token, OUTSIDE) for token in tokens)[:2] if by_character else _joined(tokens)))
    tags = list_field(row, "ner_tags" if "ner_tags" in row and "tags" not in row else "tags", where)
    if len(tags) != len(tokens):
        raise InputError(f"{where}: found {len(tags)} tags, expected one for each of the {len(tokens)} tokens")
    for tag in tags:
        if not isinstance(tag, str):
            raise InputError(f"{where}: found {kind_of(tag)} as tag, expected a name such as B-PER; write the names")
    if by_character:
        return Tagged(*_of_characters(zip(tokens, tags, strict=True)))
    return Tagged(*_joined(tokens), tuple(tags))


def _from_text(row: dict[str, Any], where: str, labelled: bool) -> Tagged:
    text = text_field(row, "text", where)
    entities = _entities(row, text, where) if labelled else []
    borders = sorted({border for start, end, _ in entities for border in (start, end)})
    spans = _words_of(text, borders)
    if not labelled:
        return Tagged(text, spans)
    tags = [OUTSIDE] * len(spans)
    for start, end, label in entities:
        inside = [i for i, (a, b) in enumerate(spans) if start <= a and b <= end]
        for i in inside:
            tags[i] = f"{'B' if i == inside[0] else 'I'}-{label}"
    return Tagged(text, spans, tuple(tags))


def _words_of(text: str, borders: list[int]) -> tuple[tuple[int, int], ...]:
    """The words of a text, split further at ``borders``."""
    spans = []
    for start, end in word_spans(text):
        cuts = [start, *(b for b in borders if start < b < end), end]
        spans += list(zip(cuts, cuts[1:], strict=False))
    return tuple(spans)


def _entities(row: dict[str, Any], text: str, where: str) -> list[tuple[int, int, str]]:
    """(start, end, label) in the order of the text."""
    found = []
    for i, entity in enumerate(list_field(row, "entities", where)):
        place = f"{where}: entities[{i}]"
        if not isinstance(entity, dict):
            raise InputError(f"{place}: found {kind_of(entity)}, expected an object with start, end and label")
        start, end, label = entity.get("start"), entity.get("end"), text_field(entity, "label", place)
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
            raise InputError(
                f"{place}: found characters {start!r} to {end!r}, expected a span of the text's {len(text)}; "
                "correct start and end (characters from 0, end after the last)"
            )
        if not text[start:end].strip():
            raise InputError(f"{place}: found only white space, expected a word; correct start and end")
        found.append((start, end, label))
    found.sort()
    for (_, end, label), (start, _, next_label) in zip(found, found[1:], strict=False):
        if start < end:
            raise InputError(
                f"{where}: found the entities {label!r} and {next_label!r} overlapping at character {start}, "
                "expected them apart; keep one"
            )
    return found


# -- characters and plain text ------------------------------------------------------------------------------


def is_klue_ner(path: Path) -> bool:
    """Whether a file begins like those of KLUE-NER; the suffix does not distinguish them from CoNLL."""
    return next((line.startswith(f"{_KLUE_HEADER} ") for _, line in read_lines(path)), False)


def read_klue_ner(path: Path, problems: Problems, *, labelled: bool = True) -> Iterator[Tagged]:
    """Read KLUE-NER: ``## id<TAB>annotated text``, then one line of character and tag for each character.

    Spans are the non-space characters, as in the official scores (KLUE-baseline klue_ner.py). Differs: if a B- is on a
    space (two sentences of the published file), the character after it takes the B-.
    """

    def make(block: _Block) -> Tagged:
        return _klue_sentence(path, block, labelled)

    return check_records(path, make_each(_klue_blocks(path), make, problems), problems)


def _klue_blocks(path: Path) -> Iterator[_Block]:
    block = _Block()
    for number, line in read_lines(path):
        if line in ("", "\t"):
            if block.lines:
                yield block
                block = _Block()
        elif line.startswith(_KLUE_HEADER) and not block.lines:
            name, tab, _ = line.removeprefix(_KLUE_HEADER).partition("\t")
            block.id = name.strip() if tab else ""
        else:
            block.lines.append((number, line))
    if block.lines:
        yield block


def _klue_sentence(path: Path, block: _Block, labelled: bool) -> Tagged:
    characters = list[tuple[str, str]]()
    for number, line in block.lines:
        where = f"{path}:{number}"
        columns = normalize("NFC", line).split("\t")  # macOS writes a syllable as several characters
        if len(columns) != 1 + labelled and len(columns) != 2:
            raise InputError(f"{where}: found {columns_text(len(columns))}, expected a character, a tab and its tag")
        if len(columns[0]) != 1:
            raise InputError(f"{where}: found {columns[0]!r}, expected one character")
        characters.append((columns[0], _read_tag(columns[1].strip(), where) if labelled else OUTSIDE))
    text, spans, tags = _of_characters(characters)
    if not spans:
        raise InputError(f"{path}:{block.lines[0][0]}: found only spaces, expected a sentence; remove it")
    return Tagged(text, spans, tags if labelled else None, f"{path}:{block.lines[0][0]}", block.id)


def _of_characters(
    characters: Iterable[tuple[str, str]],
) -> tuple[str, tuple[tuple[int, int], ...], tuple[str, ...]]:
    """A text, the spans of its characters that are no white space, and their tags; that of a space goes to the next."""
    text, spans, tags, held = "", list[tuple[int, int]](), list[str](), ""
    for character, tag in characters:
        if not character.isspace():
            spans.append((len(text), len(text) + 1))
            tags.append(held if held and tag == f"I-{split_tag(held)[1]}" else tag)
            held = ""
        elif tag.startswith("B-"):
            held = tag
        text += character
    return text, tuple(spans), tuple(tags)
