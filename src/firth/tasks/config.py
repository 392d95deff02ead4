"""Options of fine-tuning tasks, stored with the model so that it reads new text as in training; no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.config import AMOUNT, COUNT, OPTIONAL_WIDTH, POSITIVE, RATE, WIDTH, check_bounds, option, required
from firth.errors import ConfigError

# Options of several heads (Radford et al. 2018, §3.2 and §3.3).
_AUXILIARY_LM = (
    "weight of a next-token loss on the same sequences while fine-tuning (GPT: 0.5); left-to-right models only"
)
_AUXILIARY_FORM = (
    "tokens: the mean over all predictions; published: each sequence's mean first, and the softmax covers the rows of "
    "positions too, as in openai/finetune-transformer-lm (GPT only)"
)
AuxiliaryForm = Literal["tokens", "published"]
_MARKS = "True: words that both texts of a pair have get segment embeddings of their own (Chen et al. 2017)"
_BOTH_ORDERS = "True: encode a pair in both orders and add the two vectors that the head reads (GPT's similarity)"


def _check_both_orders(windows: "WindowConfig", network: "AnyNetwork") -> None:
    if reads_apart(network) or (isinstance(network, LinearConfig) and network.hidden_width):
        raise ConfigError(
            "both_orders=true adds the vectors of two sequences, which takes a single linear layer: set "
            "head.network.kind=linear and hidden_width=0, or leave both_orders out"
        )
    if windows.long != "cut":
        raise ConfigError(
            "both_orders=true reads a pair as two sequences, never in windows: set head.windows.long=cut with it"
        )


def _check_apart(network: "AnyNetwork", windows: "WindowConfig", *, mark: bool) -> None:
    if reads_apart(network) and mark:
        raise ConfigError(
            f"head.mark_shared_words=true: network.kind={network.kind!r} reads each text by itself, without segments: "
            "leave one of the two out"
        )
    if reads_apart(network) and windows.long != "cut":
        raise ConfigError(
            f"network.kind={network.kind!r} reads each text as one sequence, never in windows: set "
            "head.windows.long=cut with it"
        )


def _check_labels(labels: tuple[str, ...], fewest: int = 2) -> None:
    if len(labels) < fewest or len(set(labels)) < len(labels):
        raise ConfigError(f"labels={list(labels)}: expected at least {fewest}, without duplicates")


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowConfig:
    """How a text becomes sequences, and what happens to one that is too long."""

    length: int = option(
        0, "maximum sequence length, special tokens included; 0: that of pre-training, else the model's maximum", AMOUNT
    )
    stride: int = option(0, "tokens from the start of one window to the next; 0: half of what fits", AMOUNT)
    long: Literal["windows", "cut"] = option(
        "windows", "windows: read a long text in overlapping windows; cut: drop its end, as in the paper"
    )
    merge: Literal["mean", "max"] = option("mean", "how the outputs of a text's windows are combined")

    def __post_init__(self) -> None:
        check_bounds(self, "windows")


MixKind = Literal["one", "sum", "scalar", "concat"]
# Pooling of text embeddings.
Pool = Literal["mean", "max", "first", "last", "summary"]
TextPool = Literal["mean", "max", "first", "last", "attention"]
_KINDS = (
    "linear, bilstm (TagLM, ELMo), biattentive (CoVe's BCN), or towers (Sentence-BERT: two texts encoded separately)"
)
_LAYERS = "which layers of the encoder the head reads: 0 is the embedding output, -1 the top"
_MIX = "how several layers are combined; scalar: ELMo's scalar mix, softmax-normalised weights times a learned scale"
_WORDS = "taggers only: which tokens of a word represent it"
_ATTENTION = "; attention: their mean, weighted by a learned score of each"
_LAYER_NORM = "True: normalise each layer over the whole batch before the scalar mix (ELMo)"
_MIX_L2 = "L2 penalty on the scalar mix weights, which keeps them close to each other (ELMo: 0.001)"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearConfig:
    """A linear layer on the vectors of texts, words or tokens (Devlin et al. 2018, §4 and §5.3)."""

    kind: Literal["linear"] = option("linear", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    words: Literal["first", "mean", "last"] = option("first", _WORDS)
    pool: Literal["summary", "mean", "max", "first", "last", "attention"] = option(
        "summary", "texts only: the system's own summary vector, or how token vectors are pooled" + _ATTENTION
    )
    hidden_width: int = option(0, "size of a hidden layer between batch norms (ULMFiT: 50); 0: none", OPTIONAL_WIDTH)
    dropout: float = option(0.1, "dropout on the input of the layer", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)

    @property
    def plain(self) -> bool:
        """Whether the head reads the encoder as in published fine-tuning, so that other tools can load the model."""
        return self == LinearConfig(dropout=self.dropout)


@dataclass(frozen=True, kw_only=True, slots=True)
class BiLstmConfig:
    """The tagger of TagLM and ELMo: a bidirectional RNN over the encoder's layers and the head's own word vectors.

    Source: Peters et al. 2017, §2; Peters et al. 2018, §3.3. Works for texts and spans too.
    """

    kind: Literal["bilstm"] = option("bilstm", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    words: Literal["first", "mean", "last"] = option("first", _WORDS)
    pool: TextPool = option("mean", "texts only: how token outputs are pooled" + _ATTENTION)
    lstm_layers: int = option(
        2, "RNN layers; 0: only concatenate the head's own word vectors to the encoder's output", AMOUNT
    )
    lstm_width: int = option(256, "hidden size of the RNN, per direction", WIDTH)
    cell: Literal["lstm", "gru"] = option("lstm", "RNN cell")
    own_words: int = option(0, "size of word embeddings that the head learns for known words; 0: none", OPTIONAL_WIDTH)
    own_characters: Literal["none", "cnn", "gru"] = option(
        "none", "the head's own character encoder; only for systems that read characters (elmo, vectors)"
    )
    join: Literal["input", "first", "last", "none"] = option(
        "input",
        "where the encoder's layers are concatenated: at the RNN input, after its first layer (TagLM), after its "
        "last layer, or nowhere",
    )
    second_mix: bool = option(
        False, "True: a second scalar mix of the layers is concatenated to the RNN's output (ELMo at input and output)"
    )
    dropout: float = option(0.1, "dropout on the input of each RNN layer and of the linear layer", RATE)
    output_dropout: bool = option(True, "False: no dropout on the input of the linear layer (TagLM)")

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)
        if not self.lstm_layers and (self.second_mix or not self.output_dropout or not self.has_own):
            raise ConfigError(
                "network.lstm_layers=0 requires own_words or own_characters, second_mix=false and output_dropout=true: "
                "set it to 1 or more, or use network.kind=linear"
            )
        if self.join == "input":
            return
        least = {"first": 2, "last": 1, "none": 0}[self.join]
        if not self.has_own or self.lstm_layers < least:
            raise ConfigError(
                f"network.join={self.join!r}: requires own_words or own_characters, "
                f"and lstm_layers of at least {least}, not {self.lstm_layers}"
            )
        if self.second_mix and self.join != "first":
            raise ConfigError(f"network.second_mix=true requires join='input' or 'first', not {self.join!r}")
        if self.join == "none" and (self.mix != "one" or self.layers != (-1,)):
            raise ConfigError("network.join='none' reads no layer of the encoder: leave out layers and mix")

    @property
    def has_own(self) -> bool:
        """Whether the head has word or character embeddings of its own."""
        return bool(self.own_words) or self.own_characters != "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class BiattentiveConfig:
    """The biattentive classification network of CoVe: LSTMs over each text of a pair, attending to the other.

    Source: McCann et al. 2017, §4.
    """

    kind: Literal["biattentive"] = option("biattentive", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    width: int = option(300, "hidden size of the projection and of the LSTMs, per direction", WIDTH)
    dropout: float = option(0.1, "dropout on the input of each layer with weights", RATE)

    def __post_init__(self) -> None:
        check_bounds(self, "network")
        _check_layers(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class TowersConfig:
    """Encodes two texts separately and compares their vectors u and v (Reimers and Gurevych 2019, §3)."""

    kind: Literal["towers"] = option("towers", _KINDS)
    layers: tuple[int, ...] = option((-1,), _LAYERS)
    mix: MixKind = option("one", _MIX)
    layer_norm: bool = option(False, _LAYER_NORM)
    mix_l2: float = option(0.0, _MIX_L2, AMOUNT)
    pool: TextPool = option("mean", "how the token vectors of a text are pooled" + _ATTENTION)
    compare: Literal["cosine", "features"] = option(
        "features",
        "input of the linear layer; features: u, v, |u - v|, u * v and the cosine; cosine: the cosine alone",
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
    """Whether each text of a pair is its own sequence, and the network compares the two."""
    return isinstance(network, (BiattentiveConfig, TowersConfig))


def _check_layers(network: AnyNetwork) -> None:
    if not network.layers or (network.mix == "one" and len(network.layers) != 1):
        raise ConfigError(
            f"network.layers={list(network.layers)}, mix={network.mix!r}: expected one layer, or a way to mix them"
        )
    if (network.layer_norm or network.mix_l2) and network.mix != "scalar":
        raise ConfigError(f"network.layer_norm and mix_l2 are for mix='scalar', not {network.mix!r}")


def _check_unused(config: "TagConfig | AnswerConfig", what: str) -> None:
    """Refuse options that a task on words or tokens would ignore: ConfigError."""
    if (config.windows.long, config.windows.merge) != ("windows", "mean"):
        raise ConfigError(
            f"windows.long and windows.merge do not apply: {what} are always read in windows, and nothing is merged"
        )
    if config.network.pool != type(config.network)().pool:
        raise ConfigError(f"network.pool={config.network.pool!r}: {what} are read token by token")


def _check_words(network: AnyNetwork) -> None:
    if isinstance(network, (LinearConfig, BiLstmConfig)) and network.words != "first":
        raise ConfigError(f"network.words={network.words!r} applies to taggers only")


def _check_texts(network: AnyNetwork) -> None:
    """Refuse a choice of token layers where the head reads the summary vector: ConfigError."""
    _check_words(network)
    other_layers = (network.layers, network.mix) != ((-1,), "one")
    if isinstance(network, LinearConfig) and network.pool == "summary" and other_layers:
        raise ConfigError("head.network.layers and mix need pooled tokens: set head.network.pool to mean or max")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifyConfig:
    """Options of single-label classification of a text or a pair."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    label_smoothing: float = option(0.0, "share of the target spread over all labels", RATE)
    class_weights: tuple[float, ...] = option((), "loss weight of each label's examples; empty: all 1")
    consistency: float = option(
        0.0, "weight of how far two passes with different dropout are apart (R-Drop); twice the time of a step", AMOUNT
    )
    temperature: float = option(
        1.0, "divides the logits before the softmax; fitted so that probabilities are calibrated"
    )
    both_orders: bool = option(False, _BOTH_ORDERS)
    mark_shared_words: bool = option(False, _MARKS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    auxiliary_form: AuxiliaryForm = option("tokens", _AUXILIARY_FORM)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: AnyNetwork = option(LinearConfig(), "network between encoder and output")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels)
        if self.both_orders:
            _check_both_orders(self.windows, self.network)
        _check_apart(self.network, self.windows, mark=self.mark_shared_words)
        if self.class_weights and (len(self.class_weights) != len(self.labels) or min(self.class_weights) < 0):
            raise ConfigError(f"class_weights={list(self.class_weights)}: expected one, 0 or more, for each label")
        _check_texts(self.network)

    @property
    def merge(self) -> Literal["mean", "max", "sum"]:
        """How the outputs of a text's sequences are combined; the two sequences of a pair are summed."""
        return "sum" if self.both_orders or reads_apart(self.network) else self.windows.merge

    @property
    def passes(self) -> int:
        """How often a step of training reads its batch."""
        return 2 if self.consistency else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiLabelConfig:
    """Options of multi-label classification of a text or a pair."""

    labels: tuple[str, ...] = required("the labels, in the order of the outputs")
    threshold: float = option(0.5, "a label applies from this probability on; chosen on held-out examples")
    mark_shared_words: bool = option(False, _MARKS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    auxiliary_form: AuxiliaryForm = option("tokens", _AUXILIARY_FORM)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: Network = option(LinearConfig(), "network between encoder and output")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels, 1)
        _check_texts(self.network)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegressConfig:
    """Options of regression: a real number for a text or a pair."""

    lowest: float = option(0.0, "lowest value in training; predictions are clipped to it")
    highest: float = option(0.0, "highest value in training; predictions are clipped to it")
    centre: float = option(0.0, "value for which the network computes 0")
    scale: float = option(1.0, "change of the value for which the network's output changes by 1", POSITIVE)
    both_orders: bool = option(False, _BOTH_ORDERS)
    mark_shared_words: bool = option(False, _MARKS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    auxiliary_form: AuxiliaryForm = option("tokens", _AUXILIARY_FORM)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: PairNetwork = option(LinearConfig(), "network between encoder and output")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.both_orders:
            _check_both_orders(self.windows, self.network)
        _check_apart(self.network, self.windows, mark=self.mark_shared_words)
        _check_texts(self.network)

    @property
    def merge(self) -> Literal["mean", "max", "sum"]:
        """How the outputs of a text's sequences are combined."""
        return "sum" if self.both_orders or reads_apart(self.network) else self.windows.merge


@dataclass(frozen=True, kw_only=True, slots=True)
class TagConfig:
    """Options of token classification: a tag for each word of a text."""

    labels: tuple[str, ...] = required("the tags, in the order of the outputs")
    scheme: Literal["plain", "BIO", "BIOES"] = option("BIO", "plain: tags such as parts of speech, not of entities")
    unit: Literal["word", "character"] = option("word", "what the data tags")
    crf: bool = option(False, "True: a conditional random field over the tags of a sequence")
    label_smoothing: float = option(0.0, "share of the target spread over all tags; not with a CRF", RATE)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    auxiliary_form: AuxiliaryForm = option("tokens", _AUXILIARY_FORM)
    windows: WindowConfig = option(
        WindowConfig(), "windows over documents; stride: the part of a sequence that is tagged"
    )
    network: Network = option(LinearConfig(), "network between encoder and output")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_labels(self.labels)
        if self.crf and self.label_smoothing:
            raise ConfigError("label_smoothing does not apply with crf=true: leave one of them out")
        _check_unused(self, "documents")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerConfig:
    """Options of extractive question answering. Defaults: google-research/bert run_squad.py.

    Differs: windows overlap by half, and are as long as in pre-training; there they have 384 tokens and start 128
    tokens apart (``windows.length=384``, ``windows.stride=128``).
    """

    max_question: int = option(
        64, "most tokens of a question, which has half of a sequence at most; the rest is cut", COUNT
    )
    max_answer: int = option(30, "maximum length of an answer, in tokens", COUNT)
    n_best: int = option(20, "best starts and ends considered per window, and answers kept", COUNT)
    can_refuse: bool = option(False, "True: a question may have no answer in its context (SQuAD 2.0)")
    mark_shared_words: bool = option(False, _MARKS)
    threshold: float = option(0.0, "predict no answer if its score exceeds the best answer's by more than this")
    windows: WindowConfig = option(WindowConfig(), "long contexts")
    network: Network = option(LinearConfig(dropout=0.0), "network between encoder and output")

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.threshold and not self.can_refuse:
            raise ConfigError(f"threshold={self.threshold} requires can_refuse=true")
        _check_unused(self, "contexts")
        _check_words(self.network)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooseConfig:
    """Options of multiple choice (Devlin et al. 2018, §4.4)."""

    temperature: float = option(
        1.0, "divides the scores before the softmax; fitted so that probabilities are calibrated"
    )
    shared_dropout: bool = option(False, "True: all choices of a question share one dropout mask (GPT)")
    mark_shared_words: bool = option(False, _MARKS)
    auxiliary_lm: float = option(0.0, _AUXILIARY_LM, AMOUNT)
    auxiliary_form: AuxiliaryForm = option("tokens", _AUXILIARY_FORM)
    windows: WindowConfig = option(WindowConfig(), "long texts")
    network: Network = option(LinearConfig(), "network between encoder and output")

    def __post_init__(self) -> None:
        check_bounds(self)
        _check_texts(self.network)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingConfig:
    """Default pooling of a model's text embeddings."""

    pool: Pool = option("mean", "how token vectors are pooled")
    normalize: bool = option(False, "True: scale to length 1, so that the dot product of two is their cosine")
