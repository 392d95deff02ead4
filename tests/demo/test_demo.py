"""The whole demo in miniature, on a small text of its own."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import firth
from firth.demo import run as job
from firth.demo.python_docs import PythonDocs, split_labelled
from firth.demo.reviews import read_reviews
from firth.demo.run import DemoResult, demo
from firth.demo.settings import (
    DOCSTRINGS,
    FRESH,
    PRETRAINED,
    REVIEWS,
    SHIPPED_START,
    TFIDF,
    DemoSettings,
    Score,
)
from firth.demo.trials import Trial, Trials
from firth.errors import ConfigError
from firth.files import lock
from firth.pretraining.run import pretrain
from firth.text.records import Document, Text

pytest.importorskip("matplotlib")

SETTINGS = DemoSettings(
    held_out_share=0.2,
    vocab_size=90,
    width=32,
    length=64,
    short_length=32,
    steps=6,
    batch_tokens=256,
    log_every=2,
    eval_every=3,
    save_every=3,
    precision="float32",
    per_class=(4, 8),
    draws=2,
    tune_steps=3,
    fewest_tokens=4,
)
_WORDS = {
    "files": ["open", "read", "write", "close", "path", "folder", "name", "disk", "copy", "move"],
    "email": ["message", "header", "sender", "mail", "address", "subject", "reply", "body", "part", "send"],
}


def tiny_docs() -> PythonDocs:
    """Two parts of a library, with twelve modules each."""
    rng = random.Random(3)
    documents, labelled = [], []
    for part, words in _WORDS.items():
        for module in range(12):
            texts = [f"Return the {' '.join(rng.choices(words, k=5))}." for _ in range(6)]
            documents.append(Document(tuple(texts), f"stdlib:{part}{module}"))
            labelled += [Text(t, part, f"stdlib:{part}{module}:f{i}") for i, t in enumerate(texts)]
    return PythonDocs(documents, labelled)


@pytest.fixture(autouse=True, scope="module")
def no_shipped_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder of shipped models, so that the tests do not use those of this repository."""
    folder = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "WEIGHTS", folder)
        yield folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[DemoResult, list[str]]:
    """A finished demo and its messages."""
    said: list[str] = []
    out = tmp_path_factory.mktemp("demo") / "out"
    return demo(out, settings=SETTINGS, docs=tiny_docs(), tell=said.append), said


@pytest.mark.draws
def test_all_that_is_promised_is_there(made: tuple[DemoResult, list[str]]) -> None:
    result, said = made
    page = result.report.read_text("utf-8")
    assert page.count("<svg") == 3 and "nearest" in page.lower()
    assert {s.start for s in result.scores} == {PRETRAINED, FRESH, TFIDF}
    assert len(result.scores) == 3 * len(SETTINGS.per_class) * SETTINGS.draws
    assert all(0 <= s.accuracy <= 1 and 0 <= s.macro_f1 <= 1 for s in result.scores)
    assert firth.load(result.out / "run").fill_mask("Return the [MASK].")
    assert firth.load(result.out / "classifier").loaded.task == "classify"
    assert any("fill-mask" in line for line in said) and any("pretrain" in line for line in said)
    assert sorted(p.name for p in result.out.iterdir() if p.name.startswith(".")) == [".lock"]


def test_no_test_docstring_is_in_the_text_that_is_learned_from(made: tuple[DemoResult, list[str]]) -> None:
    result, _ = made
    docs = tiny_docs()
    test = split_labelled(docs.labelled, job.SEED, 4).test
    lines = set((result.out / "text" / "train.txt").read_text("utf-8").splitlines())
    assert test and not lines & {text.text for text in test}
    assert not lines & set((result.out / "text" / "held-out.txt").read_text("utf-8").split("\n")) - {""}


def test_the_same_seed_gives_the_same_numbers(made: tuple[DemoResult, list[str]], tmp_path: Path) -> None:
    result, _ = made
    again = demo(tmp_path / "out", settings=SETTINGS, docs=tiny_docs(), tell=lambda _: None)
    assert again.scores == result.scores and again.dev == result.dev


def test_a_finished_demo_does_nothing_again(made: tuple[DemoResult, list[str]]) -> None:
    result, _ = made
    said: list[str] = []
    again = demo(result.out, settings=SETTINGS, docs=tiny_docs(), tell=said.append)
    assert again.scores == result.scores and sum("done already" in line for line in said) == 5


