"""Fine-tuning as a job: what is chosen, what is kept, resuming after a stop, frozen encoders, calibration."""

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_options import network_of

from firth.config import read_json, read_toml, to_dict, to_toml
from firth.errors import CheckpointError, ConfigError, InputError
from firth.files import write_json
from firth.finetuning import runs as job
from firth.finetuning import train
from firth.finetuning.base import (
    Base,
    freeze,
    make_model,
    rate_scales,
    read_base,
    transferred,
)
from firth.finetuning.evaluate import evaluate
from firth.finetuning.finetune import Finetuned, resume, run_resolved
from firth.finetuning.recipe import AdaptConfig, Finetune, combinations, with_defaults
from firth.finetuning.resolve import Resolved, balanced, resolve
from firth.finetuning.results import collapsed, summary
from firth.finetuning.train import (
    Run,
    split_of,
    tune,
    with_stored_features,
)
from firth.folder import PRETRAINING, read_model, write_model
from firth.head_presets import HEADS
from firth.inference.model import load_model
from firth.inference.outputs import row_outputs
from firth.machine import find_machine
from firth.manifest import file_sha256
from firth.models.config import VectorsConfig
from firth.pretraining.average import mean_of
from firth.systems import SIZES, SYSTEMS
from firth.tasks.config import AnswerConfig, TagConfig
from firth.tasks.learnt import learnt_pairs, reads_pairs
from firth.tasks.table import TASKS
from firth.text.open_words import opened
from firth.text.published import load_tokenizer
from firth.text.records import Tagged, Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.training import trainer
from firth.training.log import read_log

QUIET: Callable[[str], None] = lambda text: None  # noqa: E731  # reports nothing
SETTINGS = ["train.precision=float32", "train.batch_examples=8", "train.epochs=1", "optim.learning_rate=1e-3"]


def texts(n: int, seed: int) -> str:
    """Labelled texts; one word determines the label."""
    rng = random.Random(seed)
    found = [("river", "walked to the river"), ("winter", "wrote before winter")]
    who = ["our teacher", "a small child", "the captain", "the queen", "my neighbour", "the baker"]
    rows = []
    for i in range(n):
        label, words = found[i % 2]
        rows.append(f"{rng.choice(who)} {words}{rng.choice('.!?') * (i // 2 % 4)}\t{label}")
    return "\n".join(["text\tlabel", *rows]) + "\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "t.tsv").write_text(texts(40, 1), "utf-8")
    (folder / "d.tsv").write_text(texts(12, 2), "utf-8")
    kinds = ("Ann B-PER\nLee I-PER\nwalked{} O\nto O\nOslo B-LOC\n", "in O\nOslo B-LOC\nit{} O\nrained O\n")
    sentences = (kinds[i % 2].format(i) for i in range(20))
    (folder / "t.conll").write_text("\n".join(sentences), "utf-8")
    return folder


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plotting takes longer than training here; the report has tests of its own."""
    monkeypatch.setattr(job, "write_finetune_report", lambda out, recipe, results: out / "report.html")


@pytest.fixture
def plain(tiny_run: Path, data: Path) -> dict[str, Any]:
    """A recipe's plain data."""
    files = {"train": str(data / "t.tsv"), "dev": str(data / "d.tsv")}
    return {"task": "classify", "model": str(tiny_run), "data": files}


def run(plain: dict[str, Any], out: Path, *settings: str, tell: Callable[[str], None] = QUIET) -> Finetuned:
    return run_resolved(resolve(plain, [*SETTINGS, *settings], "test"), out, tell=tell)


