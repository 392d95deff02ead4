"""Training options; does not import torch. Defaults are BERT's (Devlin et al. 2018, App. A.2) where it has them."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, OPTIONAL_COUNT, PART, POSITIVE, RATE, SHARE, check_bounds, option
from firth.errors import ConfigError

# All batches of a step are built before it starts. The largest published steps have a few million tokens.
MOST_STEP_TOKENS = 1 << 26
# Options that only one kind of optimizer reads. ``accumulated`` is missing: ELMo's settings have it, and a user may
# choose another kind for ELMo.
_OF_KIND = {"averaged_after": "sgd", "momentum": "muon", "matrix_scale": "muon"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """The optimizer and the learning-rate schedule."""

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
        1.0, "factor on the learning rate whenever held-out scores stop improving; 1: off", PART
    )
    plateau_patience: int = option(1, "consecutive evaluations without a better score that make a plateau", COUNT)
    min_learning_rate: float = option(
        0.0, "end training once plateaus have reduced the peak learning rate below this", AMOUNT
    )
    averaged_after: int = option(
        0, "sgd: average weights once a score is worse than one from before this many evaluations; 0: never", AMOUNT
    )
    decay: float = option(0.01, "weight decay, decoupled except for sgd; never on biases and norms", AMOUNT)
    beta1: float = option(0.9, "decay of the running mean of gradients", RATE)
    beta2: float = option(0.999, "decay of the running mean of squared gradients", RATE)
    epsilon: float = option(1e-6, "added to the root mean square", AMOUNT)
    momentum: float = option(0.95, "muon: momentum of a matrix's gradients", RATE)
    matrix_scale: float = option(1.0, "muon: learning rate of matrices, relative to the others'", POSITIVE)
    accumulated: float = option(0.0, "adagrad: initial value of the sum of squares", AMOUNT)
    clip_norm: float = option(1.0, "clip gradients to this global norm; 0: never", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "optim")
        if self.kind == "adagrad" and self.decay:
            raise ConfigError(f"optim.decay={self.decay}: adagrad does not support it, set it to 0")
        if not (self.epsilon or self.kind == "sgd" or (self.kind == "adagrad" and self.accumulated)):
            raise ConfigError("optim.epsilon=0: expected more than 0, or weights without a gradient become 0/0")
        for name, kind in _OF_KIND.items():
            value = getattr(self, name)
            if self.kind != kind and value != type(self).__dataclass_fields__[name].default:
                raise ConfigError(f"optim.{name}={value}: requires optim.kind={kind}")
        if self.min_learning_rate and self.plateau_factor == 1.0:
            raise ConfigError(
                f"optim.min_learning_rate={self.min_learning_rate}: requires optim.plateau_factor below 1; "
                "set both or neither"
            )
        if self.min_learning_rate > self.learning_rate:
            raise ConfigError(
                f"optim.min_learning_rate={self.min_learning_rate}: must not exceed "
                f"optim.learning_rate={self.learning_rate}"
            )

    @property
    def follows_scores(self) -> bool:
        """Whether held-out scores control the learning rate or weight averaging."""
        return self.plateau_factor < 1 or self.averaged_after > 0

    def check_evaluations(self, n: int, key: str) -> None:
        """Raise ConfigError for options that need several evaluations if ``n``, the value of ``key``, is 0: one, at the
        end."""
        if self.follows_scores and not n:
            raise ConfigError(
                f"optim.plateau_factor and optim.averaged_after require evaluations during training: {key}=0 has "
                "one, at the end"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Length, batch size, and intervals of evaluations and checkpoints."""

    steps: int = option(0, "optimizer steps; 0: derived from train.minutes or train.epochs", OPTIONAL_COUNT)
    minutes: float = option(
        0.0,
        "minutes to train; sets the steps by measured speed; 0: 30, and at most 40 epochs",
        AMOUNT,
    )
    epochs: float = option(0.0, "passes over the training text; sets the steps; 0: see minutes", AMOUNT)
    batch_tokens: int = option(4096, "maximum tokens per micro-batch; of a whole step if micro_batches is 0", COUNT)
    micro_batches: int = option(
        0, "micro-batches per step, over all processes; 0: one per process, train.batch_tokens in total", AMOUNT
    )
    layer_decay: float = option(
        1.0,
        "learning rate of each layer group relative to the group above; the top group has the full learning rate",
        PART,
    )
    seed: int = option(12345, "seed of initial weights, data and dropout", AMOUNT)
    precision: Literal["auto", "float32", "bfloat16"] = option(
        "auto", "auto: bfloat16 if the CPU or GPU supports it, else float32"
    )
    compile: bool = option(
        False, "compile the encoder's blocks: faster steps after a minute of compilation; needs a C++ compiler"
    )
    recompute: bool = option(False, "recompute activations in the backward pass: less memory, slower steps")
    eval_every: int = option(1000, "steps between evaluations on held-out text; 0: only at the end", AMOUNT)
    patience: int = option(0, "early stopping after this many evaluations without a better score; 0: never", AMOUNT)
    eval_batches: int = option(50, "micro-batches of held-out text per evaluation; 0: all", AMOUNT)
    save_every: int = option(1000, "steps between checkpoints; 0: only at the end", AMOUNT)
    keep_checkpoints: int = option(2, "number of newest checkpoints to keep", COUNT)
    log_every: int = option(20, "steps between lines of log.jsonl", COUNT)
    tensorboard: bool = option(False, "also write TensorBoard events (needs firth[track])")

    def __post_init__(self) -> None:
        check_bounds(self, "train")
        lengths = {"train.steps": self.steps, "train.minutes": self.minutes, "train.epochs": self.epochs}
        if len(given := [f"{key}={value:g}" for key, value in lengths.items() if value]) > 1:
            raise ConfigError(f"{' and '.join(given)} each set the length of the run: give one of them")
        if self.seed >= 1 << 63:
            raise ConfigError(f"train.seed={self.seed}: expected less than 2^63")
        if self.slots * self.batch_tokens > MOST_STEP_TOKENS:
            raise ConfigError(
                f"train.micro_batches={self.slots} of train.batch_tokens={self.batch_tokens}: expected at most "
                f"{MOST_STEP_TOKENS:,} tokens per step, which must all fit into memory"
            )

    @property
    def slots(self) -> int:
        """Micro-batches per step: the given number, else one."""
        return self.micro_batches or 1
