"""``firth embed --unit`` and its files, and ``firth vectors nearest --in-context``."""

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from tiny_language_models import tiny_language_model

import firth as package
from firth.cli.embed import embed
from firth.vectors.occurrences import nearest_in_context

LINES = "The old farmer walked to the river.\n\nOur teacher looked at the river.\nThe old farmer walked to the river.\n"


@pytest.fixture(scope="module")
def expected(tiny_run: Path) -> list:
    return package.load(tiny_run, device="cpu").vectors(LINES.splitlines())


def test_words_as_npz(firth, tiny_run: Path, tmp_path: Path, expected: list) -> None:
    out = tmp_path / "words.npz"
    result = firth("embed", tiny_run, "--unit", "word", "--layer", 1, "--out", out, stdin=LINES.encode())
    n_words = sum(len(one.words) for one in expected)
    assert result.code == 0 and f"{out}: {n_words} word vectors of 4 texts" in result.out
    found = np.load(out)
    assert sorted(found) == ["offsets", "spans", "vectors"]
    assert found["offsets"].tolist() == np.cumsum([0, *(len(one.words) for one in expected)]).tolist()
    for number, one in enumerate(expected):
        begin, end = found["offsets"][number : number + 2]
        assert found["vectors"][begin:end] == pytest.approx(one.word_layers[1], abs=1e-5)
        line = LINES.splitlines()[number]
        assert [line[a:b] for a, b in found["spans"][begin:end]] == [word.text for word in one.words]


@pytest.mark.parametrize("unit", ["text", "word"])
def test_lines_that_are_typed_are_answered_at_once(tiny_run: Path, typing, unit: Any) -> None:
    assert typing(lambda: embed(tiny_run, unit=unit), "The queen.", "the river", "b") == [0, 1, 2]


def test_tokens_as_allennlp_writes_them(firth, tiny_run: Path, tmp_path: Path, expected: list) -> None:
    h5py = pytest.importorskip("h5py")
    out = tmp_path / "tokens.hdf5"
    assert firth("embed", tiny_run, "--unit", "token", "--out", out, stdin=LINES.encode()).code == 0
    with h5py.File(out, "r") as file:
        assert sorted(file) == ["0", "1", "2", "3", "sentence_to_index"]
        for number, one in enumerate(expected):
            assert file[str(number)].dtype == np.float32
            assert file[str(number)][...] == pytest.approx(one.layers, abs=1e-5)
        index = json.loads(file["sentence_to_index"][0])
    assert index == {LINES.splitlines()[0]: "3", "": "1", LINES.splitlines()[2]: "2"}
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.hdf5"]


def test_a_mix_as_json_lines(firth, tiny_run: Path, tmp_path: Path, expected: list) -> None:
    out = tmp_path / "words.jsonl"
    given = ("embed", tiny_run, "--unit", "word", "--mix", "concat", "--last", 2)
    assert firth(*given, "--out", out, stdin=LINES.encode()).code == 0
    assert firth(*given, stdin=LINES.encode()).out == out.read_text("utf-8")
    for line, one in zip(out.read_text("utf-8").splitlines(), expected, strict=True):
        read = json.loads(line)
        assert read["text"] == one.text and len(read["words"]) == len(one.words)
        for number, word in enumerate(read["words"]):
            assert (word["text"], word["start"], word["end"]) == (
                one.words[number].text,
                one.words[number].start,
                one.words[number].end,
            )
            assert word["vector"] == pytest.approx(one.word_layers[-2:, number].ravel(), abs=1e-5)


def test_texts_of_a_mix(firth, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "texts.npy"
    given = ("--mix", "scalar", "--weights", 1, 0, 0, "--out", out)
    assert firth("embed", tiny_run, *given, stdin=b"the river\n").code == 0
    lowest = package.load(tiny_run, device="cpu").embed(["the river"], layer=0)
    assert np.load(out) == pytest.approx(lowest, abs=1e-5)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--layer", "1", "--mix", "sum"], "--layer is one layer, --mix several: give one of them"),
        (["--last", "2"], "--last says how many layers --mix combines"),
        (["--weights", "1"], "--weights are of a scalar mix"),
        (["--unit", "word", "--pool", "max"], "--pool is for --unit text"),
        (["--unit", "word", "--out", "a.npy"], "vectors of words go to a file that ends in .npz, .hdf5, .h5, .jsonl"),
        (["--out", "a.hdf5"], ".hdf5 files hold words or tokens (--unit)"),
        (["--out", "a.csv"], "written as a NumPy array, expected a name such as vectors.npy"),
        (["--unit", "token", "--layer", "9"], "layer 9: this model has layers 0 (embeddings) to 2"),
    ],
)
def test_what_makes_no_sense(firth, tiny_run: Path, flags: list[str], complaint: str) -> None:
    result = firth("embed", tiny_run, *flags, stdin=b"a\n")
    assert result.code == 2 and complaint in result.complaint
    assert not Path("a.npy").exists() and not Path("a.hdf5").exists()


def test_nearest_in_context(firth, tiny_run: Path, tiny_text: Path) -> None:
    sentence = "Our teacher looked at the river."
    given = ("vectors", "nearest", tiny_run, "river", "--in-context", sentence, "--texts", tiny_text, "--top-k", 5)
    result = firth(*given)
    lines = result.out.splitlines()
    assert result.code == 0 and len(lines) == 5 and all("[" in line for line in lines)
    found = json.loads(firth(*given, "--same-word", "--json").out)["nearest"]
    assert {one["word"] for one in found} == {"river"}
    cosines = [one["cosine"] for one in found]
    assert cosines == sorted(cosines, reverse=True)
    model = package.load(tiny_run, device="cpu")
    asked, *others = model.vectors([sentence, *(one["sentence"] for one in found)])
    a = asked.word_layers[-1, asked.word_at("river")]
    for one, cosine, other in zip(found, cosines, others, strict=True):
        number = [word.start for word in other.words].index(one["start"])
        b = other.word_layers[-1, number]
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-4)


def test_text_of_another_encoding_is_told(firth, tiny_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "korean.txt"
    text.write_bytes("강가의 은행 나무.\n".encode("cp949"))
    given = ("vectors", "nearest", tiny_run, "river", "--in-context", "Our river.", "--texts", text, "--json")
    result = firth(*given)
    assert f"places not UTF-8, replaced by U+FFFD and dropped: {text}" in result.err
    assert set(json.loads(result.out)) == {"word", "sentence", "nearest"}


def test_the_same_word_may_be_written_in_composed_letters_or_not() -> None:
    found = nearest_in_context(
        tiny_language_model("bert"),
        "농부",
        "a1 농부",
        [normalize("NFD", "b2 농부"), "b2 어부"],
        same_word=True,
    )
    assert [normalize("NFC", one.word) for one in found] == ["농부"]


def test_in_context_names_what_is_missing(firth, tiny_run: Path, tiny_text: Path) -> None:
    given = ("vectors", "nearest", tiny_run)
    result = firth(*given, "sea", "--in-context", "The river.", "--texts", tiny_text)
    assert (result.code, result.complaint) == (2, "'sea' is not a word of 'The river.': its words are The, river, .")
    assert "--texts is missing" in firth(*given, "river", "--in-context", "The river.").complaint
    assert "takes one WORD" in firth(*given, "--in-context", "The river.", "--texts", tiny_text).complaint
    assert "are for --in-context SENTENCE" in firth(*given, "river", "--same-word").complaint
