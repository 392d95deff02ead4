"""The runs of a fine-tuning, one for each seed and combination of settings, and which model of them is kept."""

import contextlib
import dataclasses
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch

from firth.cluster.calls import Call, Calls
from firth.cluster.connection import Cluster
from firth.config import read_json, read_toml, to_dict
from firth.errors import ConfigError, FirthError
from firth.files import lock, open_log, recover, write_json
from firth.finetuning.adaptation import adapt, adapted_base, check_adaptation, text_hashes
from firth.finetuning.base import FirstVectors, find_vectors, freeze, transferred
from firth.finetuning.calibrate import calibrate
from firth.finetuning.identity import identity
from firth.finetuning.mistakes import find_mistakes
from firth.finetuning.recipe import Finetune, combinations, count_sequences, count_updates, own_word_width, varied
from firth.finetuning.report import write_finetune_report
from firth.finetuning.resolve import Resolved, resolve
from firth.finetuning.results import AVERAGE, RESULTS, best_of, collapsed, results_of, run_name
from firth.finetuning.several import count_processes, for_processes
from firth.finetuning.train import HELD_OUT, RESULT, Run, decide_and_score, rewrite_model, split_of, tune
from firth.folder import WEIGHTS, read_model
from firth.inference.outputs import row_outputs
from firth.inference.score import EncodedSplit
from firth.machine import deterministic, find_machine, reuse_memory, sizes_only
from firth.manifest import file_sha256
from firth.memory import Memory, check_memory, estimate_memory
from firth.pretraining.average import mean_of
from firth.pretraining.run import RECIPE
from firth.pretraining.several import Processes
from firth.progress import format_duration, named_part, say, silent
from firth.systems import SYSTEMS
from firth.tasks.model import TaskModel
from firth.tasks.rows import unknown_share
from firth.text.tokenizer import MUCH_UNKNOWN
from firth.text.tokenizer_kinds import WORDPIECE
from firth.training.collectives import World
from firth.training.optim import whole_costs
from firth.training.processes import start_group

WORKER = "firth.finetuning.worker"
# The messages of a run on a cluster node.
RUN_LOG = "run.log"
# Fewer updates than this leave the new layer undertrained: the run warns.
_FEW_UPDATES = 100


