"""``firth demo``: the end-to-end pipeline on Python's own documentation.

On one machine the same seed, Python and dtype give the same results. Each stage leaves files in
``out``; complete ones are not made again, so a stopped demo resumes.
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
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from firth.config import read_json, to_dict
from firth.corpus.prepare import prepare
from firth.corpus.vocab import build_vocab
from firth.data.shards import Corpus
from firth.demo.held_out_text import commonest_word, fill_masked_words, find_alike, new_sentences, of_length
from firth.demo.python_docs import PythonDocs, read_python_docs, split_documents, without_texts
from firth.demo.report import Findings, starts_of, summarised, write_demo_report
from firth.demo.reviews import read_reviews
from firth.demo.settings import (
    DOCSTRINGS,
    FRESH,
    PRETRAINED,
    REVIEWS,
    SHIPPED,
    SHIPPED_START,
    TFIDF,
    DemoSettings,
    Score,
)
from firth.demo.trials import TUNING, Trial, Trials
from firth.errors import ConfigError
from firth.files import holds_something, lock, write_folder, write_json, write_text
from firth.inference.model import load_model
from firth.machine import Machine, find_machine
from firth.names import WEIGHTS
from firth.pretraining.recipe import Pretrain
from firth.pretraining.run import RECIPE, pretrain_or_resume, resolve
from firth.progress import say, silent
from firth.recipes import read_recipe_file
from firth.text.records import Document
from firth.training.log import read_log

SEED = 12345
# The file with a demo's text hash and settings; and what to do if the folder holds another demo or anything else.
_SETTINGS, _REMEDY = "settings.json", "choose another --out, or delete it"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of a demo and their locations."""

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

    ``docs``: other text than this Python's. ConfigError if ``out`` holds something else or a demo with
    other settings, or if the libraries of the extra ``report`` are missing. KeyboardInterrupt, with a
    message that says how to resume, if it is stopped.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("the demo needs matplotlib: pip install 'firth[report]'")
    # Check first: reading the documentation takes seconds.
    place = Path(out)
    if (
        os.path.lexists(place)
        and not (place / _SETTINGS).is_file()
        and not (place.is_dir() and not holds_something(place))
    ):
        raise ConfigError(f"{out} exists already and is no demo: {_REMEDY}")
    try:
        with lock(place):
            return _Demo(place, seed, settings or DemoSettings(), docs, tell).run()
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
            f"reading the documentation of this Python; {self.machine.path}; all in all about eleven minutes on "
            "two cores, less with bfloat16 units. Ctrl-C at any time: the same command resumes"
        )
        started_at_s = time.monotonic()
        self.docs = read_python_docs() if docs is None else docs
        labelled = {DOCSTRINGS: self.docs.labelled, REVIEWS: read_reviews()}
        self.trials = Trials(out, seed, settings, labelled, WEIGHTS)
        if len(self.trials.labels(DOCSTRINGS)) < 2:
            raise ConfigError("this Python's sources hold too few docstrings to classify: use a full installation")
        self._claim()
        self.seconds.setdefault("read", time.monotonic() - started_at_s)
        tests = {task: self.trials.split(task, settings.per_class[0], 0).test for task in labelled}
        self.n_test = {task: len(test) for task, test in tests.items()}
        train, self.held = split_documents(self.docs.documents, settings.held_out_share)
        self.train = without_texts(train, tests[DOCSTRINGS])
        self.held = without_texts(self.held, tests[DOCSTRINGS])

    def run(self) -> DemoResult:
        """Run all stages and write the report."""
        out = self.out
        if any((WEIGHTS / name).is_dir() for name in SHIPPED.values()):
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
        """Claim the folder, or resume the demo in it; ConfigError if its text or settings differ."""
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
        """Write the documents as text files, the training text last: it marks that both exist."""
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
        """Pre-train by masked language modelling, in a normal run folder."""
        pretrain_or_resume(self.out / "run", self.recipe, self.tell)

    def recipe(self) -> Pretrain:
        """The recipe ``small``, for an even smaller model and text."""
        s = self.settings
        settings = {
            "data.corpus": str(self.out / "corpus"),
            "data.length": s.short_length,
            "data.long_length": s.length,
            "masking.share": s.mask_share,
            "encoder.n_layers": s.n_layers,
            "encoder.width": s.width,
            "encoder.n_heads": s.n_heads,
            "encoder.feed_forward_width": 4 * s.width,
            "encoder.max_positions": s.length,
            "optim.learning_rate": s.learning_rate,
            "train.steps": s.steps,
            "train.batch_tokens": s.batch_tokens,
            "train.seed": self.seed,
            "train.precision": s.precision,
            "train.log_every": s.log_every,
            "train.eval_every": s.eval_every,
            "train.eval_batches": 0,
            "train.save_every": s.save_every,
            "train.keep_checkpoints": 2,
        }
        return resolve({**read_recipe_file("small"), "model": "bert-tiny"}, settings, "the demo's settings")

    def first(self) -> None:
        """Fine-tune the bundled models, next to the baseline, on each task: results from the first minute on."""
        there = [task for task, name in SHIPPED.items() if (WEIGHTS / name).is_dir()]
        ways = [(task, start) for task in there for start in (TFIDF, SHIPPED_START)]
        self.trials.run([*ways, (REVIEWS, FRESH)] if REVIEWS in there else ways, self.tell)
        for task in there:
            self.tell(self._best(task))
        write_json(self.out / "first.json", {"tasks": there})

    def compare(self) -> None:
        """Compare the models on few labelled docstrings, over several random samples of them.

        Keeps one classifier: the pre-trained one of the first sample with the most labels.
        """
        self.trials.run([(DOCSTRINGS, start) for start in (TFIDF, PRETRAINED, FRESH)], self.tell)
        with tempfile.TemporaryDirectory(dir=self.out, prefix=TUNING) as folder:
            kept = Trial(DOCSTRINGS, PRETRAINED, self.settings.per_class[-1], 0)
            self.trials.tune(kept, Path(folder), silent)
            model = Path(folder) / "model"

            def copy(new: Path) -> None:
                shutil.copytree(model, new, dirs_exist_ok=True)

            write_folder(self.out / "classifier", copy)

    def _best(self, task: str) -> str:
        """The mean accuracies of a task with the most labels, in one line."""
        scores, n = self.trials.scores(), self.settings.per_class[-1]
        means = [f"{start} {summarised(scores, start, n, task=task)[0]:.3f}" for start in starts_of(scores, task)]
        return f"{task}: test accuracy from {n} labels per class: {', '.join(means)}"

    def look(self) -> Findings:
        """Collect filled masks, nearest sentences and all figures for the report."""
        self.seconds.pop("look", None)  # this stage runs every time
        with self._timed("look"):
            s, model = self.settings, load_model(self.out / "run")
            new = new_sentences(self.held, self.train)
            sentences = of_length(new, model.loaded.tokenizer, fewest=s.fewest_tokens, most=s.most_tokens)
            paragraphs = [p for document in self.train for p in document.paragraphs]
            return Findings(
                labels={task: self.trials.labels(task) for task in SHIPPED},
                n_train_characters=sum(map(len, paragraphs)),
                manifest=Corpus(str(self.out / "corpus")).manifest,
                n_test=self.n_test,
                n_parameters=sum(p.numel() for p in model.loaded.objective.parameters()),
                events=read_log(self.out / "run" / "log.jsonl"),
                masked=fill_masked_words(model, sentences, s.top_k) if sentences else [],
                commonest=commonest_word(paragraphs, model.loaded.tokenizer),
                alike=find_alike(model, sentences, s.n_nearest) if len(sentences) > 1 else None,
                scores=self.trials.scores(),
                machine=self.machine.path,
                seed=self.seed,
                seconds=self.seconds,
            )

    def _say_what_was_made(self, found: Findings, report: Path) -> None:
        out = self.out
        for task in SHIPPED:
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


_STAGES = ("first", "text", "vocab", "corpus", "pretrain", "compare", "look")


def _as_text(documents: list[Document]) -> str:
    """One paragraph per line, a blank line between documents."""
    return "\n\n".join("\n".join(document.paragraphs) for document in documents) + "\n"
