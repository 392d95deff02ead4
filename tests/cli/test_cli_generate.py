"""``firth generate``, and a GPT in the other commands."""

import json
from pathlib import Path

import pytest

SMALL = (
    "--set",
    "encoder.width=32",
    "--set",
    "encoder.n_heads=2",
    "--set",
    "encoder.max_positions=48",
    "--set",
    "data.length=24",
    "--set",
    "train.steps=12",
    "--set",
    "train.batch_tokens=256",
    "--set",
    "train.eval_every=6",
    "--set",
    "train.precision=float32",
    "--set",
    "optim.learning_rate=3e-3",
)


@pytest.fixture(scope="module")
def gpt_run(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A pre-training run of a tiny GPT, and what the command printed."""
    import contextlib
    import io

    from firth.cli import main

    run, out = tmp_path_factory.mktemp("gpt") / "run", io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(["pretrain", "--model", "gpt-tiny", "--corpus", str(tiny_corpus), "--out", str(run), *SMALL])
    assert code == 0
    return run, out.getvalue()


def test_pretraining_says_how_to_go_on(gpt_run: tuple[Path, str]) -> None:
    run, out = gpt_run
    assert out.splitlines()[-1] == f"next: firth generate {run} 'The capital of France is'"


def test_rows_of_pretraining_have_no_special_pieces(firth, gpt_run: tuple[Path, str]) -> None:
    result = firth("pretrain", "--resume", gpt_run[0], "--replay", "0:0:0:0")
    rows = json.loads(result.out)["rows"]
    assert rows and all("[" not in row["text"] for row in rows)
    for row in rows:
        pieces = row["text"].split(" ")
        # Every token but the last predicts the next one.
        assert row.get("lm", []) == [[i, piece] for i, piece in enumerate(pieces[1:])]


def test_a_text_goes_on(firth, gpt_run: tuple[Path, str]) -> None:
    result = firth("generate", gpt_run[0], "The old farmer", "--max-new-tokens", "8", "--greedy")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("The old farmer") and len(result.out.splitlines()) == 1


PROMPTS = "the queen\n\n늙은 농부는\n".encode()


def test_lines_of_stdin_and_json(firth, gpt_run: tuple[Path, str]) -> None:
    result = firth("generate", gpt_run[0], "--max-new-tokens", "4", "--json", stdin=PROMPTS)
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [one["prompt"] for one in found] == ["the queen", "늙은 농부는"]
    assert all(len(one["tokens"]) == 4 and one["log_prob"] < 0 for one in found)


@pytest.mark.parametrize("flags", [("--max-new-tokens", "4"), ("--next", "2")])
def test_lines_before_a_bad_one_are_answered(firth, gpt_run: tuple[Path, str], flags: tuple[str, ...]) -> None:
    result = firth("generate", gpt_run[0], *flags, "--json", stdin=b"the queen\n\n" + b"the " * 80 + b"\nthe mill\n")
    assert [json.loads(line)["prompt"] for line in result.out.splitlines()] == ["the queen"]
    assert result.code == 2 and result.complaint.startswith("stdin:3: 'the the")


def test_the_same_seed_prints_the_same_text(firth, gpt_run: tuple[Path, str]) -> None:
    def text(*flags: str) -> str:
        return firth("generate", gpt_run[0], "the", "--max-new-tokens", "20", *flags).out

    assert text() == text("--sample", "--seed", "0") == text("--seed", "0")
    assert text("--seed", "1") != text("--seed", "2")
    assert text("--temperature", "0.001") == text("--greedy") == text("--top-k", "1") == text("--beam", "1")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--greedy", "--beam", "3"), "--greedy and --beam: give one of them"),
        (("--sample", "--greedy"), "--sample and --greedy: give one of them"),
        (("--greedy", "--seed", "1"), "--seed is for --sample: leave out, or leave out --greedy"),
        (("--beam", "2", "--top-k", "5", "--top-p", "0.5"), "--top-k and --top-p are for --sample"),
        (("--temperature", "0"), "temperature=0.0: expected above 0"),
        (("--max-new-tokens", "400"), "shorten the text, or generate fewer tokens"),
    ],
)
def test_what_cannot_be_asked(firth, gpt_run: tuple[Path, str], flags: tuple[str, ...], words: str) -> None:
    result = firth("generate", gpt_run[0], "the queen", *flags)
    assert result.code == 2 and words in result.complaint and result.out == ""


def test_no_text_and_other_models(firth, gpt_run: tuple[Path, str], tiny_run: Path) -> None:
    assert firth("generate", gpt_run[0]).complaint == "no text: give one behind the model, or lines on stdin"
    assert "has no tokens" in firth("generate", gpt_run[0], " ").complaint
    assert "does not predict the next token" in firth("generate", tiny_run, "the").complaint
    assert "cannot fill masks" in firth("fill-mask", gpt_run[0], "a [MASK]").complaint


def test_embedding_and_conversion(firth, gpt_run: tuple[Path, str], tmp_path: Path) -> None:
    assert firth("embed", gpt_run[0], "--out", tmp_path / "v.npy", stdin=b"the queen\nthe mill\n").code == 0
    result = firth("convert", gpt_run[0], "--out", tmp_path / "made")
    assert result.code == 0 and result.out.splitlines()[-1] == f"next: firth generate {tmp_path / 'made'} TEXT"
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("openai-gpt", ["OpenAIGPTLMHeadModel"])
    shorter = firth("convert", gpt_run[0], "--out", tmp_path / "short", "--max-positions", "20")
    assert shorter.code == 0 and "the first 20 are kept" in shorter.out
    refused = firth("convert", gpt_run[0], "--as", "openai", "--out", tmp_path / "npy")
    assert refused.code == 2 and "heads of width 16; the released code has 64" in refused.complaint
    assert not (tmp_path / "npy").exists()


def test_the_table_of_next_tokens(firth, gpt_run: tuple[Path, str]) -> None:
    result = firth("generate", gpt_run[0], "the queen", "--next", 3)
    assert result.code == 0 and result.out.splitlines()[0] == "the queen" and len(result.out.splitlines()) == 4
    found = json.loads(firth("generate", gpt_run[0], "--next", 3, "--json", stdin=b"the queen\n").out)["next"]
    assert len(found) == 3 and 0 < found[2]["probability"] <= found[0]["probability"] < 1
    assert result.out.splitlines()[1].split()[0] == found[0]["token"]
    assert "generates nothing" in firth("generate", gpt_run[0], "the", "--next", 3, "--greedy").complaint
