"""The demo's comparison: fine-tuning and baselines with few labels, as many at a time as there are CPUs."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from firth.baseline.fit import fit_tfidf
from firth.config import from_dict
from firth.demo.python_docs import LabelledSplit, split_labelled
from firth.demo.settings import DOCSTRINGS, FRESH, REVIEWS, SHIPPED, SHIPPED_START, TFIDF, DemoSettings, Score
from firth.errors import FirthError
from firth.files import append_to, write_text
from firth.finetuning.base import Base, base_of
from firth.finetuning.recipe import build, plain_recipe, with_defaults
from firth.finetuning.train import Run, split_of, tune
from firth.folder import read_model
from firth.inference.answering import answer_records
from firth.machine import find_machine
from firth.metrics.classification import accuracy, macro_f1
from firth.progress import format_duration, part_of, silent
from firth.tasks.predictions import Labelled
from firth.tasks.scoring import score_labels
from firth.text.records import Text
from firth.workers import cpu_count, kill_pool, make_pool, submit

# Test texts per class.
_TESTED = {DOCSTRINGS: 50, REVIEWS: 150}
# A process takes about 0.7 GB.
_MOST_WORKERS = 8
# Prefix of the folder of a fine-tuning until it has been scored.
TUNING = ".tuning-"


@dataclass(frozen=True, slots=True)
class Trial:
    """One model (``start``) to train on one sample of a task's labels."""

    task: str
    start: str
    per_class: int
    draw: int