def without_times(results: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(results)
    return json.loads(text, object_hook=lambda d: {k: v for k, v in d.items() if k != "elapsed_s"})


# -- results -------------------------------------------------------------------------------------------------


def test_a_task_is_learnt_and_the_folder_answers_as_it_was_scored(plain: dict[str, Any], tmp_path: Path) -> None:
    tuned = run(plain, tmp_path / "out", "train.epochs=15", "optim.learning_rate=3e-3", "optim.kind=adamw")
    results = tuned.results
    assert results == read_json(tmp_path / "out" / "results.json")
    assert results["dev"]["dev"]["accuracy"]["mean"] == 1
    rows = [line.split("\t") for line in Path(plain["data"]["dev"]).read_text().splitlines()[1:]]
    answers = load_model(tmp_path / "out").predict([text for text, _ in rows])
    assert [answer.label for answer in answers] == [label for _, label in rows]
    assert {path.name for path in (tmp_path / "out" / "runs" / "seed-1").iterdir()} == {
        "log.jsonl",
        "result.json",
        "scores.json",
    }
    assert not (tmp_path / "out" / "features").exists()


def test_examples_are_pairs_single_texts_or_both() -> None:
    single, pair = Text("a", "x"), Text("a", "x", second="b")
    assert reads_pairs([single, single]) is False and reads_pairs([pair]) is True
    assert reads_pairs([single, pair]) is None and reads_pairs([]) is None
    assert reads_pairs([Tagged("a", ((0, 1),))]) is None


def test_the_scores_in_a_model_are_those_that_evaluate_finds(plain: dict[str, Any], tmp_path: Path) -> None:
    """Also where the scores on the held-out examples, which choose the best step, differ from those on the dev file."""
    rows = texts(40, 3).splitlines()
    turned = [rows[0], *(row.replace("\triver", "\tX").replace("\twinter", "\triver") for row in rows[1:])]
    dev = tmp_path / "turned.tsv"
    dev.write_text("\n".join(turned).replace("\tX", "\twinter"), "utf-8")
    plain["data"] = {**plain["data"], "dev": str(dev)}
    frozen = ("adapt.frozen_groups=-1", "train.epochs=15", "optim.learning_rate=3e-2", "optim.kind=adamw")
    for name, settings in (("whole", frozen[1:]), ("stored", frozen)):
        out = tmp_path / name
        scores = run(plain, out, *settings).scores
        found = read_model(out).provenance
        assert learnt_pairs(found) is False
        with pytest.raises(InputError, match="a pair of texts"):
            load_model(out).predict(("the queen wrote", "before winter"))
        assert (found["held_out"], found["dev"]) == (scores["held_out"], {"dev": scores["dev"]})
        assert found["dev"]["dev"] == evaluate(out, dev)["scores"]
        assert scores["dev"]["accuracy"] < scores["held_out"]["accuracy"]


def test_the_fitted_temperature_is_stored_and_used(plain: dict[str, Any], tmp_path: Path) -> None:
    results = run(plain, tmp_path / "out").results
    model = load_model(tmp_path / "out")
    stored = model.loaded.objective.config.temperature
    assert stored == results["calibration"]["temperature"] != 1
    (output,) = row_outputs(
        model.loaded.objective, split_of(*resolve(plain, SETTINGS, "t")[1::-1], [model.record("the river")]).examples
    )
    logits = output[0]["logits"][0] / stored
    share = np.exp(logits - logits.max())
    assert model.predict("the river").probability == pytest.approx(float((share / share.sum()).max()), rel=1e-5)


def test_the_same_seed_gives_the_same_model_and_the_next_another(plain: dict[str, Any], tmp_path: Path) -> None:
    both = run(plain, tmp_path / "both", "train.seeds=2").results
    assert [one["seed"] for one in both["runs"]] == [1, 2]
    alone = [run(plain, tmp_path / str(seed), f"train.seed={seed}").results for seed in (1, 2)]
    assert [one["best"] for one in both["runs"]] == [one["runs"][0]["best"] for one in alone]
    assert alone[0]["model"] != alone[1]["model"]
    assert both["model"] == alone[both["best_seed"] - 1]["model"]


def test_the_weights_of_the_seeds_are_averaged(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of their models is the model that is kept and scored; a kill before the scoring changes nothing."""
    settings = ("train.seeds=3", "train.average_seeds=true")
    recipe, base, _ = resolve(plain, [*SETTINGS, *settings], "t")
    heads = [make_model(base, recipe, seed).head.state_dict() for seed in (1, 2)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    states = list[dict[str, torch.Tensor]]()

    def watched(folders: list[Path]) -> Any:
        states.extend(read_model(folder).objective.state_dict() for folder in folders)
        return mean_of(folders)

    with monkeypatch.context() as patch:
        patch.setattr(job, "mean_of", watched)
        results = run(plain, tmp_path / "all", *settings).results
    mean = read_model(tmp_path / "all" / "model")
    for name, tensor in mean.objective.state_dict().items():
        torch.testing.assert_close(tensor, sum(state[name] for state in states) / 3, rtol=1e-5, atol=1e-6)
    assert mean.provenance["seeds"] == [1, 2, 3] and not {"seed", "step"} & set(mean.provenance)
    assert results["best_seed"] == "average" and [one["seed"] for one in results["runs"]] == [1, 2, 3]
    score = results["dev"]["dev"]["accuracy"]
    found = evaluate(tmp_path / "all", Path(plain["data"]["dev"]))["scores"]
    assert score["values"] == [score["mean"]] == [pytest.approx(found["accuracy"])]

    def killed(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(job, "decide_and_score", killed)
        with pytest.raises(SystemExit):
            run(plain, tmp_path / "cut", *settings)
    assert resume(tmp_path / "cut", QUIET).results["model"] == results["model"]


def test_a_collapsed_seed_is_left_out_of_the_average(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = job.tune

    def tune(run: Any, folder: Path, *rest: Any) -> dict[str, Any]:
        return whole(run, folder, *rest) | {"best": 0.1 if run.seed == 2 else 0.9}

    monkeypatch.setattr(job, "tune", tune)
    results = run(plain, tmp_path / "out", "train.seeds=4", "train.average_seeds=true").results
    assert [one["collapsed"] for one in results["runs"]] == [False, True, False, False]
    assert read_model(tmp_path / "out" / "model").provenance["seeds"] == [1, 3, 4]


@pytest.mark.parametrize(
    "settings",
    [["from_scratch=true"], ["adapt.transferred_groups=1"], ["head.network.hidden_width=8"], ["head_preset=bcn"]],
)
def test_networks_that_begin_at_random_weights_are_not_averaged(plain: dict[str, Any], settings: list[str]) -> None:
    with pytest.raises(ConfigError, match="begin at random weights end too far from each other"):
        resolve(plain, [*settings, "train.average_seeds=true"], "t")


def test_results_of_seeds_and_a_grid(plain: dict[str, Any], tmp_path: Path) -> None:
    results = run(plain, tmp_path / "out", "train.seeds=2", 'grid=["optim.learning_rate=1e-6,1e-2"]').results
    assert results["settings"] == [["optim.learning_rate=1e-6"], ["optim.learning_rate=1e-2"]]
    runs = results["runs"]
    assert [(one["settings"], one["seed"]) for one in runs] == [
        (settings, seed) for settings in results["settings"] for seed in (1, 2)
    ]
    means = [(runs[i]["best"] + runs[i + 1]["best"]) / 2 for i in (0, 2)]
    assert results["chosen"] == means.index(max(means))
    chosen = runs[2 * results["chosen"] :][:2]
    assert results["best_seed"] == max(chosen, key=lambda one: (one["best"], -one["seed"]))["seed"]
    score = results["dev"]["dev"]["accuracy"]
    assert len(score["values"]) == 2 and score["mean"] == pytest.approx(sum(score["values"]) / 2)
    assert results["examples"] == {"train": 36, "held_out": 4, "dev": 12}
    kept = file_sha256(tmp_path / "out" / "model" / "model.safetensors")
    assert kept == results["model"] and not list((tmp_path / "out" / "runs").glob("*/model"))


def test_a_fresh_model_and_a_size_without_weights(plain: dict[str, Any], tiny_vocab: Path) -> None:
    pretrained = resolve(plain, SETTINGS, "t")
    fresh = resolve(plain, [*SETTINGS, "from_scratch=true"], "t")
    assert pretrained[1].weights is not None and fresh[1].weights is None
    states = [make_model(base, recipe, 1).encoder.state_dict() for recipe, base, _ in (pretrained, fresh)]
    name = next(iter(states[0]))
    assert torch.equal(states[0][name], pretrained[1].weights[name])
    assert not torch.equal(states[0][name], states[1][name])
    size = resolve(plain | {"model": "bert-tiny", "tokenizer": str(tiny_vocab)}, SETTINGS, "t")
    assert size[1].weights is None and size[1].config.width == 128
    assert size[0].optim.learning_rate == 1e-3
    with pytest.raises(ConfigError, match="--model bert-tiny is only a size, without weights: .* or --tokenizer"):
        resolve(plain | {"model": "bert-tiny"}, SETTINGS, "t")
    with pytest.raises(ConfigError, match="has its own; leave it out"):
        resolve(plain | {"tokenizer": str(tiny_vocab)}, SETTINGS, "t")


def test_smaller_models_get_a_higher_rate(plain: dict[str, Any]) -> None:
    recipe = resolve(plain, [], "t")[0]
    assert recipe.optim.learning_rate == pytest.approx(5e-5 * 768 / 32)
    assert (recipe.optim.warmup_share, recipe.train.batch_examples) == (0.1, 32)


# -- stopping and resuming -----------------------------------------------------------------------------------


class Stop:
    """Asks every run to stop after a number of steps, counted over all runs."""

    after, steps = 0, 0

    @property
    def asked(self) -> bool:
        Stop.steps += 1
        return Stop.steps == Stop.after

    def at_once(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def __enter__(self) -> "Stop":
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def after(steps: int) -> None:
        Stop.after, Stop.steps = steps, 0
        monkeypatch.setattr(trainer, "StopRequest", Stop)

    return after


@pytest.mark.parametrize(
    "settings",
    [
        ["train.seeds=2"],
        ["train.seeds=2", "adapt.frozen_groups=-1", 'head.network={layers=[-1, -2], mix="scalar", pool="mean"}'],
    ],
    ids=["all", "frozen"],
)
@pytest.mark.parametrize("steps", [1, 5])
def test_a_stopped_fine_tuning_goes_on_to_the_same_results(
    plain: dict[str, Any], tmp_path: Path, stop_after: Callable[[int], None], settings: list[str], steps: int
) -> None:
    whole = run(plain, tmp_path / "whole", *settings)
    stop_after(steps)
    with pytest.raises(KeyboardInterrupt):
        run(plain, tmp_path / "out", *settings)
    assert not (tmp_path / "out" / "results.json").exists()
    stop_after(0)
    again = resume(tmp_path / "out", tell=QUIET)
    assert without_times(again.results) == without_times(whole.results)
    logs = [list(losses(tmp_path / name / "runs" / "seed-2" / "log.jsonl")) for name in ("out", "whole")]
    assert logs[0] == logs[1] != []
    # Run again, there is nothing left to do.
    assert resume(tmp_path / "out", tell=QUIET).results == again.results


def losses(log: Path) -> Iterator[tuple[int, float]]:
    for line in log.read_text().splitlines():
        event = json.loads(line)
        yield event["step"], event.get("loss", event.get("accuracy"))


def test_a_kill_while_the_runs_are_scored(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(plain, tmp_path / "whole")

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "calibrate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(plain, tmp_path / "out")
    assert without_times(resume(tmp_path / "out", tell=QUIET).results) == without_times(whole.results)


def test_a_kill_while_the_models_of_runs_are_deleted(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = run(plain, tmp_path / "whole"), tmp_path / "out"

    def delete_half(folder: Path, **options: Any) -> None:
        if Path(folder) == out / "runs" / "seed-1" / "model":
            (folder / "model.safetensors").unlink()
            raise KeyboardInterrupt
        delete(folder, **options)

    delete = shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", delete_half)
        with pytest.raises(KeyboardInterrupt):
            run(plain, out)
    assert without_times(resume(out, tell=QUIET).results) == without_times(whole.results)
    assert file_sha256(out / "model" / "model.safetensors") == whole.results["model"]
    assert not list((out / "runs").glob("*/model"))


def test_a_kill_while_the_fitted_temperature_is_written(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = run(plain, tmp_path / "whole"), tmp_path / "out"

    def between_the_renames(folder: Path, loaded: Any, *, options: Any) -> None:
        folder.rename(folder.with_name(".model.old"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "rewrite_model", between_the_renames)
        with pytest.raises(KeyboardInterrupt):
            run(plain, out)
    assert not (out / "runs" / "seed-1" / "model").exists()
    assert without_times(resume(out, tell=QUIET).results) == without_times(whole.results)


def test_a_stop_before_anything_is_known_leaves_nothing(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    for first_unwritten in ("runs.identity", "finetune.to_toml"):
        with monkeypatch.context() as patch:
            patch.setattr(f"firth.finetuning.{first_unwritten}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run(plain, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left", ["", ".step-1.0123456789abcdef.tmp"])
def test_a_run_without_a_first_checkpoint_begins_anew(
    plain: dict[str, Any], tmp_path: Path, stop_after: Callable[[int], None], left: str
) -> None:
    whole = run(plain, tmp_path / "whole")
    checkpoints = stopped(plain, tmp_path / "out", stop_after)
    for path in checkpoints.iterdir():
        shutil.rmtree(path)
    (checkpoints / left).mkdir(exist_ok=True)
    assert without_times(resume(tmp_path / "out", tell=QUIET).results) == without_times(whole.results)
    logs = [list(losses(tmp_path / name / "runs" / "seed-1" / "log.jsonl")) for name in ("out", "whole")]
    assert logs[0] == logs[1] != []


def test_a_run_with_damaged_checkpoints_alone_is_refused(
    plain: dict[str, Any], tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    (checkpoint,) = stopped(plain, tmp_path / "out", stop_after).glob("step-*")
    (checkpoint / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="has no undamaged checkpoint"):
        resume(tmp_path / "out", tell=QUIET)


def stopped(plain: dict[str, Any], out: Path, stop_after: Callable[[int], None]) -> Path:
    """The checkpoints of a run that was stopped after two steps."""
    stop_after(2)
    with pytest.raises(KeyboardInterrupt):
        run(plain, out)
    stop_after(0)
    return out / "runs" / "seed-1" / "checkpoints"


def test_changed_data_or_another_model_are_refused(
    plain: dict[str, Any], tiny_run: Path, tmp_path: Path, data: Path
) -> None:
    shutil.copytree(data, tmp_path / "data")
    shutil.copytree(tiny_run / "model", tmp_path / "model")
    train = tmp_path / "data" / "t.tsv"
    moved = {"task": "classify", "model": str(tmp_path / "model"), "data": {"train": str(train)}}
    run(moved, tmp_path / "out")
    text = train.read_text()
    train.write_text(text.replace("river.", "river!", 1))
    with pytest.raises(CheckpointError, match="out: the labelled data changed since the run began: start a new one"):
        resume(tmp_path / "out", tell=QUIET)
    # The path of a file and its line endings do not change the examples.
    train.write_text(text.replace("\n", "\r\n"), newline="")
    resume(tmp_path / "out", tell=QUIET)
    train.rename(tmp_path / "elsewhere.tsv")
    with pytest.raises(ConfigError, match=r"t\.tsv: no such file; .*out began: resume it there"):
        resume(tmp_path / "out", tell=QUIET)
    (tmp_path / "elsewhere.tsv").rename(train)
    shutil.rmtree(tmp_path / "model")
    other = resolve(plain | {"from_scratch": True}, SETTINGS, "t")
    run_resolved(other, tmp_path / "other", tell=QUIET)
    shutil.copytree(tmp_path / "other" / "model", tmp_path / "model")
    with pytest.raises(CheckpointError, match="the model changed"):
        resume(tmp_path / "out", tell=QUIET)


def test_the_head_of_a_fine_tuned_model_goes_on_to_the_same_task(plain: dict[str, Any], tmp_path: Path) -> None:
    run(plain, tmp_path / "first")
    learnt = read_model(tmp_path / "first" / "model").objective.state_dict()
    again = resolve(plain | {"model": str(tmp_path / "first")}, SETTINGS, "t")
    assert any("first: its task, labels and network are the same" in note for note in again.labelled.notes)
    model = make_model(again.base, again.recipe, seed=1)
    assert all(torch.equal(weight, learnt[name]) for name, weight in model.state_dict().items())
    changed = dataclasses.replace
    for other in (
        resolve(plain, [*SETTINGS, "head.network.hidden_width=8"], "t").recipe,
        resolve(plain, [*SETTINGS, "adapt.transferred_groups=1"], "t").recipe,
        changed(again.recipe, head=changed(again.recipe.head, labels=("x", "y"))),
        changed(again.recipe, kind="multilabel"),
    ):
        assert again.base.learnt_head(other) == {}


def test_a_head_of_values_on_another_scale_starts_anew(tiny_run: Path, tmp_path: Path) -> None:
    def plain(model: Path, most: int) -> dict[str, Any]:
        file = tmp_path / f"{most}.tsv"
        file.write_text("text\tlabel\n" + "".join(f"the river {n}\t{n % 5 * most / 4}\n" for n in range(20)), "utf-8")
        return {"model": str(model), "task": "regress", "data": {"train": str(file)}}

    first = tmp_path / "first"
    run(plain(tiny_run, 100), first)
    learnt = read_model(first / "model").objective.config
    assert learnt.scale > 1
    same, other = resolve(plain(first, 100), SETTINGS, "t"), resolve(plain(first, 5), SETTINGS, "t")
    assert same.base.learnt_head(same.recipe) and not other.base.learnt_head(other.recipe)
    assert any("training continues with the head" in note for note in same.labelled.notes)
    (note,) = [note for note in other.labelled.notes if "head" in note and "scale" in note]
    assert "the head starts anew" in note and not any("continues with the head" in n for n in other.labelled.notes)
    settings = [*SETTINGS, f"head.centre={learnt.centre}", f"head.scale={learnt.scale}"]
    assert all(setting in note for setting in settings[-2:])
    kept = resolve(plain(first, 5), settings, "t")
    assert kept.base.learnt_head(kept.recipe)


def test_a_tagger_goes_on_without_the_crf_of_its_model(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "t.conll").write_text("Ann B-X\nmet O\n\nBob B-X\nran O\n\n" * 4)
    plain = {"model": str(tiny_run), "task": "tag", "data": {"train": str(tmp_path / "t.conll")}}
    settings = ["train.epochs=1", "train.evaluations_per_epoch=0"]
    run_resolved(resolve(plain, [*settings, "head.crf=true"], "t"), tmp_path / "first", tell=QUIET)
    plain["model"] = str(tmp_path / "first")
    run_resolved(resolve(plain, settings, "t"), tmp_path / "second", tell=QUIET)
    assert not any("crf" in name for name in read_model(tmp_path / "second" / "model").objective.state_dict())


@pytest.mark.parametrize(("pool", "untrained"), [("mean", ("encoder.pooler",)), ("summary", ())])
def test_what_fine_tuning_does_not_train_stays_untrained(
    plain: dict[str, Any], tiny_run: Path, tmp_path: Path, pool: str, untrained: tuple[str, ...]
) -> None:
    base = read_model(tiny_run / "model")
    (tmp_path / "base").mkdir()
    write_model(
        tmp_path / "base",
        base.system_name,
        base.task,
        base.objective,
        base.tokenizer,
        base.provenance,
        untrained=("encoder.pooler",),
    )
    run(plain | {"model": str(tmp_path / "base"), "head": {"network": {"pool": pool}}}, tmp_path / "out")
    assert read_model(tmp_path / "out" / "model").untrained == untrained


def test_a_folder_in_the_way_and_one_that_is_no_fine_tuning(
    plain: dict[str, Any], tiny_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already: choose another name"):
        run(plain, tmp_path / "out")
    with pytest.raises(ConfigError, match="is not a fine-tuning"):
        resume(tmp_path / "out")
    with pytest.raises(ConfigError, match="a pre-training run: resume it with firth pretrain --resume"):
        resume(tiny_run)


def test_a_start_that_was_killed_is_nothing_in_the_way(plain: dict[str, Any], tmp_path: Path) -> None:
    """Before the recipe is written, there is nothing to resume."""
    (tmp_path / "out").mkdir()
    for name in (".lock", "identity.json", ".identity.json.0123456789abcdef.tmp"):
        (tmp_path / "out" / name).write_text("{}")
    run(plain, tmp_path / "out")
    assert resume(tmp_path / "out", tell=QUIET).results["runs"]


def test_options_that_came_later_do_not_stop_an_old_run(plain: dict[str, Any], tmp_path: Path) -> None:
    """They had no effect: what the recipe does not set behaves as before."""
    run(plain, tmp_path / "out")
    recipe, identity = tmp_path / "out" / "recipe.toml", tmp_path / "out" / "identity.json"
    lines = recipe.read_text("utf-8").splitlines(keepends=True)
    older = "".join(line for line in lines if not line.startswith("averaged_after"))
    assert older != "".join(lines)
    recipe.write_text(older, "utf-8")
    found = read_json(identity)
    found["the recipe"] = hashlib.sha256(json.dumps(read_toml(recipe), sort_keys=True).encode()).hexdigest()
    write_json(identity, found)
    resume(tmp_path / "out", tell=QUIET)
    recipe.write_text(older.replace("patience = 0", "patience = 7"), "utf-8")
    with pytest.raises(CheckpointError, match="the recipe changed since the run began"):
        resume(tmp_path / "out", tell=QUIET)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["adapt.frozen_groups=9"], "adapt.frozen_groups=9: this encoder has 4"),
        (['grid=["head.network.kind=linear,bilstm"]'], "settings of one network do not fit another"),
        (['grid=["adapt.frozen_groups=0,9"]'], "adapt.frozen_groups=9: this encoder has 4"),
        (["adapt.frozen_groups=-1", "adapt.dropout=0.1"], "=-1 freezes the encoder: leave out adapt.dropout, layer_d"),
        (["adapt.frozen_groups=4", "adapt.layer_decay=0.5"], "=4 freezes the encoder: leave .*, or set it to -1"),
        (["adapt.unfreeze=gradual", 'grid=["adapt.frozen_groups=0,4"]'], "frozen_groups=4 freezes the encoder: leave"),
        (["data.held_out=2"], "data.held_out=2.0: expected more than 0 and less than 1"),
        (["data.limit=-1"], "data.limit=-1: expected 0 or more"),
        (["adapt.transferred_groups=9"], "adapt.transferred_groups=9: this encoder has 4"),
        (
            ["adapt.transferred_groups=1", "from_scratch=true"],
            "adapt.transferred_groups=1 requires pre-trained weights",
        ),
        (
            ["from_scratch=true", 'grid=["adapt.transferred_groups=-1,2"]'],
            "adapt.transferred_groups=2 requires pre-trained",
        ),
        (["head.auxiliary_lm=0.5"], "auxiliary_lm=0.5: only a left-to-right encoder"),
        (["head.windows.long=cut", "head.windows.stride=9"], "long=cut reads no windows: leave out head.windows"),
        (["head.windows.long=cut", "head.windows.merge=max"], "long=cut reads no windows"),
        (["train.batch_examples=abc"], "train.batch_examples = 'abc': expected int"),
        (["train.batch_examples=0"], "train.batch_examples=0: expected at least 1"),
        (["train=5"], "train must be a table of keys, not 5"),
        (["head.labels=[0,1]"], r"head.labels=\[0, 1\]: expected a list of texts"),
        (['model=["a"]'], "key 'model' is missing: give one"),
        (["head.windows.length=65"], "windows.length=65: this model reads sequences of at most 64"),
        (['head.network={pool="mean", layers=[7]}'], "layer 7 of an encoder with layers 0 .embeddings. to 2"),
    ],
)
def test_what_cannot_be_made_is_known_before_anything_is_written(
    plain: dict[str, Any], tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(plain, tmp_path / "out", *settings)
    assert not (tmp_path / "out").exists()


def test_what_there_is_no_memory_for_is_known_before_it_is_made(
    plain: dict[str, Any], tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*arguments: Any, **named: Any) -> None:
        raise AssertionError("made before the estimate")

    size = resolve(plain | {"model": "bert-large", "tokenizer": str(tiny_vocab)}, SETTINGS, "t")
    monkeypatch.setattr("firth.memory.free_memory", lambda device: 1e8)
    monkeypatch.setattr(Base, "encoder", make)
    with pytest.raises(ConfigError, match=r"memory: about [\d.]+ GB .* too large for this machine"):
        run_resolved(size, tmp_path / "out", tell=QUIET)
    assert not (tmp_path / "out").exists()


def test_muon_without_blocks_to_update_is_known_before_anything_is_written(
    plain: dict[str, Any], tiny_vocab: Path, tmp_path: Path
) -> None:
    muon = "optim.kind=muon"
    with pytest.raises(ConfigError, match="the blocks of the encoder, which are frozen: use adamw"):
        run(plain, tmp_path / "out", muon, "adapt.frozen_groups=-1")
    with pytest.raises(ConfigError, match="requires Transformer blocks"):
        run(plain | {"model": "lstm-small", "tokenizer": str(tiny_vocab)}, tmp_path / "out", muon)
    assert not (tmp_path / "out").exists()


def test_the_memory_of_a_grid_is_that_of_its_largest_run(plain: dict[str, Any], tmp_path: Path) -> None:
    def told(grid: str) -> str:
        heard: list[str] = []
        resolved = resolve(plain | {"grid": [f"adapt.frozen_groups={grid}"]}, SETTINGS, "t")
        job.Runs(resolved, tmp_path / "out", heard.append).check(1)
        (found,) = [text for text in heard if "memory" in text]
        return found

    assert told("0,1") == told("1,0") == told("0")


def test_each_file_is_read_once_after_training(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most confident mistakes are found among the predictions that are scored."""
    read, seen = job.row_outputs, list[int]()

    def counted(model: Any, examples: Any, **options: Any) -> Any:
        seen.append(len(examples))
        return read(model, examples, **options)

    monkeypatch.setattr(job, "row_outputs", counted)
    monkeypatch.setattr("firth.finetuning.mistakes.answer_records", lambda loaded, records: pytest.fail("read again"))
    monkeypatch.setattr("firth.finetuning.mistakes._MOST_WORDS", 0)  # no text is read again without a word
    results = run(plain, tmp_path / "out").results
    assert seen == [results["examples"]["held_out"], results["examples"]["dev"]]
    model = load_model(tmp_path / "out")
    rows = [line.split("\t") for line in Path(plain["data"]["dev"]).read_text().splitlines()[1:]]
    answers = [(answer, label) for (text, label) in rows if (answer := model.predict(text)).label != label]
    assert len(results["mistakes"]["examples"]) == min(len(answers), 10)
    found = {(m["predicted"], round(m["probability"], 4)) for m in results["mistakes"]["examples"]}
    assert found <= {(answer.label, round(answer.probability, 4)) for answer, _ in answers}


def test_evaluations_keep_no_probabilities_of_all_labels(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def scored(task: str, records: Any, answers: Any, *others: Any) -> Any:
        kept.extend(answers)
        return score_outputs(task, records, answers, *others)

    score_outputs = train.score_outputs
    monkeypatch.setattr(train, "score_outputs", scored)
    run(plain, tmp_path / "out")
    assert kept and all(not answer.probabilities and answer.probability > 0 for answer in kept)


def test_a_stop_in_the_last_evaluation_of_a_run_is_before_the_next_one(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = train.score_outputs

    def stopped(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return scored(*arguments)

    with monkeypatch.context() as context:
        context.setattr(train, "score_outputs", stopped)
        with pytest.raises(KeyboardInterrupt, match="to resume: firth finetune --resume"):
            run(plain, tmp_path / "out", "train.seeds=2")
    done = [(tmp_path / "out" / "runs" / f"seed-{seed}" / "result.json").is_file() for seed in (1, 2)]
    assert done == [True, False]
    assert len(resume(tmp_path / "out", QUIET).results["runs"]) == 2


def test_memory_is_estimated_before_anything_is_built_for_all_passes_over_a_batch(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_tokens(*settings: str) -> int:
        seen: list[int] = []

        def note(model: Any, system: Any, config: Any, dtype: Any, tokens: int, **_: Any) -> Any:
            seen.append(tokens)
            raise ConfigError("enough")

        monkeypatch.setattr("firth.finetuning.runs.estimate_memory", note)
        resolved = resolve(plain, [*SETTINGS, *settings], "t")
        monkeypatch.setattr(type(resolved.base), "encoder", None)
        with pytest.raises(ConfigError, match="enough"):
            job.Runs(resolved, tmp_path / "out", QUIET).check(1)
        return seen[0]

    assert first_tokens("head.consistency=1") == 2 * first_tokens("head.consistency=0")


@pytest.mark.parametrize("n_groups", [-1, 4])
def test_an_encoder_frozen_by_any_number_needs_no_activation_memory(
    n_groups: int, plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firth.memory.free_memory", lambda device: 1e3)
    resolved = resolve(plain, [*SETTINGS, f"adapt.frozen_groups={n_groups}"], "t")
    job.Runs(resolved, tmp_path / "out", QUIET).check(1)


def test_the_share_of_unknown_tokens_is_said(plain: dict[str, Any], tmp_path: Path) -> None:
    dev = tmp_path / "d.tsv"
    dev.write_text("text\tlabel\nꙮ ꙮ\triver\n. .\twinter\n", "utf-8")
    recipe, base, labelled = resolve({**plain, "data": {**plain["data"], "dev": str(dev)}}, SETTINGS, "t")
    heard: list[str] = []
    job.Runs(Resolved(recipe, base, labelled), tmp_path / "out", heard.append)._examples_for(recipe)
    (told,) = [text for text in heard if "[UNK]" in text]
    # Of [CLS] ꙮ ꙮ [SEP] [CLS] . . [SEP], only the tokens of the texts.
    assert told.startswith("dev, 50.0% of the tokens are [UNK]")


# -- the encoder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "features"),
    [
        ("t.tsv", ""),
        ("t.tsv", 'pool="max", layers=[0, -1], mix="scalar", '),
        ("t.conll", 'layers=[-1, -2], mix="concat", words="mean", '),
        ("t.conll", "kind='bilstm', lstm_layers=1, lstm_width=8, "),
    ],
)
def test_a_frozen_encoder_gives_the_same_model_whether_its_features_are_stored_or_not(
    plain: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, features: str
) -> None:
    plain |= {"task": "tag" if file.endswith(".conll") else "classify", "data": {"train": str(data / file)}}
    settings = ["adapt.frozen_groups=-1", "adapt.dropout=0.0", f"head.network={{{features}dropout=0.0}}"]
    stored = run(plain, tmp_path / "stored", *settings, "optim.learning_rate=1e-2").results
    monkeypatch.setattr(train, "freeze", lambda model, adapt: freeze(model, adapt) and False)
    full = run(plain, tmp_path / "full", *settings, "optim.learning_rate=1e-2").results
    states = [read_model(tmp_path / name).objective.state_dict() for name in ("stored", "full")]
    base = read_model(plain["model"]).objective.encoder.state_dict()
    learnt = [name for name in states[0] if not name.startswith("encoder.")]
    assert all(torch.equal(states[0][f"encoder.{name}"], tensor) for name, tensor in base.items())
    assert learnt and all(torch.allclose(states[0][name], states[1][name], atol=2e-5) for name in learnt)
    fresh = make_model(*_base_and_recipe(plain, settings), 1).state_dict()
    assert not all(torch.allclose(states[0][name], fresh[name], atol=1e-3) for name in learnt)
    asked = ["Ann walked to the river", "winter", ""]
    answers = [load_model(tmp_path / name).predict(asked) for name in ("stored", "full")]
    assert [_numbers(a) for a in answers[0]] == [pytest.approx(_numbers(a), abs=1e-4) for a in answers[1]]
    assert stored["runs"][0]["best"] == pytest.approx(full["runs"][0]["best"])


def _base_and_recipe(plain: dict[str, Any], settings: list[str]) -> tuple[Any, Any]:
    recipe, base, _ = resolve(plain, [*SETTINGS, *settings], "t")
    return base, recipe


def _numbers(answer: Any) -> list[float]:
    found = answer.probabilities
    return list(found.values() if isinstance(found, dict) else found)


def test_stored_features_give_the_outputs_of_the_whole_model(plain: dict[str, Any], tmp_path: Path) -> None:
    recipe, base, labelled = resolve(plain, [*SETTINGS, "adapt.frozen_groups=-1"], "t")
    train, held = split_of(base, recipe, labelled.train).examples, split_of(base, recipe, labelled.held)
    one = Run(base, recipe, 1, train, held, find_machine("float32"), tmp_path / "features")
    full = make_model(base, recipe, 1)
    assert freeze(full, AdaptConfig(frozen_groups=-1))
    light, light_train, light_held = with_stored_features(full, one)
    for a, b in ((light_train, train), (light_held.examples, held.examples)):
        pairs = zip(row_outputs(light, a), row_outputs(full, b), strict=True)
        assert all(np.allclose(x[0]["logits"], y[0]["logits"], atol=1e-5) for x, y in pairs)


def test_freezing_from_below_and_slower_rates_below(plain: dict[str, Any]) -> None:
    base, recipe = _base_and_recipe(plain, [])
    model = make_model(base, recipe, 1)
    assert not freeze(model, AdaptConfig(frozen_groups=2))
    groups = model.encoder.layer_groups()
    assert [any(p.requires_grad for p in group) for group in groups] == [False, False, True, True]
    scales = rate_scales(model, 0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    assert [scales[names[id(group[0])]] for group in groups] == [1 / 16, 1 / 8, 1 / 4, 1 / 2]
    assert not any(name.startswith("head.") for name in scales)


def test_layers_below_the_frozen_ones_stay_and_those_above_learn(plain: dict[str, Any], tmp_path: Path) -> None:
    run(plain, tmp_path / "out", "adapt.frozen_groups=2")
    before, after = read_model(plain["model"]).objective.encoder, read_model(tmp_path / "out").objective.encoder
    pairs = zip(before.layer_groups(), after.layer_groups(), strict=True)
    assert [all(torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in pairs] == [True, True, False, False]


def words(unknown: Any, **sizes: int) -> Base:
    """Word vectors for one word."""
    tokenizer = opened(Tokenizer.from_words([*WORDS.specials, "the"], lowercase=False))
    config = VectorsConfig(vocab_size=tokenizer.size, width=4, unknown=unknown, **sizes)
    return Base("vectors", config, tokenizer, None, {})


def test_an_encoder_without_dropout_cannot_have_another() -> None:
    base = words("one")
    assert base.config_with(None) is base.config
    with pytest.raises(ConfigError, match=r"adapt\.dropout=0\.5: the encoder of vectors has no dropout: leave it out"):
        base.encoder(1, 0.5)


def test_rows_have_characters_where_something_reads_them() -> None:
    def chars(base: Base, **features: Any) -> np.ndarray | None:
        head = TagConfig(labels=("O", "B-X"), network=network_of(**features))
        (row,) = base.maker(head).single(base.tokenizer.ids_many(["the zebra"])[0])
        assert row.ids.max() < base.tokenizer.size
        return row.chars

    assert chars(words("one")) is None
    assert chars(words("one"), own_characters="gru") is not None
    assert chars(words("hashed", n_buckets=5)) is not None


@pytest.mark.parametrize("n_groups", [0, 1, 3, -1])
def test_only_the_lowest_groups_of_layers_come_from_the_model(plain: dict[str, Any], n_groups: int) -> None:
    base, recipe = _base_and_recipe(plain, [f"adapt.transferred_groups={n_groups}"])
    found = make_model(base, recipe, 1).encoder
    fresh = make_model(*_base_and_recipe(plain, ["from_scratch=true"]), 1).encoder
    trained = read_model(plain["model"]).objective.encoder
    n_kept = len(trained.layer_groups()) if n_groups == -1 else n_groups
    groups = [encoder.layer_groups() for encoder in (found, trained, fresh)]
    for number, (ours, theirs, new) in enumerate(zip(*groups, strict=True)):
        expected = theirs if number < n_kept else new
        assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True)), number
        assert not all(torch.equal(a, b) for a, b in zip(theirs, new, strict=True))


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_every_system_transfers_by_groups(system: str, tiny_vocab: Path) -> None:
    """A partition: each tensor joins in exactly one step as one more group is transferred."""
    size = next(name for name, (owner, _) in SIZES.items() if owner == system)
    tokenizer, row = load_tokenizer(tiny_vocab), SYSTEMS[system]
    small = {"width": 8, "n_layers": 2, "n_heads": 2, "feed_forward_width": 12, "max_positions": 16}
    names = {f.name for f in dataclasses.fields(row.config)}
    sizes = {**SIZES[size][1], **{name: value for name, value in small.items() if name in names}}
    encoder = row.encoder(row.config(vocab_size=tokenizer.size, **{**sizes, **row.fixed}))
    steps = [transferred(encoder, n) for n in range(len(encoder.layer_groups()) + 1)]
    assert all(fewer < more for fewer, more in pairwise(steps))
    assert steps[-1] == transferred(encoder, -1) == set(encoder.state_dict())
    assert not any(name in steps[0] for name, _ in encoder.named_parameters())


def left_to_right(folder: Path, vocab: Path) -> Path:
    """A model whose encoder may learn to predict the next token."""
    row, tokenizer = SYSTEMS["bert-ltr"], load_tokenizer(vocab)
    sizes = {"width": 16, "n_layers": 1, "n_heads": 2, "feed_forward_width": 16, "max_positions": 32}
    torch.manual_seed(0)
    encoder = row.encoder(row.config(vocab_size=tokenizer.size, **sizes, **row.fixed))
    folder.mkdir()
    write_model(folder, "bert-ltr", PRETRAINING, row.objective(encoder, row.objective_config()), tokenizer, {})
    return folder


def test_the_language_model_learns_beside_the_task(plain: dict[str, Any], tiny_vocab: Path, tmp_path: Path) -> None:
    plain |= {"model": str(left_to_right(tmp_path / "base", tiny_vocab))}
    run(plain, tmp_path / "out", "head.auxiliary_lm=0.5", "train.epochs=6", "optim.learning_rate=5e-3")
    events = [e for e in read_log(tmp_path / "out" / "runs" / "seed-1" / "log.jsonl") if e["event"] == "train"]
    assert events[-1]["lm_loss"] < events[0]["lm_loss"] - 0.5
    assert all(e["loss"] == pytest.approx(e["label_loss"] + 0.5 * e["lm_loss"]) for e in events)
    # Evaluation covers the task alone.
    dev = [e for e in read_log(tmp_path / "out" / "runs" / "seed-1" / "log.jsonl") if e["event"] == "dev"]
    assert dev and not any(key.startswith("lm") for e in dev for key in e)
    assert load_model(tmp_path / "out").predict("the river").label in ("river", "winter")
    with pytest.raises(ConfigError, match=r"adapt\.frozen_groups=-1 freezes the encoder, but head\.auxiliary_lm"):
        run(plain, tmp_path / "frozen", "head.auxiliary_lm=0.5", "adapt.frozen_groups=-1")
    assert not (tmp_path / "frozen").exists()


# -- defaults ------------------------------------------------------------------------------------------------

OWN = {
    "optim": {"learning_rate": 6.25e-5, "warmup_share": 0.002},
    "train": {"epochs": 5.0, "batch_examples": 16},
    "head": {"auxiliary_lm": 0.5, "network": {"dropout": 0.2}},
}


def test_a_system_has_settings_of_its_own(
    plain: dict[str, Any], tiny_vocab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SYSTEMS, "bert-ltr", dataclasses.replace(SYSTEMS["bert-ltr"], tuning=OWN))
    bert = resolve(plain, [], "t")[0]
    plain |= {"model": str(left_to_right(tmp_path / "base", tiny_vocab))}
    recipe = resolve(plain, [], "t")[0]
    # The learning rate is that of the base hidden size; the model's hidden size is 16.
    assert recipe.optim.learning_rate == pytest.approx(6.25e-5 * 768 / 16)
    assert (recipe.optim.warmup_share, recipe.train.batch_examples) == (0.002, 16)
    assert (recipe.head.auxiliary_lm, recipe.head.network.dropout) == (0.5, 0.2)
    # What the recipe sets holds, and its neighbouring settings stay.
    said = resolve(plain, ["optim.learning_rate=1e-3", "head.network.pool=mean", "head.auxiliary_lm=0"], "t")[0]
    assert (said.optim.learning_rate, said.optim.warmup_share) == (1e-3, 0.002)
    assert (said.head.network.pool, said.head.network.dropout, said.head.auxiliary_lm) == ("mean", 0.2, 0)
    # Nothing would learn from it there; a linear head alone takes a higher rate.
    frozen = resolve(plain, ["adapt.frozen_groups=-1"], "t")[0]
    assert (frozen.head.auxiliary_lm, frozen.optim.learning_rate) == (0, 5e-3)
    lstm = resolve(plain, ["adapt.frozen_groups=-1", "head.network.kind=bilstm", "head.network.pool=max"], "t")[0]
    assert lstm.optim.learning_rate == recipe.optim.learning_rate
    assert (bert.optim.warmup_share, bert.head.auxiliary_lm) == (0.1, 0)


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_settings_that_a_head_does_not_have_are_left_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "bert-ltr", dataclasses.replace(SYSTEMS["bert-ltr"], tuning=OWN))
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}
    found = with_defaults(empty, "bert-ltr", kind, 64, n_train=5000, documents=False)
    assert ("auxiliary_lm" in found["head"]) == (kind != "answer")
    assert found["head"]["network"] == {"dropout": 0.2} and found["train"] == {"batch_examples": 16, "epochs": 5}
    few = with_defaults(empty, "bert-ltr", kind, 64, n_train=100, documents=False)
    assert few["train"]["epochs"] == 32, "as many as make 200 updates"
    # Documents have many sentences, whatever the system.
    assert with_defaults(empty, "bert-ltr", kind, 64, n_train=5000, documents=True)["train"]["batch_examples"] == 8
    assert with_defaults(empty, "bert", kind, 64, n_train=5000, documents=False)["head"] == {}


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_texts_are_averaged_where_no_summary_was_learnt(kind: str) -> None:
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}
    found = with_defaults(empty, "bert", kind, 64, n_train=5000, documents=False, has_summary=False)
    assert found["head"].get("network", {}).get("pool") == (None if kind in ("tag", "answer") else "mean")
    given = empty | {"head": {"network": {"pool": "max"}}}
    said = with_defaults(given, "bert", kind, 64, n_train=5000, documents=False, has_summary=False)
    assert said["head"]["network"]["pool"] == "max"
    bcn = empty | {"head": {"network": {"kind": "biattentive"}}}
    own = with_defaults(bcn, "bert", kind, 64, n_train=5000, documents=False, has_summary=False)
    assert own["head"]["network"] == {"kind": "biattentive"}


def test_small_taggers_of_models_without_next_sentences_learn_faster() -> None:
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}

    def of(width: int, *, n_train: int = 5000, has_summary: bool = False, **said: Any) -> dict[str, Any]:
        return with_defaults(
            empty | said, "bert", "tag", width, n_train=n_train, documents=False, has_summary=has_summary
        )

    mini = of(256)
    assert mini["head"]["network"] == {"words": "mean"} and mini["adapt"] == {"dropout": 0.1}
    assert mini["optim"]["kind"] == "adamw" and mini["optim"]["learning_rate"] == pytest.approx(4e-4)
    assert mini["train"]["epochs"] == 5 and of(256, n_train=900)["train"]["epochs"] == 8
    published = of(256, has_summary=True)
    assert "network" not in published["head"] and published["train"]["epochs"] == 3
    assert of(768)["optim"]["learning_rate"] == 5e-5
    # Explicit settings hold, and a frozen encoder is left alone.
    said = of(256, optim={"learning_rate": 1e-3}, train={"epochs": 1.0}, adapt={"frozen_groups": -1})
    assert said["optim"]["learning_rate"] == 1e-3 and said["train"]["epochs"] == 1
    assert said["adapt"] == {"frozen_groups": -1}


@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress"])
def test_small_encoders_of_texts_show_the_head_every_layer(kind: str) -> None:
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}

    def of(
        width: int = 256,
        *,
        n_train: int = 3900,
        pairs: bool = False,
        has_summary: bool = False,
        pretrained: bool = True,
        **said: Any,
    ) -> dict[str, Any]:
        known: dict[str, Any] = {"n_train": n_train, "documents": False, "n_layers": 4, "pairs": pairs}
        known |= {"has_summary": has_summary, "pretrained": pretrained}
        return with_defaults(empty | said, "bert", kind, width, **known)

    mini = of()
    every = {"pool": "mean", "mix": "concat", "layers": [0, 1, 2, 3, 4], "dropout": 0.3}
    assert mini["head"]["network"] == every and mini["adapt"] == {"dropout": 0.2}
    assert mini["optim"]["learning_rate"] == pytest.approx(3e-4)
    # More examples take more updates but fewer epochs: 350 for 1,000 examples, 2.6 times as many for five times.
    epochs = {n: of(n_train=n)["train"]["epochs"] for n in (100, 1000, 5000, 25_000, 50_000)}
    assert epochs == {100: 112, 1000: 12, 5000: 6, 25_000: 4, 50_000: 3}
    for n, pairs in ((4000, False), (50_000, True)):
        many = of(n_train=n, pairs=pairs)
        assert many["head"]["network"] == every | {"dropout": 0.1} and many["adapt"] == {"dropout": 0.1}
        fewer = of(n_train=n - 1, pairs=pairs)
        assert fewer["head"]["network"] == every and fewer["adapt"] == {"dropout": 0.2}
    # Two passes agree where thousands of single texts are classified, and nowhere else.
    agree = {n: of(n_train=n)["head"].get("consistency") for n in (3999, 4000, 19_999, 20_000)}
    thousands = 1.0 if kind == "classify" else None
    assert agree == {3999: None, 4000: thousands, 19_999: thousands, 20_000: None}
    assert "consistency" not in of(n_train=4000, pairs=True)["head"]
    assert "consistency" not in of(n_train=4000, adapt={"frozen_groups": -1})["head"]
    if kind == "classify":
        assert of(n_train=4000, head={"consistency": 0.0})["head"]["consistency"] == 0.0
    assert of(n_train=4000, adapt={"dropout": 0.2})["adapt"] == {"dropout": 0.2}
    assert of(n_train=4000, head={"network": {"dropout": 0.4}})["head"]["network"] == every | {"dropout": 0.4}
    # With few examples the weights of three seeds are averaged, unless set otherwise.
    kinds = [of(n_train=n)["optim"].get("kind", "bert_adam") for n in (499, 500)]
    assert kinds == ["adamw", "bert_adam"] and of(n_train=9, optim={"kind": "muon"})["optim"]["kind"] == "muon"
    averaged = of(n_train=1000)["train"]
    assert averaged["seeds"] == 3 and averaged["average_seeds"] and "seeds" not in mini["train"]
    for one in (
        of(n_train=1000, train={"seeds": 1}),
        of(n_train=1000, grid=["optim.learning_rate=1e-4,3e-4"]),
        of(n_train=1000, adapt={"frozen_groups": -1}),
        of(n_train=1000, pretrained=False),
    ):
        assert one["train"].get("seeds", 1) == 1 and not one["train"].get("average_seeds")
    assert of(n_train=1000, train={"average_seeds": False})["train"].get("seeds", 1) == 1
    for other in (of(768), of(has_summary=True), of(head={"network": {"kind": "bilstm"}})):
        assert "layers" not in other["head"].get("network", {}) and not other["adapt"]
    assert "layers" not in of(head={"network": {"pool": "summary"}})["head"]["network"]
    # Explicit settings hold, and a frozen encoder has no dropout of its own.
    assert of(head={"network": {"layers": [-1]}})["head"]["network"] == {
        "pool": "mean",
        "layers": [-1],
        "dropout": 0.3,
    }
    assert of(adapt={"frozen_groups": -1})["adapt"] == {"frozen_groups": -1}


def test_small_encoders_mark_the_words_that_question_and_context_share() -> None:
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}

    def of(width: int = 256, *, has_summary: bool = False, **said: Any) -> Any:
        known: dict[str, Any] = {"n_train": 2000, "documents": False, "n_layers": 4, "has_summary": has_summary}
        return with_defaults(empty | said, "bert", "answer", width, **known)

    assert of()["head"] == {"mark_shared_words": True}
    assert of(adapt={"frozen_groups": 1})["head"] == of(768)["head"] == of(has_summary=True)["head"] == {}
    assert of(head={"mark_shared_words": False})["head"] == {"mark_shared_words": False}


