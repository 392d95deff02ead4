"""Word-vector files: every format written by hand, and gensim's readers as an independent check."""

import bz2
import gzip
import lzma
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from vector_files import fnv, write_fasttext, write_text, write_word2vec

from firth.convert.word_vectors import Met, VectorFile, distinct, open_vectors
from firth.errors import InputError
from firth.inference.word_table import Ngrams
from firth.text.finding import PACKED

ROWS = [(b"the", [0.5, -1.25, 3.0]), ("값".encode(), [1e-3, 2.0, -4.5]), (b"1996", [7.0, 8.0, 9.0])]
EXPECTED = {word.decode(): row for word, row in ROWS}


def read(file: VectorFile) -> dict[str, list[float]]:
    return {
        word: row
        for words, rows in distinct(file)
        for word, row in zip(words, rows.astype(float).tolist(), strict=True)
    }


def unknown(file: VectorFile, word: str) -> np.ndarray:
    """The vector that a model with this file's n-grams gives to a word that the file lacks."""
    assert file.subwords is not None
    rows = torch.from_numpy(np.array(file.subwords.rows))
    return Ngrams(rows, file.subwords.shortest, file.subwords.longest).of(word).numpy()


def check(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-6)


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("end", [b"", b" ", b"\r", b" \r"])
def test_text_with_and_without_a_header(tmp_path: Path, header: bool, end: bytes) -> None:
    file = open_vectors(write_text(tmp_path / "a.txt", ROWS, header, end))
    assert (file.format, file.width, file.subwords) == ("text", 3, None)
    check(read(file), EXPECTED)
    assert file.met == Met(words=3)


@pytest.mark.parametrize("newlines", [False, True])
def test_word2vec_binary_with_and_without_newlines(tmp_path: Path, newlines: bool) -> None:
    file = open_vectors(write_word2vec(tmp_path / "a.bin", ROWS, newlines))
    assert (file.format, file.width) == ("word2vec", 3)
    check(read(file), EXPECTED)


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize(("suffix", "pack"), PACKERS.items())
def test_packed_files(tmp_path: Path, suffix: str, pack) -> None:
    for plain in (write_text(tmp_path / "a", ROWS), write_word2vec(tmp_path / "b", ROWS, True)):
        packed = plain.with_suffix(suffix)
        packed.write_bytes(pack(plain.read_bytes()))
        check(read(open_vectors(packed)), EXPECTED)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(InputError, match=f"broken or truncated {suffix} archive"):
        read(open_vectors(packed))


def test_words_with_blanks_are_read_from_the_right(tmp_path: Path) -> None:
    """GloVe's 840B set has words with spaces; also words that are numbers, and unusual white space inside a word."""
    rows = [
        (b"a", [1.0, 2.0]),
        (b". . .", [3.0, 4.0]),
        (b"at name@domain.com", [5.0, 6.0]),
        (b"7", [7.0, 8.0]),
        ("x\u00a0y".encode(), [9.0, 1.0]),
        ("\u0085".encode(), [1.0, 1.0]),
    ]
    found = read(open_vectors(write_text(tmp_path / "a.txt", rows)))
    check(found, {word.decode(): row for word, row in rows})


def test_a_first_word_with_blanks(tmp_path: Path) -> None:
    check(read(open_vectors(write_text(tmp_path / "a", [(b". .", [3.0, 4.0])]))), {". .": [3.0, 4.0]})


def test_a_word_that_is_a_number_is_no_header(tmp_path: Path) -> None:
    rows = [(b"5", [3.0]), (b"6", [1.0])]
    (tmp_path / "a").write_bytes(b"5 3\n6 1\n")
    check(read(open_vectors(tmp_path / "a")), {word.decode(): row for word, row in rows})
    # This is a header: its counts match what follows.
    (tmp_path / "b").write_bytes(b"2 1\n6 1\n7 2\n")
    check(read(open_vectors(tmp_path / "b")), {"6": [1.0], "7": [2.0]})


