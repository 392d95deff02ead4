"""Options of fine-tuning tasks; no torch."""

from dataclasses import dataclass

from firth.config import option, required
from firth.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyConfig:
    """One of K labels for a text."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    dropout: float = option(0.1, "of the summary vector before the head")

    def __post_init__(self) -> None:
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"labels={list(self.labels)}: expected at least two, all different")
