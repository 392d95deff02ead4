"""Tagged sentences from every format; their spans, documents, and what is refused."""

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.errors import InputError
from firth.tasks.items import record_of
from firth.tasks.readers import tagging
from firth.tasks.readers.files import Problems
from firth.tasks.readers.tagging import (
    in_bio,
    read_conll,
    read_conllu,
    read_klue_ner,
    read_tagged_jsonl,
)
from firth.tasks.tag_units import in_units
from firth.text.records import Tagged

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "data"
Reader = Callable[..., Iterator[Tagged]]


def file(folder: Path, text: str, name: str = "a.conll") -> Path:
    path = folder / name
    path.write_text(text, "utf-8", newline="")
    return path


def test_conll_sentences_documents_and_a_hash_that_is_a_word() -> None:
    path = FIXTURES / "iob1.conll"
    first, second, third = read_conll(path, Problems())
    assert first.words == ("EU", "rejects", "German", ".")
    assert first.text == "EU rejects German ."
    assert first.tags == ("I-ORG", "O", "I-MISC", "O")
    assert first.where == f"{path}:3"
    assert second.words == ("#", "Bonn", "Paris")
    assert first.group == second.group == "iob1.conll:1"
    assert third.group == "iob1.conll:12" and third.words == ("Peter",)


def test_entities_become_bio_by_the_scheme_of_the_file() -> None:
    problems = Problems()
    records = in_bio(read_conll(FIXTURES / "iob1.conll", problems), problems)
    assert [record.tags for record in records] == [
        ("B-ORG", "O", "B-MISC", "O"),
        ("O", "B-LOC", "B-LOC"),
        ("B-PER",),
    ]
    assert problems.notes == ["tags are IOB1, converted to BIO"]


def test_a_sentence_that_breaks_the_scheme_is_named(tmp_path: Path) -> None:
    path = file(tmp_path, "a B-X\nb I-X\n\nc O\nd I-X\n\ne B-Y\n")
    with pytest.raises(InputError, match=r":4: found I-X after O \(word 2\), which BIO does not allow"):
        in_bio(read_conll(path, Problems()), Problems())
    problems = Problems(skip_bad=True)
    assert [r.words for r in in_bio(read_conll(path, problems), problems)] == [("a", "b"), ("e",)]
    assert problems.n_bad == 1


def test_plain_tags_stay_as_they_are(tmp_path: Path) -> None:
    problems = Problems()
    records = in_bio(read_conll(file(tmp_path, "a DT\nb NN\n"), problems), problems)
    assert records[0].tags == ("DT", "NN") and problems.notes == ["tags are plain"]


def test_conll_columns_separators_and_comments(tmp_path: Path) -> None:
    path = file(tmp_path, "# id = 1\n1\tNew York\tB-LOC\tx\n# not a comment\n", "t.conll")
    with pytest.raises(InputError, match=r":3: found 1 column, expected 4"):
        list(read_conll(path, Problems(), word=1, tag=2))
    path = file(tmp_path, "# id = 1\r\n1\tNew York\tB-LOC\tx\r\n\r\n# text = b\r\n1\tb\tO\ty\r\n")
    records = list(read_conll(path, Problems(), word=1, tag=2))
    assert [r.words for r in records] == [("New York",), ("b",)]
    assert [r.tags for r in records] == [("B-LOC",), ("O",)]
    path = file(tmp_path, "a   x  O\nb x\tO\n\n# # O\nc x O")
    assert [r.words for r in read_conll(path, Problems())] == [("a", "b"), ("#", "c")]
    # "name = value" is a comment even where it has as many columns as a word line.
    path = file(tmp_path, "a x O\n\n# id = 7\n# newpar\nb x O\n")
    assert [r.words for r in read_conll(path, Problems())] == [("a",), ("b",)]


def test_comments_of_multiconer_have_as_many_columns_as_words(tmp_path: Path) -> None:
    text = "\n\n".join(f"# id {n}\tdomain=en\nthe _ _ O\nmill _ _ B-LOC" for n in range(2))
    records = list(read_conll(file(tmp_path, text + "\n\n# 7\tdomain=en x\nriver _ _ O\n"), Problems()))
    assert [r.words for r in records] == [("the", "mill"), ("the", "mill"), ("river",)]
    path = file(tmp_path, "a O\n\n# newdoc\n# text\nb O\n\n# O\nc O\n")
    assert [r.words for r in read_conll(path, Problems())] == [("a",), ("b",), ("#", "c")]


def test_a_hash_may_be_the_first_word_of_a_file(tmp_path: Path) -> None:
    path = file(tmp_path, "# O\nAda B-PER\n\n# O\nx O\n")
    assert [r.words for r in read_conll(path, Problems())] == [("#", "Ada"), ("#", "x")]
    path = file(tmp_path, "# O\n\n# a comment\nAda B-PER\n")
    assert [r.words for r in read_conll(path, Problems())] == [("#",), ("Ada",)]