def test_an_interrupted_demo_goes_on(
    made: tuple[DemoResult, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo interrupted once in every stage, in two of them midway, ends with the same numbers."""
    scoring: Callable[..., Score] = Trials.score

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    def stop_in_pretraining(self: job._Demo) -> NoReturn:
        trainer = pretrain(self.recipe(), self.out / "run", lambda _: None)
        assert trainer.finished
        shutil.rmtree(self.out / "run" / "checkpoints" / f"step-{SETTINGS.steps}")
        raise KeyboardInterrupt

    def stop_scoring(self: Trials, trial: Trial, tell: Callable[[str], None]) -> Score:
        if trial.draw:
            raise KeyboardInterrupt
        return scoring(self, trial, tell)

    def run() -> DemoResult:
        return demo(tmp_path / "out", settings=SETTINGS, docs=tiny_docs(), tell=lambda _: None)

    stops: list[tuple[type, str, Callable[..., Any]]] = [
        (job._Demo, "write_text", stop),
        (job._Demo, "train_vocab", stop),
        (job._Demo, "prepare_corpus", stop),
        (job._Demo, "pretrain", stop_in_pretraining),
        (Trials, "score", stop_scoring),
    ]
    for where, name, function in stops:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, function)
            with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
                run()
    # A kill may leave these too.
    (tmp_path / "out" / ".tuning-x").mkdir()
    with open(tmp_path / "out" / "scores.jsonl", "a", encoding="utf-8") as file:
        file.write('{"start": "pre-tr')
    result = run()
    assert result.scores == made[0].scores and result.dev == made[0].dev
    assert [path.name for path in result.out.glob(".*")] == [".lock"]


def test_other_settings_are_never_mixed(made: tuple[DemoResult, list[str]]) -> None:
    out = made[0].out
    before = (out / "settings.json").read_text("utf-8")
    for other, changed in (("settings", dataclasses.replace(SETTINGS, steps=9)), ("seed", SETTINGS)):
        with pytest.raises(ConfigError, match=f"holds a demo with other {other}: choose another --out, or delete it"):
            demo(out, seed=job.SEED + (other == "seed"), settings=changed, docs=tiny_docs(), tell=lambda _: None)
    assert (out / "settings.json").read_text("utf-8") == before
    assert json.loads(before)["seed"] == job.SEED


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x", "utf-8")
    said: list[str] = []
    with pytest.raises(ConfigError, match="exists already and is no demo"):
        demo(tmp_path, settings=SETTINGS, tell=said.append)
    assert said == []  # refused before the text is read
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with lock(tmp_path / "demo"), pytest.raises(ConfigError, match="is in use by another firth process"):
        demo(tmp_path / "demo", settings=SETTINGS, docs=tiny_docs(), tell=lambda _: None)


def test_shipped_models_are_compared_first(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights"
    for name in ("firth-mini-en", "firth-mini-ko"):
        shutil.copytree(tiny_run / "model", weights / name)
    monkeypatch.setattr(job, "WEIGHTS", weights)
    said: list[str] = []
    settings = dataclasses.replace(SETTINGS, per_class=(4,), draws=1)

    def run() -> DemoResult:
        return demo(tmp_path / "out", settings=settings, docs=tiny_docs(), tell=said.append)

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job._Demo, "write_text", stop)
        with pytest.raises(KeyboardInterrupt, match="the same command resumes"):
            run()
    # The shipped models are compared before anything is pre-trained.
    first = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text("utf-8").splitlines()]
    assert {(s["task"], s["start"]) for s in first} == {
        (DOCSTRINGS, SHIPPED_START), (DOCSTRINGS, TFIDF), (REVIEWS, SHIPPED_START), (REVIEWS, TFIDF), (REVIEWS, FRESH)
    }  # fmt: skip
    result = run()
    assert len(result.scores) == len(first) + 2
    assert "Korean film reviews" in result.report.read_text("utf-8")
    assert any(line.startswith(f"{REVIEWS}: test accuracy from 4 labels per class: {SHIPPED_START}") for line in said)


def test_the_reviews_are_whole() -> None:
    reviews = read_reviews()
    assert len(reviews) == len({review.text for review in reviews}) == 500
    assert [sum(review.label == label for review in reviews) for label in ("negative", "positive")] == [250, 250]
    assert all(review.text.strip() == review.text and len(review.text) >= 10 for review in reviews)
