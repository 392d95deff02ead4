"""``firth vocab`` and ``firth prepare``: good text, bad text, and output folders that already exist."""

import json
import lzma
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


def missing(folder: Path) -> Path:
    return folder / "absent.txt"


def without_text(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "in" / "picture.png").write_bytes(b"\x89PNG")
    return folder / "in"


def empty(folder: Path) -> Path:
    (folder / "empty.txt").touch()
    return folder / "empty.txt"


def blanks(folder: Path) -> Path:
    (folder / "blanks.txt").write_text("  \n\n\t \n \u3000\n" * 50, "utf-8")
    return folder / "blanks.txt"


def binary(folder: Path) -> Path:
    (folder / "program.txt").write_bytes(bytes(range(256)) * 40)
    return folder / "program.txt"


def broken_xz(folder: Path) -> Path:
    packed = lzma.compress("\n\n".join(f"Document {i} has a few words." for i in range(5000)).encode())
    (folder / "cut.txt.xz").write_bytes(packed[: len(packed) // 2])
    return folder / "cut.txt.xz"


def no_xz(folder: Path) -> Path:
    (folder / "named.txt.xz").write_text("this is no archive", "utf-8")
    return folder / "named.txt.xz"


def zipped(folder: Path) -> Path:
    (folder / "text.zip").write_bytes(b"PK\x03\x04")
    return folder / "text.zip"


def not_json(folder: Path) -> Path:
    (folder / "lines.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n', "utf-8")
    return folder / "lines.jsonl"


BAD_TEXTS: dict[Callable[[Path], Path], str] = {
    missing: "no such file",
    without_text: "no text file",
    empty: "no ",
    blanks: "no ",
    binary: "not a text file",
    broken_xz: "truncated",
    no_xz: "broken",
    zipped: ".zip",
    not_json: '"text"',
}


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
@pytest.mark.parametrize(("make", "part"), BAD_TEXTS.items())
def test_bad_text_is_one_line_and_leaves_nothing(
    firth, tmp_path: Path, tiny_vocab: Path, verb: str, make: Callable[[Path], Path], part: str
) -> None:
    text = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    more = ["--tokenizer", tiny_vocab, "--workers", 1] if verb == "prepare" else ["--size", 50]
    result = firth(verb, text, "--out", tmp_path / "out", *more)
    assert result.code == 2
    assert str(text) in result.complaint and part in result.complaint
    assert sorted(tmp_path.rglob("*")) == before
    assert result.out == ""


def test_vocab_reports_and_says_what_comes_next(firth, tiny_text: Path, tmp_path: Path) -> None:
    result = firth("vocab", tiny_text, "--size", 250, "--out", tmp_path / "v", "--lowercase")
    assert (result.code, result.err) == (0, "")
    assert "250 WordPiece tokens" in result.out and "[UNK] rate among tokens" in result.out
    assert f"next: firth prepare {tiny_text} --tokenizer {tmp_path / 'v'}" in result.out
    assert (tmp_path / "v" / "vocab.txt").is_file()


def test_vocab_report_as_json_with_bad_bytes(firth, tiny_text: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(tiny_text.read_bytes() + b"\n\nbad \xff byte\n")
    result = firth("vocab", text, "--size", 250, "--out", tmp_path / "v", "--json")
    report = json.loads(result.out)
    offset = tiny_text.stat().st_size + 6
    assert report["size"] == 250 and report["bad_places"] == [[str(text), offset]]
    readable = firth("vocab", text, "--size", 250, "--out", tmp_path / "w").out
    assert f"warning: 1 place not UTF-8, replaced by U+FFFD and dropped: {text} at byte {offset:,}" in readable
    strict = firth("vocab", text, "--size", 250, "--out", tmp_path / "x", "--errors", "strict")
    assert strict.code == 2 and f"{text}: not UTF-8 at byte {offset}" in strict.complaint
    assert not (tmp_path / "x").exists()


def test_vocab_larger_than_the_text_supports_names_the_size_that_works(firth, tiny_text: Path, tmp_path: Path) -> None:
    result = firth("vocab", tiny_text, "--size", 30000, "--out", tmp_path / "v")
    assert result.code == 2 and list(tmp_path.iterdir()) == []
    largest = result.complaint.split("pass --size ")[1].split()[0]
    assert firth("vocab", tiny_text, "--size", largest, "--out", tmp_path / "v").code == 0


def test_vocab_of_byte_pairs_and_a_corpus_made_with_it(firth, tiny_text: Path, tmp_path: Path) -> None:
    result = firth("vocab", tiny_text, "--kind", "bpe", "--size", 200, "--out", tmp_path / "v")
    assert (result.code, result.err) == (0, "")
    assert "200 BPE tokens" in result.out and "<unk> rate among tokens" in result.out and "[UNK]" not in result.out
    assert f"next: firth prepare {tiny_text} --tokenizer {tmp_path / 'v'}" in result.out
    result = firth("prepare", tiny_text, "--tokenizer", tmp_path / "v", "--out", tmp_path / "c", "--workers", 1)
    assert result.code == 0 and "next: firth pretrain --model gpt-mini --corpus" in result.out
    masked = firth("pretrain", "--model", "bert-tiny", "--corpus", tmp_path / "c", "--out", tmp_path / "run")
    assert masked.code == 2 and "bert-tiny needs a WordPiece vocabulary" in masked.complaint
    assert f"that of {tmp_path / 'c'} is of the kind BPE" in masked.complaint
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_vocab_of_words_and_a_corpus_made_with_it(firth, tiny_text: Path, tmp_path: Path) -> None:
    result = firth("vocab", tiny_text, "--kind", "words", "--size", 50, "--lowercase", "--out", tmp_path / "v")
    assert (result.code, result.err) == (0, "")
    assert "50 words" in result.out and "words without <unk>" in result.out
    result = firth("prepare", tiny_text, "--tokenizer", tmp_path / "v", "--out", tmp_path / "c", "--workers", 1)
    assert result.code == 0 and "next: firth pretrain --model lstm-small --corpus" in result.out


def test_a_corpus_for_bert_is_followed_by_its_plan(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    result = firth("prepare", tiny_text, "--tokenizer", tiny_vocab, "--out", tmp_path / "c", "--workers", 1)
    assert result.code == 0 and result.out.splitlines()[-1].startswith(
        f"next: firth plan {tmp_path / 'c'} --minutes 30  # "
    )
    planned = firth("plan", tmp_path / "c", "--minutes", 30)
    # So small a text is read forty times long before the half hour is over.
    assert planned.code == 0 and f"--corpus {tmp_path / 'c'} --out runs/a --epochs 40" in planned.out


def test_a_text_too_small_to_learn_from_is_said_and_one_below_a_sequence_is_refused(
    firth, tiny_vocab: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("The river.\n", "utf-8")
    made = firth("prepare", tmp_path / "t.txt", "--tokenizer", tiny_vocab, "--out", tmp_path / "c", "--workers", 1)
    n_tokens = int(re.search(r"(\d+) tokens$", made.out.splitlines()[0])[1])  # type: ignore[index]  # it is there
    little = f"warning: a text of {n_tokens} tokens is little to pre-train on: 40 epochs, more gain little, read "
    assert made.code == 0 and f"{little}{40 * n_tokens}, and firth-mini-en had read 8.19M" in made.out
    refused = firth("pretrain", "--model", "bert-tiny", "--corpus", tmp_path / "c", "--out", tmp_path / "r")
    assert refused.code == 2 and not (tmp_path / "r").exists()
    assert f"c has {n_tokens} tokens of training text, and one sequence reads " in refused.complaint


def test_vocab_of_byte_pairs_has_no_score(firth, tiny_text: Path, tmp_path: Path) -> None:
    result = firth("vocab", tiny_text, "--kind", "bpe", "--score", "likelihood", "--out", tmp_path / "v")
    assert result.code == 2 and "score='likelihood' applies to WordPiece" in result.complaint
    assert list(tmp_path.iterdir()) == []


def test_vocab_of_no_size(firth, tiny_text: Path, tmp_path: Path) -> None:
    result = firth("vocab", tiny_text, "--size", 5, "--out", tmp_path / "v")
    assert result.code == 2 and "size=5" in result.complaint and not (tmp_path / "v").exists()


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
def test_a_folder_in_the_way_is_left_as_it_is(
    firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    more = ["--tokenizer", tiny_vocab] if verb == "prepare" else ["--size", 250]
    result = firth(verb, tiny_text, "--out", tmp_path / "out", *more)
    assert result.code == 2 and f"{tmp_path / 'out'}" in result.complaint and "exists already" in result.complaint
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("verb", ["vocab", "prepare"])
def test_a_place_that_cannot_be_written(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, verb: str) -> None:
    tmp_path.chmod(0o555)
    more = ["--tokenizer", tiny_vocab] if verb == "prepare" else ["--size", 250]
    result = firth(verb, tiny_text, "--out", tmp_path / "out", *more)
    assert result.code == 2 and str(tmp_path / "out") in result.complaint


@pytest.mark.parametrize("verb", ["vocab", "prepare"])
def test_a_file_where_a_folder_must_be_made(
    firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "file").write_text("keep")
    more = ["--tokenizer", tiny_vocab] if verb == "prepare" else ["--size", 250]
    result = firth(verb, tiny_text, "--out", tmp_path / "file" / "out", *more)
    assert result.code == 2 and str(tmp_path / "file") in result.complaint
    assert (tmp_path / "file").read_text() == "keep"


def test_a_single_document_is_not_told_to_hold_out_more(firth, tiny_vocab: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("The river was cold.\nThe hill was green.\n")
    result = firth("prepare", text, "--tokenizer", tiny_vocab, "--workers", 1, "--out", tmp_path / "c")
    assert result.code == 0 and "none of a single document; a blank line begins another" in result.out


def test_prepare_reports_and_says_what_comes_next(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    command = ["prepare", tiny_text, "--tokenizer", tiny_vocab, "--hold-out", 0.1, "--workers", 1, "--out"]
    result = firth(*command, tmp_path / "c")
    assert result.code == 0
    assert "held out  " in result.out and f"next: firth plan {tmp_path / 'c'}" in result.out
    report = json.loads(firth(*command, tmp_path / "d", "--json").out)
    assert report["documents"] + report["dev_documents"] == 80
    again = firth(*command, tmp_path / "c")
    assert again.code == 2 and "exists already" in again.complaint


def test_prepare_takes_the_evaluation_text_apart(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("One sentence. Another one.\n\nA second document.\n", "utf-8")
    result = firth(
        "prepare",
        tiny_text,
        "--tokenizer",
        tiny_vocab,
        "--out",
        tmp_path / "c",
        "--workers",
        1,
        "--json",
        "--dev",
        tmp_path / "a.txt",
        tmp_path / "b.txt",
    )
    report = json.loads(result.out)
    assert (report["documents"], report["dev_documents"]) == (80, 4)


def test_prepare_says_how_much_a_vocabulary_does_not_know(firth, tiny_vocab: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("日本 は 国 です\n" * 9, "utf-8")
    result = firth("prepare", tmp_path / "t.txt", "--tokenizer", tiny_vocab, "--out", tmp_path / "c", "--workers", 1)
    assert result.code == 0 and f"100.0% of the tokens are unknown to {tiny_vocab}" in result.out


def test_prepare_needs_a_share(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    result = firth("prepare", tiny_text, "--tokenizer", tiny_vocab, "--out", tmp_path / "c", "--hold-out", 1.5)
    assert result.code == 2 and "hold_out=1.5" in result.complaint and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["no mask", "missing", "no tokenizer", "broken json"])
def test_prepare_refuses_a_vocabulary_that_cannot_serve(
    firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "vocab"
    if kind != "missing":
        folder.mkdir()
    if kind == "no mask":
        pieces = (tiny_vocab / "vocab.txt").read_text("utf-8").replace("[MASK]\n", "")
        (folder / "vocab.txt").write_text(pieces, "utf-8")
    if kind == "broken json":
        (folder / "tokenizer.json").write_text("{", "utf-8")
    result = firth("prepare", tiny_text, "--tokenizer", folder, "--out", tmp_path / "c")
    assert result.code == 2 and str(folder) in result.complaint
    assert kind != "no mask" or "[MASK]" in result.complaint
    assert not (tmp_path / "c").exists()


def test_repeated_pairs_are_not_told_to_be_cleaned(firth, tiny_vocab: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("The old farmer.\n" * 3 + "A mill.\n")
    given = ("--tokenizer", tiny_vocab, "--workers", 1, "--out")
    result = firth("prepare", tmp_path / "a", "--second", tmp_path / "b", *given, tmp_path / "c")
    assert "note: 2 pairs equal to an earlier one\n" in result.out


def test_mixed_newlines_make_the_same_corpus(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    lines = tiny_text.read_bytes().split(b"\n")
    ends = [b"\n", b"\r\n", b"\r"]
    # \r before an empty line's \n would be one line end, not two
    mixed = b"".join(
        line + ends[i % 3 if line and lines[i + 1 : i + 2] != [b""] else 1] for i, line in enumerate(lines[:-1])
    )
    (tmp_path / "mixed.txt").write_bytes(b"\xef\xbb\xbf" + mixed)
    ids = []
    for name, text in (("a", tiny_text), ("b", tmp_path / "mixed.txt")):
        command = ["prepare", text, "--tokenizer", tiny_vocab, "--out", tmp_path / name, "--workers", 1]
        assert firth(*command, "--hold-out", 0).code == 0
        ids.append([np.load(tmp_path / name / f"train-00000.{part}.npy") for part in ("ids", "sentences", "documents")])
    for a, b in zip(*ids, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_line_of_ten_megabytes_is_read_in_parts_and_quickly(firth, tiny_text: Path, tmp_path: Path) -> None:
    text = tmp_path / "line.txt"
    text.write_bytes(tiny_text.read_bytes() + b"\n\n" + b"river and hill " * 700_000 + b"\n")
    started_at_s = time.process_time()
    vocab = firth("vocab", text, "--size", 250, "--out", tmp_path / "v", "--workers", 1, "--json")
    corpus = firth("prepare", text, "--tokenizer", tmp_path / "v", "--out", tmp_path / "c", "--workers", 1)
    assert json.loads(vocab.out)["cut_lines"] == 1
    assert corpus.code == 0 and "1 line too long for one paragraph" in corpus.out
    assert time.process_time() - started_at_s < 20


def test_one_document_of_one_sentence(firth, tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("the old man and the old sea and the old boat", "utf-8")
    vocab, corpus = tmp_path / "v", tmp_path / "c"
    assert firth("vocab", text, "--size", 25, "--out", vocab).code == 0
    assert firth("prepare", text, "--tokenizer", vocab, "--out", corpus, "--workers", 1, "--hold-out", 0).code == 0
    short = ["--steps", 2, "--set", "data.length=16"]  # the text has 18 tokens
    result = firth("pretrain", "--model", "bert-tiny", "--corpus", corpus, "--out", tmp_path / "r", *short)
    assert result.code == 0 or (result.code in (1, 2) and "sentence" in result.complaint), result.err


def test_prepare_cleans_and_says_what_went(firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path) -> None:
    text = tmp_path / "twice.txt"
    text.write_text(tiny_text.read_text("utf-8") + "\n" + tiny_text.read_text("utf-8"), "utf-8")
    command = ["prepare", text, "--tokenizer", tiny_vocab, "--workers", 1, "--hold-out", 0, "--out"]
    plain = firth(*command, tmp_path / "plain")
    assert plain.code == 0 and "80 documents equal to an earlier one; --clean removes them" in plain.out
    clean = firth(*command, tmp_path / "clean", "--clean", "--weight", "twice.txt=2", "--licence", "twice*=CC0")
    assert clean.code == 0 and "removed as duplicates: 80 documents" in clean.out
    assert "160 documents" in clean.out and "CC0" in (tmp_path / "clean" / "README.md").read_text("utf-8")
    kept = firth(*command, tmp_path / "kept", "--clean", "--keep", "duplicates", "near-duplicates", "repeated")
    assert kept.code == 0 and "removed" not in kept.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--keep", "lists"], "--clean"),
        (["--clean", "--keep", "x"], "--keep x: expected of damaged"),
        (["--weight", "a"], "--weight a: expected PATTERN=VALUE"),
        (["--weight", "*=much"], "expected a number"),
        (["--licence", "nowhere=CC0"], "none of the text files"),
        (["--similarity", "0.9"], "--similarity says what --clean takes"),
        (["--memory", "500MB"], "--memory bounds what --clean, --against"),
        (["--language", "en", "--memory", "lots"], "--memory lots: expected a size"),
        (["--clean", "--memory", "9" * 400], "expected a size"),
        (["--language", "klingon"], "no language called 'klingon'"),
        (["--against", "missing.tsv"], "missing.tsv"),
        (["--holdout", 0.1], "--hold-out"),
    ],
)
def test_flags_of_cleaning_that_cannot_be(
    firth, tiny_text: Path, tiny_vocab: Path, tmp_path: Path, flags: list, message: str
) -> None:
    result = firth("prepare", tiny_text, "--tokenizer", tiny_vocab, "--out", tmp_path / "c", *flags)
    assert result.code == 2 and message in result.complaint and list(tmp_path.iterdir()) == []
