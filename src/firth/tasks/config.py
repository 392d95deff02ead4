"""Options of fine-tuning tasks; no torch. They are stored with the model, which reads new text as it was trained to."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, RATE, WIDTH, check_bounds, option, required
from firth.errors import ConfigError

# What several heads have (Radford et al. 2018, §3.2 and §3.3).
_AUXILIARY_LM = "weight of next-token prediction on the same rows while fine-tuning (GPT: 0.5); left to right only"
_BOTH_ORDERS = "True: a pair is read in both orders, and what the head reads of them is added (GPT's similarity)"


def _check_both_orders(windows: "WindowConfig") -> None:
    if windows.long != "cut":
        raise ConfigError(
            "both_orders=true reads a pair as two rows, and in no windows: set head.windows.long=cut with it"
        )


def _check_biattentive(windows: "WindowConfig", features: "FeatureConfig") -> None:
    if windows.long != "cut":
        raise ConfigError(
            "network='biattentive' reads each text as one row, and in no windows: set head.windows.long=cut with it"
        )
    if features.pool != "summary":
        raise ConfigError(
            f"features.pool={features.pool!r}: network='biattentive' reads texts token by token: leave the pool out"
        )


def _check_labels(labels: tuple[str, ...], fewest: int = 2) -> None:
    if len(labels) < fewest or len(set(labels)) < len(labels):
        raise ConfigError(f"labels={list(labels)}: expected at least {fewest}, all different")


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """How a text becomes rows, and what becomes of one that is longer than a row."""

    length: int = option(
        0, "longest row, special pieces included; 0: the longest that the model reads (512 if any)", AMOUNT
    )
    stride: int = option(0, "pieces from the begin of a window to that of the next; 0: half of what fits", AMOUNT)
    long: Literal["windows", "cut"] = option(
        "windows", "windows: a long text is read in overlapping windows; cut: its end is left out, as in the paper"
    )
    merge: Literal["mean", "max"] = option("mean", "how the outputs of a text's windows become one")

    def __post_init__(self) -> None:
        check_bounds(self, "windows")


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureConfig:
    """What a head reads of the encoder (Devlin et al. 2018, §5.3), and what stands between."""

    layers: tuple[int, ...] = option((-1,), "which layers: 0 is the embedding output, -1 the top")
    mix: Literal["one", "sum", "weighted", "concat"] = option(
        "one", "how several layers become one; weighted: softmax of learned weights, times a learned scale"
    )
    words: Literal["first", "mean", "last"] = option("first", "which pieces of a word stand for it")
    pool: Literal["summary", "mean", "max", "first", "last"] = option(
        "summary", "what stands for a text: the system's own vector of it, or its tokens'"
    )
    layer_norm: bool = option(
        False, "True: layers that are weighted are first brought to mean 0 and variance 1 over the whole batch (ELMo)"
    )
    mix_l2: float = option(
        0.0,
        "share in the loss of the sum of squares of the learned weights, which draws them together (ELMo: 0.001)",
        AMOUNT,
    )
    lstm_layers: int = option(0, "layers of a bidirectional LSTM between encoder and head", AMOUNT)
    lstm_width: int = option(256, "of that LSTM, in each direction", WIDTH)
    cell: Literal["lstm", "gru"] = option("lstm", "of those layers; gru: a GRU in the place of the LSTM")
    own_words: int = option(0, "width of vectors that the head learns of the vocabulary's words; 0: none", AMOUNT)
    own_characters: Literal["none", "cnn", "gru"] = option(
        "none", "how the head reads words by their characters; only where the system does (elmo, vectors)"
    )
    join: Literal["input", "first", "last", "none"] = option(
        "input", "where the encoder's layers enter: beside the head's own words and characters, after the first LSTM "
        "layer (TagLM), after the last one, or nowhere",
    )  # fmt: skip
    second_mix: bool = option(
        False, "True: the head reads the layers beside that LSTM too, mixed anew (ELMo at input and output)"
    )
    dropout: float = option(0.1, "of what the head reads, and of the input of each LSTM layer", RATE)
    output_dropout: bool = option(True, "False: dropout is of the input of LSTM layers alone (TagLM)")

    def __post_init__(self) -> None:
        check_bounds(self, "features")
        if not self.layers or (self.mix == "one" and len(self.layers) != 1):
            raise ConfigError(f"features.layers={list(self.layers)}, mix={self.mix!r}: one layer, or a way to mix them")
        if (self.layer_norm or self.mix_l2) and self.mix != "weighted":
            raise ConfigError(f"features.layer_norm and mix_l2 are for mix='weighted', not {self.mix!r}")
        if self.second_mix and not self.lstm_layers:
            raise ConfigError("features.second_mix=true: beside which LSTM? Set features.lstm_layers with it")
        if not self.output_dropout and not self.lstm_layers:
            raise ConfigError("features.output_dropout=false: of which LSTM's input then? Set features.lstm_layers")
        self._check_join()

    def _check_join(self) -> None:
        if self.join == "input":
            return
        if not self.has_own:
            raise ConfigError(
                f"features.join={self.join!r}: what is read where the encoder does not enter? Set features.own_words "
                "or own_characters with it"
            )
        least = {"first": 2, "last": 1, "none": 0}[self.join]
        if self.lstm_layers < least:
            raise ConfigError(
                f"features.join={self.join!r} with lstm_layers={self.lstm_layers}: expected at least {least}, or "
                f"join='{'last' if self.lstm_layers else 'input'}'"
            )
        if self.second_mix and self.join in ("last", "none"):
            raise ConfigError(
                f"features.second_mix=true with join={self.join!r}: a second mix stands beside the last layer, and is "
                "for join='input' or 'first'"
            )
        if self.join == "none" and (self.mix != "one" or self.layers != (-1,)):
            raise ConfigError(
                "features.join='none' reads no layer of the encoder: set features.layers=[-1], mix=one and mix_l2=0"
            )

    @property
    def has_own(self) -> bool:
        """Whether the head knows words or characters by itself."""
        return bool(self.own_words) or self.own_characters != "none"

    @property
    def plain(self) -> bool:
        """Whether the head reads the encoder as published fine-tuning does: other tools then know the model."""
        top = self.layers == (-1,) and self.mix == "one"
        between = self.lstm_layers or self.has_own
        return self.pool == "summary" and self.words == "first" and not between and top


def _check_unused(windows: WindowConfig, features: FeatureConfig, what: str) -> None:
    """ConfigError for options that a task on words or tokens does not have, rather than silence."""
    if (windows.long, windows.merge) != ("windows", "mean"):
        raise ConfigError(f"windows.long and merge: {what} are always read in windows, and nothing is merged")
    if features.pool != "summary":
        raise ConfigError(f"features.pool={features.pool!r}: {what} are read token by token")


def _check_words(features: FeatureConfig) -> None:
    if features.words != "first":
        raise ConfigError(f"features.words={features.words!r}: only taggers read words")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyConfig:
    """One of K labels for a text or a pair."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    label_smoothing: float = option(0.0, "share of the target that is spread over all labels", RATE)
    class_weights: tuple[float, ...] = option((), "of each label's examples in the loss; none: all alike")
    temperature: float = option(1.0, "outputs are divided by it before the softmax: fitted so that shares come true")
    both_orders: bool = option(False, _BOTH_ORDERS)
    network: Literal["linear", "pooled", "biattentive"] = option(
        "linear",
        "pooled: a hidden layer between batch norms (ULMFiT); biattentive: LSTMs that read each text of a pair in the "
        "light of the other (CoVe's BCN). Other kinds of task have linear heads",
    )
    hidden_width: int = option(50, "network pooled: units of its hidden layer", WIDTH)
    attention_width: int = option(
        300, "network biattentive: of its projection, and of its LSTMs in each direction", WIDTH
    )
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    features: FeatureConfig = option(FeatureConfig(), "what the head reads")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels)
        if self.both_orders and self.network != "linear":
            raise ConfigError(
                f"both_orders=true adds up what a linear head reads of two rows, which network={self.network!r} "
                "cannot: set head.network=linear, or leave both_orders out"
            )
        if self.network != "linear" and not self.features.output_dropout:
            raise ConfigError(
                f"features.output_dropout=false is for linear heads: network={self.network!r} has dropout within it; "
                "leave it out, or set features.dropout=0"
            )
        if self.both_orders:
            _check_both_orders(self.windows)
        if self.network == "biattentive":
            _check_biattentive(self.windows, self.features)
        if self.class_weights and (len(self.class_weights) != len(self.labels) or min(self.class_weights) < 0):
            raise ConfigError(f"class_weights={list(self.class_weights)}: expected one, 0 or more, for each label")
        _check_words(self.features)

    @property
    def merge(self) -> Literal["mean", "max", "sum"]:
        """How the outputs of a text's rows become one; of a pair with a row for each order, or text, they add up."""
        return "sum" if self.both_orders or self.network == "biattentive" else self.windows.merge


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabelConfig:
    """Any number of K labels for a text or a pair."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    threshold: float = option(0.5, "probability from which a label holds; chosen on held-out examples")
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    features: FeatureConfig = option(FeatureConfig(), "what the head reads")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels, 1)
        _check_words(self.features)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressConfig:
    """A real number for a text or a pair."""

    lowest: float = option(0.0, "lowest value in training; predictions are not below it")
    highest: float = option(0.0, "highest value in training; predictions are not above it")
    both_orders: bool = option(False, _BOTH_ORDERS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    features: FeatureConfig = option(FeatureConfig(), "what the head reads")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.both_orders:
            _check_both_orders(self.windows)
        _check_words(self.features)

    @property
    def merge(self) -> Literal["mean", "max", "sum"]:
        """How the outputs of a text's rows become one."""
        return "sum" if self.both_orders else self.windows.merge


