"""What the heads of all tasks share: how they read an encoder, and what they offer."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.errors import ConfigError
from firth.layers.dropout import Dropout
from firth.layers.initialise import truncated_normal_
from firth.layers.mixing import WeightedSum, make_mix, pool_rows, pool_runs, pool_words
from firth.layers.recurrent import BiRNN
from firth.layers.vocabulary import vocabulary_loss
from firth.packed import Encoder, Hidden, Rows, Tokens, kept_layers
from firth.tasks.config import FeatureConfig
from firth.tasks.own_words import OwnWords

Unit = Literal["row", "word", "token"]

# Deviation of a fresh head's weights. Source: google-research/bert run_classifier.py.
HEAD_INIT_RANGE = 0.02


class Features(nn.Module):
    """Vectors of rows, words or tokens from the layers of an encoder: (rows, width), (words, width), (tokens, width).

    Source: Devlin et al. 2018, §5.3, for the ways to mix layers and the LSTM between encoder and head; Peters et al.
    2017, §2 and §3.3, for words of the head's own and the places where the layers enter.
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
        if self.summary:
            _check_summary(config)
        reads_layers, norm = not self.summary and config.join != "none", config.layer_norm
        self.mix = make_mix(config.mix, numbers, encoder.widths, layer_norm=norm) if reads_layers else None
        self.keep: tuple[int, ...] = numbers if reads_layers else ()
        self.own = OwnWords(encoder.config.vocab_size, config) if config.has_own else None
        mixed = 0 if self.mix is None else self.mix.width
        width = encoder.summary_width if self.summary else 0 if self.own is None else self.own.width
        self.lstm = self.upper = self.second = None
        # Layers below the place where the encoder's enter, then those above it.
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
            self.second = make_mix(config.mix, numbers, encoder.widths, layer_norm=norm)
            width += self.second.width
        self.width: int = width
        self.dropout = Dropout(config.dropout if config.output_dropout else 0.0)

    def forward(self, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "N width"]:
        """``hidden``: at least the layers ``keep`` of ``tokens``. ``dropout`` is for the caller to apply."""
        if self.summary:
            assert hidden.summary is not None
            return hidden.summary
        own = None if self.own is None else self.own(tokens)
        if self.unit == "word":
            return self._of_words(own, hidden, tokens)
        x = self._between(own, hidden.layers, tokens.rows)
        return pool_rows(x, tokens.rows, self.config.pool) if self.unit == "row" else x

    def _of_words(self, own: Tensor | None, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "M width"]:
        """Words before layers, so that a mix with a norm sees nothing else, as of stored features.

        The head's own vector of a word is made of those of its pieces as the encoder's is.
        """
        assert tokens.words is not None
        words, how = tokens.words, self.config.words
        first, last = words.first, words.last
        if self.lstm is None:
            first, last = first.index_select(0, words.asked), last.index_select(0, words.asked)
        layers = {n: pool_words(hidden.layers[n], first, last, how) for n in self.keep}
        x = self._between(None if own is None else pool_words(own, first, last, how), layers, words.rows)
        return x if self.lstm is None else x.index_select(0, words.asked)

    def _between(self, own: Tensor | None, layers: dict[int, Tensor], rows: Rows) -> Float[Tensor, "N width"]:
        """What stands between encoder and head, before anything is pooled or chosen.

        Source: Peters et al. 2017, §2.4 and 3.3, for ``join``; Peters et al. 2018, §3.2 and 3.3, for the second mix
        beside what the LSTM makes of the first.
        """
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
        """The weights of all mixes before their softmax; none where nothing is weighted."""
        return [mix.scalars for mix in (self.mix, self.second) if isinstance(mix, WeightedSum)]


def _beside(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Vectors side by side; one alone as it is."""
    return torch.cat([*left, *right], 1) if left and right else (left or right)[0]


def _check_summary(config: FeatureConfig) -> None:
    """ConfigError for options of tokens where a text is read as one vector."""
    advice = "choose features.pool, mean or max"
    if config.lstm_layers:
        raise ConfigError(f"features.lstm_layers reads the tokens of a text: {advice}")
    if config.has_own:
        raise ConfigError(f"features.own_words and own_characters are of the tokens of a text: {advice}")
    if config.layers != (-1,) or config.mix != "one":
        raise ConfigError(f"features.layers and mix are of the tokens of a text: {advice}")


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
    ``joins_rows``: the outputs of a row depend on the others of its example, so that they must be in one batch.
    """

    penalties = frozenset({"mix"})
    joins_rows: ClassVar[bool] = False

    unit: Unit
    features: Features
    head: nn.Module

    def build(
        self, encoder: Encoder, config: Any, n_outputs: int, weights: dict[str, float],
        head: Callable[[int, int], nn.Module] = nn.Linear, reads: Unit | None = None,
    ) -> None:  # fmt: skip
        """Make the parts that every task has. ``weights``: of the task's own terms. ``head``: of widths in and out;
        ``reads``: what it has vectors of, where that is not the ``unit``.

        ConfigError for features that the encoder does not have, and for ``auxiliary_lm`` where it reads both ways.
        """
        self.encoder, self.config, self.weights = encoder, config, weights
        self.features = Features(encoder, config.features, reads or self.unit)
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

    def read(self, tokens: Tokens, keep: Sequence[int] | None = None) -> Hidden:
        """What ``logits`` and ``step`` need of the encoder, or these layers of it. For nothing it does not run."""
        keep = self.keep if keep is None else keep
        if not keep and not self.features.summary:
            return Hidden(layers={}, rows=tokens.rows)
        hidden: Hidden = self.encoder(tokens, keep=keep)
        return hidden

    def logits(self, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "N K"]:
        """The head's outputs, float32."""
        logits: Tensor = self.head(self.features.dropout(self.features(hidden, tokens)))
        return logits.float()

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
