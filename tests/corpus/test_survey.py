"""The survey finds planted duplicates and nothing else, for any number of workers and any memory limit."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import firth.corpus.survey as survey_module
from firth.corpus.clean import OPTIONAL, REASONS, Cleaning, code
from firth.corpus.duplicates import split_key
from firth.corpus.survey import Verdict, measure_block, survey
from firth.text.corpus import CorpusReader

NAMES = {0: "", **{code(name): name for name in REASONS}}
ALL = Cleaning(rules=OPTIONAL)


def document(seed: int, n_paragraphs: int = 4) -> list[str]:
    words = random.Random(seed)
    return [" ".join("".join(words.choices("abcdefghij", k=5)) for _ in range(12)) + "." for _ in range(n_paragraphs)]


def write(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(paragraphs) for paragraphs in documents) + "\n", "utf-8")
    return path


def reasons(verdict: Verdict) -> list[str]:
    return [NAMES[number] for number in verdict.documents.tolist()]


def paragraphs(verdict: Verdict) -> dict[tuple[int, int], str]:
    documents, places, _ = split_key(verdict.paragraphs)
    return {
        (d, p): NAMES[why]
        for d, p, why in zip(documents.tolist(), places.tolist(), verdict.paragraph_reasons.tolist(), strict=True)
    }


def test_each_kind_is_found_and_nothing_else_changes(tmp_path: Path) -> None:
    one, two = document(1), document(2)
    near = [*document(3, 12)]
    notice = "All rights of this notice are reserved by those who wrote it."
    documents = [
        one,
        [*two, notice],
        near,
        [paragraph.upper().replace(".", "!") for paragraph in one],  # a duplicate of the first
        [*near[:11], near[11] + " And more."],  # a near-duplicate of the third
        [*document(5), notice],
        ["Heading.", *document(6), notice],
        ["Contents", "a", "b", "c", "d", *document(7)],
        ["Heading.", notice],  # nothing left
        [],
        document(8),
    ]
    path = write(tmp_path / "t.txt", [d for d in documents if d])
    verdict = survey(CorpusReader([path]), None, ALL, tmp_path / "s", 1)
    assert reasons(verdict) == ["", "", "", "duplicates", "near-duplicates", "", "", "", "nothing-left", ""]
    assert paragraphs(verdict) == {
        (5, 4): "repeated",
        (6, 5): "repeated",
        **{(7, i): "lists" for i in range(5)},
    }
    assert verdict.like[3] == (0, 1.0) and verdict.like[4][0] == 2 and verdict.like[4][1] > 0.8
    (count,) = verdict.files
    assert count.documents == 10 and sum(count.scripts) > 1000


@pytest.mark.parametrize("whole", [True, False])
def test_a_document_of_which_nothing_is_left_does_not_remove_its_copies(tmp_path: Path, whole: bool) -> None:
    """Text that was wrapped into lines without punctuation looks like a list."""
    words = " ".join(document(1, 8)).replace(".", "").split()
    lines = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    text = ["  ".join(lines) + "."] if whole else [f"{line}." for line in lines]
    path = write(tmp_path / "t.txt", [lines, text, text])
    verdict = survey(CorpusReader([path]), None, ALL, tmp_path / "s", 1)
    assert reasons(verdict) == ["nothing-left", "", "duplicates"]
    dev = write(tmp_path / "d.txt", [lines])  # nothing is removed of it, so it stays the first copy
    verdict = survey(CorpusReader([path]), CorpusReader([dev]), ALL, tmp_path / "e", 1)
    assert reasons(verdict)[1] in ("duplicates", "near-duplicates")


def test_the_verdict_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", [document(1), document(1), document(2)])
    evaluation = tmp_path / "dev.txt"
    evaluation.write_text(document(2)[0])
    cleaning = Cleaning(rules=OPTIONAL, against=(evaluation,), remove_overlap=True)
    first = survey(CorpusReader([path]), None, cleaning, tmp_path / "s", 1)
    assert first.found[0].found == 1
    path.write_text("It is not read again.")
    second = survey(CorpusReader([path]), None, cleaning, tmp_path / "s", 1)
    assert (reasons(second), paragraphs(second)) == (reasons(first), paragraphs(first))
    assert (second.like, second.files, second.found) == (first.like, first.files, first.found)


def test_evaluation_text_counts_as_earlier_and_stays(tmp_path: Path) -> None:
    train = write(tmp_path / "t.txt", [document(1), document(2)])
    dev = write(tmp_path / "d.txt", [document(2), document(2)])
    verdict = survey(CorpusReader([train]), CorpusReader([dev]), ALL, tmp_path / "s", 1)
    assert reasons(verdict) == ["", "duplicates"]
    assert verdict.like == {1: (-2, 1.0)}


def test_several_files_are_counted_apart(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.txt", [document(10 * i + j) for j in range(i + 1)]) for i in range(3)]
    verdict = survey(CorpusReader(paths), None, ALL, tmp_path / "s", 1)
    assert [file.documents for file in verdict.files] == [1, 2, 3] and verdict.first == [0, 1, 3, 6]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(100, 4000))
def test_copies_are_removed_whatever_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, seeds: list[int], block: int
) -> None:
    """The first copy of each document is kept, and so are all documents that occur once."""
    folder = tmp_path_factory.mktemp("s")
    path = write(folder / "t.txt", [document(seed) for seed in seeds])
    expected = ["" if seed not in seeds[:i] else "duplicates" for i, seed in enumerate(seeds)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_module, "BLOCK_CHARACTERS", block)
        verdict = survey(CorpusReader([path]), None, ALL, folder / "s", 1)
    assert reasons(verdict) == expected and not len(verdict.paragraphs)


def test_hashes_on_disk_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = "All rights of this notice are reserved by those who wrote it."
    texts = [[*document(seed % 60, 8), *([notice] if seed % 7 else [])] for seed in range(100)]
    texts += [[*document(seed, 8)[:7], "And so on."] for seed in range(20)]
    path = write(tmp_path / "t.txt", texts)
    held = survey(CorpusReader([path]), None, ALL, tmp_path / "held", 1)
    spilled: list[str] = []
    real = survey_module.Spill

    class Small(real):  # type: ignore[misc, valid-type]
        def __init__(self, folder: Path, name: str, memory: int):
            super().__init__(folder, name, 500)

        def sorted_parts(self):
            spilled.append(self._name) if self.spilled else None
            return super().sorted_parts()

    monkeypatch.setattr(survey_module, "Spill", Small)
    again = survey(CorpusReader([path]), None, ALL, tmp_path / "spilled", 1)
    assert sorted(set(spilled)) == ["bands", "documents", "paragraphs"]
    assert reasons(again) == reasons(held) and paragraphs(again) == paragraphs(held)
    assert {"duplicates", "near-duplicates"} <= set(reasons(held)) and "repeated" in paragraphs(held).values()
    assert not list((tmp_path / "spilled").glob("*.bin")), "nothing but the verdict is left"


def test_what_a_worker_does_is_the_same_for_parts_of_the_text() -> None:
    survey_module._start_worker(ALL, [])
    documents = [tuple(document(seed)) for seed in range(6)]
    whole = measure_block(documents)
    parts = [measure_block(documents[:2]), measure_block(documents[2:])]
    for name in ("characters", "scripts", "reasons", "hashes", "n_long"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), joined)
    np.testing.assert_array_equal(whole.signed[1], np.concatenate([part.signed[1] for part in parts]))
