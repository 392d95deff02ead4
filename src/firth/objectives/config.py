"""Options of the objectives; no torch."""

from dataclasses import dataclass

from firth.config import option


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLMConfig:
    """Masked language modelling, with or without next-sentence prediction."""

    next_sentence: bool = option(True, "also learn whether B follows A; needs data.instances = 'pairs'")


@dataclass(frozen=True, kw_only=True, slots=True)
class CausalLMConfig:
    """Each token predicts the next one; there is nothing to choose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamingLMConfig:
    """Each token of a stream predicts the next one; there is nothing to choose."""