@dataclass(frozen=True, slots=True)
class Trials:
    """What all trials share. ``labelled``: texts by task; ``weights``: the folder of the bundled models."""

    out: Path
    seed: int
    settings: DemoSettings
    labelled: Mapping[str, list[Text]]
    weights: Path

    def labels(self, task: str) -> tuple[str, ...]:
        """The classes of a task."""
        return tuple(sorted({str(text.label) for text in self.labelled[task]}))

    def split(self, task: str, per_class: int, draw: int) -> LabelledSplit:
        """A sample of labels to train on, and the test texts, which are always the same."""
        return split_labelled(self.labelled[task], self.seed + draw, per_class, per_class_test=_TESTED[task])

    def scores(self) -> list[Score]:
        """The scores so far."""
        lines = self._file.read_text("utf-8").splitlines() if self._file.is_file() else []
        return [from_dict(Score, json.loads(line), str(self._file)) for line in lines]

    @property
    def _file(self) -> Path:
        return self.out / "scores.jsonl"

    def run(self, ways: Sequence[tuple[str, str]], tell: Callable[[str], None]) -> None:
        """Score each (task, start) with each number of labels and sample, unless it is done already.

        Scores are written one by one, so an interruption costs at most the running trials.
        """
        self._clear_up()
        done = {Trial(s.task, s.start, s.per_class, s.draw) for s in self.scores()}
        every = (
            Trial(task, start, n, draw)
            for n in self.settings.per_class
            for draw in range(self.settings.draws)
            for task, start in ways
        )
        todo = [trial for trial in every if trial not in done]
        on_gpu = find_machine(self.settings.precision).device.type == "cuda"
        workers = 1 if on_gpu else min(cpu_count(), torch.get_num_threads(), _MOST_WORKERS, len(todo))
        begun_at_s = time.monotonic()

        def keep(score: Score, number: int) -> None:
            with append_to(self._file) as file:
                file.write(json.dumps(asdict(score)).encode() + b"\n")
            left_s = (time.monotonic() - begun_at_s) / number * (len(todo) - number)
            tell(
                f"{score.task}: {score.start}, {score.per_class} a class, draw {score.draw + 1}: accuracy "
                f"{score.accuracy:.3f}  {format_duration(left_s)} left"
            )

        if workers > 1:
            self._in_workers(todo, workers, keep)
        else:
            for number, trial in enumerate(todo, start=1):
                keep(self.score(trial, tell), number)

    def _in_workers(self, todo: Sequence[Trial], workers: int, keep: Callable[[Score, int], None]) -> None:
        """Run one process per CPU: faster than threads, since the batches are small."""
        pool = make_pool(workers, _start_worker, self)
        try:
            futures = [submit(pool, _score, trial) for trial in todo]
            for number, future in enumerate(as_completed(futures), start=1):
                keep(future.result(), number)
        except BrokenProcessPool:
            raise FirthError(
                "a process of the demo was killed (out of memory?): the same command resumes; OMP_NUM_THREADS=1 makes "
                "it one process"
            ) from None
        finally:
            kill_pool(pool)
            self._clear_up()

    def _clear_up(self) -> None:
        """Remove what a kill left incomplete: the folder of a fine-tuning, the last line of the scores."""
        for folder in self.out.glob(f"{TUNING}*"):
            shutil.rmtree(folder)
        lines = self._file.read_text("utf-8").splitlines(keepends=True) if self._file.is_file() else []
        write_text(self._file, "".join(line for line in lines if line.endswith("}\n")))

    def score(self, trial: Trial, tell: Callable[[str], None]) -> Score:
        """Train on one sample of labels and score the predictions for the test texts."""
        task, labels = trial.task, self.labels(trial.task)
        split = self.split(task, trial.per_class, trial.draw)
        if trial.start == TFIDF:
            found = fit_tfidf(
                "classify",
                labels,
                split.train,
                [],
                lambda texts, answers: score_labels(texts, answers, labels)["accuracy"],
            )
            answers = [answer for answer in found.model.answers(split.test) if isinstance(answer, Labelled)]
        else:
            with tempfile.TemporaryDirectory(dir=self.out, prefix=TUNING) as folder:
                self.tune(trial, Path(folder), tell)
                answers, _ = answer_records(read_model(Path(folder) / "model"), split.test)
        truth = np.array([labels.index(str(text.label)) for text in split.test], np.int64)
        predicted = np.array([labels.index(answer.label) for answer in answers], np.int64)
        scores = accuracy(truth, predicted), macro_f1(truth, predicted)
        return Score(task, trial.start, trial.per_class, trial.draw, *scores)

    def tune(self, trial: Trial, folder: Path, tell: Callable[[str], None]) -> None:
        """Fine-tune a BERT into ``folder/model``, as ``firth finetune`` does, with one seed and the demo's steps."""
        s, base = self.settings, self._base(trial.task, trial.start)
        split = self.split(trial.task, trial.per_class, trial.draw)
        where = "the demo's settings"
        train = {
            "epochs": s.tune_steps * s.tune_texts / len(split.train),
            "batch_examples": s.tune_texts,
            "precision": s.precision,
            "seeds": 1,
        }
        head = {"labels": list(self.labels(trial.task))}
        plain = plain_recipe({"model": "the demo's", "task": "classify", "head": head, "train": train}, (), where)
        plain = with_defaults(
            plain,
            base.system_name,
            "classify",
            base.config.width,
            n_train=len(split.train),
            documents=False,
            has_summary=base.has_summary,
            n_layers=base.config.n_layers,
        )
        recipe = build({"kind": "classify", "metric": "accuracy"} | plain, where)
        examples, held = split_of(base, recipe, split.train).examples, split_of(base, recipe, [])
        machine = find_machine(s.precision)
        tune(Run(base, recipe, self.seed + trial.draw, examples, held, machine, folder / "features"), folder, tell)

    def _base(self, task: str, start: str) -> Base:
        """The model that a fine-tuning starts from: for reviews only the bundled one, or its size from scratch."""
        shipped = start == SHIPPED_START or task == REVIEWS
        folder = self.weights / SHIPPED[task] if shipped else self.out / "run"
        return base_of(read_model(folder), from_scratch=start == FRESH)


_trials: Trials | None = None  # in a worker process


def _start_worker(trials: Trials) -> None:
    global _trials
    torch.set_num_threads(1)
    _trials = trials


def _score(trial: Trial) -> Score:
    assert _trials is not None
    with part_of(silent):
        return _trials.score(trial, silent)
