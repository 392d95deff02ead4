"""Options of the objectives; no torch."""

from dataclasses import dataclass

from firth.config import AMOUNT, COUNT, RATE, check_bounds, option


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLMConfig:
    """Masked language modelling, with or without next-sentence prediction."""

    next_sentence: bool = option(True, "also learn whether B follows A; needs data.instances = 'pairs'")


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalLMConfig:
    """Each token predicts the next one; there is nothing to choose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TiedLMConfig:
    """Each token predicts the next one by the input embedding; there is nothing to choose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingLMConfig:
    """Each token of a stream predicts the next one; there is nothing to choose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CbowConfig:
    """A word from the words around it."""

    window: int = option(5, "words on either side, at most; while training 1 to this, drawn for each word", COUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class AwdLMConfig:
    """The next word of a stream, and penalties on the activations that predict it (Merity et al. 2017, §4)."""

    dropout: float = option(0.4, "of the top states before the softmax, the same at every step", RATE)
    activation: float = option(2.0, "weight of the mean square of those states", AMOUNT)
    change: float = option(1.0, "weight of the mean square of their change from step to step", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class BilmLMConfig:
    """The next word and the one before, each from one side."""

    negatives: int = option(
        8192,
        "words that an answer is compared with in training, drawn by frequency; 0, or more than 90 % of the "
        "vocabulary: all",
        AMOUNT,
    )

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class MtLstmTranslationConfig:
    """The target side, word by word, by recurrent layers."""

    dropout: float = option(
        0.2, "of the decoder's words, between its layers, and of what words are predicted from", RATE
    )
    decoder: bool = option(True, "false: an encoder alone, as CoVe was released, which translates nothing")

    def __post_init__(self) -> None:
        check_bounds(self, "objective")


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslationConfig:
    """The target side, piece by piece."""

    label_smoothing: float = option(0.1, "of an answer is spread evenly over all other pieces, in training", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "objective")