def test_some_words_end_in_a_number(tmp_path: Path) -> None:
    for n_lines in (1, 4):
        rows = [(b"at 5", [1.0, 2.0]), (b"of", [3.0, 4.0]), (b"1 9 9", [5.0, 6.0]), (b"a", [7.0, 8.0])][:n_lines]
        found = read(open_vectors(write_text(tmp_path / "a", rows, header=True)))
        check(found, {word.decode(): row for word, row in rows})
    many = [(f"w{i} {i}" if i % 9 else f"w{i}", [float(i), -float(i)]) for i in range(18)]
    file = write_text(tmp_path / "b", [(word.encode(), row) for word, row in many], header=True)
    check(read(open_vectors(file)), dict(many))


@pytest.mark.parametrize("header", [False, True])
def test_a_byte_order_mark_belongs_to_no_word(tmp_path: Path, header: bool) -> None:
    plain = write_text(tmp_path / "a", ROWS, header).read_bytes()
    (tmp_path / "b").write_bytes("\ufeff".encode() + plain)
    file = open_vectors(tmp_path / "b")
    assert file.width == 3
    check(read(file), EXPECTED)


def test_the_first_of_equal_words_holds_and_others_are_counted(tmp_path: Path) -> None:
    # The second and third words differ on disk, but are equal once invalid UTF-8 is replaced.
    rows = [(b"a", [1.0]), (b"b\xff", [2.0]), (b"b\xfe", [3.0]), (b"a", [4.0]), (b"c", [5.0])]
    for file in (write_text(tmp_path / "t", rows), write_word2vec(tmp_path / "b", rows, False)):
        opened = open_vectors(file)
        check(read(opened), {"a": [1.0], "b\ufffd": [2.0], "c": [5.0]})
        assert opened.met == Met(words=3, repeated=2, not_utf8=2)


def test_words_are_composed_in_every_format(tmp_path: Path) -> None:
    """As text is before lookup. A word that occurs in both forms counts as repeated."""
    rows = [("cafe\u0301".encode(), [1.0]), ("\u1112\u1161\u11ab".encode(), [2.0]), ("café".encode(), [3.0])]
    words, matrix = [word for word, _ in rows], np.array([values for _, values in rows])
    fasttext = write_fasttext(tmp_path / "f", words, matrix, n_buckets=0)
    both = np.concatenate([np.pad(matrix, ((0, 0), (0, 1))), np.zeros((3, 2))])
    (tmp_path / "g").write_bytes(both.astype("<f8").tobytes())
    (tmp_path / "vocab").write_bytes(b"\n".join(words) + b"\n")
    files = [write_text(tmp_path / "t", rows), write_word2vec(tmp_path / "b", rows, False), fasttext]
    for file in (*map(open_vectors, files), open_vectors(tmp_path / "g", tmp_path / "vocab")):
        check(read(file), {"café": [1.0], "한": [2.0]})
        assert file.met == Met(words=2, repeated=1), file.format


@pytest.mark.parametrize("end", [b"\n", b"\n\n", b" \n\r\n"])
def test_blank_lines_at_the_end_are_none(tmp_path: Path, end: bytes) -> None:
    for name, text in (("plain", b"a 1 2\nb 3 4\n"), ("counted", b"2 2\na 1 2\nb 3 4\n")):
        (tmp_path / name).write_bytes(text + end)
        check(read(open_vectors(tmp_path / name)), {"a": [1.0, 2.0], "b": [3.0, 4.0]})


def test_more_words_than_a_block_holds(tmp_path: Path) -> None:
    rows = [(f"w{i}".encode(), [float(i), -float(i)]) for i in range(10_001)]
    for file in (write_text(tmp_path / "t", rows, header=True), write_word2vec(tmp_path / "b", rows, True)):
        found = read(open_vectors(file))
        assert len(found) == 10_001
        assert found["w9999"] == [9999.0, -9999.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "empty"),
        (b"hello\nworld\n", r"a:1: expected a word and its numbers"),
        (b"a 1 2\nb 1\n", r"a:2: expected a word and 2 numbers, found 'b 1'"),
        (b"a 1 2\n\nb 1 2\n", r"a:2: expected a word and 2 numbers, found a blank line"),
        (b"a 1 2\nb x 2\n", r"a:2: expected a word and 2 numbers, found 'b x 2'"),
        (b"a 1 2\n 3 4\n", r"a:2: expected a word and 2 numbers"),
        (b"a 1 2\nb nan 2\n", r"a:2: a number of this vector is not finite"),
        (b"a 1 2\nb 1e39 2\n", r"a:2: a number of this vector is not finite"),
        (b"3 2\na 1 2\nb 3 4\n", r"2 words, but its first line says 3"),
        (b"1 2\na 1 2\nb 3 4\n", r"2 words, but its first line says 1"),
        (b"2 2\na x 2\nb 3 4\n", r"a:2: expected a word and 2 numbers, found 'a x 2'"),
        (b"2 2\na 1 2\nb 3\n", r"a:3: expected a word and 2 numbers"),
        (b"2 2\na 1 2 3\nb 4 5 6\n", r"a:2: expected a word and 2 .* line 1 has it, found 3 .* 2 of 2 lines: correct"),
        (b"a 1 2\nb 1 2 3\nc 1 2 3\n", r"a:2: expected a word and 2 .* line 1 has it, found 3 .* 2 of 2 lines"),
        (b"11 1\nx 1\n" + b"a 1 2\n" * 10, r"a:3: .*found 2 numbers, and more than 1 in 10 of 11 lines: correct"),
    ],
)
def test_bad_text_is_one_line_with_its_place(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "a").write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        read(open_vectors(tmp_path / "a"))
    assert "\n" not in str(caught.value)