class Runs:
    """One fine-tuning in its folder: a run per seed and combination of settings, then the selection."""

    def __init__(self, resolved: Resolved, out: Path, tell: Callable[[str], None], cluster: Cluster | None = None):
        recipe, self.base, self.labelled = resolved
        self.recipe, self.out, self.tell, self.cluster = recipe, out, tell, cluster
        self.features = out / "features"
        self.machine = find_machine(recipe.train.precision)
        reuse_memory()
        self.processes = 1
        self.asked: Processes = "auto"
        self.settings = list(combinations(recipe.grid))
        self.seeds = range(recipe.train.seed, recipe.train.seed + recipe.train.seeds)
        # Sequences by split, for the most recent way of reading texts.
        self._examples: dict[str, dict[str, EncodedSplit]] = {}
        # Word vectors by path and width.
        self._vectors: dict[tuple[str, int], FirstVectors] = {}

    def check(self, processes: Processes) -> None:
        """Build what all runs need, so that errors occur before anything is written."""
        self.asked = processes
        if self.cluster is not None and processes == "auto":
            processes = 1  # the runs themselves fill the cluster
        check_adaptation(self.recipe, self.base)
        self._describe()
        recipes = [varied(self.recipe, settings) for settings in self.settings]
        models = [self._outline(recipe) for recipe in recipes]
        frozen = [freeze(model, recipe.adapt) for model, recipe in zip(models, recipes, strict=True)]
        # With stored features the encoder needs no activation memory.
        learning = [model for model, still in zip(models, frozen, strict=True) if not still]
        train = self.recipe.train
        if learning:  # one process at least must fit, before anything is built
            check_memory(self._memory(learning[0], 1), self.machine, train.batch_tokens, recompute=self._may_save())
        encoder = self.base.encoder(train.seed, None)
        fitting = list[int]()
        for recipe, model, still in zip(recipes, models, frozen, strict=True):
            self.base.config_with(recipe.adapt.dropout)  # raises if it cannot be set
            if still and recipe.optim.kind == "muon":
                raise ConfigError("optim.kind=muon updates the blocks of the encoder, which are frozen: use adamw")
            whole_costs(model, recipe.optim)  # raises for Muon if there are no blocks
            transferred(encoder, recipe.adapt.transferred_groups)
            self._vectors_for(recipe)
            rows = (row for example in self._examples_for(recipe)["train"].examples for row in example.rows)
            n_tokens = recipe.train.epochs * sum(len(row.ids) for row in rows)
            fitting.append(count_processes(recipe, model, n_tokens, self.machine, processes, frozen=still))
        self.processes = min(fitting)
        self.recipe = for_processes(self.recipe, self.processes)
        if learning:
            most = max((self._memory(model, self.processes) for model in learning), key=lambda need: need.total)
            train = self.recipe.train
            self.tell(check_memory(most, self.machine, train.batch_tokens, recompute=self._may_save()))

    def _outline(self, recipe: Finetune) -> TaskModel:
        """The model of these settings without weights, to measure its size."""
        with sizes_only():
            return recipe.row.model(SYSTEMS[self.base.system_name].encoder(self.base.config), recipe.head)

    def _may_save(self) -> bool:
        """Whether recomputing blocks would need less memory than these settings."""
        return not self.recipe.train.recompute and SYSTEMS[self.base.system_name].saves_by_recomputing(self.base.config)

    def _memory(self, model: TaskModel, processes: int) -> Memory:
        """Estimate the memory of all processes while ``model`` trains."""
        train = self.recipe.train
        return estimate_memory(
            model,
            SYSTEMS[self.base.system_name],
            self.base.config,
            self.machine.dtype,
            train.batch_tokens * model.passes,
            recompute=train.recompute,
            processes=processes,
        )

    def identity(self, plain: dict[str, Any]) -> dict[str, str]:
        """Hash the inputs; ``plain``: the recipe as stored in its file."""
        found = identity(plain, self.base, self.labelled, self.first_vectors())
        if not self.recipe.adapt.text:
            return found
        texts = hashlib.sha256(json.dumps(text_hashes(self.recipe)).encode()).hexdigest()
        return found | {"the text of adapt.text": texts}

    def start_from_adapted(self) -> None:
        """Start from the weights of the finished pre-training on ``adapt.text``, if the recipe names any."""
        if self.recipe.adapt.text:
            self.base = adapted_base(self.base, self.out)

    def run(self) -> dict[str, Any]:
        """Do all unfinished runs, keep the best model, and return the results."""
        if self.recipe.adapt.text:
            try:
                adapt(self.recipe, self.base, self.labelled, self.out, self.tell, self.asked)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"to resume: firth finetune --resume {self.out}") from None
            self.start_from_adapted()
        places = [(number, seed) for number in range(len(self.settings)) for seed in self.seeds]
        try:
            if self.cluster is not None:
                self._tune_on(self.cluster, places)
            runs = [self.tune(number, seed) for number, seed in places]
        finally:
            shutil.rmtree(self.features, ignore_errors=True)
        by_setting = [runs[i : i + len(self.seeds)] for i in range(0, len(runs), len(self.seeds))]
        chosen = max(range(len(by_setting)), key=lambda i: fmean(run["best"] for run in by_setting[i]))
        scored = [self._score(chosen, run) for run in self._candidates(chosen, by_setting[chosen])]
        best = best_of(scored)
        self._keep(best)
        results = results_of(self.recipe, self.labelled, self.settings, chosen, by_setting, scored)
        results["model"] = file_sha256(self.out / "model" / WEIGHTS)
        write_json(self.out / RESULTS, results)
        try:
            write_finetune_report(self.out, self.recipe, results)
        except (FirthError, OSError) as error:
            self.tell(f"no report.html: {error}")
        return results

    def _describe(self) -> None:
        data, recipe = self.labelled, self.recipe
        for note in data.notes:
            self.tell(note)
        splits = ", ".join(f"{len(records):,} {name}" for name, records in data.dev.items()) or "no dev file"
        where = "the dev file" if recipe.data.choose_on == "dev" else f"{len(data.held):,} held out"
        start = "random initialisation" if self.base.weights is None else "pre-trained weights"
        if self.base.untrained:
            start += f" except {', '.join(self.base.untrained)}, missing from the checkpoint"
        self.tell(
            f"{recipe.task}: {len(data.train):,} training examples, {where} for selection, {splits}; {start}; "
            f"{self.machine.path}"
        )
        if recipe.train.average_seeds and len(self.seeds) > 1:
            self.tell(f"one model of {len(self.seeds)} seeds, the mean of their weights; --seeds 1 trains a single one")
        n = count_sequences(len(data.train), data.has_documents)
        n_updates = count_updates(n, recipe.train.batch_examples, recipe.train.epochs)
        if n_updates < _FEW_UPDATES:
            enough = math.ceil(_FEW_UPDATES * min(recipe.train.batch_examples, n) / n)
            self.tell(
                f"only {n_updates} weight update{'' if n_updates == 1 else 's'} in total: with so few examples a model "
                f"learns more in more epochs, such as --epochs {enough}"
            )

    def folder(self, number: int, seed: int | Literal["average"]) -> Path:
        """The folder of one run, or of the average of a setting's runs."""
        setting = f"setting-{number + 1}-" if len(self.settings) > 1 else ""
        return self.out / "runs" / (f"{setting}{seed}" if seed == AVERAGE else f"{setting}seed-{seed}")

    def _tune_on(self, cluster: Cluster, places: Sequence[tuple[int, int]]) -> None:
        """Do the unfinished runs as tasks of a cluster; the first error stops the others."""
        todo = {
            str(self.folder(*place).name): place for place in places if not (self.folder(*place) / RESULT).is_file()
        }
        calls = {
            name: Call(
                function=f"{__name__}:{tune_on_node.__name__}",
                arguments={"out": str(self.out), "number": number, "seed": seed, "processes": self.processes},
                folder=self.folder(number, seed),
                log=RUN_LOG,
                cpus=self.processes,
                gpus=int(cluster.gpus > 0),
            )
            for name, (number, seed) in todo.items()
        }
        started_at_s = time.monotonic()
        try:
            for n, (name, result) in enumerate(Calls(cluster, self.tell).values(calls), start=1):
                score = f"{self.recipe.metric} {result['best']:.4f} in {result['elapsed_s']:.0f} s"
                left_s = (time.monotonic() - started_at_s) / n * (len(todo) - n)
                self.tell(f"[{n}/{len(todo)}] {name}: {score}; about {format_duration(left_s)} left")
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"to resume: firth finetune --resume {self.out}") from None

    def tune(self, number: int, seed: int) -> dict[str, Any]:
        folder = self.folder(number, seed)
        n_runs = len(self.settings) * len(self.seeds)
        part = f"run {number * len(self.seeds) + seed - self.seeds[0] + 1} of {n_runs}" if n_runs > 1 else ""
        if part and not (folder / RESULT).is_file():
            self.tell(f"{part}: {run_name({'settings': self.settings[number], 'seed': seed})}")
        n = 1 if (folder / RESULT).is_file() else self.processes
        threads = torch.get_num_threads()
        each = max(threads // n, 1)
        message = {"out": str(self.out), "number": number, "seed": seed, "threads": each}
        try:
            torch.set_num_threads(each)
            with named_part(part), start_group(n, WORKER, message) as group:
                result = tune(self.run_of(number, seed), folder, self.tell, World.of(group))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"to resume: firth finetune --resume {self.out}") from None
        finally:
            torch.set_num_threads(threads)
        return result | {"settings": list(self.settings[number]), "folder": str(folder.relative_to(self.out))}

    def run_of(self, number: int, seed: int) -> Run:
        """One run of the settings with this number."""
        recipe = varied(self.recipe, self.settings[number])
        rows = self._examples_for(recipe)
        return Run(
            self.base,
            recipe,
            seed,
            rows["train"].examples,
            rows["held out"],
            self.machine,
            self.features,
            self._vectors_for(recipe),
        )

    def _examples_for(self, recipe: Finetune) -> dict[str, EncodedSplit]:
        """The sequences of all examples by split, built once for all runs that read texts alike."""
        # Networks of one kind read the same sequences; only some need characters.
        network = recipe.head.network
        reads = network.kind, getattr(network, "own_characters", "none") != "none"
        head = to_dict(dataclasses.replace(recipe.head, network=type(network)()))
        key = json.dumps([reads, head], sort_keys=True)
        if key not in self._examples:
            made = {}
            splits = {"train": self.labelled.train, "held out": self.labelled.held, **self.labelled.dev}
            for name, records in splits.items():
                made[name] = split_of(self.base, recipe, records)
                for what, n in made[name].noted.items():
                    self.tell(f"{name}, {what}: {n:,}")
                if told := self._unknown_tokens(made[name]):
                    self.tell(f"{name}, {told}")
            self._examples = {key: made}
        return self._examples[key]

    def _unknown_tokens(self, split: EncodedSplit) -> str:
        """A message on the share of unknown tokens in some examples, if it may do harm; else empty."""
        tokenizer = self.base.tokenizer
        share = unknown_share(split.examples, tokenizer)
        if share < MUCH_UNKNOWN:
            return ""
        extend = ", or extend it (firth extend)" if tokenizer.kind is WORDPIECE else ""
        return (
            f"{share:.1%} of the tokens are {tokenizer.kind.unk}, which tell the model nothing: choose a "
            f"model whose vocabulary covers this text{extend}"
        )

    def _vectors_for(self, recipe: Finetune) -> FirstVectors | None:
        """The initial vectors of the head's own words, read once."""
        path, width = recipe.adapt.vectors, own_word_width(recipe.head)
        if not path:
            return None
        if (path, width) not in self._vectors:
            found = self._vectors[path, width] = find_vectors(path, self.base.tokenizer, width)
            self.tell(found.told)
        return self._vectors[path, width]

    def first_vectors(self) -> list[FirstVectors]:
        """The word vectors of all settings, ordered by path and width."""
        for settings in self.settings:
            self._vectors_for(varied(self.recipe, settings))
        return [self._vectors[key] for key in sorted(self._vectors)]

    def _score(self, number: int, run: dict[str, Any]) -> dict[str, Any]:
        """Calibrate after training, and score the dev files once."""
        folder = self.out / run["folder"]
        done = folder / "scores.json"
        if done.is_file():
            return run | read_json(done)
        recipe = varied(self.recipe, self.settings[number])
        recover(folder / "model")  # a stop may have interrupted the rewriting of its options
        loaded = read_model(folder / "model")
        model = loaded.objective
        assert isinstance(model, TaskModel)
        model.to(self.machine.device)
        rows = self._examples_for(recipe)
        held = rows["held out"]
        outputs = row_outputs(model, held.examples, budget_tokens=recipe.train.batch_tokens)
        options, calibration = calibrate(recipe.kind, model.config, held, outputs)
        if options != model.config:
            rewrite_model(folder / "model", loaded, options=options)
        answers, of_held = decide_and_score(recipe.task, held, outputs, options)
        decided = {"held out": answers}
        scores: dict[str, Any] = {
            "calibration": calibration,
            "dev": {},
            "held_out": of_held.scores,
            "breakdown": {"held_out": of_held.breakdown.to_dict()},
        }
        for name in self.labelled.dev:
            outputs = row_outputs(model, rows[name].examples, budget_tokens=recipe.train.batch_tokens)
            decided[name], scored = decide_and_score(recipe.task, rows[name], outputs, options)
            scores["dev"][name], scores["breakdown"][name] = scored.scores, scored.breakdown.to_dict()
        if recipe.kind == "classify":
            split = next(iter(self.labelled.dev), "held out")
            try:
                found = find_mistakes(loaded, rows[split].records, decided[split])
                scores["mistakes"] = {"split": split, "examples": [mistake.to_dict() for mistake in found]}
            except FirthError as error:
                self.tell(f"no mistakes are explained: {error}")
        write_json(done, scores)
        return run | scores

    def _candidates(self, number: int, runs: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The runs of a setting; or a single one whose model is the mean of theirs, without those that collapsed.

        Source: the uniform soup of Wortsman et al. 2022, §2.
        """
        if not self.recipe.train.average_seeds or len(runs) == 1:
            return runs
        members = [run for run in runs if not collapsed(run, runs)]
        folder = self.folder(number, AVERAGE)
        if not (folder / "scores.json").is_file() and not (folder / "model").exists():
            mean, _ = mean_of([self.out / run["folder"] / "model" for run in members])
            rewrite_model(folder / "model", mean, facts={"seeds": [run["seed"] for run in members]})
        score = fmean(run["best"] for run in members)
        settings = list(self.settings[number])
        return [{"seed": AVERAGE, "best": score, "settings": settings, "folder": str(folder.relative_to(self.out))}]

    def _keep(self, best: dict[str, Any]) -> None:
        """Copy the best model to the top folder, with its scores; runs keep their scores and curves."""
        kept, model = self.out / "model", self.out / best["folder"] / "model"
        recover(kept)
        # The copy is atomic; a stop may leave parts of the run's model behind, but a resume selects the same run.
        if not kept.exists():
            rewrite_model(kept, read_model(model), facts={HELD_OUT: best["held_out"], "dev": best["dev"]})
        for folder in (self.out / "runs").glob("*/model"):
            shutil.rmtree(folder)


def resolve_stored(out: Path) -> Resolved:
    """Resolve the recipe stored in a fine-tuning's folder."""
    return resolve(read_toml(out / RECIPE), {}, str(out / RECIPE))


def train_beside(out: Path, number: int, seed: int, world: World) -> None:
    """Train a run together with its leading process, in one of the others. KeyboardInterrupt if asked to stop."""
    with deterministic():
        work = Runs(resolve_stored(out), out, silent)
        work.start_from_adapted()
        tune(work.run_of(number, seed), work.folder(number, seed), silent, world)


def tune_on_node(*, out: str, number: int, seed: int, processes: int) -> dict[str, Any]:
    """Do one run on a cluster node, with its messages in ``run.log`` of its folder."""
    work = Runs(resolve_stored(Path(out)), Path(out), say)
    folder = work.folder(number, seed)
    with (
        lock(folder),
        open_log(folder / RUN_LOG) as log,
        contextlib.redirect_stderr(log),
        deterministic(),
    ):
        work.start_from_adapted()
        work.processes = processes
        # Runs on other nodes write their features at the same time.
        work.features /= folder.name
        return work.tune(number, seed)
