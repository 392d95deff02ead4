"""``firth fill-mask`` and ``firth embed``."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from firth import load


@pytest.fixture
def run_copy(tiny_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(tiny_run / "model", tmp_path / "run" / "model")
    return tmp_path / "run"


def test_blanks_are_shown_with_their_candidates(firth, tiny_run: Path) -> None:
    text = "The [MASK] farmer walked to the [MASK]."
    result = firth("fill-mask", tiny_run, text, "--top-k", 3)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == text and [line.strip() for line in lines[1::4]] == ["mask 1", "mask 2"]
    best = load(tiny_run).fill_mask(text, top_k=3)[0].candidates[0]
    assert lines[2].split() == [f"{best.probability:.2%}", best.token]


def test_blanks_as_json_from_stdin(firth, tiny_run: Path) -> None:
    texts = ["The old [MASK].", "늙은 농부는 [MASK] 갔다."]
    stdin = "\r\n\n".join(["\ufeff" + texts[0], texts[1]]).encode() + b"\n"
    result = firth("fill-mask", tiny_run, "--json", stdin=stdin)
    answers = [json.loads(line) for line in result.out.splitlines()]
    assert [answer["text"] for answer in answers] == texts
    assert [len(answer["masks"][0]["candidates"]) for answer in answers] == [5, 5]
    assert answers[1]["masks"][0]["start"] == texts[1].index("[MASK]")


@pytest.mark.parametrize(
    ("tokens", "stdin", "parts"),
    [
        (["no blank here"], b"", ["no blank here", "[MASK]"]),
        (["[MASK] " + "the old farmer " * 40], b"", ["at most 64", "shorten"]),
        (["[MASK]", "--top-k", "0"], b"", ["top_k=0"]),
        (["[MASK]", "--top-k", "301"], b"", ["top_k=301", "300"]),
        ([], b"", ["no text", "stdin"]),
        ([], b"\n  \n", ["no text", "stdin"]),
        ([], b"The [MASK].\nbad \xff [MASK].\n", ["stdin, line 2", "not UTF-8"]),
    ],
)
def test_texts_that_cannot_be_answered(
    firth, tiny_run: Path, tokens: list[str], stdin: bytes, parts: list[str]
) -> None:
    result = firth("fill-mask", tiny_run, *tokens, stdin=stdin)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == []


@pytest.mark.parametrize("verb", ["fill-mask", "embed"])
def test_model_folders_that_are_none_or_damaged(
    firth, run_copy: Path, tiny_vocab: Path, tmp_path: Path, verb: str
) -> None:
    def complaint(folder: Path, code: int) -> str:
        tokens = ["[MASK]"] if verb == "fill-mask" else ["--out", tmp_path / "v.npy"]
        result = firth(verb, folder, *tokens, stdin=b"a\n")
        assert result.code == code and result.out == ""
        assert not list(tmp_path.glob("*v.npy*"))
        return result.complaint

    assert "no such model folder" in complaint(tmp_path / "absent", 2)
    assert f"{tiny_vocab} is not a model folder" in complaint(tiny_vocab, 2)
    weights = run_copy / "model" / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"\xff" * 64 + whole[64:], b""):
        weights.write_bytes(damaged)
        assert str(weights) in complaint(run_copy, 2)
    weights.unlink()
    assert str(weights) in complaint(run_copy, 2)


def test_vectors_as_npy_are_those_of_the_library(firth, tiny_run: Path, tmp_path: Path) -> None:
    lines = [f"The {'old ' * (i % 90)}farmer walked to the river." for i in range(130)] + ["", "늙은 농부는"]
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(lines) + "\n", "utf-8")
    out = tmp_path / "v.npy"
    result = firth("embed", tiny_run, "--layer", -2, "--pool", "max", "--out", out, "--input", text)
    assert (result.code, result.out) == (0, f"{out}: 132 vectors\n")
    vectors = np.load(out)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, load(tiny_run).embed(lines, layer=-2, pool="max"), rtol=1e-5, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "v.npy"]


def test_vectors_as_jsonl_are_exact(firth, tiny_run: Path) -> None:
    result = firth("embed", tiny_run, "--pool", "summary", stdin=b"a farmer\nthe river")
    vectors = np.array([json.loads(line) for line in result.out.splitlines()], np.float32)
    np.testing.assert_array_equal(vectors, load(tiny_run).embed(["a farmer", "the river"], pool="summary"))


@pytest.mark.parametrize(
    ("tokens", "stdin", "part"),
    [
        (["--layer", "3"], b"a\n", "layer 3: this model has layers 0 (embeddings) to 2"),
        (["--layer", "-4"], b"a\n", "layer -4"),
        ([], b"", "stdin: no lines"),
        ([], b"ok\n\xff\n", "stdin, line 2: not UTF-8"),
        (["--input", "absent.txt"], b"", "absent.txt: cannot be read: No such file"),
    ],
)
@pytest.mark.parametrize("out", [[], ["--out", "v.npy"]])
def test_vectors_that_cannot_be_made(
    firth,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokens: list[str],
    stdin: bytes,
    part: str,
    out: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth("embed", tiny_run, *tokens, *out, stdin=stdin)
    assert result.code == 2 and part in result.complaint
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_vectors_in_the_way_is_kept(firth, tiny_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    out.write_bytes(b"mine")
    result = firth("embed", tiny_run, "--out", out, stdin=b"a\n")
    assert result.code == 2 and f"{out} exists already" in result.complaint
    assert out.read_bytes() == b"mine"


def test_a_folder_for_vectors_that_is_not_there(firth, tiny_run: Path, tmp_path: Path) -> None:
    result = firth("embed", tiny_run, "--out", tmp_path / "absent" / "v.npy", stdin=b"a\n")
    assert result.code == 2 and "cannot be written" in result.complaint
