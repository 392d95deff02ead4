"""What the heads of all tasks share: how they read an encoder, and what they offer."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.data.batch import Objective
from firth.errors import ConfigError
from firth.layers.dropout import Dropout
from firth.layers.initialise import truncated_normal_
from firth.layers.mixing import make_mix, pool_rows, pool_runs, pool_words
from firth.layers.recurrent import BiLSTM
from firth.packed import Encoder, Hidden, Tokens, kept_layers
from firth.tasks.config import FeatureConfig

Unit = Literal["row", "word", "token"]

# Deviation of a fresh head's weights. Source: google-research/bert run_classifier.py.
HEAD_INIT_RANGE = 0.02


class Features(nn.Module):
    """Vectors of rows, words or tokens from the layers of an encoder: (rows, width), (words, width), (tokens, width).

    Source: Devlin et al. 2018, §5.3, for the ways to mix layers and the LSTM between encoder and head.
    """

    def __init__(self, encoder: Encoder, config: FeatureConfig, unit: Unit):
        super().__init__()
        self.config, self.unit = config, unit
        n_layers = len(encoder.widths) - 1
        try:
            numbers = tuple(sorted(kept_layers(config.layers, n_layers)))
        except ValueError as error:
            raise ConfigError(f"features.layers: {error}") from None
        self.summary = unit == "row" and config.pool == "summary"
        if self.summary and config.lstm_layers:
            raise ConfigError("features.lstm_layers reads the tokens of a text: choose features.pool, mean or max")
        if self.summary and (config.layers != (-1,) or config.mix != "one"):
            raise ConfigError("features.layers and mix are of the tokens of a text: choose features.pool, mean or max")
        self.mix = None if self.summary else make_mix(config.mix, numbers, encoder.widths)
        self.width: int = encoder.widths[-1] if self.mix is None else self.mix.width
        self.keep: tuple[int, ...] = () if self.mix is None else numbers
        self.lstm = None
        if config.lstm_layers:
            self.lstm = BiLSTM(self.width, config.lstm_width, config.lstm_layers, config.dropout)
            self.width = 2 * config.lstm_width
        self.dropout = Dropout(config.dropout)

    def forward(self, encoder: Encoder, tokens: Tokens) -> Float[Tensor, "N width"]:
        hidden: Hidden = encoder(tokens, keep=self.keep)
        if self.mix is None:
            assert hidden.summary is not None
            return self.dropout(hidden.summary)
        x: Tensor = self.mix(hidden.layers)
        if self.unit == "word":
            assert tokens.words is not None
            words = tokens.words
            x = pool_words(x, words.first, words.last, self.config.words)
            if self.lstm is not None:
                x = self.lstm(x, words.rows)
            return self.dropout(x.index_select(0, words.asked))
        if self.lstm is not None:
            x = self.lstm(x, tokens.rows)
        if self.unit == "row":
            x = pool_rows(x, tokens.rows, self.config.pool)
        return self.dropout(x)


def merge_rows(x: Float[Tensor, "B K"], rows_per_example: Int[Tensor, " E"], how: str) -> Float[Tensor, "E K"]:
    """The outputs of a text's windows as one: their mean or maximum."""
    if rows_per_example.numel() == x.shape[0]:
        return x
    return pool_runs(x, rows_per_example.to(x.device), how)


class TaskModel(Objective):
    """An encoder and a fresh head: an objective that can also answer.

    ``unit``: what an output belongs to. ``outputs(tokens)``: named tensors, the first axis counts the units
    (rows, asked words or tokens) of all rows.
    """

    unit: Unit
    features: Features
    head: nn.Linear

    def build(self, encoder: Encoder, features: FeatureConfig, n_outputs: int) -> None:
        """Make the parts that every task has."""
        self.encoder = encoder
        self.features = Features(encoder, features, self.unit)
        self.head = nn.Linear(self.features.width, n_outputs)
        truncated_normal_(self.head, HEAD_INIT_RANGE)

    def logits(self, tokens: Tokens) -> Float[Tensor, "N K"]:
        """The head's outputs, float32."""
        return self.head(self.features(self.encoder, tokens)).float()

    def outputs(self, tokens: Tokens) -> dict[str, Tensor]:
        """What answers are made of."""
        return {"logits": self.logits(tokens)}
