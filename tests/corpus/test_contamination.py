"""Evaluation texts in a corpus: what is compared, what counts as a match, and where it was found."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from firth.corpus.contamination import COMMON, Contamination, Found, find_all, keys_of
from firth.corpus.duplicates import split_key
from firth.corpus.fingerprints import fingerprint
from firth.errors import InputError

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
OTHER = "a quite different example of which nothing at all is anywhere in the text of the corpus"


def search(files: tuple[Path, ...], documents: list[list[str]], removed: list[int] | None = None):
    contamination = Contamination(files)
    block = fingerprint(documents)
    hits = find_all(block, contamination.searched)
    for run, document, keys in zip(hits.runs, hits.documents, keys_of(hits, block), strict=True):
        contamination.add(int(run), f"t.txt:{document}", keys)
    found, keys = contamination.found(np.isin(np.arange(len(documents)), removed or []))
    documents_of, paragraphs, _ = split_key(keys)
    return found, list(zip(documents_of.tolist(), paragraphs.tolist(), strict=True))


def test_a_text_is_found_in_other_case_and_punctuation_and_across_paragraphs(tmp_path: Path) -> None:
    file = tmp_path / "dev.tsv"
    file.write_text(f"sentence\tlabel\n{LONG}\t1\n{OTHER}\t0\ntoo short\t1\n")
    corpus = [
        ["Nothing here."],
        [
            "Heading.",
            "Then: ONE two, three four five six seven",
            "(eight) nine ten eleven, twelve!",
            "thirteen",
            "After it.",
        ],
    ]
    (found,), places = search((file,), corpus)
    assert (found.n, found.examples, found.short, found.found) == (13, 4, 2, 1)
    assert found.quotes == ((f"{LONG} | 1", "t.txt:1"),)
    assert places == [(1, 1), (1, 2), (1, 3)]


def test_a_run_does_not_cross_documents(tmp_path: Path) -> None:
    file = tmp_path / "dev.txt"
    file.write_text(LONG + "\n")
    words = LONG.split()
    (found,), places = search((file,), [[" ".join(words[:7])], [" ".join(words[7:])]])
    assert found.found == 0 and places == []


def test_the_length_of_the_run_follows_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join([" ".join(LONG.split()[:10])] * 3))
    (tmp_path / "b.txt").write_text(LONG)
    found, _ = search((tmp_path / "a.txt", tmp_path / "b.txt"), [[" ".join(LONG.split()[:11])]])
    assert [(file.n, file.found) for file in found] == [(10, 3), (13, 0)]


def test_common_phrases_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "dev.txt"
    file.write_text(" ".join(LONG.split()[:13]) + "\n")
    for times, expected in ((COMMON, 1), (COMMON + 1, 0)):
        (found,), places = search((file,), [[LONG]] * times)
        assert found.found == expected and len(places) == times * expected


def test_copies_that_are_removed_make_no_common_phrase(tmp_path: Path) -> None:
    file = tmp_path / "dev.txt"
    file.write_text(LONG)
    contamination = Contamination((file,))
    block = fingerprint([[LONG]] * (2 * COMMON))
    hits = find_all(block, contamination.searched)
    for run, document, keys in zip(hits.runs, hits.documents, keys_of(hits, block), strict=True):
        contamination.add(int(run), f"t.txt:{document}", keys, 99)
    (found,), keys = contamination.found(np.arange(2 * COMMON) > 0)
    assert found.found == 1 and split_key(keys)[0].tolist() == [0]


def test_removed_documents_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "dev.txt"
    file.write_text(LONG)
    (found,), places = search((file,), [[LONG], ["Other."]], removed=[0])
    assert found.found == 0 and places == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", json.dumps({"text": LONG, "label": 1}) + "\n"),
        ("a.json", json.dumps({"data": [{"paragraphs": [{"context": LONG}]}]}, indent=1)),
        ("a.json", '{"text": "Another one."}\n' + json.dumps({"text": LONG, "label": 1}) + "\n"),
        ("a.csv", f'question,"{LONG}, indeed",A\n'),
        ("a.txt", LONG),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_kinds_of_files(tmp_path: Path, name: str, text: str, packed: bool) -> None:
    file = tmp_path / (f"{name}.gz" if packed else name)
    file.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
    (found,), _ = search((file,), [[f"Before. {LONG}, indeed. After."]])
    assert isinstance(found, Found) and found.found == 1


@pytest.mark.parametrize(
    "text",
    [
        'id,question\n1,"{}, or"\n'.format(LONG.replace("five six", "five\nsix")),
        f"id;question\n1;{LONG}\n",
        f'id,question\n1,"{LONG} {"x" * 200_000}"\n',
    ],
)
def test_csv_as_data_sets_write_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    (found,), _ = search((tmp_path / "a.csv",), [[LONG]])
    assert (found.examples, found.found) == (2, 1) and found.quotes[0][0].startswith("1 | one two")


def test_quotes_can_be_written(tmp_path: Path) -> None:
    """Half of a surrogate pair would fail only at the end, when the data card is written."""
    (tmp_path / "a.json").write_text(json.dumps([f"{LONG} \ud83d"]))
    (found,), _ = search((tmp_path / "a.json",), [[LONG]])
    assert found.quotes == ((f"{LONG} \ufffd", "t.txt:0"),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "too short\n", "no text of 8 words or more"),
        ("a.txt", "", "no text of 8 words or more"),
        ("a.json", "{", r"a.json: not JSON \(.*; expected one JSON value, or one in each line"),
        ("a.json", "{}\n[", "a.json:2: not JSON"),
        ("a.jsonl", '{"a": 1}\n[', "a.jsonl:2: not JSON"),
        ("a.jsonl", '\n\n{"a": 1}\n\n[', "a.jsonl:5: not JSON"),
    ],
)
def test_files_that_cannot_serve(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        Contamination((tmp_path / name,))


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Its accented letters would divide words, and nothing would be found."""
    (tmp_path / "a.txt").write_bytes(f"{LONG} café\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.txt: not UTF-8 at byte \d+; "):
        Contamination((tmp_path / "a.txt",))