def test_marks_of_frozen_embeddings_are_refused() -> None:
    recipe = Finetune(model="m", task="answer", kind="answer", metric="squad_f1", head=AnswerConfig())
    marked = AnswerConfig(mark_shared_words=True)
    for groups in (1, -1):
        with pytest.raises(ConfigError, match=rf"^adapt.frozen_groups={groups} freezes the embeddings, but head.mark"):
            dataclasses.replace(recipe, head=marked, adapt=AdaptConfig(frozen_groups=groups))
    assert dataclasses.replace(recipe, head=marked).head.mark_shared_words


def test_small_encoders_mark_the_words_of_a_pair_or_read_it_apart_if_frozen(tmp_path: Path) -> None:
    pairs = "".join(f"text {i}\ttext {i % 7}\t{i % 5}\n" for i in range(40))
    (tmp_path / "pairs.tsv").write_text("text\tsecond\tlabel\n" + pairs)
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\t{i % 5}\n" for i in range(40)))

    def of(file: str = "pairs.tsv", **said: Any) -> Any:
        where = str(tmp_path / file)
        data = {"train": where, "dev": where}
        return resolve({"model": "firth-mini-en", "task": "regress", "data": data} | said, (), str(tmp_path))

    for task in ("regress", "classify", "multilabel"):
        marked = of(task=task).recipe
        assert marked.head.mark_shared_words and marked.head.network.kind == "linear" and not marked.head_preset
    assert not of("texts.tsv").recipe.head.mark_shared_words
    for name in ("mark_shared_words", "both_orders"):
        with pytest.raises(ConfigError, match=rf"head\.{name}=true is for pairs of texts.*: leave it out"):
            of("texts.tsv", head={name: True})
    frozen = {"frozen_groups": -1}
    apart = of(adapt=frozen)
    assert apart.recipe.head_preset == "towers" and apart.recipe.head.network.kind == "towers"
    assert any("read apart" in note for note in apart.labelled.notes)
    # The written recipe records it; a resumed run has it all the same.
    again = resolve(to_dict(apart.recipe), (), str(tmp_path))
    assert again.recipe == apart.recipe and again.labelled.notes == apart.labelled.notes
    # The model's length does not remain in the preset.
    assert "length" not in HEADS["towers"].settings["head"]["windows"]
    for other in (
        of("texts.tsv", adapt=frozen),
        of(adapt=frozen, head_preset=""),
        of(adapt=frozen, head={"network": {"kind": "linear"}}),
        of(adapt=frozen, head={"windows": {"long": "windows"}}),
        of(head={"both_orders": True, "windows": {"long": "cut"}}),
        of(model="bert-mini", tokenizer=apart.recipe.model),
    ):
        assert other.recipe.head.network.kind == "linear"


