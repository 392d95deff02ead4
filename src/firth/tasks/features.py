"""The input of a head: text, word or token vectors from encoder layers, and the layers between encoder and head."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.layers.charcnn import CharacterCNN, each_once
from firth.layers.chargru import CharacterGRU
from firth.layers.dropout import Dropout
from firth.layers.mixing import LayerMix, WeightedSum, attend_runs, make_mix, pool_rows, pool_words
from firth.layers.recurrent import BiRNN
from firth.packed import Encoder, Hidden, Rows, Tokens, kept_layers
from firth.tasks.config import AnyNetwork, BiattentiveConfig, BiLstmConfig, LinearConfig, reads_apart

Unit = Literal["row", "word", "token"]

# Peters et al. 2017, §3.2: convolutions for chunking, the GRU for named entities.
_CNN_CHARACTER, _CNN_FILTERS, _CNN_WINDOW = 30, 30, 3
_GRU_CHARACTER, _GRU_WIDTH = 25, 80


class Features(nn.Module):
    """Vectors of sequences, words or tokens from encoder layers: (sequences, width), (words, width) or (tokens, width).

    ``summary``: whether they are the system's own summary vectors; otherwise ``mix`` combines the layers in ``keep``.
    Source: Devlin et al. 2018, §5.3. ``BiLstmFeatures`` adds layers between encoder and head.
    """

    def __init__(self, encoder: Encoder, config: AnyNetwork, unit: Unit):
        super().__init__()
        self.config, self.unit = config, unit
        # Only BiLstmFeatures sets these.
        self.own: OwnWords | None = None
        self.lstm: BiRNN | None = None
        # A biattentive network attends over tokens, not over one vector per text.
        self.pool = "mean" if isinstance(config, BiattentiveConfig) else config.pool
        self.words = config.words if isinstance(config, (LinearConfig, BiLstmConfig)) else "first"
        self.numbers = _numbers(encoder, config)
        self.summary = unit == "row" and self.pool == "summary"
        reads_layers = not self.summary and getattr(config, "join", "input") != "none"
        self.mix = self._mix(encoder) if reads_layers else None
        self.keep: tuple[int, ...] = self.numbers if reads_layers else ()
        mixed = 0 if self.mix is None else self.mix.width
        self.width: int = encoder.summary_width if self.summary else mixed
        self.scorer = self._scorer()
        # A network with layers of its own applies dropout inside them.
        inside = reads_apart(config) or (isinstance(config, LinearConfig) and config.hidden_width)
        self.dropout = Dropout(0.0 if inside else config.dropout)

    def _mix(self, encoder: Encoder) -> LayerMix:
        return make_mix(self.config.mix, self.numbers, encoder.widths, layer_norm=self.config.layer_norm)

    def _scorer(self) -> nn.Linear | None:
        """The layer that scores tokens for attention pooling, initialised at zero, which gives the mean."""
        if self.unit != "row" or self.pool != "attention":
            return None
        scorer = nn.Linear(self.width, 1, bias=False)
        nn.init.zeros_(scorer.weight)
        return scorer

    def forward(self, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "N width"]:
        """``hidden``: at least the layers ``keep`` of ``tokens``. The caller applies ``dropout``."""
        if self.summary:
            assert hidden.summary is not None
            return hidden.summary
        own = None if self.own is None else self.own(tokens)
        if self.unit == "word":
            return self._of_words(own, hidden, tokens)
        x = self.between(own, hidden.layers, tokens.rows)
        if self.unit != "row":
            return x
        if self.scorer is not None:
            return attend_runs(x, self.scorer(x)[:, 0], tokens.rows.lengths)
        return pool_rows(x, tokens.rows, self.pool)

    def _of_words(self, own: Tensor | None, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "M width"]:
        """Select word vectors before mixing layers, so that a normalised mix sees words only, as with stored features.

        The head's own word vectors are pooled over the tokens of a word as the encoder's are.
        """
        assert tokens.words is not None
        words = tokens.words
        first, last = words.first, words.last
        if self.lstm is None:
            first, last = first.index_select(0, words.asked), last.index_select(0, words.asked)
        layers = {n: pool_words(hidden.layers[n], first, last, self.words) for n in self.keep}
        x = self.between(None if own is None else pool_words(own, first, last, self.words), layers, words.rows)
        return x if self.lstm is None else x.index_select(0, words.asked)

    def between(self, own: Tensor | None, layers: dict[int, Tensor], rows: Rows) -> Float[Tensor, "N width"]:
        """The layers between encoder and head, before pooling: here only the mix."""
        assert self.mix is not None
        x: Tensor = self.mix(layers)
        return x

    def mix_weights(self) -> list[Tensor]:
        """The weights of all scalar mixes before the softmax; empty if there are none."""
        return [self.mix.scalars] if isinstance(self.mix, WeightedSum) else []


class OwnWords(nn.Module):
    """The head's own embeddings: tokens ``(T,)`` -> ``[characters ; word]`` (T, width).

    Source: Peters et al. 2017 (TagLM), §2.1.
    ``n_words``: size of the tokenizer's vocabulary. The table is initialised uniformly, unless word vectors are loaded.
    """

    def __init__(self, n_words: int, config: BiLstmConfig):
        super().__init__()
        self.width = 0
        self.characters: CharacterCNN | CharacterGRU | None = None
        if config.own_characters == "cnn":
            self.characters = CharacterCNN(
                width=_CNN_FILTERS,
                character_width=_CNN_CHARACTER,
                filters=((_CNN_WINDOW, _CNN_FILTERS),),
                n_highways=0,
                activation="tanh",
                dropout=config.dropout,
            )
            self.width += _CNN_FILTERS
        elif config.own_characters == "gru":
            self.characters = CharacterGRU(width=_GRU_WIDTH, character_width=_GRU_CHARACTER, dropout=config.dropout)
            self.width += self.characters.width
        self.words = None
        if config.own_words:
            self.words = nn.Embedding(n_words, config.own_words)
            # The variance of published word vectors, so that words without one are on the same scale.
            nn.init.uniform_(self.words.weight, -0.5, 0.5)
            self.width += config.own_words

    def forward(self, tokens: Tokens) -> Float[Tensor, "T width"]:
        parts = []
        if self.characters is not None:
            if tokens.chars is None:
                raise ValueError("this head reads characters: tokens.chars is missing")
            # Dropout draws a new mask for each token, so equal words no longer share one vector.
            alike = not (self.training and self.characters.dropout.p)
            parts.append(each_once(self.characters, tokens.chars) if alike else self.characters(tokens.chars))
        if self.words is not None:
            parts.append(self.words(tokens.ids))
        return torch.cat(parts, 1)


class BiLstmFeatures(Features):
    """The head's own embeddings and a bidirectional RNN; the encoder's layers join at one of several places.

    Source: Peters et al. 2017, §2 and §3.3; Peters et al. 2018, §3.2 and §3.3, for the second mix.
    """

    config: BiLstmConfig

    def __init__(self, encoder: Encoder, config: BiLstmConfig, unit: Unit):
        super().__init__(encoder, config, unit)
        mixed = self.width
        self.own = OwnWords(encoder.config.vocab_size, config) if config.has_own else None
        width = 0 if self.own is None else self.own.width
        self.upper: BiRNN | None = None
        self.second: LayerMix | None = None
        # RNN layers below the place where the encoder joins, then those above it.
        n_lower = 1 if config.join == "first" else config.lstm_layers
        if config.join == "input":
            width += mixed
        if n_lower:
            self.lstm = BiRNN(width, config.lstm_width, n_lower, config.dropout, config.cell)
            width = 2 * config.lstm_width
        if config.join in ("first", "last"):
            width += mixed
        if n_upper := config.lstm_layers - n_lower:
            self.upper = BiRNN(width, config.lstm_width, n_upper, config.dropout, config.cell)
            width = 2 * config.lstm_width
        if config.second_mix:
            self.second = self._mix(encoder)
            width += self.second.width
        self.width = width
        self.scorer = self._scorer()
        self.dropout = Dropout(config.dropout if config.output_dropout else 0.0)

    def between(self, own: Tensor | None, layers: dict[int, Tensor], rows: Rows) -> Float[Tensor, "N width"]:
        mixed = [] if self.mix is None else [self.mix(layers)]
        x = _beside([] if own is None else [own], mixed if self.config.join == "input" else [])
        if self.lstm is not None:
            x = self.lstm(x, rows)
        if self.config.join in ("first", "last"):
            x = _beside([x], mixed)
        if self.upper is not None:
            x = self.upper(x, rows)
        return x if self.second is None else _beside([x], [self.second(layers)])

    def mix_weights(self) -> list[Tensor]:
        second = [self.second.scalars] if isinstance(self.second, WeightedSum) else []
        return [*super().mix_weights(), *second]


def make_features(encoder: Encoder, config: AnyNetwork, unit: Unit) -> Features:
    """Build the features of a network; ``unit``: what each vector represents."""
    return (BiLstmFeatures if isinstance(config, BiLstmConfig) else Features)(encoder, config, unit)  # type: ignore[arg-type]  # of its own config


def _numbers(encoder: Encoder, config: AnyNetwork) -> tuple[int, ...]:
    try:
        return tuple(sorted(kept_layers(config.layers, len(encoder.widths) - 1)))
    except ValueError as error:
        raise ConfigError(f"network.layers: {error}") from None


def _beside(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Concatenate vectors; a single one is returned unchanged."""
    return torch.cat([*left, *right], 1) if left and right else (left or right)[0]
