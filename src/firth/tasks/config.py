"""Options of fine-tuning tasks; no torch. They are stored with the model, which reads new text as it was trained to."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, OPTIONAL_WIDTH, RATE, WIDTH, check_bounds, option, required
from firth.errors import ConfigError

# What several heads have (Radford et al. 2018, §3.2 and §3.3).
_AUXILIARY_LM = "weight of next-token prediction on the same rows while fine-tuning (GPT: 0.5); left to right only"
_BOTH_ORDERS = "True: a pair is read in both orders, and what the head reads of them is added (GPT's similarity)"


def _check_both_orders(windows: "WindowConfig", network: "AnyNetwork") -> None:
    if reads_apart(network) or (isinstance(network, LinearConfig) and network.hidden_width):
        raise ConfigError(
            "both_orders=true adds up what one linear layer reads of two rows: set head.network.kind=linear and "
            "hidden_width=0, or leave both_orders out"
        )
    if windows.long != "cut":
        raise ConfigError(
            "both_orders=true reads a pair as two rows, and in no windows: set head.windows.long=cut with it"
        )


def _check_apart(network: "AnyNetwork", windows: "WindowConfig") -> None:
    if reads_apart(network) and windows.long != "cut":
        raise ConfigError(
            f"network.kind={network.kind!r} reads each text as one row, and in no windows: set head.windows.long=cut "
            "with it"
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


MixKind = Literal["one", "sum", "weighted", "concat"]
TextPool = Literal["mean", "max", "first", "last"]
_KINDS = "linear, bilstm (TagLM, ELMo), biattentive (CoVe's BCN), or towers (two texts apart, Sentence-BERT)"
_LAYERS = "which layers of the encoder the head reads: 0 is the embedding output, -1 the top"
_MIX = "how several layers become one; weighted: softmax of learned weights, times a learned scale (ELMo)"
_WORDS = "of taggers: which tokens of a word stand for it"
_LAYER_NORM = "True: layers that are weighted are first brought to mean 0 and variance 1 over the whole batch (ELMo)"
_MIX_L2 = "weight in the loss of the sum of squares of the learned weights, which draws them together (ELMo: 0.001)"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearConfig:
    """A linear layer on the vectors of texts, words or tokens (Devlin et al. 2018, §4 and §5.3)."""

    kind: Literal["linear"] = option("linear", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    words: Literal["first", "mean", "last"] = option("first", _WORDS)
    pool: Literal["summary", "mean", "max", "first", "last"] = option(
        "summary", "of texts: the system's own vector of them, or how their tokens become one"
    )
    hidden_width: int = option(0, "units of a hidden layer between batch norms (ULMFiT: 50); 0: none", OPTIONAL_WIDTH)
    dropout: float = option(0.1, "of what the layer reads", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)

    @property
    def plain(self) -> bool:
        """Whether the head reads the encoder as published fine-tuning does: other tools then know the model."""
        return self == LinearConfig(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True, slots=True)
class BiLstmConfig:
    """The tagger of TagLM and ELMo: a bidirectional RNN over the encoder's layers and the head's own words.

    Source: Peters et al. 2017, §2; Peters et al. 2018, §3.3. Of texts and spans as well as of words.
    """

    kind: Literal["bilstm"] = option("bilstm", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    words: Literal["first", "mean", "last"] = option("first", _WORDS)
    pool: TextPool = option("mean", "of texts: how the outputs at their tokens become one")
    lstm_layers: int = option(2, "layers of the RNN; 0: the head's own words alone stand beside the encoder", AMOUNT)
    lstm_width: int = option(256, "of the RNN, in each direction", WIDTH)
    cell: Literal["lstm", "gru"] = option("lstm", "of its layers")
    own_words: int = option(0, "width of vectors that the head learns of known words; 0: none", OPTIONAL_WIDTH)
    own_characters: Literal["none", "cnn", "gru"] = option(
        "none", "how the head reads words by their characters; only where the system does (elmo, vectors)"
    )
    join: Literal["input", "first", "last", "none"] = option(
        "input",
        "where the encoder's layers enter: beside the head's own words and characters, after the first layer "
        "of the RNN (TagLM), after the last one, or nowhere",
    )
    second_mix: bool = option(
        False, "True: the head reads the layers beside the RNN too, mixed anew (ELMo at input and output)"
    )
    dropout: float = option(0.1, "of the input of each layer of the RNN, and of what the linear layer reads", RATE)
    output_dropout: bool = option(True, "False: not of what the linear layer reads (TagLM)")

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)
        if not self.lstm_layers and (self.second_mix or not self.output_dropout or not self.has_own):
            raise ConfigError(
                "network.lstm_layers=0 is for own_words or own_characters beside the encoder, without second_mix and "
                "with output_dropout: set it to 1 or more, or take network.kind=linear"
            )
        if self.join == "input":
            return
        least = {"first": 2, "last": 1, "none": 0}[self.join]
        if not self.has_own or self.lstm_layers < least:
            raise ConfigError(
                f"network.join={self.join!r}: the encoder enters above words of the head's own: expected own_words or "
                f"own_characters, and lstm_layers of at least {least}, not {self.lstm_layers}"
            )
        if self.second_mix and self.join != "first":
            raise ConfigError(f"network.second_mix=true is for join='input' or 'first', not {self.join!r}")
        if self.join == "none" and (self.mix != "one" or self.layers != (-1,)):
            raise ConfigError("network.join='none' reads no layer of the encoder: leave out layers and mix")

    @property
    def has_own(self) -> bool:
        """Whether the head knows words or characters by itself."""
        return bool(self.own_words) or self.own_characters != "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class BiattentiveConfig:
    """The biattentive classification network of CoVe: LSTMs that read each text of a pair in the light of the other.

    Source: McCann et al. 2017, §4.
    """

    kind: Literal["biattentive"] = option("biattentive", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    width: int = option(300, "of its projection, and of its LSTMs in each direction", WIDTH)
    dropout: float = option(0.1, "of what each layer with weights reads", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TowersConfig:
    """Two texts that the encoder reads apart, compared by their vectors u and v (Reimers and Gurevych 2019, §3)."""

    kind: Literal["towers"] = option("towers", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    pool: TextPool = option("mean", "how the tokens of a text become one vector")
    compare: Literal["cosine", "features"] = option(
        "features",
        "what a linear layer reads of u and v; features: u, v, |u - v|, u * v and the cosine; cosine: it alone",
    )
    dropout: float = option(0.1, "of u and v", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)


Network = LinearConfig | BiLstmConfig
PairNetwork = LinearConfig | BiLstmConfig | TowersConfig
AnyNetwork = LinearConfig | BiLstmConfig | BiattentiveConfig | TowersConfig
NETWORKS: tuple[type[AnyNetwork], ...] = (LinearConfig, BiLstmConfig, BiattentiveConfig, TowersConfig)


def reads_apart(network: AnyNetwork) -> bool:
    """Whether each text of a pair is a row of its own, and the network compares them."""
    return isinstance(network, (BiattentiveConfig, TowersConfig))


def _check_layers(network: AnyNetwork) -> None:
    if not network.layers or (network.mix == "one" and len(network.layers) != 1):
        raise ConfigError(
            f"network.layers={list(network.layers)}, mix={network.mix!r}: expected one layer, or a way to mix them"
        )
    if (network.layer_norm or network.mix_l2) and network.mix != "weighted":
        raise ConfigError(f"network.layer_norm and mix_l2 are for mix='weighted', not {network.mix!r}")


def _check_unused(config: "TagConfig | AnswerConfig", what: str) -> None:
    """ConfigError for options that a task on words or tokens does not have, rather than silence."""
    if (config.windows.long, config.windows.merge) != ("windows", "mean"):
        raise ConfigError(f"windows.long and merge: {what} are always read in windows, and nothing is merged")
    if config.network.pool != type(config.network)().pool:
        raise ConfigError(f"network.pool={config.network.pool!r}: {what} are read token by token")


def _check_words(network: AnyNetwork) -> None:
    if isinstance(network, (LinearConfig, BiLstmConfig)) and network.words != "first":
        raise ConfigError(f"network.words={network.words!r}: only taggers read words")


def _check_texts(network: AnyNetwork) -> None:
    """ConfigError for layers of tokens where a text is read as one vector."""
    _check_words(network)
    other_layers = (network.layers, network.mix) != ((-1,), "one")
    if isinstance(network, LinearConfig) and network.pool == "summary" and other_layers:
        raise ConfigError("network.layers and mix are of the tokens of a text: choose network.pool, mean or max")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyConfig:
    """One of K labels for a text or a pair."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    label_smoothing: float = option(0.0, "share of the target that is spread over all labels", RATE)
    class_weights: tuple[float, ...] = option((), "of each label's examples in the loss; none: all alike")
    temperature: float = option(1.0, "outputs are divided by it before the softmax: fitted so that shares come true")
    both_orders: bool = option(False, _BOTH_ORDERS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: AnyNetwork = option(LinearConfig(), "what stands on the encoder")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels)
        if self.both_orders:
            _check_both_orders(self.windows, self.network)
        _check_apart(self.network, self.windows)
        if self.class_weights and (len(self.class_weights) != len(self.labels) or min(self.class_weights) < 0):
            raise ConfigError(f"class_weights={list(self.class_weights)}: expected one, 0 or more, for each label")
        _check_texts(self.network)

    @property
    def merge(self) -> Literal["mean", "max", "sum"]:
        """How the outputs of a text's rows become one; of a pair with a row for each order, or text, they add up."""
        return "sum" if self.both_orders or reads_apart(self.network) else self.windows.merge


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabelConfig:
    """Any number of K labels for a text or a pair."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    threshold: float = option(0.5, "probability from which a label holds; chosen on held-out examples")
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: Network = option(LinearConfig(), "what stands on the encoder")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels, 1)
        _check_texts(self.network)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressConfig:
    """A real number for a text or a pair."""

    lowest: float = option(0.0, "lowest value in training; predictions are not below it")
    highest: float = option(0.0, "highest value in training; predictions are not above it")
    both_orders: bool = option(False, _BOTH_ORDERS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: PairNetwork = option(LinearConfig(), "what stands on the encoder")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.both_orders:
            _check_both_orders(self.windows, self.network)
        _check_apart(self.network, self.windows)
        _check_texts(self.network)

    @property
    def merge(self) -> Literal["mean", "max", "sum"]:
        """How the outputs of a text's rows become one."""
        return "sum" if self.both_orders or reads_apart(self.network) else self.windows.merge


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
    network: Network = option(LinearConfig(), "what stands on the encoder")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels)
        if self.crf and self.label_smoothing:
            raise ConfigError("label_smoothing has no meaning with crf=true: leave one of them out")
        _check_unused(self, "documents")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerConfig:
    """The stretch of a context that answers a question. Defaults: google-research/bert run_squad.py."""

    max_question: int = option(64, "pieces of the question that are read, from its begin", COUNT)
    max_answer: int = option(30, "pieces of the longest answer", COUNT)
    n_best: int = option(20, "starts and ends looked at in a window, and answers kept", COUNT)
    can_refuse: bool = option(False, "True: a question may have no answer in its context (SQuAD 2.0)")
    threshold: float = option(0.0, "no answer is given when its score is more than this above the best answer's")
    windows: WindowConfig = option(WindowConfig(), "long contexts")
    network: Network = option(LinearConfig(dropout=0.0), "what stands on the encoder")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.threshold and not self.can_refuse:
            raise ConfigError(f"threshold={self.threshold}: only with can_refuse=true can an answer be refused")
        _check_unused(self, "contexts")
        _check_words(self.network)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooseConfig:
    """The one of several texts that fits (Devlin et al. 2018, §4.4)."""

    temperature: float = option(1.0, "scores are divided by it before the softmax: fitted so that shares come true")
    shared_dropout: bool = option(False, "True: all choices of a question lose the same parts to dropout (GPT)")
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: Network = option(LinearConfig(), "what stands on the encoder")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_texts(self.network)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingConfig:
    """How a model turns a text into one vector unless it is asked otherwise."""

    pool: Literal["mean", "max", "first", "last", "summary"] = option("mean", "how its tokens become one")
    normalize: bool = option(False, "True: of length 1, so that the product of two is their cosine")
