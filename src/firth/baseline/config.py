"""Options of baselines, stored with each; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, POSITIVE, SHARE, check_bounds, option
from firth.errors import ConfigError
from firth.tasks.readers.texts import TextKind


@dataclass(frozen=True, kw_only=True, slots=True)
class GramConfig:
    """Which n-grams of a text are counted."""

    words: int = option(2, "longest n-gram of words; 0: none", AMOUNT)
    shortest: int = option(2, "shortest n-gram of characters", COUNT)
    longest: int = option(5, "longest n-gram of characters; 0: none", AMOUNT)
    across: bool = option(False, "True: n-grams of characters may cross the space between two words")
    min_count: int = option(2, "texts in which an n-gram of characters occurs at least", COUNT)
    most: int = option(200_000, "n-grams of either kind that are kept, the commonest ones", COUNT)

    def __post_init__(self) -> None:
        check_bounds(self, "grams")
        if not self.words and not self.longest:
            raise ConfigError("grams.words=0 and grams.longest=0: nothing would be counted; set one of them")
        if self.longest and self.longest < self.shortest:
            raise ConfigError(f"grams.longest={self.longest}: expected grams.shortest={self.shortest} or more, or 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class TfidfConfig:
    """TF-IDF with a linear model: what was chosen and fitted besides the weights."""

    kind: TextKind = option("classify", "classify, multilabel or regress")
    labels: tuple[str, ...] = option((), "the labels, in the order of the outputs; none for regress")
    pairs: bool = option(False, "True: the examples are pairs of texts")
    grams: GramConfig = option(GramConfig(), "what is counted")
    strength: float = option(1.0, "C of the logistic regression, 1/alpha of the ridge regression", POSITIVE)
    temperature: float = option(1.0, "outputs are divided by it before the softmax: fitted so that shares come true")
    threshold: float = option(0.5, "multilabel: probability from which a label holds; chosen on held-out examples")
    lowest: float = option(0.0, "regress: lowest value in training; predictions are not below it")
    highest: float = option(0.0, "regress: highest value in training; predictions are not above it")

    def __post_init__(self) -> None:
        check_bounds(self)
        fewest = {"classify": 2, "multilabel": 1, "regress": 0}[self.kind]
        if len(self.labels) < fewest or len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"labels={list(self.labels)}: expected at least {fewest}, all different")


@dataclass(frozen=True, kw_only=True, slots=True)
class JointConfig:
    """TF-IDF and a fine-tuned encoder together: how their predictions are weighted."""

    kind: TextKind = option("classify", "classify, multilabel or regress")
    labels: tuple[str, ...] = option((), "the labels, in the order of the outputs; none for regress")
    weight: float = option(0.5, "weight of the encoder; that of TF-IDF is 1 less it", SHARE)
    temperature: float = option(1.0, "outputs are divided by it before the softmax: fitted so that shares come true")
    threshold: float = option(0.5, "multilabel: probability from which a label holds; chosen on held-out examples")
    lowest: float = option(0.0, "regress: lowest value in training; predictions are not below it")
    highest: float = option(0.0, "regress: highest value in training; predictions are not above it")

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonestTagConfig:
    """Each word's commonest tag."""

    labels: tuple[str, ...] = option((), "the tags, in BIO where they are of entities")
    scheme: Literal["plain", "BIO"] = option("BIO", "plain: tags such as parts of speech, not of entities")
    unit: Literal["word", "character"] = option("word", "what has a tag in the data")
