"""``firth extend``: what it prints, what it refuses, and what it leaves behind."""

import json
from pathlib import Path

import pytest

import firth.corpus.extend as job
from firth.folder import PRETRAINING, read_model, write_model
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.tasks.config import ClassifyConfig
from firth.tasks.table import TASKS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, *(form for c in "acdehimnortuy" for form in (c, "##" + c))]
SIZES = {"width": 8, "n_layers": 1, "n_heads": 2, "feed_forward_width": 8, "max_positions": 32}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, made without training: it is extended like any model."""
    folder = tmp_path_factory.mktemp("cli") / "base"
    folder.mkdir()
    encoder = Bert(BertConfig(vocab_size=len(PIECES), **SIZES))
    model = TASKS["classify"].model(encoder, ClassifyConfig(labels=("a", "b")))
    write_model(folder, "bert", "classify", model, Tokenizer.from_vocab(PIECES, lowercase=True), {})
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the myocardium {'a' * i} heart\n\n" for i in range(1, 41)), "utf-8")
    return path


def test_help_has_an_example_and_a_line_per_flag(firth) -> None:
    result = firth("extend", "--help")
    assert result.code == 0 and "Example: firth extend " in result.out
    for flag in ("--tokens", "--out", "--errors", "--json"):
        assert flag in result.out


def test_it_says_what_changed_and_what_comes_next(firth, tiny_run: Path, text: Path, tmp_path: Path) -> None:
    result = firth("extend", tiny_run, text, "--tokens", 900, "--out", tmp_path / "new")
    assert result.code == 0
    tokenizer = read_model(tmp_path / "new").tokenizer
    n = tokenizer.size - 300
    assert f"{tmp_path / 'new'}: {n} new tokens, {tokenizer.size} in all" in result.out
    assert f"only {n} of 900 new tokens are useful for this text: adding these" in result.err
    for part in ("on the text (", "on held-out text (", "tokens per word", " → 1.", "myocardium", "that are [UNK]"):
        assert part in result.out
    assert f"next: firth prepare {text} --tokenizer {tmp_path / 'new'}/ --out corpus/" in result.out
    assert f"next: firth pretrain --model {tmp_path / 'new'}/ --corpus corpus/ --out runs/domain" in result.out
    assert read_model(tmp_path / "new").task == PRETRAINING


def test_a_fine_tuned_model_goes_on_as_one(firth, base: Path, text: Path, tmp_path: Path) -> None:
    text.write_bytes(text.read_bytes() + b"\n\nbad \xff byte\n")
    result = firth("extend", base, text, "--tokens", 3, "--out", tmp_path / "new")
    assert f"next: firth finetune --task classify --model {tmp_path / 'new'}/ --train FILE --out runs/b" in result.out
    assert "warning: 1 place not UTF-8" in result.out and "prepare" not in result.out
    strict = firth("extend", base, text, "--out", tmp_path / "x", "--errors", "strict")
    assert strict.code == 2 and f"{text}: not UTF-8 at byte" in strict.complaint
    assert not (tmp_path / "x").exists()


def test_the_report_as_json(firth, base: Path, text: Path, tmp_path: Path) -> None:
    result = firth("extend", base, text, "--tokens", 3, "--out", tmp_path / "new", "--json")
    report = json.loads(result.out)
    assert (report["size_before"], report["size_after"], report["asked"]) == (len(PIECES), len(PIECES) + 3, 3)
    assert report["text"]["before"]["tokens"] > report["text"]["after"]["tokens"]
    assert report["frequent"][0].keys() == {"token", "count", "before"} and len(report["frequent"]) == 3


def test_wrong_usage_is_one_line_and_leaves_nothing(firth, base: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    (tmp_path / "empty.txt").write_text("")
    before = sorted(tmp_path.rglob("*"))
    new = tmp_path / "new"
    cases: list[tuple[list[object], list[str]]] = [
        ([base, text], ["--out", "firth extend --help"]),
        ([base, "--out", new], ["TEXT"]),
        ([base, text, "--out", new, "--tokens", 0], ["--tokens", ">= 1"]),
        ([base, text, "--out", tmp_path / "out"], [f"{tmp_path / 'out'} exists already"]),
        ([base, tmp_path / "none.txt", "--out", new], ["none.txt", "no such file"]),
        ([base, tmp_path / "empty.txt", "--out", new], ["empty.txt", "give text"]),
        ([tmp_path / "none", text, "--out", new], ["none", "no such model folder"]),
    ]
    for tokens, parts in cases:
        result = firth("extend", *tokens)
        assert result.code == 2 and result.out == ""
        assert [part for part in parts if part not in result.complaint] == []
    assert firth("extend", tmp_path / "out", text, "--out", new).code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interruption_says_what_to_do(
    firth, base: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "choose_pieces", interrupted)
    result = firth("extend", base, text, "--out", tmp_path / "new")
    assert result.code == 130
    assert result.complaint == "interrupted: no model was written; run the same command again"
    assert list(tmp_path.iterdir()) == [text]