@dataclass(frozen=True, kw_only=True, slots=True)
class TagConfig:
    """A tag for each word of a text."""

    labels: tuple[str, ...] = required("the tags, in the order of the outputs")
    scheme: Literal["plain", "BIO", "BIOES"] = option("BIO", "plain: tags such as parts of speech, not of entities")
    unit: Literal["word", "character"] = option("word", "what has a tag in the data")
    crf: bool = option(False, "True: a conditional random field over the tags of a row")
    label_smoothing: float = option(0.0, "share of the target that is spread over all tags; not with a CRF", RATE)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "documents; stride: the part of a row that is tagged")
    features: FeatureConfig = option(FeatureConfig(), "what the head reads")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels)
        if self.crf and self.label_smoothing:
            raise ConfigError("label_smoothing has no meaning with crf=true: leave one of them out")
        _check_unused(self.windows, self.features, "documents")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerConfig:
    """The stretch of a context that answers a question. Defaults: google-research/bert run_squad.py."""

    max_question: int = option(64, "pieces of the question that are read, from its begin", COUNT)
    max_answer: int = option(30, "pieces of the longest answer", COUNT)
    n_best: int = option(20, "starts and ends looked at in a window, and answers kept", COUNT)
    can_refuse: bool = option(False, "True: a question may have no answer in its context (SQuAD 2.0)")
    threshold: float = option(0.0, "no answer is given when its score is more than this above the best answer's")
    windows: WindowConfig = option(WindowConfig(), "long contexts")
    features: FeatureConfig = option(FeatureConfig(dropout=0.0), "what the head reads")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.threshold and not self.can_refuse:
            raise ConfigError(f"threshold={self.threshold}: only with can_refuse=true can an answer be refused")
        _check_unused(self.windows, self.features, "contexts")
        _check_words(self.features)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooseConfig:
    """The one of several texts that fits (Devlin et al. 2018, §4.4)."""

    temperature: float = option(1.0, "scores are divided by it before the softmax: fitted so that shares come true")
    shared_dropout: bool = option(False, "True: all choices of a question lose the same parts to dropout (GPT)")
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    features: FeatureConfig = option(FeatureConfig(), "what the head reads")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_words(self.features)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingConfig:
    """How a model turns a text into one vector unless it is asked otherwise."""

    pool: Literal["mean", "max", "first", "last", "summary"] = option("mean", "how its tokens become one")
    normalize: bool = option(False, "True: of length 1, so that the product of two is their cosine")
