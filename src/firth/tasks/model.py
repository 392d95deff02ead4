"""Shared parts of all task heads: how they read an encoder, and their interface."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.data.batch import Batch, Objective, Step
from firth.errors import ConfigError
from firth.layers.batch_norm import BatchNorm
from firth.layers.biattention import BiattentiveNetwork
from firth.layers.dropout import Dropout
from firth.layers.initialise import truncated_normal_, xavier_
from firth.layers.mixing import pool_runs
from firth.layers.towers import TowersNetwork
from firth.layers.vocabulary import vocabulary_loss
from firth.packed import Encoder, Hidden, Tokens
from firth.tasks.config import AnyNetwork, BiattentiveConfig, LinearConfig, TowersConfig, reads_apart
from firth.tasks.features import Features, Unit, make_features

# Deviation of a fresh head's weights. Source: google-research/bert run_classifier.py.
HEAD_INIT_RANGE = 0.02
# Between the hidden layer and the output (Howard & Ruder 2018; specification of ULMFiT, §3).
_HIDDEN_DROPOUT = 0.1


class HiddenLayerHead(nn.Module):
    """A hidden layer of rectified units, with batch normalisation and dropout before it and after it.

    Source: Howard & Ruder 2018, §3.3 (specification of ULMFiT, §3). Both linear layers have a bias, as in the authors'
    own scripts; fastai 2 leaves it out.
    """

    def __init__(self, width: int, n_outputs: int, *, hidden_width: int, dropout: float):
        super().__init__()
        self.norm, self.dropout, self.hidden = BatchNorm(width), Dropout(dropout), nn.Linear(width, hidden_width)
        self.hidden_norm, self.hidden_dropout = BatchNorm(hidden_width), Dropout(_HIDDEN_DROPOUT)
        self.output = nn.Linear(hidden_width, n_outputs)

    def forward(self, x: Float[Tensor, "N width"]) -> Float[Tensor, "N K"]:
        x = self.hidden(self.dropout(self.norm(x))).relu()
        logits: Tensor = self.output(self.hidden_dropout(self.hidden_norm(x)))
        return logits


def _last_layers(network: AnyNetwork) -> Callable[[int, int], nn.Module]:
    """What makes the head above the features, of widths in and out."""
    if isinstance(network, BiattentiveConfig):
        return partial(BiattentiveNetwork, width=network.width, dropout=network.dropout)
    if isinstance(network, TowersConfig):
        return partial(TowersNetwork, compare=network.compare, dropout=network.dropout)
    if isinstance(network, LinearConfig) and network.hidden_width:
        return partial(HiddenLayerHead, hidden_width=network.hidden_width, dropout=network.dropout)
    return nn.Linear


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
    ``joins_rows``: each text of a pair is a row of its own and the network compares them, so that both must be in one
    batch; their outputs add up to those of the pair.
    """

    penalties = frozenset({"mix"})
    joins_rows: bool

    unit: Unit
    features: Features
    head: nn.Module

    def build(
        self,
        encoder: Encoder,
        config: Any,
        n_outputs: int,
        weights: dict[str, float],
        head: Callable[[int, int], nn.Module] | None = None,
        reads: Unit | None = None,
    ) -> None:
        """Make the parts that every task has. ``weights``: of the task's own terms. ``head``: of widths in and out,
        where it is not the network's linear layer; ``reads``: what it has vectors of, where that is not the ``unit``.

        ConfigError for features that the encoder does not have, and for ``auxiliary_lm`` where it reads both ways.
        """
        self.encoder, self.config, self.weights = encoder, config, weights
        self.joins_rows = reads_apart(config.network)
        self.features = make_features(encoder, config.network, reads or self.unit)
        self.head = (head or _last_layers(config.network))(self.features.width, n_outputs)
        truncated_normal_(self.head, HEAD_INIT_RANGE)
        if isinstance(self.head, BiattentiveNetwork):
            xavier_(self.head)  # what suits one layer on an encoder would leave little of a text after six of them
        self.keep = self.features.keep
        if config.network.mix_l2:
            self.weights["mix"] = config.network.mix_l2
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
        if self.joins_rows:
            tokens = replace(tokens, segments=None)  # they say which text is the second: not for the encoder
        hidden: Hidden = self.encoder(tokens, keep=keep)
        return hidden

    def logits(self, hidden: Hidden, tokens: Tokens) -> Float[Tensor, "N K"]:
        """The head's outputs, float32."""
        features = self.features.dropout(self.features(hidden, tokens))
        logits: Tensor
        if not self.joins_rows:
            logits = self.head(features)
        else:
            first = tokens.rows.first
            second = torch.zeros_like(first) if tokens.segments is None else tokens.segments.index_select(0, first)
            of_tokens = (tokens.rows,) if self.features.unit == "token" else ()
            logits = self.head(features, *of_tokens, second.bool())
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
