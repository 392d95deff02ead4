"""Options of training; no torch. Defaults are BERT's (Devlin et al. 2018, App. A.2) where it has them."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, OPTIONAL_COUNT, PART, POSITIVE, RATE, SHARE, check_bounds, option
from firth.errors import ConfigError

# Batches of a step are made before it begins. The largest published steps have a few million tokens.
MOST_STEP_TOKENS = 1 << 26


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """The optimiser and its rate over time."""

    kind: Literal["bert_adam", "gpt_adam", "adamw", "muon", "adagrad", "sgd"] = option(
        "bert_adam",
        "bert_adam: without bias correction; gpt_adam: with it on the decay too; adamw: the standard one; muon: "
        "orthogonalized momentum for the matrices of Transformer blocks, adamw for the rest; adagrad; sgd",
    )
    learning_rate: float = option(1e-4, "peak learning rate", POSITIVE)
    schedule: Literal["linear", "gpt_linear", "cosine", "constant", "inverse_sqrt", "slanted"] = option(
        "linear", "learning-rate schedule after the warm-up"
    )
    warmup_share: float = option(
        0.01, "share of the steps over which the learning rate rises from 0 (paper: 10,000 of 1,000,000)", SHARE
    )
    plateau_factor: float = option(
        1.0, "the learning rate is multiplied by this whenever held-out scores stop improving; 1: off", PART
    )
    plateau_patience: int = option(1, "evaluations in a row without a better score that are a plateau", COUNT)
    min_learning_rate: float = option(
        0.0, "training ends when plateaus have brought the peak learning rate below this", AMOUNT
    )
    averaged_after: int = option(
        0, "sgd: averages weights from the first score on that is worse than the best so many before; 0: never", AMOUNT
    )
    decay: float = option(0.01, "weight decay, decoupled but for sgd; never of biases and norms", AMOUNT)
    beta1: float = option(0.9, "of the running mean of gradients", RATE)
    beta2: float = option(0.999, "of the running mean of their squares", RATE)
    epsilon: float = option(1e-6, "added to the root of the mean square", AMOUNT)
    momentum: float = option(0.95, "muon: of the running mean of a matrix's gradients", RATE)
    matrix_scale: float = option(1.0, "muon: learning rate of matrices, as a multiple of the others'", POSITIVE)
    accumulated: float = option(0.0, "adagrad: what the sum of squares begins with", AMOUNT)
    clip_norm: float = option(1.0, "gradients are scaled down to this global norm; 0: never", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "optim")
        if self.kind == "adagrad" and self.decay:
            raise ConfigError(f"optim.decay={self.decay}: adagrad has none, set it to 0")
        if self.averaged_after and self.kind != "sgd":
            raise ConfigError(f"optim.averaged_after={self.averaged_after}: only optim.kind=sgd averages weights")
        if self.min_learning_rate and self.plateau_factor == 1.0:
            raise ConfigError(
                f"optim.min_learning_rate={self.min_learning_rate}: the rate falls with optim.plateau_factor below 1; "
                "set one or the other"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ConfigError(
                f"optim.min_learning_rate={self.min_learning_rate}: training would end before it begins, "
                f"optim.learning_rate={self.learning_rate} is less"
            )

    @property
    def follows_scores(self) -> bool:
        """Whether held-out scores decide how a run goes on."""
        return self.plateau_factor < 1 or self.averaged_after > 0

    def check_looks(self, looks: int, option: str) -> None:
        """ConfigError if scores are to decide, and there is one, at the end; ``option`` says how many there are."""
        if self.follows_scores and not looks:
            raise ConfigError(
                f"optim.plateau_factor and optim.averaged_after go by scores while a run goes on: {option}=0 has one, "
                "at the end"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How long, how much at a time, how often to look and to save."""

    steps: int = option(0, "optimizer steps; 0: as many as train.minutes or train.epochs allow", OPTIONAL_COUNT)
    minutes: float = option(
        0.0,
        "minutes of training that the steps are chosen for, by the measured speed; 0: 30, and at most 40 epochs",
        AMOUNT,
    )
    epochs: float = option(0.0, "passes over the training text that the steps are chosen for; 0: see minutes", AMOUNT)
    batch_tokens: int = option(4096, "most tokens in a micro-batch", COUNT)
    micro_batches: int = option(
        0, "micro-batches a step, over all processes; 0: one a process, together of train.batch_tokens", AMOUNT
    )
    layer_decay: float = option(
        1.0,
        "learning rate of each layer group: this times that of the group above; the top group has the full rate",
        PART,
    )
    seed: int = option(12345, "of initial weights, data and dropout", AMOUNT)
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "auto: bfloat16 where the processor or card computes in it, else float32"
    )
    compile: bool = option(
        False, "compile the encoder's blocks: a minute at the start for faster steps; needs a C++ compiler"
    )
    recompute: bool = option(False, "keep less for the backward and compute it again: less memory, slower steps")
    eval_every: int = option(1000, "steps between evaluations on held-out text; 0: only at the end", AMOUNT)
    patience: int = option(0, "evaluations without a better score after which training ends; 0: never", AMOUNT)
    eval_batches: int = option(50, "micro-batches of held-out text an evaluation reads; 0: all", AMOUNT)
    save_every: int = option(1000, "steps between checkpoints; 0: only at the end", AMOUNT)
    keep_checkpoints: int = option(2, "newest checkpoints that are kept", COUNT)
    log_every: int = option(20, "steps between lines of log.jsonl", COUNT)
    tensorboard: bool = option(False, "also write TensorBoard events (needs firth[track])")

    def __post_init__(self) -> None:
        check_bounds(self, "train")
        lengths = {"train.steps": self.steps, "train.minutes": self.minutes, "train.epochs": self.epochs}
        if len(given := [f"{key}={value:g}" for key, value in lengths.items() if value]) > 1:
            raise ConfigError(f"{' and '.join(given)} each say how long the run is: give one of them")
        if self.seed >= 1 << 63:
            raise ConfigError(f"train.seed={self.seed}: expected less than 2^63")
        if self.slots * self.batch_tokens > MOST_STEP_TOKENS:
            raise ConfigError(
                f"train.micro_batches={self.slots} of train.batch_tokens={self.batch_tokens}: expected at most "
                f"{MOST_STEP_TOKENS:,} tokens in a step, all of which are in memory"
            )

    @property
    def slots(self) -> int:
        """Micro-batches of a step: as many as are given, else one."""
        return self.micro_batches or 1