@pytest.mark.parametrize(("n_train", "documents", "epochs"), [(5000, False, 3), (900, False, 8), (900, True, 8)])
def test_few_examples_are_read_more_often(n_train: int, documents: bool, epochs: float) -> None:
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}
    found = with_defaults(empty, "bert", "classify", 64, n_train=n_train, documents=documents)
    assert found["train"]["epochs"] == epochs
    given = with_defaults(
        empty | {"train": {"epochs": 2.0}}, "bert", "classify", 64, n_train=n_train, documents=documents
    )
    assert given["train"]["epochs"] == 2


def test_only_next_sentences_teach_bert_a_summary(tiny_run: Path) -> None:
    base = read_base(str(tiny_run), "", False)
    assert base.has_summary
    provenance = dict(base.origin["provenance"])
    without = provenance | {"recipe": provenance["recipe"] | {"objective.next_sentence": False}}
    assert not dataclasses.replace(base, origin=base.origin | {"provenance": without}).has_summary
    # Also a model fine-tuned from it, and the same encoder from scratch; but not where nothing is known.
    later = {"provenance": {"base": base.origin | {"provenance": without}}}
    assert not dataclasses.replace(base, origin=later).has_summary
    assert dataclasses.replace(base, origin={}).has_summary
    assert not dataclasses.replace(base, origin=later, weights=None).has_summary
    assert not dataclasses.replace(base, untrained=("pooler",)).has_summary