def test_bad_binary_files(tmp_path: Path) -> None:
    good = write_word2vec(tmp_path / "a", ROWS, True).read_bytes()
    for data, message in (
        (good[:-3], "ends within word 3 of 3"),
        (good + b"more 1", "more follows the 3 words"),
        (good.replace(struct.pack("<f", 9.0), struct.pack("<f", float("inf"))), "word 3: a number .* not finite"),
    ):
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(InputError, match=message):
            read(open_vectors(tmp_path / "b"))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        open_vectors(tmp_path / "none")
    with pytest.raises(InputError, match="is a folder"):
        open_vectors(tmp_path)


def test_glove_binary_is_the_sum_of_both_sides(tmp_path: Path) -> None:
    """float64: V rows of a word vector and its bias, then V rows for contexts (stanfordnlp/GloVe)."""
    both = np.arange(2 * 2 * 4, dtype="<f8").reshape(2, 2, 4)
    (tmp_path / "v.bin").write_bytes(both.tobytes())
    (tmp_path / "vocab.txt").write_text("the 10\nof 7\n")
    file = open_vectors(tmp_path / "v.bin", tmp_path / "vocab.txt")
    assert (file.format, file.width) == ("glove", 3)
    for suffix in PACKED:
        with pytest.raises(InputError, match=rf"g\.bin\{suffix}: GloVe's .* is read in place: unpack it first"):
            open_vectors(tmp_path / f"g.bin{suffix}", tmp_path / "vocab.txt")
    check(read(file), {"the": [0 + 8, 1 + 9, 2 + 10], "of": [4 + 12, 5 + 13, 6 + 14]})
    (tmp_path / "vocab.txt").write_text("the 10\nof 7\nand 3\n")
    with pytest.raises(InputError, match="are not two float64 rows for each of the 3 words"):
        open_vectors(tmp_path / "v.bin", tmp_path / "vocab.txt")


def test_fasttext_by_hand(tmp_path: Path) -> None:
    matrix = np.random.default_rng(1).normal(size=(2 + 7, 3)).astype(np.float32)
    words, grams = [b"</s>", "한국".encode()], matrix[2:]
    file = open_vectors(write_fasttext(tmp_path / "a.bin", words, matrix, n_buckets=7, ngrams=(2, 3)))
    assert (file.format, file.width) == ("fasttext", 3)
    assert file.subwords is not None
    assert (file.subwords.shortest, file.subwords.longest, file.subwords.rows.shape) == (2, 3, (7, 3))
    rows = [fnv(ngram, 7) for ngram in ("<한", "한국", "국>", "<한국", "한국>")]
    known = np.mean([matrix[1], *grams[rows]], 0)
    # The end-of-sentence token has no n-grams.
    check(read(file), {"</s>": matrix[0].tolist(), "한국": known.tolist()})
    new = [fnv(ngram, 7) for ngram in ("<é", "é>", "<é>")]
    np.testing.assert_allclose(unknown(file, "é"), grams[new].mean(0), rtol=1e-5)


def test_fasttext_words_without_ngrams_are_zeros(tmp_path: Path) -> None:
    file = open_vectors(write_fasttext(tmp_path / "a", [b"a"], np.ones((4, 2)), n_buckets=3, ngrams=(5, 6)))
    assert unknown(file, "b").tolist() == [0.0, 0.0]


