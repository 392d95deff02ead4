"""Exact resume: a run that is stopped, killed or interrupted while writing ends as if nothing had happened."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from systems_under_test import NO_PLOTS, tiny_recipe

import firth.training.saver as saver
import firth.training.trainer as trainer_module
from firth.config import to_toml
from firth.corpus.prepare import prepare
from firth.errors import CheckpointError, ConfigError, TrainingError
from firth.files import lock
from firth.manifest import write_manifest
from firth.pretraining.recipe import Pretrain, identity
from firth.pretraining.replay import replay
from firth.pretraining.run import pretrain, resume
from firth.systems import SYSTEMS
from firth.training.checkpoint import list_checkpoints
from firth.training.log import read_log

pytestmark = pytest.mark.unchecked

# Fields of the log that vary between runs on the same machine; all others are bit-equal after a resume.
TIME_FIELDS = ("elapsed_s", "tokens_per_s", "flops_per_s")

every_system = pytest.mark.parametrize("system", sorted(SYSTEMS))


def silent(_: str) -> None:
    """Print nothing."""


def what_counts(run: Path) -> dict[str, Any]:
    """Everything that must be bit-equal: weights, optimizer, carry, state and log, except time fields."""
    found: dict[str, Any] = {}
    _, checkpoint = list_checkpoints(run / "checkpoints")[-1]
    for path in sorted([*checkpoint.rglob("*.safetensors"), run / "model" / "model.safetensors"]):
        for name, tensor in load_file(path).items():
            data = tensor.contiguous().numpy().tobytes()
            found[f"{path.relative_to(run)}/{name}"] = hashlib.sha256(data).hexdigest()
    state = json.loads((checkpoint / "train" / "state.json").read_text())
    found["state"] = {key: value for key, value in state.items() if key not in ("elapsed_s", "log_offset")}
    found["log"] = [{k: v for k, v in event.items() if k not in TIME_FIELDS} for event in read_log(run / "log.jsonl")]
    return found


class Killed(BaseException):
    """Simulates SIGKILL within the test process: nothing catches it."""


@every_system
def test_killed_in_the_middle_of_a_stream(system: str, tiny_corpus: Path, tmp_path: Path) -> None:
    check_killed(tiny_recipe(system, tiny_corpus), (3, 7, 11), tmp_path)


OTHER_PLANS = [
    *((system, f"data.instances={plan}") for system in sorted(SYSTEMS) for plan in SYSTEMS[system].instances[1:]),
    ("awd-lstm", "data.varied_windows=true"),
    ("elmo", "data.restart_every=2"),
]


@pytest.mark.parametrize(("system", "setting"), OTHER_PLANS)
def test_killed_in_another_plan_than_the_systems_own(
    system: str, setting: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    check_killed(tiny_recipe(system, tiny_corpus, setting), (7,), tmp_path)


def check_killed(recipe: Pretrain, steps: Sequence[int], tmp_path: Path) -> None:
    """Compare a run that is killed before each of these steps with one that is not."""
    pretrain(recipe, tmp_path / "whole", silent)
    original = trainer_module.Trainer.train_step
    for at_step in steps:
        cut = tmp_path / f"cut-{at_step}"

        def dies(self: Any, batches: Any, at_step: int = at_step) -> Any:
            if self.state.step == at_step:
                raise Killed
            return original(self, batches)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(trainer_module.Trainer, "train_step", dies)
            pretrain(recipe, cut, silent)
        assert resume(cut, silent).finished
        assert what_counts(cut) == what_counts(tmp_path / "whole")


@pytest.mark.parametrize(
    "change",
    [
        lambda name, tensor: (name, tensor[..., :1].contiguous()),
        lambda name, tensor: (name, tensor[:, :1].contiguous()),  # one row's state, which would be broadcast to all
        lambda name, tensor: (name + "x", tensor),
    ],
)
def test_recurrent_state_of_another_shape_is_named(tiny_corpus: Path, tmp_path: Path, change: Any) -> None:
    """The checksum is right; only the model knows the expected shape."""
    recipe = tiny_recipe("lstm", tiny_corpus)
    pretrain(recipe, tmp_path / "run", silent)
    (_, before), (_, newest) = list_checkpoints(tmp_path / "run" / "checkpoints")
    shutil.rmtree(newest)
    carry = before / "train" / "carry.safetensors"
    assert load_file(carry)
    save_file(dict(change(*item) for item in load_file(carry).items()), carry)
    write_manifest(before)
    with pytest.raises(CheckpointError, match="the recurrent state of its newest one is not what this run writes"):
        resume(tmp_path / "run", silent)


PROGRAM = (
    NO_PLOTS
    + """