def test_other_spaces_are_part_of_a_word(tmp_path: Path) -> None:
    (record,) = read_conll(file(tmp_path, "10\u00a0000 O\n東京\u3000都  \t B-LOC \n"), Problems())
    assert record.words == ("10\u00a0000", "東京\u3000都") and record.tags == ("O", "B-LOC")


def test_conll_without_tags(tmp_path: Path) -> None:
    (record,) = read_conll(file(tmp_path, "a\nb\n"), Problems(), labelled=False)
    assert record.words == ("a", "b") and record.tags is None


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a x O\nb O\n", {}, r":2: found 2 columns, expected 3"),
        ("a\n", {}, r":1: found 1 column, expected a word in column 0 and its tag in column -1"),
        ("a O\n", {"tag": 2}, r":1: found 2 columns, .* tag in column 2"),
        ("a\t\n", {}, r":1: found no tag"),
        ("\tO\n", {}, r":1: found an empty word.* --format klue"),
        ("-DOCSTART- O\n\n", {}, r": no usable example"),
    ],
)
def test_bad_conll(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_conll(file(tmp_path, text), Problems(), **options))


def test_a_bad_line_costs_its_sentence_and_no_other(tmp_path: Path) -> None:
    problems = Problems(skip_bad=True)
    path = file(tmp_path, "a O\n\nb O\nc\n\nd O\n")
    assert [r.words for r in read_conll(path, problems)] == [("a",), ("d",)]
    assert problems.messages == [f"{path}:4: found 1 column, expected 2 as before; correct the line"]


def test_conllu_words_texts_and_documents() -> None:
    path = FIXTURES / "words.conllu"
    first, second, third = read_conllu(path, Problems())
    assert first.text == "I didn't go."
    assert first.words == ("I", "did", "n't", "go", ".")
    assert first.tags == ("PRON", "AUX", "PART", "VERB", "PUNCT")
    assert (first.id, first.where) == ("d1-1", f"{path}:4")
    assert [r.group for r in (first, second, third)] == ["d1", "d1", "d2"]
    (record, *_) = read_conllu(path, Problems(), labelled=False)
    assert record.tags is None


ROW = "1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\tYes\tINTJ\n", r":1: found 3 columns, expected the 10 of CoNLL-U"),
        (ROW + ROW.replace("1", "3", 1), r":2: found the word number '3', expected 2"),
        (ROW.replace("INTJ", "_"), r":1: found no tag"),
        (f"# sent_id = s\n{ROW}\n# sent_id = s\n{ROW}", r":5: found the id 's' again"),
    ],
)
def test_bad_conllu(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_conllu(file(tmp_path, text), Problems()))


def test_jsonl_of_tokens(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        '{"tokens": ["New", "York"], "ner_tags": ["B-LOC", "I-LOC"], "id": 3, "group": "d"}\n'
        '{"tokens": ["a"], "tags": ["O"], "id": null, "group": null}\n',
        "a.jsonl",
    )
    first, second = read_tagged_jsonl(path, Problems())
    assert first == Tagged("New York", ((0, 3), (4, 8)), ("B-LOC", "I-LOC"), f"{path}:1", "3", "d")
    assert (second.tags, second.id, second.group) == (("O",), "", "")


def test_jsonl_of_entities_cuts_words_at_their_borders(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        '{"text": "김철수는 New York-based.", "entities": ['
        '{"start": 5, "end": 13, "label": "LC"}, {"start": 0, "end": 3, "label": "PS"}]}\n',
        "a.jsonl",
    )
    (record,) = read_tagged_jsonl(path, Problems())
    assert record.words == ("김철수", "는", "New", "York", "-", "based", ".")
    assert record.tags == ("B-PS", "O", "B-LC", "I-LC", "O", "O", "O")
    (record,) = read_tagged_jsonl(path, Problems(), labelled=False)
    assert record.words[0] == "김철수는" and record.tags is None


def test_characters_and_spaces_as_tokens_are_a_text(tmp_path: Path) -> None:
    row = {"tokens": list("김연아는 서울"), "ner_tags": ["B-PS", "I-PS", "I-PS", "O", "B-LC", "I-LC", "I-LC"]}
    (record,) = read_tagged_jsonl(file(tmp_path, json.dumps(row) + "\n", "a.jsonl"), Problems())
    assert (record.text, record.words) == ("김연아는 서울", tuple("김연아는서울"))
    assert record.tags == ("B-PS", "I-PS", "I-PS", "O", "B-LC", "I-LC")
    (bare,) = read_tagged_jsonl(tmp_path / "a.jsonl", Problems(), labelled=False)
    assert (bare.text, bare.spans, bare.tags) == (record.text, record.spans, None)
    # A tagger of characters reads them so, a tagger of words does not.
    asked = record_of("tag", {"tokens": row["tokens"]}, "character")
    assert (asked.text, asked.spans) == (record.text, record.spans)
    with pytest.raises(InputError, match="a list of words"):
        record_of("tag", {"tokens": row["tokens"]}, "word")


