"""``firth vectors`` and its subcommands."""

import json
from pathlib import Path

import pytest
from vector_files import write_text

ROWS = [
    (b"oslo", [1.0, 0.0, 0.2]),
    (b"norway", [1.0, 0.0, 1.0]),
    (b"cairo", [0.0, 1.0, 0.2]),
    (b"egypt", [0.0, 1.0, 1.0]),
]


@pytest.fixture
def model(firth, tmp_path: Path) -> Path:
    write_text(tmp_path / "glove.txt", [*ROWS, ROWS[0]])
    result = firth("vectors", "convert", tmp_path / "glove.txt", "--to", tmp_path / "m", "--unknown", "shapes")
    assert result.code == 0
    assert "4 words, 3 dimensions" in result.out
    assert "one of 12 vectors, by its shape" in result.out
    assert "warning: 1 word occurred twice" in result.out
    assert f"next: firth vectors nearest {tmp_path / 'm'} WORD" in result.out
    return tmp_path / "m"


def test_nearest(firth, model: Path) -> None:
    assert firth("vectors", "nearest", model, "Oslo", "--top-k", 1).out == "Oslo\n  norway  0.7682\n".replace(
        "0.7682", f"{1.2 / (1.04 * 2) ** 0.5:.4f}"
    )
    lines = firth("vectors", "nearest", model, "--json", stdin=b"oslo\ncairo\n").out.splitlines()
    assert [json.loads(line)["nearest"][0]["word"] for line in lines] == ["norway", "egypt"]
    unknown = firth("vectors", "nearest", model, "paris")
    assert unknown.code == 1 and "'paris' is not among the 4 words" in unknown.complaint


def test_unknown_words_of_stdin_do_not_end_the_run(firth, model: Path) -> None:
    result = firth("vectors", "nearest", model, "--json", stdin=b"oslo\n\nparis\ncairo\n")
    assert [json.loads(line)["word"] for line in result.out.splitlines()] == ["oslo", "cairo"]
    assert result.code == 1
    assert "stdin, line 3: 'paris' is not among the 4 words of the model" in result.err
    assert "stdin: 1 blank line left out" in result.err
    assert result.complaint == "1 of 3 words without a vector"
    result = firth("vectors", "nearest", model, "paris", "oslo", "--json")
    assert [json.loads(line)["word"] for line in result.out.splitlines()] == ["oslo"]
    assert (result.code, result.complaint) == (1, "1 of 2 words without a vector")
    empty = firth("vectors", "nearest", model, stdin=b"")
    assert (empty.code, empty.complaint) == (2, "stdin: no words: give them one a line")


def test_nothing_is_near_a_vector_of_zeros(firth, tmp_path: Path) -> None:
    write_text(tmp_path / "a", [*ROWS, (b"nil", [0.0, 0.0, 0.0])])
    firth("vectors", "convert", tmp_path / "a", "--to", tmp_path / "m")
    result = firth("vectors", "nearest", tmp_path / "m", "nil")
    assert (result.code, result.complaint) == (1, "the vector of 'nil' is all zeros, so it has no neighbours")
    result = firth("vectors", "nearest", tmp_path / "m", stdin=b"nil\noslo\n")
    assert (result.code, result.complaint) == (1, "1 of 2 words without a vector")


def test_words_are_asked_for_composed(firth, tmp_path: Path) -> None:
    write_text(tmp_path / "a", [*ROWS, ("cafe\u0301".encode(), [1.0, 2.0, 0.0])])
    firth("vectors", "convert", tmp_path / "a", "--to", tmp_path / "m")
    assert firth("vectors", "nearest", tmp_path / "m", "cafe\u0301").code == 0


def test_the_report_tells_the_split_and_words_that_are_never_read(firth, tmp_path: Path) -> None:
    write_text(tmp_path / "a", [*ROWS, (b"U.S.", [1.0, 2.0, 0.0])])
    result = firth("vectors", "convert", tmp_path / "a", "--to", tmp_path / "m")
    assert "split         at blanks and punctuation\n" in result.out
    assert "warning: 1 word of a form that text is never read as, such as 'U.S.'" in result.out
    firth("vectors", "convert", tmp_path / "a", "--to", tmp_path / "n", "--split", "blanks")
    result = firth("vectors", "convert", tmp_path / "n", "--to", tmp_path / "o")
    assert "split         at blanks alone\n" in result.out
    assert "never read" not in result.out


