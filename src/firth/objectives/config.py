"""Options of the objectives; does not import torch."""

from dataclasses import dataclass

from firth.config import AMOUNT, COUNT, POSITIVE, RATE, check_bounds, option
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLMConfig:
    """Masked language modelling, with or without next-sentence prediction; or contrastive learning instead."""

    next_sentence: bool = option(True, "add next-sentence prediction; requires data.instances = 'pairs'")
    contrastive: bool = option(
        False, "compare crops of texts instead, for sentence vectors; requires data.instances = 'crops'"
    )
    temperature: float = option(0.05, "contrastive: cosines are divided by it", POSITIVE)

    def __post_init__(self) -> None:
        check_bounds(self, "objective")
        if self.contrastive and self.next_sentence:
            raise ConfigError("objective.contrastive=true replaces next-sentence prediction: set next_sentence=false")


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalLMConfig:
    """Next-token prediction; no options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TiedLMConfig:
    """Next-token prediction by the tied input embedding; no options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingLMConfig:
    """Next-token prediction over a stream; no options."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CbowConfig:
    """Options of continuous bag of words."""

    window: int = option(
        5, "maximum context words on either side; in training sampled from 1 to this for each word", COUNT
    )

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class AwdLMConfig:
    """Next-word prediction over a stream, with activation penalties (Merity et al. 2017, §4)."""

    dropout: float = option(0.4, "dropout of the top states before the softmax, the same at every step", RATE)
    activation: float = option(2.0, "weight of the penalty on the mean square of those states", AMOUNT)
    change: float = option(1.0, "weight of the penalty on the mean square of their change between steps", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class BilmLMConfig:
    """Options of the bidirectional language model."""

    negatives: int = option(
        8192,
        "words that an answer is compared with in training, sampled by frequency; 0, or more than 90 % of the "
        "vocabulary: all",
        AMOUNT,
    )

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class MtLstmTranslationConfig:
    """Options of CoVe's recurrent translation model."""

    dropout: float = option(
        0.2, "dropout of the decoder's embeddings, between its layers, and of the softmax's input", RATE
    )
    decoder: bool = option(True, "false: only an encoder, as CoVe was released, which cannot translate")

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslationConfig:
    """Options of the Transformer's translation objective."""

    label_smoothing: float = option(0.1, "share of the target spread evenly over all other tokens, in training", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "objective")
