"""Derive the number of steps of a run from minutes or epochs."""

import dataclasses
import math
from dataclasses import dataclass

from firth.errors import ConfigError
from firth.pretraining.recipe import Pretrain
from firth.progress import format_count, format_duration

# Defaults of a run without a given length.
DEFAULT_MINUTES = 30.0
# Devlin et al. 2018, App. A.2: a million steps are about 40 epochs. More epochs on the same text gain little.
MOST_EPOCHS = 40.0

# Of a sized run: the number of evaluations, their largest share of the time, and the seconds between checkpoints.
_MOST_EVALUATIONS, _EVALUATION_SHARE = 10, 0.05
_SAVE_EVERY_S = 300.0
# A forward pass without a backward one, as a share of a training step.
_FORWARD_SHARE = 1 / 3
_MOST_STEPS = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The measured speed of a run.

    ``step_s``: seconds per step. ``step_tokens``: average tokens per step. ``epoch_steps``: steps per pass
    over the training text. ``dev_batches``: maximum micro-batches of held-out text per evaluation.
    """

    step_s: float
    step_tokens: float
    epoch_steps: float
    dev_batches: int


def is_sized(recipe: Pretrain) -> bool:
    """Whether the recipe sets the number of steps."""
    return recipe.train.steps > 0


def with_steps(recipe: Pretrain, pace: Pace) -> Pretrain:
    """Set the number of steps that fit, with evaluations and checkpoints spread over them.

    The result is stored with the run, so that resuming does not measure again.
    """
    train = recipe.train
    evaluation_steps = _evaluation_steps(recipe, pace)
    if train.epochs:
        steps = train.epochs * pace.epoch_steps
        n_evaluations = _n_evaluations(steps, evaluation_steps)
    else:
        steps = 60 * (train.minutes or DEFAULT_MINUTES) / pace.step_s
        n_evaluations = _n_evaluations(steps, evaluation_steps)
        # Evaluations take their share of the time; there are more of them if train.eval_every says so.
        asked = evaluation_steps / train.eval_every if train.eval_every else 0.0
        steps = min(steps - n_evaluations * evaluation_steps, steps / (1 + asked))
        if not train.minutes:
            steps = min(steps, MOST_EPOCHS * pace.epoch_steps)
    n = min(max(round(steps), 1), _MOST_STEPS)
    every = math.ceil(n / n_evaluations)
    save_every = max(min(round(_SAVE_EVERY_S / pace.step_s), n), 1)
    return dataclasses.replace(
        recipe,
        train=dataclasses.replace(
            train,
            steps=n,
            minutes=0.0,
            epochs=0.0,
            eval_every=min(train.eval_every, every),
            save_every=min(train.save_every, save_every),
        ),
    )


def _evaluation_steps(recipe: Pretrain, pace: Pace) -> float:
    """The cost of one evaluation in steps."""
    asked = recipe.train.eval_batches or pace.dev_batches
    return min(asked, pace.dev_batches) / recipe.train.slots * _FORWARD_SHARE


def _n_evaluations(steps: float, evaluation_steps: float) -> int:
    room = _EVALUATION_SHARE * steps / evaluation_steps if evaluation_steps else _MOST_EVALUATIONS
    return max(1, min(_MOST_EVALUATIONS, int(room)))


def describe_length(recipe: Pretrain, pace: Pace, given: Pretrain) -> str:
    """Describe the length of a sized recipe; ``given``: the recipe before sizing."""
    n = recipe.train.steps
    epochs = n / pace.epoch_steps
    if given.train.epochs:
        why = f"{given.train.epochs:g} epochs"
    elif given.train.minutes:
        why = f"{given.train.minutes:g} minute{'' if given.train.minutes == 1 else 's'}"
    elif epochs > MOST_EPOCHS - 0.5:
        why = f"{MOST_EPOCHS:g} epochs, more gain little"
    else:
        why = f"{DEFAULT_MINUTES:g} minutes, the default (--minutes, --epochs or --steps)"
    speed = pace.step_tokens / pace.step_s
    told = (
        f"length: {n:,} steps ({why}): {format_count(n * pace.step_tokens)} tokens, {epochs:.2g} epochs of the "
        f"corpus, about {format_duration(n * pace.step_s)} at {format_count(speed)} tokens/s"
    )
    if given.train.minutes and epochs > MOST_EPOCHS:
        told += f"; the text is small for this length: more than {MOST_EPOCHS:g} epochs gain little"
    return told


def check_asked(minutes: float | None, epochs: float | None, steps: int | None) -> None:
    """Check that at most one length is given and that it is valid; else ConfigError."""
    flags = {"--minutes": minutes, "--epochs": epochs, "--steps": steps}
    given = {flag: value for flag, value in flags.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} each set the length of the run: give one of them")
    for flag, value in given.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{flag}={value:g}: expected a finite number above 0")


def length_settings(minutes: float | None, epochs: float | None, steps: int | None) -> dict[str, float]:
    """Recipe keys that set the given length and reset a recipe's other lengths."""
    check_asked(minutes, epochs, steps)
    given = {"train.minutes": minutes, "train.epochs": epochs, "train.steps": steps}
    if all(value is None for value in given.values()):
        return {}
    return {key: (0 if value is None else value) for key, value in given.items()}
