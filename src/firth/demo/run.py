"""``firth demo``: the end-to-end pipeline on Python's own documentation.

On one machine the same seed, Python and type of numbers give the same results. Each stage leaves files in
``out``; what is there and whole is not made again, so a demo that was stopped goes on.
"""

import hashlib
import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np

from firth.baseline.fit import fit_tfidf
from firth.config import from_dict, option, read_json, to_dict
from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.data.shards import Corpus
from firth.demo.held_out_text import commonest_word, fill_masked_words, find_alike, new_sentences, of_length
from firth.demo.python_docs import (
    LabelledSplit,
    PythonDocs,
    read_python_docs,
    split_documents,
    split_labelled,
    without_texts,
)
from firth.demo.report import (
    DOCSTRINGS,
    FRESH,
    PRETRAINED,
    REVIEWS,
    SHIPPED_START,
    TFIDF,
    Findings,
    Score,
    starts_of,
    summarised,
    write_demo_report,
)
from firth.demo.reviews import read_reviews
from firth.errors import ConfigError
from firth.files import append_to, write_folder, write_json, write_text
from firth.finetuning.base import Base, base_of
from firth.finetuning.recipe import build
from firth.finetuning.small import small_settings
from firth.finetuning.train import Run, split_of, tune
from firth.folder import read_model
from firth.inference.answering import answer_records
from firth.inference.model import load_model
from firth.machine import Machine, find_machine
from firth.metrics.classification import accuracy, macro_f1
from firth.names import WEIGHTS
from firth.pretraining.recipe import Pretrain
from firth.pretraining.run import RECIPE, pretrain_or_resume, resolve
from firth.progress import format_duration, say
from firth.tasks.predictions import Labelled
from firth.tasks.scoring import score_labels
from firth.text.records import Document
from firth.training.log import read_log

SEED = 12345
# The shipped model of each task's language.
# Holds the text's hash and the settings of a demo; and what to do where another stands, or something else.
_SETTINGS, _REMEDY = "settings.json", "choose another --out, or delete it"
_SHIPPED = {DOCSTRINGS: "firth-mini-en", REVIEWS: "firth-mini-ko"}
# Test texts of each class.
_TESTED = {DOCSTRINGS: 50, REVIEWS: 150}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """All choices of the demo.

    Pre-training settings were chosen by loss on held-out text; the learning rate of fine-tuning and the initialisation
    of models without pre-training on training docstrings. Sizes, steps and samples were set to fit the time.
    """

    held_out_share: float = option(0.05, "share of the documents held out of pre-training")
    vocab_size: int = option(4000, "WordPiece tokens, lower-cased")
    n_layers: int = option(2, "Transformer blocks")
    width: int = option(128, "hidden size")
    n_heads: int = option(4, "attention heads")
    init_range: float = option(0.08, "1/√width: with BERT's 0.02 so small a model learns to attend late")
    short_length: int = option(48, "longest sequence for most of pre-training: few positions are learned sooner")
    length: int = option(128, "longest sequence for the rest, and the model's positions")
    long_share: float = option(0.2, "share of the steps, the last ones, at the full length")
    mask_share: float = option(0.3, "share of tokens predicted: twice BERT's, to learn more from each sequence")
    steps: int = option(6000, "pre-training steps")
    batch_tokens: int = option(1024, "tokens per step: small batches learn more from few tokens")
    learning_rate: float = option(2e-3, "peak learning rate of pre-training")
    dropout: float = option(0.0, "none: the text is read only a few times, each time with other masks")
    warmup_share: float = option(0.1, "share of the steps over which the learning rate rises")
    log_every: int = option(100, "steps between points of the loss curve")
    eval_every: int = option(1000, "steps between evaluations on held-out text")
    save_every: int = option(500, "steps between checkpoints: what an interruption may cost")
    precision: Literal["auto", "float32", "bfloat16"] = option("auto", "as in recipes: train.precision")
    fewest_tokens: int = option(8, "shortest held-out sentence that is used")
    most_tokens: int = option(60, "longest held-out sentence that is used")
    n_masks: int = option(10, "filled masks that the report shows; the accuracy is over all")
    top_k: int = option(5, "candidates for a mask")
    n_queries: int = option(5, "sentences whose nearest ones the report shows")
    n_nearest: int = option(3, "nearest sentences of each")
    per_class: tuple[int, ...] = option((4, 16, 64), "labelled examples per class")
    draws: int = option(3, "random samples of them, each with its own initialisation and order")
    tune_steps: int = option(200, "fine-tuning steps")
    tune_texts: int = option(20, "texts per step")
    tune_rate: float = option(1e-3, "peak learning rate of fine-tuning, with and without pre-training")
    shipped_rate: float = option(3e-4, "peak learning rate of fine-tuning a shipped model")
    fresh_init_range: float = option(
        0.02, "standard deviation without pre-training: BERT's, better there than init_range"
    )


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of a demo and where they are."""

    out: Path
    report: Path
    dev: dict[str, float]
    scores: list[Score]


def demo(
    out: str | Path = "demo",
    *,
    seed: int = SEED,
    settings: DemoSettings | None = None,
    docs: PythonDocs | None = None,
    tell: Callable[[str], None] = say,
) -> DemoResult:
    """Run the end-to-end pipeline in folder ``out``, or resume it there.

    ``docs``: other text than this Python's. ConfigError when ``out`` holds something else or a demo with
    other settings, or when the libraries of the extra ``report`` are missing. KeyboardInterrupt, with a
    message that says how to resume, when it was stopped.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("the demo needs matplotlib: pip install 'firth[report]'")
    # At once: reading the documentation takes seconds.
    place = Path(out)
    if (
        os.path.lexists(place)
        and not (place / _SETTINGS).is_file()
        and not (place.is_dir() and not any(place.iterdir()))
    ):
        raise ConfigError(f"{out} exists already and is no demo: {_REMEDY}")
    try:
        return _Demo(Path(out), seed, settings or DemoSettings(), docs, tell).run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what is done is kept in {out}: the same command resumes") from None