import os, sys, tomllib
from pathlib import Path
from firth.pretraining.run import pretrain, resume
from firth.pretraining.recipe import read_resolved_recipe
import firth.files as files

run, recipe = Path(sys.argv[1]), Path(sys.argv[2])
if len(sys.argv) > 3:
    # Tell the test when a checkpoint is half written, and wait there to be killed.
    original = files.write_manifest
    def half(folder):
        if sys.argv[3] in folder.name:
            print("half written", flush=True)
            sys.stdin.read()
        original(folder)
    files.write_manifest = half
tell = lambda text: print(text, flush=True)
if run.exists():
    outcome = resume(run, tell)
else:
    outcome = pretrain(read_resolved_recipe(tomllib.loads(recipe.read_text()), "recipe"), run, tell)
# One write for each line: two processes share this output.
print(f"finished {outcome.finished} {outcome.step}\\n", end="", flush=True)
threads = {Path(f"/proc/self/task/{t}/comm").read_text().strip() for t in os.listdir("/proc/self/task")}
gloo = [name for name in threads if "gloo" in name]
print(f"threads of the group: {gloo}\\n", end="", flush=True)
"""
)


def start(run: Path, recipe: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run), str(recipe), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.fixture
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("system", "moment"), [("bert", ".step-5."), ("lstm", ".model.")])
def test_a_real_process_killed_while_it_writes(
    system: str, moment: str, tiny_corpus: Path, tmp_path: Path, one_thread: None
) -> None:
    """SIGKILL while writing a checkpoint, and while writing the best model; another process then resumes."""
    recipe = tiny_recipe(system, tiny_corpus)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    pretrain(recipe, tmp_path / "whole", silent)
    process = start(tmp_path / "cut", tmp_path / "recipe.toml", moment)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("half written"):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    outcome = resume(tmp_path / "cut", silent)
    assert (outcome.finished, outcome.step) == (True, 12)
    assert what_counts(tmp_path / "cut") == what_counts(tmp_path / "whole")
    assert not list((tmp_path / "cut").rglob("*.tmp"))


@pytest.mark.parametrize("left", [(), (".step-0.0123456789abcdef.tmp",)])
def test_a_run_that_was_stopped_in_its_first_checkpoint_starts_from_its_recipe(
    left: tuple[str, ...], tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --resume; a new start reports it. What was logged before does not count."""
    recipe = tiny_recipe("bert", tiny_corpus)
    pretrain(recipe, tmp_path / "whole", silent)
    monkeypatch.setattr(saver, "save_checkpoint", stopped)
    with pytest.raises(Killed):
        pretrain(recipe, tmp_path / "cut", silent)
    monkeypatch.undo()
    (tmp_path / "cut" / "checkpoints").mkdir(exist_ok=True)
    for name in left:
        (tmp_path / "cut" / "checkpoints" / name).mkdir()
    with pytest.raises(ConfigError, match=r"exists already: resume it with: firth pretrain --resume .*cut; or"):
        pretrain(recipe, tmp_path / "cut", silent)
    assert resume(tmp_path / "cut", silent).finished
    assert what_counts(tmp_path / "cut") == what_counts(tmp_path / "whole")
    assert not list((tmp_path / "cut").rglob("*.tmp"))


