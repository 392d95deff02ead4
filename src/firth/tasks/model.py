"""What the heads of all tasks share: how they read an encoder, and what they offer."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.errors import ConfigError
from firth.layers.dropout import Dropout
from firth.layers.initialise import truncated_normal_
from firth.layers.mixing import LayerMix, WeightedSum, make_mix, pool_rows, pool_runs, pool_words
from firth.layers.recurrent import BiLSTM
from firth.layers.vocabulary import vocabulary_loss
from firth.packed import Encoder, Hidden, Rows, Tokens, kept_layers
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
        norm = config.layer_norm
        self.mix = None if self.summary else make_mix(config.mix, numbers, encoder.widths, layer_norm=norm)
        self.width: int = encoder.summary_width if self.mix is None else self.mix.width
        self.keep: tuple[int, ...] = () if self.mix is None else numbers
        self.lstm = None
        if config.lstm_layers:
            self.lstm = BiLSTM(self.width, config.lstm_width, config.lstm_layers, config.dropout)
            self.width = 2 * config.lstm_width
        self.second = None
        if config.second_mix:
            self.second = make_mix(config.mix, numbers, encoder.widths, layer_norm=norm)
            self.width += self.second.width
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "N width"]:
        """``hidden``: at least the layers ``keep`` of ``tokens``. ``dropout`` is for the caller to apply."""
        if self.mix is None:
            assert hidden.summary is not None
            return hidden.summary
        if self.unit == "word":
            return self._of_words(self.mix, hidden, tokens)
        x = self._between(self.mix, hidden.layers, tokens.rows)
        return pool_rows(x, tokens.rows, self.config.pool) if self.unit == "row" else x

    def _of_words(self, mix: LayerMix, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "M width"]:
        """Words before layers, so that a mix with a norm sees nothing else, as of stored features."""
        assert tokens.words is not None
        words = tokens.words
        first, last = words.first, words.last
        if self.lstm is None:
            first, last = first.index_select(0, words.asked), last.index_select(0, words.asked)
        layers = {n: pool_words(hidden.layers[n], first, last, self.config.words) for n in self.keep}
        x = self._between(mix, layers, words.rows)
        return x if self.lstm is None else x.index_select(0, words.asked)

    def _between(self, mix: LayerMix, layers: dict[int, Tensor], rows: Rows) -> Float[Tensor, "N width"]:
        """What stands between encoder and head, before anything is pooled or chosen.

        Source: Peters et al. 2018, §3.2 and 3.3, for the second mix beside what the LSTM makes of the first.
        """
        x: Tensor = mix(layers)
        if self.lstm is None:
            return x
        x = self.lstm(x, rows)
        return x if self.second is None else torch.cat([x, self.second(layers)], 1)

    def mix_weights(self) -> list[Tensor]:
        """The weights of all mixes before their softmax; none where nothing is weighted."""
        return [mix.scalars for mix in (self.mix, self.second) if isinstance(mix, WeightedSum)]


class SharedBias(nn.Linear):
    """The head of a sum of two vectors, applied to each of them: their outputs add up to that of the sum.

    W h₁ + b/2 + W h₂ + b/2 = W (h₁ + h₂) + b (Radford et al. 2018, §3.3, similarity).
    """

    def forward(self, x: Float[Tensor, "N width"]) -> Float[Tensor, "N K"]:
        return F.linear(x, self.weight, self.bias / 2)


def merge_rows(x: Float[Tensor, "B K"], rows_per_example: Int[Tensor, " E"], how: str) -> Float[Tensor, "E K"]:
    """The outputs of a text's rows as one: their mean, maximum or sum."""
    if rows_per_example.numel() == x.shape[0]:
        return x
    return pool_runs(x, rows_per_example.to(x.device), how)


class TaskModel(Objective):
    """An encoder and a fresh head: an objective that can also answer.

    ``unit``: what an output belongs to. ``outputs(tokens)``: named tensors, the first axis counts the units
    (rows, asked words or tokens) of all rows. ``forward`` goes ``read``, ``logits``, ``step``: the encoder runs once.
    """

    penalties = frozenset({"mix"})

    unit: Unit
    features: Features
    head: nn.Linear

    def build(
        self, encoder: Encoder, config: Any, n_outputs: int, weights: dict[str, float],
        head: type[nn.Linear] = nn.Linear,
    ) -> None:  # fmt: skip
        """Make the parts that every task has. ``weights``: of the task's own terms.

        ConfigError for features that the encoder does not have, and for ``auxiliary_lm`` where it reads both ways.
        """
        self.encoder, self.config, self.weights = encoder, config, weights
        self.features = Features(encoder, config.features, self.unit)
        self.head = head(self.features.width, n_outputs)
        truncated_normal_(self.head, HEAD_INIT_RANGE)
        self.keep = self.features.keep
        if config.features.mix_l2:
            self.weights["mix"] = config.features.mix_l2
        auxiliary = getattr(config, "auxiliary_lm", 0.0)
        if not auxiliary:
            return
        if not encoder.causal:
            raise ConfigError(
                f"auxiliary_lm={auxiliary}: this encoder reads in both directions, so that each token knows the next "
                "one: leave it out, or take a model that reads left to right"
            )
        self.keep = tuple(sorted({*self.keep, len(encoder.widths) - 1}))
        self.weights["lm"] = auxiliary

    def counts(self, batch: Batch) -> dict[str, int]:
        return {**batch.counts(), "mix": 1}

    def read(self, tokens: Tokens) -> Hidden:
        """What ``logits`` and ``step`` need of the encoder."""
        hidden: Hidden = self.encoder(tokens, keep=self.keep)
        return hidden

    def logits(self, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "N K"]:
        """The head's outputs, float32."""
        return self.head(self.features.dropout(self.features(hidden, tokens))).float()

    def step(self, losses: dict[str, Tensor], correct: dict[str, Tensor], hidden: Hidden, batch: Batch) -> Step:
        """The task's own terms, and with ``auxiliary_lm`` the language model's beside them: term ``lm``.

        Every token of a row, special ones included, predicts the next one by the softmax of its top vector's products
        with the input embeddings, without a bias. Source: Radford et al. 2018, §3.2. Differs: the mean is over all
        predictions of an update; openai/finetune-transformer-lm takes each row's own mean first.
        In training, with ``mix_l2``, the sum of squares of the mixes' weights: term ``mix``, once a micro-batch.
        """
        if "lm" in self.weights:
            target, embedding = batch.targets["lm"], self.encoder.piece_embedding
            chosen = hidden.top.index_select(0, target.index)
            losses["lm"], correct["lm"] = vocabulary_loss(chosen, embedding, None, target.label)
        if "mix" in self.weights and self.training:
            losses["mix"] = torch.stack([weights.square().sum() for weights in self.features.mix_weights()]).sum()
        return Step(losses, correct)

    def outputs(self, tokens: Tokens) -> dict[str, Tensor]:
        """What answers are made of."""
        return {"logits": self.logits(self.read(tokens), tokens)}