def test_characters_without_spaces_are_a_text_too(tmp_path: Path) -> None:
    """A sentence of one word has no space; it is read as the others are, and as in prediction."""
    row = {"tokens": list("재밌어요!"), "ner_tags": ["O"] * 5}
    (record,) = read_tagged_jsonl(file(tmp_path, json.dumps(row) + "\n", "a.jsonl"), Problems())
    assert (record.text, record.spans) == ("재밌어요!", tuple((n, n + 1) for n in range(5)))
    asked = record_of("tag", {"tokens": row["tokens"]}, "character")
    assert (asked.text, asked.spans) == (record.text, record.spans)
    (lines,) = read_conll(file(tmp_path, "中 B-LOC\n国 I-LOC\n", "a.conll"), Problems())
    assert lines.text == "中国"
    for words in (["I", "!"], ["네"], ["나", "is", "x"]):
        (plain,) = read_tagged_jsonl(
            file(tmp_path, json.dumps({"tokens": words, "tags": ["O"] * len(words)}) + "\n", "b.jsonl"), Problems()
        )
        assert plain.text == " ".join(words)


def test_a_model_of_characters_divides_words(tmp_path: Path) -> None:
    row = json.dumps({"tokens": ["김연아는", "왔다"], "tags": ["B-PS", "O"]}) + "\n"
    (record,) = read_tagged_jsonl(file(tmp_path, row, "a.jsonl"), Problems())
    (expected,) = in_units([record], "character", Problems())
    asked = record_of("tag", ["김연아는", "왔다"], "character")
    assert (asked.text, asked.spans) == (expected.text, expected.spans)
    assert record_of("tag", ["김연아는", " ", "왔다"], "character").text == "김연아는 왔다"


@given(data=st.data())
def test_entities_come_back_from_their_tags(data: st.DataObject) -> None:
    text = data.draw(st.text("ab가 .-", min_size=1, max_size=12))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    entities = [(a, b, "X") for a, b in zip(cuts[::2], cuts[1::2], strict=False) if text[a:b].strip()]
    row = {"text": text, "entities": [{"start": a, "end": b, "label": x} for a, b, x in entities]}
    if not text.strip():
        return
    record = tagging._from_text(row, "f:1", True)
    found = []
    for (start, end), tag in zip(record.spans, record.tags or (), strict=True):
        if tag.startswith("B-"):
            found.append([start, end])
        elif tag.startswith("I-"):
            found[-1][1] = end
    stripped = [(a + len(text[a:b]) - len(text[a:b].lstrip()), a + len(text[a:b].rstrip())) for a, b, _ in entities]
    assert found == [list(pair) for pair in stripped]
    assert "".join(record.words) == "".join(text.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"tokens": ["a", "b"], "tags": ["O"]}', r":1: found 1 tags, expected one for each of the 2 tokens"),
        ('{"tokens": ["a"]}', r":1: found no 'tags'"),
        ('{"tokens": ["a"], "ner_tags": [0]}', r":1: found a number as tag"),
        ('{"tokens": [], "tags": []}', r":1: found no tokens"),
        ('{"tokens": ["a", " "], "tags": ["O", "O"]}', r":1: found ' ' in 'tokens'"),
        ('{"text": "ab"}', r":1: found no 'entities'"),
        ('{"text": "", "entities": []}', r":1: found an empty 'text'"),
        ('{"text": "a", "entities": [{"start": 1, "end": 3, "label": "X"}]}', r"\[0\]: found characters 1 to 3"),
        ('{"text": "ab", "entities": [{"start": 1, "end": 1, "label": "X"}]}', r"found characters 1 to 1"),
        ('{"text": "ab", "entities": [{"start": true, "end": 2, "label": "X"}]}', r"found characters True to 2"),
        ('{"text": "a b", "entities": [{"start": 1, "end": 2, "label": "X"}]}', r"found only white space"),
        (
            '{"text": "abc", "entities": [{"start": 0, "end": 2, "label": "X"}, {"start": 1, "end": 3, "label": "Y"}]}',
            r":1: found the entities 'X' and 'Y' overlapping at character 1",
        ),
        ('{"text": "abc", "entities": [[0, 2, "X"]]}', r"entities\[0\]: found a list, expected an object"),
    ],
)
def test_bad_jsonl(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_tagged_jsonl(file(tmp_path, line + "\n", "a.jsonl"), Problems()))


