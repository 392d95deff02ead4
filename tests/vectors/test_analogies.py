"""Analogies and word similarity: by hand with unknown words and capitals, and against gensim on the same files."""

from pathlib import Path

import pytest
import torch

from firth.errors import InputError
from firth.inference.word_table import Ngrams, WordTable, open_table
from firth.vectors.folder import VectorOptions, convert_vectors
from firth.vectors.scores import AnalogyQuestion, Pair, Section, analogies, read_pairs, read_questions, similarity

# A country is its capital plus a shared offset; "oslo" is another word, which differs from "Oslo" in case alone.
PLACES = {
    "Stockholm": [1.0, 0.0, 0.0, 0.2],
    "Sweden": [1.0, 0.0, 0.0, 1.0],
    "Cairo": [0.0, 1.0, 0.0, 0.2],
    "Egypt": [0.0, 1.0, 0.0, 1.0],
    "Oslo": [0.0, 0.0, 1.0, 0.2],
    "oslo": [0.1, 0.1, -1.0, 0.2],
    "Norway": [0.0, 0.0, 1.0, 1.0],
}


def table() -> WordTable:
    return WordTable(["<unk>", *PLACES], torch.tensor([[0.0] * 4, *PLACES.values()]), n_special=1)


def ask(*lines: str) -> list[AnalogyQuestion]:
    return [AnalogyQuestion("capitals", tuple(line.split())) for line in lines]


def test_analogies_by_hand() -> None:
    questions = ask(
        "Stockholm Sweden Cairo Egypt",
        "Stockholm Sweden Oslo Norway",
        "Cairo Egypt Oslo Sweden",
        "Cairo Egypt Paris France",
    )
    sections = analogies(table(), questions)
    assert sections == [Section("capitals", 4, 3, 2), Section("total", 4, 3, 2)]
    assert sections[0].accuracy == pytest.approx(2 / 3)
    assert Section("x", 5, 0, 0).accuracy == 0.0


