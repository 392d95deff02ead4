"""The trainer: one training loop for pre-training and fine-tuning of every system.

Losses come as sums; they are divided once, by the count over all micro-batches and processes. All
randomness of a micro-batch follows from (seed, step, micro-batch), so a resumed run is bit-equal to an
uninterrupted one.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.data.hashing import seed_of
from firth.data.loader import Place
from firth.errors import CheckpointError, ConfigError, TrainingError
from firth.files import recover
from firth.packed import Carry
from firth.progress import Progress, format_count
from firth.training.carries import by_slot, carries_of_rank, plain_carries
from firth.training.checkpoint import (
    load_optimizer,
    load_tensors,
    newest_checkpoint,
    recover_checkpoints,
)
from firth.training.collectives import (
    World,
    any_rank,
    barrier,
    gather_tensors,
    join_texts,
    sum_over_ranks,
)
from firth.training.compiled_blocks import compile_regions, recompute_regions
from firth.training.config import OptimConfig, TrainConfig
from firth.training.held_out import HeldOut, means_of
from firth.training.interrupt import Stopped, StopRequest
from firth.training.log import Log
from firth.training.meter import Meter
from firth.training.optim import AveragedSgd, keeps_state
from firth.training.saver import SaveModel, Saver
from firth.training.state import OF_ANOTHER, State, check_identity, read_state
from firth.training.update import make_update

# Tolerance in comparing with the lowest learning rate: powers of 0.1 are rounded.
_ROUNDING = 1 - 1e-9


class Source(Protocol):
    """A source of micro-batches, such as ``firth.data.loader.Loader``."""

    def steps(
        self, start: Place, *, step: int, rank: int, world: int
    ) -> Generator[tuple[list[Batch], Place], None, None]: ...


@dataclass(kw_only=True)
class Trainer:
    """Trains an objective on a source of batches, with evaluations and checkpoints.

    ``dev``: yields this process's held-out micro-batches for an evaluation (slots as in a step), or None.
    ``rate``: learning rate of a step, counted from 0. ``flops``: model floating-point operations of a batch,
    forward and backward. ``dtype``: of matrix products. ``save_model(folder, facts, weights)``: writes the model
    folder's files with these weights, in a thread while training continues. ``saved``: the module that they come from,
    by default the objective. ``free``: returns the host's free memory in bytes, None if unknown.
    ``identity``: what defines the run (options, a hash of the text); only an equal one can resume it. ``defaults``:
    values of options that did not exist yet when an older run started.
    ``scales``: of the learning rate, by parameter. ``resting``: returns the names of the parameters frozen in a step,
    counted from 0; they get no update and no decay. ``judge``: scores the objective on held-out examples, instead of
    its loss on ``dev``; ``judged_by`` names the score; higher is better (for losses, lower).
    ``advice``: what to do about a batch that breaks training; ``{place}`` is replaced by its position.
    """

    objective: Objective
    source: Source
    dev: Callable[[], Iterator[Batch]] | None
    config: TrainConfig
    optim: OptimConfig
    rate: Callable[[int], float]
    flops: Callable[[Batch], float]
    run: Path
    save_model: SaveModel
    identity: dict[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    resting: Callable[[int], frozenset[str]] | None = None
    judge: Callable[[], dict[str, float]] | None = None
    judged_by: str = "loss"
    advice: str = ""
    saved: nn.Module | None = None
    free: Callable[[], float | None] = lambda: None
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    world: World = World()
    tell: Callable[[str], None] = print

    def __post_init__(self) -> None:
        if self.optim.follows_scores and self.dev is None and self.judge is None:
            raise ConfigError(
                "optim.plateau_factor and optim.averaged_after require held-out text, and there is none: "
                "hold some out, or set them to 1 and 0"
            )
        if self.config.patience and self.dev is None and self.judge is None:
            raise ConfigError("train.patience requires held-out text, and there is none: hold some out, or set it to 0")
        self.objective.to(self.device)
        asked = {"train.recompute": self.config.recompute, "train.compile": self.config.compile}
        if (of_blocks := [key for key, value in asked.items() if value]) and not self.objective.encoder.regions():
            raise ConfigError(f"{of_blocks[0]}=true is for Transformer blocks, and this model has none: leave it out")
        if self.config.recompute:
            recompute_regions(self.objective.encoder)
        self.compiled = self.config.compile and compile_regions(self.objective.encoder, self.device)
        if self.config.compile and not self.compiled:
            self.tell("train.compile: this machine has no compiler, so nothing is compiled")
        self.update = make_update(self.objective, self.optim, self.scales, self.world)
        self.learning = {name: p for name, p in self.objective.named_parameters() if p.requires_grad}
        self.optimizer = self.update.optimizer
        self.state = State(identity=self.identity, environment=self._environment())
        # By index of the micro-batch in its step: steps may differ in their number of micro-batches.
        self.carries: dict[int, Carry] = {}
        # Indices of carries that come from a checkpoint and have not been used yet.
        self._unproven: set[int] = set()
        self._asked: Callable[[], bool] = lambda: False
        self._given_up = self.asked_to_stop = False
        # The learning rate of the last update, before each group's scale.
        self._rate = 0.0
        self.saver = Saver(
            run=self.run,
            save_model=self.save_model,
            keep=self.config.keep_checkpoints,
            free=self.free,
            world=self.world,
            tell=self.tell,
        )

    def fit(self) -> bool:
        """Train to the last step. Returns False if asked to stop earlier (everything is saved then).

        ``asked_to_stop`` then says whether it was asked at all: in the last step that does not stop the training, but
        whatever would follow it.
        """
        if self._done():
            return True
        rank, size = self.world.rank, self.world.size
        steps = self.source.steps(Place.parse(self.state.place), step=self.state.step, rank=rank, world=size)
        self.objective.train()
        with (
            contextlib.closing(steps),
            self.saver.writing(),
            contextlib.closing(self._open_log()) as log,
            StopRequest() as stop,
            Progress("training", self.config.steps, "steps", done=self.state.step) as progress,
        ):
            finished = self._loop(steps, log, stop, progress)
        self.asked_to_stop = stop.asked
        return finished

    def _open_log(self) -> Log:
        """Open the run's log, truncated to the checkpoint; only the leading process writes one."""
        if not self.world.leads:
            return Log(None)
        path, offset = self.run / "log.jsonl", self.state.log_offset
        length = path.stat().st_size if path.exists() else 0
        if length < offset:
            self.tell(
                f"{path} is shorter than the checkpoint expects ({length:,} bytes, not {offset:,}): "
                "earlier events are missing"
            )
        return Log(path, min(offset, length), self.config.tensorboard, self.state.step)

    def _loop(
        self, steps: Iterator[tuple[list[Batch], Place]], log: Log, stop: StopRequest, progress: Progress
    ) -> bool:
        started_at_s, before_s = time.monotonic(), self.state.elapsed_s
        meter = Meter()
        self._asked = lambda: stop.asked
        while made := self._next(steps, stop):
            self.saver.proceed()
            batches, following = made
            sums = self.train_step(batches)
            if sums is None:
                self._save(log)
                break
            self.state.step += 1
            self.state.place = str(following)
            self.state.elapsed_s = before_s + time.monotonic() - started_at_s
            for name, value in sums.items():
                self.state.pending[name] = self.state.pending.get(name, 0.0) + value
            meter.add(batches, self.flops)
            last = self.state.step == self.config.steps
            if self._due(self.config.log_every) or last:
                self._log_training(log, meter)
            if self.world.leads:
                progress.advance(1, meter.note)
            if self._due(self.config.eval_every) or last:
                self._evaluate(log, progress)
            leaving = self._done() or any_rank(stop.asked, self.world)
            if self._due(self.config.save_every) or leaving:
                self._save(log)
            if leaving:
                break
        return self._done()

    def _next(self, steps: Iterator[tuple[list[Batch], Place]], stop: StopRequest) -> tuple[list[Batch], Place] | None:
        """The next step's micro-batches, an empty list if asked to stop while they are built; None after the last."""
        if self.update.exchanges:
            # Processes that exchange gradients during the backward must take every step together, or some wait forever.
            return next(steps, None)
        try:
            with stop.at_once():
                return next(steps, None)
        except Stopped:
            self._given_up = True
            return [], Place.parse(self.state.place)

    def _done(self) -> bool:
        """Whether all steps are done, patience is exhausted, or the learning rate has reached its minimum."""
        patience = self.config.patience
        return (
            self.state.step >= self.config.steps
            or bool(patience and self.state.evaluations_since_best >= patience)
            or self._used_up()
        )

    def _used_up(self) -> bool:
        return self.optim.learning_rate * self._fallen() < self.optim.min_learning_rate * _ROUNDING

    def _fallen(self) -> float:
        """The factor by which plateaus have reduced the learning rate."""
        return float(self.optim.plateau_factor**self.state.plateaus)

    def _due(self, every: int) -> bool:
        return bool(every) and self.state.step % every == 0

    def train_step(self, batches: list[Batch]) -> dict[str, float] | None:
        """Make one update from this process's micro-batches; returns sums and counts over all processes.

        None if asked to stop between two micro-batches: then everything is as it was before the step.
        """
        counts = sum_over_ranks(_counts(self.objective, batches), self.world)
        self.update.clear()
        self._freeze_resting()
        carries = dict(self.carries)
        losses, totals = self._backward(batches, counts)
        # Checked once per step: on a GPU each check waits for all queued work.
        finite = torch.stack(losses).isfinite().tolist() if losses else []
        bad = [batch.place for batch, good in zip(batches, finite, strict=False) if not good]
        # All processes stop together, or those without a bad batch would wait forever.
        if any_rank(bool(bad) or self._given_up, self.world):
            if any_rank(bool(bad), self.world):
                raise TrainingError(self._not_finite("the loss is not a number", join_texts(bad, self.world)))
            self.carries = carries
            return None
        norm = self.update.sum_and_clip()
        if not torch.isfinite(norm):
            places = join_texts([batch.place for batch in batches], self.world)
            raise TrainingError(self._not_finite("the gradient is not finite", places))
        self._rate = self.rate(self.state.step) * self._fallen() * (batches[0].rate_scale if batches else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * group["scale"]
        with self._computing():
            self.update.step()
        return counts | sum_over_ranks({k: float(v) for k, v in totals.items()}, self.world)

    def _backward(self, batches: list[Batch], counts: Mapping[str, float]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Accumulate the gradients of micro-batches; returns the loss of each, and the sums of each term over all.

        Gives up between two micro-batches if asked to stop, where that can be undone.
        """
        totals: dict[str, Tensor] = {}
        losses = []
        buffers = _versions(self.objective)
        # Processes that exchange gradients during the backward finish the step together.
        divisible = not self.update.exchanges
        # One autocast for all micro-batches: weights are cast once per step.
        with self._computing():
            for number, batch in enumerate(batches):
                # A forward pass may have changed buffers, such as running means, which cannot be restored.
                if number and divisible and self._asked() and _versions(self.objective) == buffers:
                    self._given_up = True
                    break
                slot = number * self.world.size + self.world.rank
                torch.manual_seed(seed_of(self.config.seed, "step", self.state.step, slot))
                self.update.part(last=number == len(batches) - 1)
                step = self._forward_from(number, batch.to(self.device))
                loss = torch.zeros((), device=self.device)
                for term, weight in self.objective.weights.items():
                    loss = loss + weight * step.losses[term] / max(counts[f"{term}_count"], 1)
                losses.append(loss.detach())
                with torch.autocast(self.device.type, enabled=False):
                    loss.backward()
                if step.carry is not None and not batch.ends_stream:
                    self.carries[number] = {k: v.detach() for k, v in step.carry.items()}
                for kind, values in (("loss", step.losses), ("correct", step.correct)):
                    for term, value in values.items():
                        key = f"{term}_{kind}"
                        totals[key] = totals[key] + value.detach() if key in totals else value.detach()
        return losses, totals

    def _freeze_resting(self) -> None:
        """Freeze the parameters that rest in this step: optimizers skip those without a gradient."""
        if self.resting is not None:
            resting = self.resting(self.state.step)
            for name, p in self.learning.items():
                p.requires_grad_(name not in resting)

    def _forward_from(self, number: int, batch: Batch) -> Step:
        """Run a micro-batch from its stream's state; CheckpointError if that state is another model's."""
        carry = None if batch.starts_stream else self.carries.get(number)
        if carry is None or number not in self._unproven:
            return self._forward(batch, carry, self.update.model)
        self._unproven.discard(number)
        wrong = CheckpointError(f"{self.run / 'checkpoints'}: the recurrent state of its newest one {OF_ANOTHER}")
        try:
            step = self._forward(batch, carry, self.update.model)
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
                raise
            raise wrong from None
        # A state with too few sequences would be broadcast over all, silently.
        if step.carry is None or _shapes(step.carry) != _shapes(carry):
            raise wrong
        return step

    def forward(self, batch: Batch, carry: Carry | None) -> Step:
        return self._forward(batch, carry, self.objective)

    def _forward(self, batch: Batch, carry: Carry | None, model: Callable[..., Any]) -> Step:
        with self._computing():
            step: Step = model(batch, carry)
            return step

    def _computing(self) -> torch.autocast:
        # A cache of cast weights would keep all the weights that sharding drops after each block.
        cached = not self.world.sharded
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32, cache_enabled=cached)

    def _not_finite(self, what: str, places: list[str]) -> str:
        advice = self.advice.replace("{place}", places[0])
        return f"{what} in step {self.state.step + 1}, batch {', '.join(places)}. {advice} {self._causes()}"

    def _causes(self) -> str:
        causes = (
            f"Usual causes: optim.learning_rate={self.optim.learning_rate:g} is too high, or "
            f"optim.warmup_share={self.optim.warmup_share:g} too low"
        )
        exact = self.dtype == torch.float32
        return causes if exact else f"{causes}, or {self.dtype} too imprecise: try float32"

    def _spare(self) -> Batch:
        """A training batch for a process that has none to evaluate."""
        rank, size = self.world.rank, self.world.size
        place = Place.parse(self.state.place)
        with contextlib.closing(self.source.steps(place, step=self.state.step, rank=rank, world=size)) as steps:
            return next(steps)[0][0]

    def _evaluate(self, log: Log, progress: Progress) -> None:
        """Score on held-out text and keep the best model so far; without such text, the last."""
        with self._averaged():
            scores = self._scores()
            if scores and self.world.leads:
                log.write("dev", self.state.step, **scores)
                progress.message(self._shown(scores))
            beats = not scores or self._beats(scores[self.judged_by], self.state.best)
            # On equal scores the later model wins, as it has trained longer; patience still counts no improvement.
            equals = bool(scores) and self.judge is not None and scores[self.judged_by] == self.state.best
            self.state.evaluations_since_best = 0 if beats else self.state.evaluations_since_best + 1
            if beats or equals:
                self.state.best, self.state.best_step = scores.get(self.judged_by), self.state.step
                weights = self.update.weights(self.saved or self.objective)
                self._check_finite(weights)
                if scores and self.judge is None and not math.isfinite(scores[self.judged_by]):
                    what = f"the held-out {self.judged_by} is not finite"
                    raise TrainingError(f"after step {self.state.step} {what}. {self._causes()}")
                self.saver.save_best(weights, {"step": self.state.step, "dev": scores})
        if scores:
            self._adapt(scores[self.judged_by], progress)
        barrier(self.world)

    def _check_finite(self, weights: Mapping[str, Tensor]) -> None:
        """Raise TrainingError for weights that are not finite: no later batch checks the last update."""
        bad = [name for name, weight in weights.items() if not weight.isfinite().all()]
        if any_rank(bool(bad), self.world):
            raise TrainingError(f"after step {self.state.step} {' '.join(bad[:1])} is not finite. {self._causes()}")

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        """A context with averaged weights, if there are any: for evaluating and for writing models."""
        optimizer = self.optimizer
        return self._with_averages(optimizer) if isinstance(optimizer, AveragedSgd) else contextlib.nullcontext()

    @contextlib.contextmanager
    def _with_averages(self, optimizer: AveragedSgd) -> Iterator[None]:
        # Processes that share weights swap one part each: all wait for one another before and after.
        with optimizer.averaged():
            barrier(self.world)
            yield
            barrier(self.world)
        barrier(self.world)

    def _adapt(self, score: float, progress: Progress) -> None:
        """Adapt to a held-out score: reduce the learning rate on a plateau, or start averaging weights."""
        state, optim = self.state, self.optim
        waited = state.evaluations_since_best
        if optim.plateau_factor < 1 and waited and waited % optim.plateau_patience == 0:
            state.plateaus += 1
            if self.world.leads:
                what = (
                    "minimum reached, training ends" if self._used_up() else f"now {self._fallen():g} of the schedule's"
                )
                progress.message(f"step {state.step}  plateau: learning rate {what}")
        before = state.scores[: -optim.averaged_after] if optim.averaged_after else []
        worse, optimizer = any(self._beats(one, score) for one in before), self.optimizer
        if worse and isinstance(optimizer, AveragedSgd) and optimizer.begin_averaging() and self.world.leads:
            progress.message(f"step {state.step}  no improvement: weights are averaged from here on")
        state.scores.append(score)

    def _scores(self) -> dict[str, float]:
        """The held-out scores; empty without held-out text, or with nothing to predict in it."""
        return self.judge() if self.judge else self.evaluate() if self.dev else {}

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on held-out text."""
        assert self.dev is not None
        held_out = HeldOut(
            objective=self.objective,
            batches=self.dev,
            forward=self.forward,
            spare=self._spare,
            slots=self.config.slots,
            device=self.device,
            world=self.world,
        )
        return held_out.score()

    def _shown(self, scores: dict[str, float]) -> str:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        return f"step {self.state.step}  held-out: {shown}"

    def _beats(self, score: float, best: float | None) -> bool:
        """Whether a score is the best so far: the first one always is, a later NaN never; any number beats NaN."""
        if best is None:
            return True
        if math.isnan(best):
            return not math.isnan(score)
        return score > best if self.judge else score < best

    def _log_training(self, log: Log, meter: Meter) -> None:
        means = means_of(self.objective.weights, self.state.pending)
        self.state.pending = {}
        rates = meter.read(self.world)
        meter.note = f"loss {means['loss']:.3f}  {format_count(rates['tokens_per_s'])} tok/s"
        if rates["flops_per_s"]:  # none where the encoder does not run
            meter.note += f"  {format_count(rates['flops_per_s'])}FLOP/s"
        elapsed_s = round(self.state.elapsed_s, 3)
        log.write("train", self.state.step, **means, rate=self._rate, elapsed_s=elapsed_s, **rates)

    def begin(self, *, score: bool = False) -> None:
        """Save the state before the first step, so that a run can always resume.

        ``score``: evaluate too, for a run that continues from a model. The score is logged but never counts as the
        best: a run's model is one that it has trained.
        """
        # Before the log exists: a run killed before then starts over.
        scores = self._scores() if score else {}
        with contextlib.closing(Log(self.run / "log.jsonl" if self.world.leads else None)) as log:
            if scores and self.world.leads:
                log.write("dev", self.state.step, **scores)
                self.tell(self._shown(scores))
            self._save(log)

    def _save(self, log: Log) -> None:
        """Save a checkpoint of the current state; all processes take part."""
        self.saver.complete()
        by_rank = gather_tensors(plain_carries(self.carries), self.world)
        optimizer = self.update.state()
        weights = self.update.weights(self.saved or self.objective)
        if self.world.leads:
            self.state.log_offset = log.sync()
        # A step replaces the carry and never modifies it, so it needs no copy.
        carry = by_slot(by_rank)
        save = self.saver.save_shares if self.update.divided else self.saver.save_whole
        save(dataclasses.asdict(self.state), weights, optimizer, carry)
        barrier(self.world)

    def resume(self, load_model: Callable[[Path], dict[str, Tensor]]) -> None:
        """Resume from the newest undamaged checkpoint.

        ``load_model(folder)``: the objective's state dict from a model folder. CheckpointError if no
        checkpoint is undamaged, or if the run's identity differs: then nothing is changed.
        """
        if self.world.leads:
            recover_checkpoints(self.run / "checkpoints")
            recover(self.run / "model")
        barrier(self.world)  # or another process could find an older checkpoint than the restored one
        path = newest_checkpoint(self.run / "checkpoints", self.tell)
        if path is None:
            left = (self.run / "model").exists()
            advice = f"its best model is untouched: start a new run from it with --model {self.run}/"
            raise CheckpointError(
                f"{self.run} has no undamaged checkpoint; {advice if left else 'delete it, and start the run again'}"
            )
        found = read_state(path / "train" / "state.json")
        check_identity(found.identity, self.identity, self.defaults, path)
        now = self._environment()
        before = found.environment
        keys = sorted(before.keys() | now.keys())
        pairs = {key: (before.get(key, "none"), now.get(key, "none")) for key in keys}
        changed = [f"{key} {old} -> {new}" for key, (old, new) in pairs.items() if old != new]
        if changed:
            self.tell(
                f"changed since the run began: {', '.join(changed)}. The batches stay the same, "
                "the weights will differ in rounding"
            )
        self.update.load_weights(self.objective, load_model(path))
        self.state = dataclasses.replace(found, environment=now)
        train, carry = path / "train", path / "train" / "carry.safetensors"
        try:
            optimizer = load_optimizer(train)
            if found.step and not optimizer and keeps_state(self.optimizer):
                raise ValueError("it has no tensors")
            self.update.load(optimizer)
        except ValueError as error:
            raise CheckpointError(f"{train / 'optimizer.safetensors'} {OF_ANOTHER}: {error}") from None
        try:
            mine = carries_of_rank(load_tensors(carry), self.world.rank, self.world.size)
        except ValueError as error:
            raise CheckpointError(f"{carry} {OF_ANOTHER}: {error}") from None
        self.carries = {number: {k: v.to(self.device) for k, v in one.items()} for number, one in mine.items()}
        self._unproven = set(self.carries)

    def _environment(self) -> dict[str, Any]:
        """The environment that bit-equality depends on."""
        return {
            "torch": torch.__version__,
            "device": self.device.type,
            "numbers": str(self.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "compiled": self.compiled,
            "processes": self.world.size,
        } | ({"sharding": "full"} if self.world.sharded else {})


def _shapes(carry: Carry) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in carry.items()}


def _versions(model: nn.Module) -> list[int]:
    """PyTorch's version counter of each buffer, which changes with every write."""
    return [buffer._version for buffer in model.buffers()]


def _counts(objective: Objective, batches: list[Batch]) -> dict[str, float]:
    counts = dict.fromkeys((f"{term}_count" for term in objective.weights), 0.0)
    for batch in batches:
        found = objective.counts(batch)
        for term in objective.weights:
            counts[f"{term}_count"] += found.get(term, 0)
    return counts