def stopped(*args: Any, **more: Any) -> None:
    raise Killed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_saves_and_goes_on(
    number: int, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe("lstm", tiny_corpus)
    pretrain(recipe, tmp_path / "whole", silent)
    original = trainer_module.Trainer.train_step

    def asks(self: Any, batches: Any) -> Any:
        if self.state.step == 6:
            os.kill(os.getpid(), number)
        return original(self, batches)

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(trainer_module.Trainer, "train_step", asks)
    outcome = pretrain(recipe, tmp_path / "cut", silent)
    monkeypatch.undo()
    assert not outcome.finished
    assert outcome.step == 6, "a step of two micro-batches is given up after the first"
    assert list_checkpoints(tmp_path / "cut" / "checkpoints")[-1][0] == 6
    assert resume(tmp_path / "cut", silent).finished
    assert what_counts(tmp_path / "cut") == what_counts(tmp_path / "whole")


def test_a_damaged_newest_checkpoint_is_said_and_passed_over(tiny_corpus: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe("bert", tiny_corpus)
    pretrain(recipe, tmp_path / "whole", silent)
    pretrain(recipe, tmp_path / "hurt", silent)
    _, newest = list_checkpoints(tmp_path / "hurt" / "checkpoints")[-1]
    weights = newest / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    heard: list[str] = []
    assert resume(tmp_path / "hurt", heard.append).finished
    assert any("model.safetensors" in text and "damaged" in text for text in heard)
    assert what_counts(tmp_path / "hurt") == what_counts(tmp_path / "whole")


def test_a_full_disk_leaves_the_last_good_checkpoint(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe("bert", tiny_corpus)
    pretrain(recipe, tmp_path / "whole", silent)
    import errno

    import firth.training.checkpoint as checkpoint

    original = checkpoint.save_tensors

    def no_room(path: Path, tensors: Any) -> None:
        if ".step-10." in str(path):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, tensors)

    monkeypatch.setattr(checkpoint, "save_tensors", no_room)
    with pytest.raises(CheckpointError, match="the disk is full.*untouched"):
        pretrain(recipe, tmp_path / "cut", silent)
    monkeypatch.undo()
    assert [step for step, _ in list_checkpoints(tmp_path / "cut" / "checkpoints")] == [0, 5]
    assert resume(tmp_path / "cut", silent).finished
    assert what_counts(tmp_path / "cut") == what_counts(tmp_path / "whole")


def test_a_loss_that_is_no_number_names_its_batch(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe("bert", tiny_corpus)
    original = trainer_module.Trainer._forward_from

    def breaks(self: Any, number: int, batch: Any) -> Any:
        step = original(self, number, batch)
        if self.state.step == 6 and self.objective.training:
            step.losses["mlm"].mul_(float("nan"))
        return step

    monkeypatch.setattr(trainer_module.Trainer, "_forward_from", breaks)
    with pytest.raises(TrainingError, match=r"step 7, batch \d:\d+:\d+:\d+") as caught:
        pretrain(recipe, tmp_path / "run", silent)
    monkeypatch.undo()
    place = str(caught.value).split("--replay ")[1].split(".")[0].split()[0]
    shown = replay(tmp_path / "run", place, silent)
    assert shown["place"] == place
    assert all(row["text"].startswith("[CLS]") and row["text"].endswith("[SEP]") for row in shown["rows"])
    seen = [(row["text"].split()[at], answer) for row in shown["rows"] for at, answer in row["mlm"]]
    assert sum(piece == "[MASK]" for piece, _ in seen) > len(seen) / 2
    assert set(shown["losses"]) == {"mlm", "nsp"}


def test_a_run_does_not_go_on_with_other_text(
    tiny_corpus: Path, tiny_text: Path, tiny_vocab: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_corpus, tmp_path / "corpus")
    pretrain(tiny_recipe("bert", tmp_path / "corpus"), tmp_path / "run", silent)
    shutil.rmtree(tmp_path / "corpus")
    prepare([tiny_text], tiny_vocab, tmp_path / "corpus", hold_out=0.3, workers=1)
    with pytest.raises(CheckpointError, match="made with another corpus"):
        resume(tmp_path / "run", silent)
    # A moved corpus counts as unchanged.
    shutil.rmtree(tmp_path / "corpus")
    shutil.copytree(tiny_corpus, tmp_path / "moved")
    assert resume(tmp_path / "run", silent, corpus=tmp_path / "moved").finished


def test_a_run_does_not_go_on_by_another_recipe(tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(tiny_recipe("bert", tiny_corpus), run, silent)
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace('kind = "bert_adam"', 'kind = "adamw"'))
    with pytest.raises(CheckpointError, match=r"made with another optim\.kind"):
        resume(run, silent)
    (run / "recipe.toml").write_text(text.replace("keep_checkpoints = 2", "keep_checkpoints = 5"))
    assert resume(run, silent).finished


def test_a_run_from_before_an_option_was_there_goes_on(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes as it was: with the option's default, and with no other value."""
    run = tmp_path / "run"
    with monkeypatch.context() as before:
        before.setattr(
            "firth.pretraining.assembly.identity",
            lambda recipe: {k: v for k, v in identity(recipe).items() if k != "optim.schedule"},
        )
        pretrain(tiny_recipe("bert", tiny_corpus), run, silent)
    lines = (run / "recipe.toml").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("schedule = "))
    (run / "recipe.toml").write_text(text.replace("[optim]", '[optim]\nschedule = "cosine"'))
    with pytest.raises(CheckpointError, match=r"made with another optim\.schedule"):
        resume(run, silent)
    (run / "recipe.toml").write_text(text)
    assert resume(run, silent).finished


@pytest.mark.parametrize("what", ["deleted", "damaged"])
def test_without_a_whole_checkpoint_nothing_is_touched(what: str, tiny_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(tiny_recipe("bert", tiny_corpus), run, silent)
    if what == "deleted":
        shutil.rmtree(run / "checkpoints")
    else:
        for _, path in list_checkpoints(run / "checkpoints"):
            (path / "train" / "optimizer.safetensors").write_bytes(b"")
    before = {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(CheckpointError, match="no undamaged checkpoint; its best model is untouched"):
        resume(run, silent)
    assert {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_a_run_from_a_model_does_not_need_it_again(tiny_corpus: Path, tmp_path: Path) -> None:
    pretrain(tiny_recipe("bert", tiny_corpus), tmp_path / "base", silent)
    settings = (f"model={tmp_path}/base", "train.seed=7")
    recipe = tiny_recipe("bert", tiny_corpus, *settings)
    pretrain(recipe, tmp_path / "whole", silent)
    with pytest.MonkeyPatch.context() as patch:
        original = trainer_module.Trainer.train_step
        patch.setattr(
            trainer_module.Trainer, "train_step", lambda self, b: _die() if self.state.step == 3 else original(self, b)
        )
        with pytest.raises(Killed):
            pretrain(recipe, tmp_path / "cut", silent)
    shutil.rmtree(tmp_path / "base")
    assert resume(tmp_path / "cut", silent).finished
    assert what_counts(tmp_path / "cut") == what_counts(tmp_path / "whole")


def _die() -> Any:
    raise Killed


def test_one_process_at_a_time_in_a_run(tiny_corpus: Path, tmp_path: Path) -> None:
    with lock(tmp_path / "run"), pytest.raises(ConfigError, match="in use by another firth process"):
        pretrain(tiny_recipe("bert", tiny_corpus), tmp_path / "run", silent)
    assert not (tmp_path / "run").exists()


def test_two_processes_stop_and_one_goes_on_in_the_middle_of_a_stream(
    tiny_corpus: Path, tmp_path: Path, one_thread: None
) -> None:
    """Under torchrun the batches are those of one process, and so is the recurrent state: a micro-batch has its own."""
    recipe = tiny_recipe("lstm", tiny_corpus)
    pretrain(recipe, tmp_path / "one", silent)
    (tmp_path / "recipe.toml").write_text(to_toml(tiny_recipe("lstm", tiny_corpus)))
    program = PROGRAM.replace("outcome = pretrain(", STOP_AT_SEVEN + "    outcome = pretrain(")
    (tmp_path / "program.py").write_text(program)
    done = torchrun(tmp_path / "program.py", tmp_path / "two", tmp_path / "recipe.toml")
    assert "finished False 7" in done.stdout, done.stderr[-3000:]
    # A process whose threads outlive its group may abort as it exits.
    assert done.stdout.count("threads of the group: []") == 2, done.stdout
    heard: list[str] = []
    assert resume(tmp_path / "two", heard.append).finished
    assert any("processes 2 -> 1" in text for text in heard)
    check_equal_curves(tmp_path / "one", tmp_path / "two", ("lm_loss", "loss"))


STOP_AT_SEVEN = """import os, signal
    from firth.training.trainer import Trainer
    step = Trainer.train_step
    def asks(self, batches):
        if self.state.step == 6 and self.world.leads:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batches)
    Trainer.train_step = asks
"""


def torchrun(program: Path, run: Path, recipe: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program, run, recipe],
        capture_output=True,
        text=True,
        env=environment,
    )


def check_equal_curves(one: Path, two: Path, names: tuple[str, ...]) -> None:
    first, second = read_log(one / "log.jsonl"), read_log(two / "log.jsonl")
    assert [(e["event"], e["step"]) for e in first] == [(e["event"], e["step"]) for e in second]
    for ours, theirs in zip(first, second, strict=True):
        for name in names:
            assert theirs[name] == pytest.approx(ours[name], rel=1e-5), (ours, theirs)