def test_the_three_words_of_a_question_are_no_answers() -> None:
    """Without that rule the nearest word to b - a + c would be c itself here."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.05], [0.0, 1.0], [0.5, 1.0]])
    small = WordTable(["a", "b", "c", "d"], rows)
    assert analogies(small, [AnalogyQuestion("", ("a", "b", "c", "d"))])[0].right == 1


def test_folding_takes_capitals_for_small_letters() -> None:
    questions = ask("stockholm SWEDEN oslo norway")
    assert analogies(table(), questions)[0] == Section("capitals", 1, 0, 0)
    # Of "Oslo" and "oslo" the first is used, and neither may be an answer.
    assert analogies(table(), questions, fold=True)[0] == Section("capitals", 1, 1, 1)
    cased = ask("Stockholm Sweden oslo Norway")
    assert analogies(table(), cased)[0] == Section("capitals", 1, 1, 0)


def test_only_the_first_words_are_known() -> None:
    questions = ask("Stockholm Sweden Cairo Egypt", "Stockholm Sweden Oslo Norway")
    for fold in (False, True):
        assert analogies(table(), questions, first=4, fold=fold)[0] == Section("capitals", 2, 1, 1)


def test_totals_of_meaning_and_grammar() -> None:
    questions = [*ask("Stockholm Sweden Cairo Egypt"), AnalogyQuestion("gram1-x", ("Cairo", "Egypt", "Oslo", "Norway"))]
    names = [section.name for section in analogies(table(), questions)]
    assert names == ["capitals", "gram1-x", "meaning", "grammar", "total"]


def test_reading_questions(tmp_path: Path) -> None:
    path = tmp_path / "q.txt"
    path.write_text(": one two\na b c d\n\n: three\ne f g h\n")
    assert read_questions(path) == [
        AnalogyQuestion("one two", ("a", "b", "c", "d")),
        AnalogyQuestion("three", ("e", "f", "g", "h")),
    ]
    for text, message in ((": x\na b c\n", r"q\.txt:2: expected four words"), (": x\n", "no question")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_questions(path)


def test_words_are_read_composed_as_those_of_a_table_are(tmp_path: Path) -> None:
    (tmp_path / "q").write_text("cafe\u0301 b c d\n", "utf-8")
    assert read_questions(tmp_path / "q")[0].words[0] == "café"
    (tmp_path / "p").write_text("cafe\u0301 b 1\n", "utf-8")
    assert read_pairs(tmp_path / "p")[0].a == "café"


@pytest.mark.parametrize("score", ["nan", "inf", "-inf", "1e999"])
def test_a_score_that_is_not_finite_is_refused(tmp_path: Path, score: str) -> None:
    (tmp_path / "p.tsv").write_text(f"a b 1\nb c {score}\n")
    with pytest.raises(InputError, match=r"p\.tsv:2: expected two words and a finite number; found 'b c "):
        read_pairs(tmp_path / "p.tsv")


def test_reading_pairs(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("# said\nnew york\tcity\t7.5\nb\tc\t1\n")
    assert [(pair.a, pair.b, pair.score) for pair in read_pairs(path)] == [("new york", "city", 7.5), ("b", "c", 1.0)]
    path.write_text("b c 1\n")
    assert read_pairs(path)[0].b == "c"
    for text, message in (("a b\n", r"p\.tsv:1: expected two words and a number"), ("# x\n", "no pair")):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_pairs(path)


def test_similarity_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "p"
    # Cosines of the first three pairs fall; the fourth has an unknown word, the fifth a word in other case.
    path.write_text("Stockholm Sweden 9\nSweden Egypt 5\nStockholm Cairo 1\nOslo Paris 3\nCAIRO Egypt 8\n")
    found = similarity(table(), "p", read_pairs(path))
    assert (found.pairs, found.known, found.made, found.spearman) == (5, 3, 0, pytest.approx(1.0))
    assert similarity(table(), "p", read_pairs(path), fold=True).known == 4
    path.write_text("Oslo Paris 3\n")
    with pytest.raises(InputError, match="0 of 1 pairs have vectors"):
        similarity(table(), "p", read_pairs(path))


def test_words_whose_vectors_are_zeros_are_not_known() -> None:
    rows = torch.tensor([[0.0] * 4, *PLACES.values(), [0.0] * 4])
    zeros = WordTable(["<unk>", *PLACES, "zero"], rows, n_special=1)
    found = similarity(zeros, "p", [Pair("Stockholm", "Sweden", 9), Pair("Oslo", "oslo", 1), Pair("Cairo", "zero", 5)])
    assert (found.pairs, found.known, found.spearman) == (3, 2, pytest.approx(1.0))
    sections = analogies(zeros, ask("Stockholm Sweden Cairo Egypt", "Stockholm Sweden zero Egypt"))
    assert sections[0] == Section("capitals", 2, 1, 1)
    with pytest.raises(InputError, match="the vector of 'zero' is all zeros"):
        zeros.analogy("Stockholm", "Sweden", "zero")


def test_a_vector_that_was_made_is_counted() -> None:
    made = WordTable(["a", "b"], torch.eye(2), ngrams=Ngrams(torch.ones(1, 2), 3, 6))
    found = similarity(made, "p", [Pair("a", "b", 1.0), Pair("a", "new", 2.0)])
    assert (found.pairs, found.known, found.made) == (2, 2, 1)


@pytest.mark.parametrize("fold", [False, True])
def test_scores_against_gensim(shared_data: Path, tmp_path: Path, fold: bool) -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim (extra: vectors) is not here")
    folder = shared_data / "word-vectors"
    if not (folder / "questions-words.txt").is_file():
        pytest.skip(f"{folder} has no questions-words.txt")
    for name in ("word2vec_pre_kv_c", "euclidean_vectors.bin"):
        convert_vectors(folder / name, tmp_path / name, VectorOptions(lowercase=False))
        mine = open_table(tmp_path / name)
        theirs = gensim.KeyedVectors.load_word2vec_format(str(folder / name), binary=name.endswith(".bin"))
        questions = folder / "questions-words.txt"
        _, expected = theirs.evaluate_word_analogies(str(questions), case_insensitive=fold)
        found = {section.name: section for section in analogies(mine, read_questions(questions), fold=fold)}
        assert found["total"].questions == 19_544
        for section in expected:
            one = found["total" if section["section"] == "Total accuracy" else section["section"]]
            n_known = len(section["correct"]) + len(section["incorrect"])
            assert (one.right, one.known) == (len(section["correct"]), n_known)
        for pairs in ("wordsim353.tsv", "simlex999.txt"):
            pearson, spearman, unknown = theirs.evaluate_word_pairs(str(folder / pairs), case_insensitive=fold)
            likeness = similarity(mine, pairs, read_pairs(folder / pairs), fold=fold)
            assert likeness.spearman == pytest.approx(float(spearman[0]), abs=1e-5)
            assert likeness.pearson == pytest.approx(float(pearson[0]), abs=1e-5)
            assert 100 * (1 - likeness.known / likeness.pairs) == pytest.approx(unknown)
