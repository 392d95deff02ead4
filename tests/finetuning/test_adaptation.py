"""Continuing pre-training on the task's own text before fine-tuning: what is read, what is kept, stops, refusals."""

import contextlib
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.config import read_json
from firth.errors import CheckpointError, ConfigError, FirthError
from firth.finetuning import adaptation, runs
from firth.finetuning.adaptation import adapted_base, check_adaptation, texts_of
from firth.finetuning.base import read_base
from firth.finetuning.finetune import Finetuned, resume, run_resolved
from firth.finetuning.resolve import resolve
from firth.folder import read_model
from firth.pretraining import run as pretraining_run
from firth.text.records import Choice, Question, Text
from firth.training import trainer

QUIET: Callable[[str], None] = lambda text: None  # noqa: E731  # a name for nothing said
SETTINGS = [
    "train.precision=float32",
    "train.epochs=1",
    "train.batch_examples=8",
    'adapt.text=["train"]',
    "adapt.text_epochs=8",
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "_MEASURE_S", 0.0)
    monkeypatch.setattr(adaptation, "_STEP_TOKENS", 256)
    monkeypatch.setattr(runs, "write_finetune_report", lambda out, recipe, results: out / "report.html")


@pytest.fixture
def plain(tiny_run: Path, tmp_path: Path) -> dict[str, Any]:
    lines = ["text\tlabel"]
    for number in range(60):
        label, words = (("river", "walked to the river"), ("winter", "wrote before winter"))[number % 2]
        lines.append(f"the captain number {number} {words}, and it was the last\t{label}")
    (tmp_path / "t.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "d.tsv").write_text("text\tlabel\na secret evening\triver\na winter\twinter\n", "utf-8")
    files = {"train": str(tmp_path / "t.tsv"), "dev": str(tmp_path / "d.tsv")}
    return {"task": "classify", "model": str(tiny_run), "data": files}


def run(plain: dict[str, Any], out: Path, *settings: str, tell: Callable[[str], None] = QUIET) -> Finetuned:
    return run_resolved(resolve(plain, [*SETTINGS, *settings], "test"), out, tell=tell)


def scores(tuned: Finetuned) -> Any:
    return json.loads(json.dumps(tuned.results), object_hook=lambda d: {k: v for k, v in d.items() if k != "elapsed_s"})


def test_fine_tuning_begins_with_the_adapted_weights(plain: dict[str, Any], tmp_path: Path) -> None:
    heard: list[str] = []
    tuned = run(plain, tmp_path / "out", "adapt.frozen_groups=-1", tell=heard.append)
    stage = tmp_path / "out" / "adapted"
    kept = {"run", "done.json"}
    assert {path.name for path in stage.iterdir()} == kept and not (stage / "run/checkpoints").exists()
    assert read_json(stage / "done.json")["text"] == ["train"]
    assert any(line.startswith("adapt.text: continuing pre-training on ") for line in heard)
    # The frozen encoder is the result of that stage, which differs from the initial model.
    weights = read_model(tmp_path / "out").objective.encoder.state_dict()
    adapted = adapted_base(read_base(plain["model"], "", False), tmp_path / "out").weights
    before = read_base(plain["model"], "", False).weights
    assert adapted is not None and before is not None
    assert all(torch.equal(weights[name], adapted[name]) for name in adapted)
    assert not all(torch.equal(before[name], adapted[name]) for name in adapted)
    # Killed before it had removed what nothing reads any more.
    (stage / "corpus").mkdir()
    (stage / "text.txt").touch()
    resume(tmp_path / "out", tell=QUIET)
    assert {path.name for path in stage.iterdir()} == kept
    made = tuned.model.provenance["base"]["provenance"]
    assert made["recipe"]["data.instances"] == "documents" and made["recipe"]["objective.next_sentence"] is False


@pytest.mark.parametrize(("before", "said"), [(0.0, True), (100.0, False)])
def test_text_that_teaches_less_than_is_forgotten_is_said(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: float, said: bool
) -> None:
    monkeypatch.setattr(adaptation, "_loss_before", lambda run: before)
    heard: list[str] = []
    run(plain, tmp_path / "out", tell=heard.append)
    assert any("less than it forgot; leave out adapt.text" in line for line in heard) == said


def test_neither_held_out_nor_dev_texts_are_read(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def listen(paths: list[str], *arguments: Any) -> Any:
        read.extend(Path(paths[0]).read_text("utf-8").split("\n\n"))
        return prepare(paths, *arguments)

    prepare = adaptation.prepare
    monkeypatch.setattr(adaptation, "prepare", listen)
    resolved = resolve(plain, SETTINGS, "test")
    run(plain, tmp_path / "out")
    found = {text.strip() for text in read}
    assert found == {record.text for record in resolved.labelled.train}
    assert not found & {record.text for record in [*resolved.labelled.held, *resolved.labelled.dev["dev"]]}


class Stop:
    """Simulates a stop request after a number of steps of all trainers together."""

    after = steps = 0

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @property
    def asked(self) -> bool:
        Stop.steps += 1
        return Stop.steps == Stop.after

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def test_a_stop_in_either_stage_resumes_to_the_same_results(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "StopRequest", Stop)
    Stop.after, Stop.steps = 0, 0
    whole = scores(run(plain, tmp_path / "whole"))
    assert read_json(tmp_path / "whole/adapted/done.json")["steps"] > 3
    last = Stop.steps - 1  # in the fine-tuning
    for after in (1, 3, last):
        out = tmp_path / str(after)
        Stop.after, Stop.steps = after, 0
        with pytest.raises(KeyboardInterrupt, match="--resume"):
            run(plain, out)
        assert (out / "adapted/done.json").exists() == (after == last)
        out.rename(tmp_path / "moved")
        assert scores(resume(tmp_path / "moved", tell=QUIET)) == whole, after
        shutil.rmtree(tmp_path / "moved")


def test_a_kill_before_the_first_step_of_the_stage(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(plain, tmp_path / "whole")

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    for module, name in ((adaptation, "prepare"), (pretraining_run, "pretrain")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(plain, tmp_path / name)
        assert scores(resume(tmp_path / name, tell=QUIET)) == scores(whole)


def test_the_stage_has_no_more_processes_than_share_its_step(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps have one sequence here, the updates of the fine-tuning eight examples."""
    monkeypatch.setattr(adaptation, "_STEP_TOKENS", 0)
    asked = []

    def stop(run: Path, recipe: Any, tell: Any, processes: Any, corpus: Path) -> None:
        asked.append(processes)
        raise KeyboardInterrupt

    monkeypatch.setattr(adaptation, "pretrain_or_resume", stop)
    for processes in (5, "auto"):
        resolved = resolve(plain, SETTINGS, "test")
        with pytest.raises(KeyboardInterrupt):
            run_resolved(resolved, tmp_path / str(processes), tell=QUIET, processes=processes)
    assert asked == [1, "auto"]
    with pytest.raises(ConfigError, match="processes=0: expected at least 1, or auto"):
        run_resolved(resolve(plain, SETTINGS, "test"), tmp_path / "none", tell=QUIET, processes=0)


def test_a_changed_text_is_refused(plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "more.txt"
    text.write_text("\n\n".join(f"The captain walked to the river number {n}." for n in range(50)), "utf-8")
    run(plain, tmp_path / "out", f'adapt.text=["{text}"]')
    text.write_text("Something else.\n\nAnd more.", "utf-8")
    with pytest.raises(CheckpointError, match=r"the text of adapt\.text changed"):
        resume(tmp_path / "out", tell=QUIET)


def test_what_cannot_be_adapted_is_known_before_anything_is_written(plain: dict[str, Any], tmp_path: Path) -> None:
    same = tmp_path / "copy.tsv"
    same.write_bytes(Path(plain["data"]["dev"]).read_bytes())
    cases = [
        ((f'adapt.text=["{same}"]',), "is the dev file"),
        ((f'adapt.text=["{plain["data"]["train"]}"]',), "is the training file"),
        (("from_scratch=true",), "continues pre-training"),
        ((f'adapt.text=["{tmp_path}/none.txt"]',), r"none\.txt"),
        (("adapt.text=[]",), "require a text"),
    ]
    for settings, message in cases:
        with pytest.raises(FirthError, match=message):
            run(plain, tmp_path / "out", *settings)
        assert not (tmp_path / "out" / "recipe.toml").exists()
    tuned = run(plain, tmp_path / "tuned", "adapt.text=[]", "adapt.text_epochs=0")
    with pytest.raises(ConfigError, match="is fine-tuned"):
        run(plain | {"model": str(tuned.out)}, tmp_path / "out")


def test_the_scored_files_of_a_data_set_are_no_text_to_adapt_to(plain: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "SST-2"
    folder.mkdir()
    for split in ("train", "dev"):
        rows = "".join(f"{split} of river {n}\t{n % 2}\n" for n in range(20))
        (folder / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}", "utf-8")
    (folder / "test.tsv").write_text("index\tsentence\n0\tthe mill\n", "utf-8")
    named = plain | {"task": "glue/sst2", "data": {"folder": str(folder)}}
    for split, suffix, pack in (("dev", "", bytes), ("test", "", bytes), ("dev", ".gz", gzip.compress)):
        text = tmp_path / f"{split}-copy.tsv{suffix}"
        text.write_bytes(pack((folder / f"{split}.tsv").read_bytes()))
        with pytest.raises(ConfigError, match=f"is the {split} file, which only scores the model"):
            run(named, tmp_path / "out", f'adapt.text=["{text}"]')
    # The training file has labels, and the held-out examples.
    found = resolve(named, [f'adapt.text=["{folder / "train.tsv"}"]'], "test")
    with pytest.raises(ConfigError, match="is the training file, with its labels and held-out examples: give 'train'"):
        check_adaptation(found.recipe, found.base)


def test_texts_of_every_kind_are_read_once() -> None:
    records = [
        Text("a", second="b"),
        Text("a"),
        Question("who?", "a context"),
        Question("why?", "a context"),
        Choice("", "what?", ("x", "y")),
    ]
    assert texts_of(records) == ["a", "b", "a context", "who?", "why?", "what?", "x", "y"]