class _Demo:
    """One demo: its folder, its text, and a method for each stage, in the order of ``run``."""

    def __init__(
        self, out: Path, seed: int, settings: DemoSettings, docs: PythonDocs | None, tell: Callable[[str], None]
    ) -> None:
        self.out, self.seed, self.settings, self.tell = out, seed, settings, tell
        self.machine: Machine = find_machine(settings.precision)
        self.seconds: dict[str, float] = {}
        tell(
            f"reading the documentation of this Python; {self.machine.path}; all in all about ten minutes on two "
            "cores, less with bfloat16 units. Ctrl-C at any time: the same command goes on"
        )
        started_at_s = time.monotonic()
        self.docs = read_python_docs() if docs is None else docs
        self.labelled = {DOCSTRINGS: self.docs.labelled, REVIEWS: read_reviews()}
        self.labels = {task: tuple(sorted({str(t.label) for t in texts})) for task, texts in self.labelled.items()}
        if len(self.labels[DOCSTRINGS]) < 2:
            raise ConfigError("this Python's sources hold too few docstrings to classify: use a full installation")
        self._claim()
        self.seconds.setdefault("read", time.monotonic() - started_at_s)
        self.n_test = {task: len(self._split(task, self.settings.per_class[0], 0).test) for task in self.labelled}
        test = self._split(DOCSTRINGS, self.settings.per_class[0], 0).test
        train, self.held = split_documents(self.docs.documents, settings.held_out_share)
        self.train = without_texts(train, test)
        self.held = without_texts(self.held, test)

    def run(self) -> DemoResult:
        """Run all stages and write the report."""
        out = self.out
        if any((WEIGHTS / name).is_dir() for name in _SHIPPED.values()):
            self._stage("first", out / "first.json", "fine-tune the shipped models", self.first)
        self._stage("text", out / "text" / "train.txt", "write the text", self.write_text)
        self._stage("vocab", out / "vocab", "train a vocabulary", self.train_vocab)
        self._stage("corpus", out / "corpus" / "manifest.json", "prepare the corpus", self.prepare_corpus)
        last = out / "run" / "checkpoints" / f"step-{self.settings.steps}"
        self._stage("pretrain", last, "pre-train BERT", self.pretrain)
        self._stage("compare", out / "classifier", "fine-tune and compare", self.compare)
        self.tell(f"[{len(_STAGES)}/{len(_STAGES)}] look inside and write the report")
        findings = self.look()
        report = write_demo_report(out / "report.html", findings, self.settings)
        self._say_what_was_made(findings, report)
        return DemoResult(out, report, findings.last_dev, findings.scores)

    def _claim(self) -> None:
        """Take the folder, or find in it a demo with the same text and settings."""
        text = json.dumps([asdict(d) for d in self.docs.documents] + [asdict(t) for t in self.docs.labelled])
        mine = {
            "settings": json.loads(json.dumps(to_dict(self.settings))),
            "seed": self.seed,
            "text": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            "numbers": str(self.machine.dtype).removeprefix("torch."),
        }
        file = self.out / _SETTINGS
        if file.is_file():
            found = read_json(file)
            if found != mine:
                other = ", ".join(key for key in mine if found.get(key) != mine[key]) or "more"
                raise ConfigError(f"{self.out} holds a demo with other {other}: {_REMEDY}")
            if (self.out / "seconds.json").is_file():
                self.seconds = read_json(self.out / "seconds.json")
            return
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(file, mine)
        except OSError as error:
            raise ConfigError(f"{self.out} cannot be written: {error.strerror}") from None

    def _stage(self, name: str, made: Path, title: str, work: Callable[[], None]) -> None:
        """Run a stage unless its output is complete; record how long it took, over all attempts."""
        number = _STAGES.index(name) + 1
        if made.exists():
            self.tell(f"[{number}/{len(_STAGES)}] {title}: done already")
            return
        self.tell(f"[{number}/{len(_STAGES)}] {title}")
        with self._timed(name):
            work()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started_at_s = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started_at_s, 2)
            write_json(self.out / "seconds.json", self.seconds)

    def write_text(self) -> None:
        """Write the documents as text files, the training text last: it marks that both are there."""
        (self.out / "text").mkdir(exist_ok=True)
        write_text(self.out / "text" / "held-out.txt", _as_text(self.held))
        write_text(self.out / "text" / "train.txt", _as_text(self.train))

    def train_vocab(self) -> None:
        """Train a WordPiece vocabulary on the training text."""
        text = self.out / "text" / "train.txt"
        build_vocab([text], self.out / "vocab", size=self.settings.vocab_size, lowercase=True)

    def prepare_corpus(self) -> None:
        """Preprocess both texts into shards of ids."""
        text = self.out / "text"
        held = [text / "held-out.txt"] if self.held else []
        vocab, corpus = self.out / "vocab", self.out / "corpus"
        prepare([text / "train.txt"], vocab, corpus, hold_out=0.0, dev=held, workers=1)

    def pretrain(self) -> None:
        """Masked LM and next-sentence prediction, in a run folder like any other."""
        pretrain_or_resume(self.out / "run", self.recipe, self.tell)

    def recipe(self) -> Pretrain:
        """The recipe of the pre-training: BERT's, made smaller and faster."""
        s = self.settings
        data = {
            "model": "bert-tiny",
            "data": {
                "corpus": str(self.out / "corpus"),
                "length": s.short_length,
                "long_length": s.length,
                "long_share": s.long_share,
            },
            "masking": {"share": s.mask_share},
            "encoder": {
                "n_layers": s.n_layers,
                "width": s.width,
                "n_heads": s.n_heads,
                "feed_forward_width": 4 * s.width,
                "max_positions": s.length,
                "init_range": s.init_range,
                "dropout": s.dropout,
                "attention_dropout": s.dropout,
            },
            "optim": {"kind": "adamw", "learning_rate": s.learning_rate, "beta2": 0.98, "warmup_share": s.warmup_share},
            "train": {
                "steps": s.steps,
                "batch_tokens": s.batch_tokens,
                "seed": self.seed,
                "precision": s.precision,
                "log_every": s.log_every,
                "eval_every": s.eval_every,
                "eval_batches": 0,
                "save_every": s.save_every,
                "keep_checkpoints": 2,
            },
        }
        return resolve(data, [], "the demo's settings")

    def first(self) -> None:
        """Fine-tune the shipped models, beside the baseline, on each task: available from the first minute."""
        there = [task for task, name in _SHIPPED.items() if (WEIGHTS / name).is_dir()]
        self._score_all([(task, start) for task in there for start in (SHIPPED_START, TFIDF)])
        if REVIEWS in there:
            self._score_all([(REVIEWS, FRESH)])
        for task in there:
            self.tell(self._best(task))
        write_json(self.out / "first.json", {"tasks": there})

    def compare(self) -> None:
        """Compare the models on few labelled docstrings, over several random samples of them.

        Keeps one classifier: the pre-trained one of the first sample with the most labels.
        """
        self._score_all([(DOCSTRINGS, start) for start in (PRETRAINED, FRESH, TFIDF)])
        split = self._split(DOCSTRINGS, self.settings.per_class[-1], 0)
        with tempfile.TemporaryDirectory(dir=self.out, prefix=_TUNING) as folder:
            self._tune(DOCSTRINGS, PRETRAINED, split, 0, Path(folder))
            model = Path(folder) / "model"

            def copy(new: Path) -> None:
                shutil.copytree(model, new, dirs_exist_ok=True)

            write_folder(self.out / "classifier", copy)

    def _score_all(self, ways: list[tuple[str, str]]) -> None:
        """Score each (task, start) with each number of labels and sample.

        Scores are written one by one, so that an interruption costs at most one of them.
        """
        self._clear_up()
        done = {(s.task, s.start, s.per_class, s.draw) for s in self._scores()}
        todo = [
            (task, start, n, draw)
            for n in self.settings.per_class
            for draw in range(self.settings.draws)
            for task, start in ways
            if (task, start, n, draw) not in done
        ]
        started_at_s = time.monotonic()
        for number, (task, start, n, draw) in enumerate(todo):
            score = self._score(task, start, n, draw)
            with append_to(self.out / "scores.jsonl") as file:
                file.write(json.dumps(asdict(score)).encode() + b"\n")
            left_s = (time.monotonic() - started_at_s) / (number + 1) * (len(todo) - number - 1)
            self.tell(
                f"{task}: {start}, {n} a class, draw {draw + 1}: accuracy {score.accuracy:.3f}  "
                f"{format_duration(left_s)} left"
            )

    def _best(self, task: str) -> str:
        """The mean accuracies of a task with the most labels, in one line."""
        scores, n = self._scores(), self.settings.per_class[-1]
        means = [f"{start} {summarised(scores, start, n, task=task)[0]:.3f}" for start in starts_of(scores, task)]
        return f"{task}: test accuracy from {n} labels per class: {', '.join(means)}"

    def _scores(self) -> list[Score]:
        file = self.out / "scores.jsonl"
        lines = file.read_text("utf-8").splitlines() if file.is_file() else []
        return [from_dict(Score, json.loads(line), str(file)) for line in lines]

    def _clear_up(self) -> None:
        """Remove what a kill left half done: the folder of a fine-tuning, the last line of the scores."""
        for folder in self.out.glob(f"{_TUNING}*"):
            shutil.rmtree(folder)
        file = self.out / "scores.jsonl"
        lines = file.read_text("utf-8").splitlines(keepends=True) if file.is_file() else []
        write_text(file, "".join(line for line in lines if line.endswith("}\n")))

    def _split(self, task: str, per_class: int, draw: int) -> LabelledSplit:
        return split_labelled(self.labelled[task], self.seed + draw, per_class, per_class_test=_TESTED[task])

    def _score(self, task: str, start: str, per_class: int, draw: int) -> Score:
        """Fine-tune on one sample of labels and predict the test set."""
        split, labels = self._split(task, per_class, draw), self.labels[task]
        truth = np.array([labels.index(str(text.label)) for text in split.test], np.int64)
        if start == TFIDF:
            found = fit_tfidf(
                "classify",
                labels,
                split.train,
                [],
                lambda texts, answers: score_labels(texts, answers, labels)["accuracy"],
            )
            answers = [a for a in found.model.answers(split.test) if isinstance(a, Labelled)]
            predicted = np.array([labels.index(answer.label) for answer in answers], np.int64)
        else:
            with tempfile.TemporaryDirectory(dir=self.out, prefix=_TUNING) as folder:
                predicted = self._tune(task, start, split, draw, Path(folder))
        return Score(task, start, per_class, draw, accuracy(truth, predicted), macro_f1(truth, predicted))

    def _base(self, task: str, start: str) -> Base:
        """What a fine-tuning begins from: reviews have no other model here than the shipped one's size."""
        if start == SHIPPED_START or task == REVIEWS:
            return base_of(read_model(WEIGHTS / _SHIPPED[task]), from_scratch=start == FRESH)
        base = base_of(read_model(self.out / "run"), from_scratch=start == FRESH)
        fresh = replace(base.config, init_range=self.settings.fresh_init_range)
        return replace(base, config=fresh) if start == FRESH else base

    def _tune(self, task: str, start: str, split: LabelledSplit, draw: int, folder: Path) -> np.ndarray:
        """Fine-tune a BERT in ``folder``; returns the labels it gives the test texts."""
        s, base, labels = self.settings, self._base(task, start), self.labels[task]
        shipped = start == SHIPPED_START or task == REVIEWS
        # A shipped model as ``firth finetune`` has it; the demo's own was pre-trained with a summary vector.
        small = small_settings("classify", {}, base.config.n_layers) if shipped else None
        tables = small.tables if small else {"head": {"network": {"pool": "summary"}}}
        recipe = build(
            {
                "model": "the demo's",
                "task": "classify",
                "kind": "classify",
                "metric": "accuracy",
                **tables,
                "head": {"labels": list(labels), **tables["head"]},
                "optim": {
                    "kind": "adamw",
                    "learning_rate": s.shipped_rate if shipped else s.tune_rate,
                    "warmup_share": s.warmup_share,
                },
                "train": {
                    "epochs": s.tune_steps * s.tune_texts / len(split.train),
                    "batch_examples": s.tune_texts,
                    "precision": s.precision,
                },
            },
            "the demo's settings",
        )
        train, held = split_of(base, recipe, split.train).examples, split_of(base, recipe, [])
        tune(Run(base, recipe, self.seed + draw, train, held, self.machine, folder / "features"), folder, self.tell)
        answers, _ = answer_records(read_model(folder / "model"), split.test)
        return np.array([labels.index(answer.label) for answer in answers], np.int64)

    def look(self) -> Findings:
        """Filled masks, nearest sentences and all numbers, for the report."""
        self.seconds.pop("look", None)  # it is done every time
        with self._timed("look"):
            s, model = self.settings, load_model(self.out / "run")
            new = new_sentences(self.held, self.train)
            sentences = of_length(new, model.loaded.tokenizer, fewest=s.fewest_tokens, most=s.most_tokens)
            paragraphs = [p for document in self.train for p in document.paragraphs]
            return Findings(
                labels=self.labels,
                n_train_characters=sum(map(len, paragraphs)),
                manifest=Corpus(str(self.out / "corpus")).manifest,
                n_test=self.n_test,
                n_parameters=sum(p.numel() for p in model.loaded.objective.parameters()),
                events=read_log(self.out / "run" / "log.jsonl"),
                masked=fill_masked_words(model, sentences, s.top_k) if sentences else [],
                commonest=commonest_word(paragraphs, model.loaded.tokenizer),
                alike=find_alike(model, sentences, s.n_nearest) if len(sentences) > 1 else None,
                scores=self._scores(),
                machine=self.machine.path,
                seed=self.seed,
                seconds=self.seconds,
            )

    def _say_what_was_made(self, found: Findings, report: Path) -> None:
        out = self.out
        for task in self.labelled:
            if starts_of(found.scores, task):
                self.tell(self._best(task))
        self.tell(f"the report: {report}   the model: {out / 'run'}   the classifier: {out / 'classifier'}")
        self.tell("try next:")
        sentence = "Return a list of [MASK] in the given directory."
        for command in (
            ["fill-mask", str(out / "run"), sentence],
            ["pretrain", str(out / "run" / RECIPE), "--steps", "20000", "--out", "runs/longer"],
        ):
            self.tell(f"  {shlex.join(['firth', *command])}")


_TUNING = ".tuning-"
_STAGES = ("first", "text", "vocab", "corpus", "pretrain", "compare", "look")


def _as_text(documents: list[Document]) -> str:
    """One paragraph a line, a blank line between documents."""
    return "\n\n".join("\n".join(document.paragraphs) for document in documents) + "\n"
