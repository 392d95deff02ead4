"""``firth translate`` and its pipeline: parallel text, checkpoint averaging, BLEU."""

import json
import shutil
from pathlib import Path

import pytest

LINES = ["the old farmer walked to the river", "", "a young doctor painted the mill"]


@pytest.fixture(scope="module")
def run(tiny_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps, which translates badly."""
    from firth.pretraining.run import pretrain, resolve

    recipe = {
        "model": "transformer-tiny",
        "encoder": {"width": 16, "n_heads": 2, "feed_forward_width": 32},
        "data": {"length": 32},
        "train": {"steps": 4, "batch_tokens": 128, "save_every": 2, "keep_checkpoints": 3, "precision": "float32"},
    }
    out = tmp_path_factory.mktemp("translate") / "run"
    pretrain(resolve(recipe, [f"data.corpus={tiny_pairs}"], "translate"), out, tell=lambda _: None)
    return out


def text(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def test_the_road_of_parallel_text(firth, tiny_vocab: Path, tmp_path: Path) -> None:
    ours, theirs = text(tmp_path / "a", ["one two", "", "three"]), text(tmp_path / "b", ["eins zwei", "x", "drei"])
    made = firth(
        "prepare",
        ours,
        "--second",
        theirs,
        "--dev",
        shutil.copy(ours, tmp_path / "dev-a"),
        "--dev-second",
        shutil.copy(theirs, tmp_path / "dev-b"),
        "--tokenizer",
        tiny_vocab,
        "--out",
        tmp_path / "c",
        "--workers",
        1,
    )
    assert made.code == 0 and "2 pairs, 4 sentences" in made.out and "held out  2 pairs" in made.out
    assert "left out: 2 pairs with nothing on one side" in made.out
    assert f"next: firth pretrain --model transformer-mini --corpus {tmp_path / 'c'}" in made.out
    for model, what in (("bert-tiny", "'documents'"), ("lstm-small", "'streams'")):
        refused = firth("pretrain", "--model", model, "--corpus", tmp_path / "c", "--out", tmp_path / "r")
        assert refused.code == 2 and f"c is parallel text, but data.instances={what}" in refused.complaint
    short = text(tmp_path / "d", ["eins"])
    refused = firth("prepare", ours, "--second", short, "--tokenizer", tiny_vocab, "--out", tmp_path / "e")
    assert refused.code == 2 and f"{ours} has 3 lines and {short} 1" in refused.complaint


def test_translation_is_not_learnt_from_other_text(firth, tiny_corpus: Path, tmp_path: Path) -> None:
    refused = firth("pretrain", "--model", "transformer-tiny", "--corpus", tiny_corpus, "--out", tmp_path / "r")
    assert refused.code == 2 and "is text of one side, but data.instances='translations'" in refused.complaint
    assert not (tmp_path / "r").exists()


def test_training_says_what_is_left_out_and_what_comes_next(firth, tiny_pairs: Path, tmp_path: Path) -> None:
    result = firth(
        "pretrain",
        "--model",
        "transformer-tiny",
        "--corpus",
        tiny_pairs,
        "--out",
        tmp_path / "r",
        "--steps",
        1,
        "--set",
        "data.length=24",
        "--set",
        "train.batch_tokens=64",
        "--set",
        "encoder.width=128",
    )
    assert result.code == 0, result.err
    assert " training pairs are longer than data.length=24 and skipped" in result.err
    assert " held-out pairs are longer than data.length=24 and skipped" in result.err
    assert result.out.endswith(f"next: firth translate {tmp_path / 'r'} < lines.txt\n")
    shown = json.loads(firth("pretrain", "--resume", tmp_path / "r", "--replay", "0:0:0:0").out)
    row = shown["rows"][0]
    assert row["text"].endswith("[SEP]") and row["second"].startswith("[CLS]")
    read, asked = row["second"].split(), [answer for _, answer in row["translation"]]
    assert read[1:] + ["[SEP]"] == asked


def test_a_line_for_a_line(firth, run: Path, tmp_path: Path) -> None:
    plain = firth("translate", run, stdin="\n".join(LINES).encode())
    assert plain.code == 0
    lines = plain.out.split("\n")
    assert len(lines) == 4 and lines[1] == lines[3] == ""
    assert firth("translate", run, "--input", text(tmp_path / "lines", LINES)).out == plain.out
    assert firth("translate", run, *LINES).out == plain.out
    objects = [json.loads(line) for line in firth("translate", run, "--json", *LINES).out.splitlines()]
    assert [found["translation"] for found in objects] == lines[:3]
    assert set(objects[0]) == {"translation", "score", "log_prob", "tokens", "ended"}
    assert objects[1] == {"translation": "", "score": 0.0, "log_prob": 0.0, "tokens": 0, "ended": True}
    greedy = firth("translate", run, "--greedy", *LINES).out
    assert greedy == firth("translate", run, "--beam", 1, *LINES).out


def test_lines_that_are_longer_than_any_in_training_are_said_once(firth, run: Path, tmp_path: Path) -> None:
    long = " ".join([LINES[0]] * 8)
    short = firth("translate", run, "--greedy", *LINES)
    assert "note: " not in short.err
    result = firth("translate", run, "--greedy", *LINES, long, long)
    assert result.code == 0 and result.out.startswith(short.out) and len(result.out.splitlines()) == 5
    (note,) = (line for line in result.err.splitlines() if line.startswith("note: "))
    assert note.startswith("note: line 4 has ") and "more than any training sequence (32, data.length)" in note
    pytest.importorskip("sacrebleu")
    lines = text(tmp_path / "lines", [*LINES, long, long])
    scored = firth("evaluate", run, "--data", lines, "--gold", lines, "--beam", 1)
    assert "2 lines are longer than any in training: data.length was 32" in scored.err


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        (["RUN", "--greedy", "--beam", "2"], "leave out --beam and --length-penalty"),
        (["RUN", "x", "--input", "y"], "not both"),
        (["RUN", "--length-penalty", "-1"], "length_penalty=-1.0: expected 0"),
        (["BERT", "x"], "system bert does not translate"),
        (["RUN", "--input", "nowhere"], "nowhere: cannot be read"),
        (["nowhere", "x"], "no such model folder"),
    ],
)
def test_translate_refuses_in_one_line(
    firth, run: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"RUN": run, "BERT": tiny_run, "nowhere": "./nowhere"}
    result = firth("translate", *(places.get(token, token) for token in tokens))
    assert result.code == 2 and part in result.complaint


def test_the_mean_of_checkpoints_translates(firth, run: Path, tmp_path: Path) -> None:
    result = firth("average", run, "--last", 2, "--out", tmp_path / "mean")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"{tmp_path / 'mean'}: the mean of 2 models",
        f"  {run / 'checkpoints' / 'step-2'}",
        f"  {run / 'checkpoints' / 'step-4'}",
        f"next: firth translate {tmp_path / 'mean'}",
    ]
    assert firth("translate", tmp_path / "mean", LINES[0]).code == 0
    again = firth("average", run, "--out", tmp_path / "mean")
    assert again.code == 2 and "exists already" in again.complaint
    both = firth("average", run, tmp_path / "mean", "--last", 2, "--out", tmp_path / "other")
    assert both.code == 2 and "--last is for the checkpoints of one run" in both.complaint
    two = firth("average", run, tmp_path / "mean", "--out", tmp_path / "other")
    assert two.code == 0 and "the mean of 2 models" in two.out


def test_translations_are_scored(firth, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    source, gold = text(tmp_path / "source", LINES), text(tmp_path / "gold", LINES)
    plain = firth("evaluate", run, "--data", source, "--gold", gold, "--beam", 2)
    assert plain.code == 0 and f"{gold}: 3 lines\n  bleu  " in plain.out and "tok:13a" in plain.out
    found = json.loads(firth("evaluate", run, "--data", source, "--gold", gold, "--beam", 2, "--json").out)
    assert found["search"] == {"beam": 2, "length_penalty": 0.6, "extra": 50}
    assert set(found["scores"]) == {"bleu", "chrf"}
    written = tmp_path / "found"
    written.write_text(firth("translate", run, "--beam", 2, *LINES).out, "utf-8")
    others = firth("score", "--task", "translate", "--predictions", written, "--gold", gold, "--json")
    assert json.loads(others.out)["scores"] == found["scores"]


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        (["RUN", "--data", "FILE"], "translates: give --gold as well"),
        (["RUN", "--gold", "FILE"], "firth evaluate MODEL --data FILE --gold FILE"),
        (["RUN", "--task", "translate", "--data", "FILE"], "firth evaluate MODEL --data FILE --gold FILE"),
        (["RUN", "--data", "FILE", "--gold", "FILE", "--columns", "text=0"], "--columns: only for labelled examples"),
        (["RUN", "--data", "FILE", "--gold", "FILE", "--split", "dev"], "--split: only for labelled examples"),
        (["RUN", "--data", "FILE", "--gold", "FILE", "--task", "swag"], "--task: only for labelled examples"),
        (["RUN", "--data", "FILE", "--gold", "SHORT"], "has 3 lines and"),
        (["BERT", "--data", "FILE", "--gold", "FILE"], "does not translate, which --gold requires"),
        (["BERT", "--data", "FILE", "--beam", "2"], "--beam: only for translations"),
    ],
)
def test_evaluate_of_translations_refuses_in_one_line(
    firth, run: Path, tiny_run: Path, tmp_path: Path, tokens: list[str], part: str
) -> None:
    places = {
        "RUN": run,
        "BERT": tiny_run,
        "FILE": text(tmp_path / "file", LINES),
        "SHORT": text(tmp_path / "short", ["x"]),
    }
    result = firth("evaluate", *(places.get(token, token) for token in tokens))
    assert result.code == 2 and part in result.complaint, result.err
