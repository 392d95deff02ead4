"""Which text goes into a corpus: weights, copies and counts."""

from pathlib import Path

import numpy as np
import pytest

from firth.corpus.clean import OPTIONAL, Cleaning, code
from firth.corpus.hold_out import is_held_out, threshold
from firth.corpus.selection import Selection, document_hash, matching_files, weights_of
from firth.corpus.survey import FileCount, Verdict, survey
from firth.errors import ConfigError
from firth.text.corpus import CorpusReader


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "wiki" / "a.txt", tmp_path / "wiki" / "b.txt", tmp_path / "books" / "c.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n".join(f"Document {i} of {path.name} in words." for i in range(200)))
    return paths


def test_patterns_name_files_by_path_name_or_folder(files: list[Path]) -> None:
    assert matching_files(files, "wiki") == [0, 1]
    assert matching_files(files, "*.txt") == [0, 1, 2]
    assert matching_files(files, "c.txt") == [2]
    assert matching_files(files, str(files[1])) == [1]
    assert matching_files(files, "other") == []
    assert matching_files([Path("a[1].txt"), Path("a1.txt")], "a[1].txt") == [0, 1]  # literally, and as a pattern


def test_weights(files: list[Path]) -> None:
    assert weights_of(files, {"*": 2, "books": 0.5}) == [2, 2, 0.5]
    assert weights_of(files, {}) == [1, 1, 1]
    for pattern, weight, message in (("x", 2, "none of the text"), ("*", -1, "expected 0 to"), ("*", 0, "weight 0")):
        with pytest.raises(ConfigError, match=message):
            weights_of(files, {pattern: weight})


def test_documents_are_read_as_often_as_their_weight_says(files: list[Path]) -> None:
    selection = Selection(CorpusReader(files), None, [1, 2.5, 0.25])
    for _ in range(2):  # it can be read repeatedly
        read = [(document.paragraphs[0], copy) for document, copy in selection]
        by_file = [[(text, copy) for text, copy in read if path.name in text] for path in files]
        assert [text for text, _ in by_file[0]] == [f"Document {i} of a.txt in words." for i in range(200)]
        counts = [sum(copy == c for _, copy in by_file[1]) for c in range(3)]
        assert counts[:2] == [200, 200] and 70 < counts[2] < 130
        assert 30 < len(by_file[2]) < 70 and {copy for _, copy in by_file[2]} == {0}
        assert [copy for _, copy in read] == sorted(copy for _, copy in read), "copies lie apart"
        assert [file.copies for file in selection.files] == [0, 200 + counts[2], 0]
        assert [file.documents for file in selection.files] == [200, 200, len(by_file[2])]
        assert selection.bytes_consumed == selection.total_bytes


def test_what_a_verdict_removes_is_counted_and_shown(tmp_path: Path) -> None:
    long = "One paragraph of more than six words stands here."
    texts = [f"{long} {i}" for i in range(3)]
    path = tmp_path / "t.txt"
    path.write_text("\n\n".join([*texts, texts[1].upper(), f"{texts[2]}\na | b | c | d\nSeven."]))
    reader = CorpusReader([path])
    verdict = survey(reader, None, Cleaning(rules=OPTIONAL), tmp_path / "s", 1)
    selection = Selection(reader, verdict, [2])
    read = [(document.paragraphs, copy) for document, copy in selection]
    kept = [(texts[0],), (texts[1],), (texts[2],), (texts[2], "Seven.")]
    assert read == [(paragraphs, copy) for copy in (0, 1) for paragraphs in kept]
    assert set(selection.removed) == {"duplicates", "tables"}
    copy, table = selection.removed["duplicates"], selection.removed["tables"]
    assert (copy.documents, copy.paragraphs, copy.characters) == (1, 0, len(texts[1]))
    assert copy.examples == [(f"{path}:7", texts[1].upper(), f"t.txt:3, similarity 1.00: {texts[1]}")]
    assert (table.documents, table.paragraphs, table.examples) == (0, 1, [(f"{path}:9", "a | b | c | d", "")])
    assert selection.files[0].documents == 4 and selection.files[0].copies == 4


def test_a_copy_of_what_was_removed_itself_is_shown_with_it(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("One paragraph of six words.\n\nAnother one.\n")
    documents = np.array([code("near-duplicates"), code("near-duplicates")], np.uint8)
    none = np.zeros(0, np.uint64)
    files = (FileCount(documents=2, characters=1, scripts=()),)
    verdict = Verdict(
        documents=documents, like={1: (0, 0.9)}, paragraphs=none, paragraph_reasons=none, files=files, found=()
    )
    selection = Selection(CorpusReader([path]), verdict)
    assert list(selection) == []
    shown = [like for _, _, like in selection.removed["near-duplicates"].examples]
    assert shown == ["", "t.txt:1, similarity 0.90: One paragraph of six words."]


def test_holding_out_by_a_hash() -> None:
    from firth.text.records import Document

    documents = [Document((f"text {i}",), "") for i in range(2000)]
    assert 150 < sum(is_held_out(document, 0.1) for document in documents) < 250
    assert document_hash(("a", "b")) != document_hash(("a", "b"), "copy 1") != document_hash(("ab",))


def test_bad_bytes_are_no_document_to_train_on(tmp_path: Path) -> None:
    """The only document that has tokens is never held out."""
    (tmp_path / "a.txt").write_bytes(b"A text.\n\n\xff\xfe\xff\n")
    assert threshold(Selection(CorpusReader([tmp_path / "a.txt"])), 0.1) == 0