def test_analogy(firth, model: Path, tmp_path: Path) -> None:
    (tmp_path / "q").write_text(": capitals\nOslo Norway Cairo Egypt\nOslo Norway Paris France\n")
    result = firth("vectors", "analogy", model, "--questions", tmp_path / "q")
    assert "100.00%  1 of 1, 1 of 2 with unknown words" in result.out
    found = json.loads(firth("vectors", "analogy", model, "--questions", tmp_path / "q", "--json", "--ignore-case").out)
    assert found[-1] == {"name": "total", "questions": 2, "known": 1, "right": 1, "accuracy": 1.0}


def test_similarity(firth, model: Path, tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("oslo\tnorway\t9\noslo\tegypt\t1\noslo\tparis\t1\n")
    result = firth("vectors", "similarity", model, tmp_path / "p.tsv")
    assert result.out == "p.tsv: spearman 1.0000, pearson 1.0000, 2 of 3 pairs (the others have unknown words)\n"
    found = json.loads(firth("vectors", "similarity", model, tmp_path / "p.tsv", "--json").out)
    assert (found["name"], found["known"], found["made"]) == ("p.tsv", 2, 0)


def test_train(firth, tiny_text: Path, tmp_path: Path) -> None:
    pytest.importorskip("gensim", reason="gensim (extra: vectors) is not here")
    command = ("vectors", "train", tiny_text, "--width", 4, "--epochs", 1, "--workers", 1)
    result = firth(*command, "--out", tmp_path / "m", "--set", "negative=2", "--json")
    assert json.loads(result.out)["width"] == 4
    assert firth("vectors", "nearest", tmp_path / "m", "river").code == 0
    assert (
        "unknown key 'negativ': did you mean 'negative'"
        in firth(*command, "--out", tmp_path / "n", "--set", "negativ=2").complaint
    )


def test_wrong_usage(firth, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("a 1 2\nb 1\n")
    result = firth("vectors", "convert", tmp_path / "bad", "--to", tmp_path / "m")
    assert result.code == 2
    assert "bad:2: expected a word and 2 numbers, found 'b 1'" in result.complaint
    assert "word vectors: firth vectors convert" in firth("embed", tmp_path / "bad").complaint
    for verb in ("convert", "train", "nearest", "analogy", "similarity"):
        assert f"Example: firth vectors {verb} " in firth("vectors", verb, "--help").out
    assert not (tmp_path / "m").exists()


def test_an_analogy_of_three_words(firth, model: Path) -> None:
    result = firth("vectors", "analogy", model, "Oslo", "Norway", "Cairo")
    assert result.out.splitlines()[:2] == ["Oslo : Norway = Cairo : ?", "  egypt  0.9628"]
    found = json.loads(firth("vectors", "analogy", model, "Oslo", "Norway", "Cairo", "--json").out)
    assert found["answers"][0]["word"] == "egypt" and len(found["answers"]) == 1
    assert "'paris' is not among" in firth("vectors", "analogy", model, "oslo", "norway", "paris").complaint
    assert "an analogy has three words" in firth("vectors", "analogy", model, "oslo").complaint
    assert "give three words" in firth("vectors", "analogy", model).complaint


def test_glove_is_trained(firth, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"the cat saw the dog\n" * 20 + b"\xff\n")
    given = ("vectors", "train", tmp_path / "t.txt", "--kind", "glove", "--width", 4)
    result = firth(*given, "--epochs", 2, "--set", "x_max=10", "--out", tmp_path / "m")
    assert result.code == 0 and "4 words, 4 dimensions" in result.out
    assert (
        f"warning: 1 place not UTF-8, replaced by U+FFFD and dropped: {tmp_path / 't.txt'} at byte 400;" in result.out
    )
    assert "has no n-grams" in firth(*given, "--unknown", "ngrams", "--out", tmp_path / "n").complaint
    assert "leave them out with --kind glove" in firth(*given, "--workers", 2, "--out", tmp_path / "n").complaint
    assert firth(*given, "--set", "negative=2", "--out", tmp_path / "n").code == 2