@pytest.mark.parametrize("kind", sorted(TASKS))
def test_the_settings_of_gpt(kind: str) -> None:
    """Radford et al. 2018, §4.1, and the released code, in which the endings of a question share a dropout mask."""
    empty = {table: {} for table in ("data", "head", "adapt", "optim", "train")}
    found = with_defaults(empty, "gpt", kind, 768, n_train=5000, documents=False)
    lm = {} if kind == "answer" else {"auxiliary_lm": 0.5}
    assert found["head"] == lm | ({"shared_dropout": True} if kind == "choose" else {})
    assert (found["optim"]["learning_rate"], found["optim"]["warmup_share"]) == (6.25e-5, 0.002)
    assert (found["optim"]["kind"], found["optim"]["schedule"]) == ("gpt_adam", "gpt_linear")
    # A frozen encoder has no language model to learn, but there is dropout on what the head reads.
    frozen = with_defaults(empty | {"adapt": {"frozen_groups": -1}}, "gpt", kind, 768, n_train=5000, documents=False)
    assert frozen["head"] == ({"shared_dropout": True} if kind == "choose" else {})
    # A shared mask is for a single linear layer.
    hidden = with_defaults(
        empty | {"head": {"network": {"hidden_width": 9}}}, "gpt", kind, 768, n_train=5000, documents=False
    )
    assert "shared_dropout" not in hidden["head"]