def test_klue_syllables_may_be_decomposed(tmp_path: Path) -> None:
    composed = (FIXTURES / "klue.tsv").read_text("utf-8")
    decomposed = file(tmp_path, unicodedata.normalize("NFD", composed))
    found = [(r.text, r.spans, r.tags) for r in read_klue_ner(decomposed, Problems())]
    assert found == [(r.text, r.spans, r.tags) for r in read_klue_ner(FIXTURES / "klue.tsv", Problems())]


def test_tags_that_look_alike_are_one(tmp_path: Path) -> None:
    apart = unicodedata.normalize("NFD", "B-사람")
    lines = file(tmp_path, f"김 B-사람\n이 {apart}\n", "a.conll")
    assert [r.tags for r in read_conll(lines, Problems())] == [("B-사람", "B-사람")]
    rows = json.dumps({"tokens": ["김", "이"], "tags": [apart, "B-사람"]})
    assert [r.tags for r in read_tagged_jsonl(file(tmp_path, rows, "a.jsonl"), Problems())] == [("B-사람", "B-사람")]


def test_klue_characters_without_their_spaces() -> None:
    path = FIXTURES / "klue.tsv"
    first, second = read_klue_ner(path, Problems())
    assert first.text == "5 km 앞 김#"
    assert first.words == ("5", "k", "m", "앞", "김", "#")
    # The B- on the space before 김 has moved to 김.
    assert first.tags == ("B-QT", "I-QT", "I-QT", "O", "B-PS", "O")
    assert (first.id, first.where) == ("klue-ner-v1_dev_00001", f"{path}:4")
    assert second.words == ("네",)
    assert [r.tags for r in read_klue_ner(path, Problems(), labelled=False)] == [None, None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## x\ty\nab\tO\n", r":2: found 'ab', expected one character"),
        ("## x\ty\na\n", r":2: found 1 column, expected a character, a tab and its tag"),
        ("## x\ty\n \tO\n", r":2: found only spaces"),
    ],
)
def test_bad_klue(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_klue_ner(file(tmp_path, text), Problems()))


@pytest.mark.parametrize(
    ("read", "name"),
    [(read_conll, "iob1.conll"), (read_conllu, "words.conllu"), (read_klue_ner, "klue.tsv")],
)
def test_spans_are_in_order_and_hold_no_white_space_at_their_ends(read: Reader, name: str) -> None:
    for record in read(FIXTURES / name, Problems()):
        borders = [place for span in record.spans for place in span]
        assert borders == sorted(borders) and borders[-1] <= len(record.text)
        assert all(word and word == word.strip() for word in record.words)


@pytest.mark.parametrize(("tags", "noted"), [(("O", "B", "I"), True), (("NN", "VB", "O"), False)])
def test_entity_tags_without_a_label_are_noted(tags: tuple[str, ...], noted: bool) -> None:
    problems = Problems()
    in_bio([Tagged("a b c", ((0, 1), (2, 3), (4, 5)), tags)], problems)
    assert (
        any("learned as plain ones: for entities write B-NAME, I-NAME and O" in note for note in problems.report())
        == noted
    )


@pytest.mark.parametrize(
    ("tags", "read", "note"),
    [
        (("PER_B", "PER_I", "-"), ("B-PER", "I-PER", "O"), "tags such as PER_I are read as I-PER"),
        (("PER-B", "PER-I", "O"), ("B-PER", "I-PER", "O"), "tags such as PER-I are read as I-PER"),
        (("B-PER", "L-PER", "U-ORG"), ("B-PER", "I-PER", "B-ORG"), "tags such as U-ORG are read as S-ORG"),
    ],
)
def test_entity_tags_in_other_spellings_are_entities(tags: tuple[str, ...], read: tuple[str, ...], note: str) -> None:
    problems = Problems()
    (found,) = in_bio([Tagged("a b c", ((0, 1), (2, 3), (4, 5)), tags)], problems)
    assert found.tags == read and any(note in line for line in problems.report())


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_numbers_the_words_is_not_the_words(tmp_path: Path, first: int) -> None:
    """As in Naver's files, and in CoNLL-X."""
    path = tmp_path / "naver.conll"
    words = [("비토리오", "PER_B"), ("양일", "DAT_B"), ("만에", "-"), (".", "-")]
    path.write_text("".join(f"{i}\t{word}\t{tag}\n" for i, (word, tag) in enumerate(words, first)), "utf-8")
    with pytest.raises(InputError, match=r"naver.conll:1: column 0 numbers the words, .* such as word=1,tag=2"):
        list(read_conll(path, Problems(skip_bad=True)))
    (record,) = in_bio(read_conll(path, Problems(), word=1), Problems())
    assert record.tags == ("B-PER", "B-DAT", "O", "O") and record.words[0] == "비토리오"
