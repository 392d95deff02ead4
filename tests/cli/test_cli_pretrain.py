"""``firth pretrain``: recipes, refusals, the final messages."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from firth.config import read_toml
from firth.pretraining.run import Outcome

TINY = [
    "--recipe",
    "published",
    "--model",
    "bert-tiny",
    "--set",
    "encoder.width=32",
    "--set",
    "encoder.n_heads=2",
    "--set",
    "data.length=32",
    "--set",
    "encoder.feed_forward_width=64",
    "--set",
    "encoder.max_positions=64",
    "--set",
    "train.batch_tokens=256",
    "--set",
    "train.precision=float32",
]


def test_a_run_says_where_the_model_is_and_what_to_try(firth, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    result = firth("pretrain", *TINY, "--corpus", tiny_corpus, "--out", run, "--steps", 2, "--seed", 7)
    assert result.code == 0
    assert f"{run}: 2 steps done; the model is in {run}/model" in result.out
    assert f"next: firth fill-mask '{run}' 'The capital of France is [MASK].'" in result.out
    recipe = tomllib.loads((run / "recipe.toml").read_text("utf-8"))
    assert (recipe["train"]["steps"], recipe["train"]["seed"]) == (2, 7)


def test_a_model_that_fills_no_blanks_is_offered_for_vectors(firth, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "lstm"
    result = firth(
        "pretrain",
        "--model",
        "lstm-small",
        "--corpus",
        tiny_corpus,
        "--out",
        run,
        "--steps",
        1,
        "--set",
        "encoder.width=16",
        "--set",
        "data.length=16",
        "--set",
        "train.batch_tokens=64",
    )
    assert result.code == 0 and f"next: firth embed {run} --out vectors.npy < lines.txt" in result.out
    refused = firth("fill-mask", run, "[MASK]")
    assert refused.code == 2 and "lstm" in refused.complaint


def test_flags_are_laid_over_the_recipe_file(firth, tiny_corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('model = "bert-mini"\n[train]\nsteps = 3\nseed = 4\n[optim]\nlearning_rate = 0.5\n', "utf-8")
    result = firth(
        "pretrain",
        file,
        "--model",
        "bert-tiny",
        "--corpus",
        tiny_corpus,
        "--steps",
        9,
        "--set",
        "train.steps=10",
        "--set",
        "masking.whole_words=true",
        "--show-recipe",
    )
    assert result.code == 0
    recipe = tomllib.loads(result.out)
    assert (recipe["model"], recipe["encoder"]["width"]) == ("bert-tiny", 128)
    assert (recipe["train"]["steps"], recipe["train"]["seed"]) == (10, 4)
    assert recipe["optim"]["learning_rate"] == 0.5 and recipe["masking"]["whole_words"] is True
    assert "steps = 10  # optimizer steps" in result.out
    assert sorted(tmp_path.iterdir()) == [file]
    # The output is itself a recipe.
    file.write_text(result.out, "utf-8")
    assert firth("pretrain", file, "--show-recipe").out == result.out


@pytest.mark.parametrize(
    ("tokens", "parts"),
    [
        (["--steps", "0"], ["--steps", ">= 1"]),
        (["--minutes", "0"], ["--minutes=0", "a finite number above 0"]),
        (["--minutes", "3", "--epochs", "2"], ["--minutes and --epochs", "one of them"]),
        (
            ["--set", "train.batch_tokens=16"],
            ["train.batch_tokens=16", "smaller than one sequence of 32", "data.length"],
        ),
        (["--set", "data.length=65"], ["data.length=65", "encoder.max_positions=64"]),
        (
            ["--set", "encoder.vocab_size=100"],
            ["encoder.vocab_size=100", "300 tokens", "firth prepare TEXT --tokenizer MODEL"],
        ),
        (["--set", "train.stpes=5"], ["'train.stpes'", "'train.steps'"]),
        (["--set", "trian.steps=5"], ["'trian"]),
        (["--set", "train.learning_rate=5"], ["'train.learning_rate'", "'optim.learning_rate'"]),
        (["--set", "max_steps=5"], ["'max_steps'", "'train.steps'"]),
        (["--set", "train.steps=many"], ["train.steps", "'many'", "int"]),
        (["--set", "train.steps"], ["--set", "key=value"]),
        (["--set", "encoder.n_heads=5"], ["n_heads"]),
        (["--set", "data.instances=streams"], ["data.instances", "'pairs'"]),
        (["--model", "bert-maxi"], ["'bert-maxi'", "bert-mini"]),
        (["--model", "./nowhere"], ["nowhere", "no such model folder"]),
        (["--corpus", "nowhere"], ["nowhere", "firth prepare"]),
        (["--replay", "0:0:0:0"], ["--replay", "--resume"]),
        (["--threads", "0"], ["--threads", ">= 1"]),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    firth, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # A flag given twice is an error of its own.
    keep = [*TINY, "--corpus", tiny_corpus]
    if tokens[0] in keep and tokens[0] != "--set":
        at = keep.index(tokens[0])
        del keep[at : at + 2]
    result = firth("pretrain", *keep, "--out", "run", *tokens)
    assert result.code == 2
    assert [part for part in parts if part not in result.complaint] == [], result.complaint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        ([], "--out"),
        (["--out", "run"], "--corpus"),
        (["--out", "run", "--corpus", "CORPUS"], "--model"),
        (["absent.toml", "--out", "run"], "absent.toml: no such recipe file"),
        (
            ["bert-mini", "--out", "run"],
            "bert-mini: no such recipe; expected a file (.toml), or one of small",
        ),
        (["--resume", "run"], "run: no such folder; give the folder of a run"),
        (["--resume", "."], ". is not a run"),
        (["--resume", "run", "--steps", "5", "--set", "a.b=c"], "leave out --steps, --set"),
        (["--resume", "run", "--out", "other"], "leave out --out"),
        (["--resume", "run", "--show-recipe"], "leave out --show-recipe"),
    ],
)
def test_what_is_missing_or_too_much(
    firth, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = firth("pretrain", *(str(tiny_corpus) if token == "CORPUS" else token for token in tokens))
    assert result.code == 2 and part in result.complaint
    assert list(tmp_path.iterdir()) == []


def test_a_broken_recipe_names_file_and_line(firth, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("model = \n", "utf-8")
    result = firth("pretrain", file, "--out", tmp_path / "run")
    assert result.code == 2 and str(file) in result.complaint and "line 1" in result.complaint


def test_a_run_in_the_way_names_the_command_that_goes_on(firth, tiny_corpus: Path, tiny_run: Path) -> None:
    result = firth("pretrain", *TINY, "--corpus", tiny_corpus, "--out", tiny_run)
    assert result.code == 2 and f"firth pretrain --resume {tiny_run}" in result.complaint


def test_a_finished_run_has_nothing_left_to_do(firth, tiny_run: Path) -> None:
    result = firth("pretrain", "--resume", tiny_run, "--threads", 1)
    assert result.code == 0 and "20 steps done" in result.out and "best held-out loss" in result.out


def test_replay_prints_a_batch_as_json(firth, tiny_run: Path) -> None:
    result = firth("pretrain", "--resume", tiny_run, "--replay", "0:0:0:1")
    shown = json.loads(result.out)
    assert shown["place"] == "0:0:0:1" and shown["rows"][0]["text"].startswith("[CLS] ")
    assert set(shown["losses"]) == {"mlm", "nsp"}
    assert all(set(row) == {"text", "mlm", "nsp"} for row in shown["rows"])


@pytest.mark.parametrize("place", ["0:0:0", "a:b:c:d", "0:0:0:99999", "9:0:0:0", "0:0:0:-1"])
def test_replay_of_a_place_that_is_none(firth, tiny_run: Path, place: str) -> None:
    result = firth("pretrain", "--resume", tiny_run, "--replay", place)
    assert result.code == 2 and place in result.complaint


def test_a_run_whose_corpus_was_moved(firth, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(re.sub('corpus = ".*"', 'corpus = "moved"', recipe))
    result = firth("pretrain", "--resume", run)
    assert (
        result.code == 2
        and "moved: the run's corpus is not there: give its new place with --corpus" in result.complaint
    )
    replayed = firth("pretrain", "--resume", run, "--replay", "0:0:0:1")
    assert replayed.code == 2 and replayed.complaint == result.complaint
    corpus = read_toml(tiny_run / "recipe.toml")["data"]["corpus"]
    assert firth("pretrain", "--resume", run, "--replay", "0:0:0:1", "--corpus", corpus).code == 0
    replayed = firth("pretrain", "--resume", run, "--replay", "0:0:0:1", "--processes", 2)
    assert replayed.code == 2 and "leave out --processes" in replayed.complaint
    stopped = Outcome(run=run, step=1, best=None, finished=False)
    monkeypatch.setattr("firth.pretraining.run.resume", lambda *_, **__: stopped)
    result = firth("pretrain", "--resume", run, "--corpus", "new place")
    assert result.code == 130 and f"--resume {run} --corpus 'new place'" in result.complaint


def test_a_contrastive_stage_of_a_run_with_its_own_recipe(firth, tiny_run: Path, tiny_corpus: Path) -> None:
    flags = ["--recipe", tiny_run / "recipe.toml", "--model", tiny_run, "--corpus", tiny_corpus]
    shown = firth("pretrain", *flags, "--objective", "contrastive", "--show-recipe")
    assert shown.code == 0, shown.complaint
    assert "contrastive = true" in shown.out and "next_sentence = false" in shown.out


def test_a_corpus_of_an_older_layout_or_damaged(firth, tiny_corpus: Path, tmp_path: Path) -> None:
    corpus, run = tmp_path / "c", tmp_path / "run"
    command = ["pretrain", *TINY, "--corpus", corpus, "--out", run, "--steps", 2]
    shutil.copytree(tiny_corpus, corpus)
    manifest = json.loads((corpus / "manifest.json").read_text())
    (corpus / "manifest.json").write_text(json.dumps(manifest | {"version": 0}))
    result = firth(*command)
    assert result.code == 2 and str(corpus) in result.complaint and "prepare the corpus again" in result.complaint
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    ids = corpus / "train-00000.ids.npy"
    ids.write_bytes(ids.read_bytes()[:-2])
    result = firth(*command)
    assert result.code == 2 and str(ids) in result.complaint and "truncated" in result.complaint
    (corpus / "manifest.json").unlink()
    shutil.rmtree(run)  # created before the file was opened
    result = firth(*command)
    assert result.code == 2 and "manifest.json" in result.complaint


@pytest.mark.parametrize(
    ("flags", "embeddings"),
    [
        (["--recipe", "small", "--model", "bert-tiny"], "cooccurrence"),
        (["--model", "bert-small"], "cooccurrence"),
        (["--recipe", "published", "--model", "bert-tiny"], "random"),
        (["--model", "bert-base"], "random"),
        (["--model", "lstm-small"], "random"),
    ],
)
def test_a_recipe_has_a_name_and_a_size_has_a_recipe(
    firth, tiny_corpus: Path, flags: list[str], embeddings: str
) -> None:
    shown = firth("pretrain", *flags, "--corpus", tiny_corpus, "--show-recipe")
    assert shown.code == 0
    assert f'model = "{flags[-1]}"' in shown.out and f'embeddings = "{embeddings}"' in shown.out
    assert ("recipe small" in shown.err) is (flags == ["--model", "bert-small"]), "what nobody asked for is said"