def test_a_shared_mask_is_not_of_a_hidden_layer(tiny_run: Path, tmp_path: Path) -> None:
    rows = [{"text": f"a {n}", "question": "b", "choices": ["c", "d"], "label": 1} for n in range(9)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = {"model": str(tiny_run), "task": "choose", "data": {"train": str(tmp_path / "t.jsonl")}}
    settings = ["head.shared_dropout=true", "head.network.hidden_width=9"]
    assert resolve(plain, settings[:1], "t").recipe.head.shared_dropout
    assert not resolve(plain, settings[1:], "t").recipe.head.shared_dropout
    with pytest.raises(ConfigError, match="head.shared_dropout=true is for a single linear layer: set it to false, or"):
        resolve(plain, settings, "t")


# -- small parts ---------------------------------------------------------------------------------------------


def test_a_run_far_below_the_others_has_collapsed() -> None:
    runs = [{"best": score} for score in (0.90, 0.88, 0.50, 0.91)]
    assert [collapsed(one, runs) for one in runs] == [False, False, True, False]
    assert not collapsed(runs[2], runs[1:3]), "two runs alone do not say which is odd"


def test_the_flag_of_a_collapsed_run_reaches_the_results(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_bad(given: Run, folder: Path, *others: Any) -> dict[str, Any]:
        return tune(given, folder, *others) | {"best": 0.4 if given.seed == 2 else 0.9}

    monkeypatch.setattr(job, "tune", one_bad)
    results = run(plain, tmp_path / "out", "train.seeds=3", "train.epochs=0.1").results
    assert [one["collapsed"] for one in results["runs"]] == [False, True, False]
    assert results["best_seed"] == 1


def test_summary_of_seeds() -> None:
    found = summary("accuracy", [0.8, 0.9])
    assert found["mean"] == pytest.approx(0.85) and found["sd"] == pytest.approx(0.1 / 2**0.5)
    assert (found["best"], found["values"]) == (0.9, [0.8, 0.9])
    assert summary("accuracy", [0.5])["interval"] is None
    assert summary("mean_absolute_error", [0.8, 0.9])["best"] == 0.8


def test_balanced_weights_make_labels_count_alike(plain: dict[str, Any]) -> None:
    recipe, _, labelled = resolve(plain, [*SETTINGS, "train.balance=true"], "t")
    weights = dict(zip(recipe.head.labels, balanced(labelled, recipe.head.labels), strict=True))
    sums = {label: weights[label] * sum(r.label == label for r in labelled.train) for label in weights}
    assert sums["river"] == pytest.approx(sums["winter"]) == pytest.approx(len(labelled.train) / 2)
    assert recipe.head.class_weights == tuple(weights.values())
    # A label without examples takes no weight from the others.
    labels = (*recipe.head.labels, "spring")
    assert balanced(labelled, labels) == [*recipe.head.class_weights, 0.0]


def test_every_combination_of_a_grid() -> None:
    found = list(combinations(["optim.learning_rate=1e-4,3e-4", "head.network.layers=[-1],[-1, -2]"]))
    assert found == [
        (f"optim.learning_rate={rate}", f"head.network.layers={layers}")
        for rate in ("1e-4", "3e-4")
        for layers in ("[-1]", "[-1, -2]")
    ]
    assert list(combinations([])) == [()]
    with pytest.raises(ConfigError, match="optim.learning_rate is given twice: give all its values together"):
        combinations(["optim.learning_rate=1e-4", "optim.learning_rate=3e-4"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.max_steps=5", "unknown key 'train.max_steps': here it is 'train.epochs'"),
        ("train.steps=5", "unknown key 'train.steps': here it is 'train.epochs'"),
        ("data.max_seq_length=5", "here it is 'head.windows.length'"),
        ("learning_rate=5", "here it is 'optim.learning_rate'"),
        ('grid=["optim.lr=1,2"]', "here it is 'optim.learning_rate'"),
        ("adapt.hidden_dropout_prob=0.5", "here it is 'adapt.dropout'"),
        ("train.save_steps=5", "unknown key 'train.save_steps'(: did you mean|. Known keys)"),
    ],
)
def test_names_of_other_tools(plain: dict[str, Any], setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(plain, [setting], "t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data.limit=1,2", "expected a key of head, adapt, optim, train"),
        ("train=1,2", "expected a key"),
        ("optim.learning_rate", "expected a key"),
        ("train.seeds=1,2", "train.seeds is the same for all settings"),
        ("train.precision=auto,float32", "train.precision is the same for all settings"),
    ],
)
def test_grids_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(combinations([text]))


def test_a_resolved_recipe_is_itself_a_recipe(plain: dict[str, Any], tmp_path: Path) -> None:
    recipe = resolve(plain, [*SETTINGS, 'grid=["optim.learning_rate=1e-4,1e-3"]'], "t")[0]
    path = tmp_path / "r.toml"
    path.write_text(to_toml(recipe, comments=True), "utf-8")
    assert resolve(read_toml(path), [], "t")[0] == recipe


def test_tags_of_a_document_are_taken_in_small_batches(plain: dict[str, Any], data: Path, tmp_path: Path) -> None:
    plain |= {"task": "tag", "data": {"train": str(data / "t.conll")}}
    assert resolve(plain, [], "t")[0].train.batch_examples == 32
    documents = (data / "t.conll").read_text().replace("\n\n", "\n\n-DOCSTART- O\n\n")
    (tmp_path / "t.conll").write_text(documents)
    plain |= {"data": {"train": str(tmp_path / "t.conll")}}
    recipe = resolve(plain, [], "t")[0]
    assert recipe.train.batch_examples == 8 and isinstance(recipe.head, TagConfig)