def test_fasttext_kinds_and_versions(tmp_path: Path) -> None:
    matrix = np.arange(8.0).reshape(4, 2)
    labelled = write_fasttext(
        tmp_path / "a", [b"a"], matrix, n_buckets=3, labels=[b"__label__x"], kind=3, ngrams=(0, 0)
    )
    file = open_vectors(labelled)
    check(read(file), {"a": [0.0, 1.0]})
    assert file.subwords is None
    old = open_vectors(write_fasttext(tmp_path / "b", [b"a"], matrix, n_buckets=3, version=11, kind=3))
    assert old.subwords is None, "version 11 of labelled text never used its n-grams"
    assert open_vectors(write_fasttext(tmp_path / "c", [b"a"], matrix, n_buckets=3, version=11)).subwords is not None


def test_bad_fasttext_files(tmp_path: Path) -> None:
    matrix = np.arange(8.0).reshape(4, 2)

    def make(**options) -> Path:
        return write_fasttext(tmp_path / "a", [b"a"], matrix, **({"n_buckets": 3} | options))

    for message, options in (
        ("version 13", {"version": 13}),
        ("quantised", {"quantised": True}),
        ("quantised", {"pruned": 2}),
        ("expected 5 x 2", {"n_buckets": 4}),
        ("damaged", {"n_buckets": -1}),
    ):
        with pytest.raises(InputError, match=message):
            open_vectors(make(**options))
    whole = make().read_bytes()
    for length in (10, 40, 70, 95, len(whole) - 60):
        (tmp_path / "b").write_bytes(whole[:length])
        with pytest.raises(InputError, match="fetch it again|is it whole"):
            open_vectors(tmp_path / "b")
    for suffix, pack in PACKERS.items():
        (tmp_path / f"c.bin{suffix}").write_bytes(pack(whole))
        with pytest.raises(InputError, match="unpack it first"):
            open_vectors(tmp_path / f"c.bin{suffix}")


def test_fasttext_against_gensim(tmp_path: Path) -> None:
    fasttext = pytest.importorskip("gensim.models.fasttext", reason="gensim (extra: vectors) is not here")
    text = [["한국어", "where", "naïve", "the", "cat", "𝔘"], ["the", "dog", "sat", "고양이"]] * 20
    for i, sizes in enumerate([(3, 6), (1, 3)]):
        model = fasttext.FastText(
            text, vector_size=6, min_count=1, bucket=300, min_n=sizes[0], max_n=sizes[1], epochs=1, workers=1
        )
        path = tmp_path / f"{i}.bin"
        fasttext.save_facebook_model(model, str(path))
        theirs, file = fasttext.load_facebook_vectors(str(path)), open_vectors(path)
        found = read(file)
        assert list(found) == theirs.index_to_key
        np.testing.assert_allclose(list(found.values()), theirs.vectors, atol=1e-6)
        assert file.subwords is not None
        new = ["unseen", "고양", "é", "qq", "whereabouts"]
        for word in new:
            np.testing.assert_allclose(unknown(file, word), theirs[word], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "width", "n_words"),
    [
        ("glove.6B.100d.sample.txt.gz", 100, 100),
        ("glove.6B.300d.sample.txt.gz", 300, 100),
        ("test_glove.txt", 50, 76),
        ("word2vec_pre_kv_c", 10, 1750),
        ("lee_fasttext.vec", 10, 1762),
        ("euclidean_vectors.bin", 10, 2747),
    ],
)
def test_real_samples_against_gensim(shared_data: Path, tmp_path: Path, name: str, width: int, n_words: int) -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim (extra: vectors) is not here")
    path = shared_data / "word-vectors" / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    found = read(file := open_vectors(path))
    assert (file.width, len(found), file.met) == (width, n_words, Met(words=n_words))
    if "glove" in name:  # gensim leaves a file without a header open
        plain = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        path = tmp_path / "with-header"
        path.write_bytes(f"{n_words} {width}\n".encode() + plain)
    theirs = gensim.KeyedVectors.load_word2vec_format(str(path), binary=name.endswith(".bin"))
    assert list(found) == theirs.index_to_key
    np.testing.assert_array_equal(np.array(list(found.values()), np.float32), theirs.vectors)
