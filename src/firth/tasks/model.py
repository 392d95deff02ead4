"""The base of all task models: how a head reads an encoder, and the common interface."""

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
from firth.models.bert import Bert
from firth.models.gpt import Gpt
from firth.packed import Encoder, Hidden, Tokens
from firth.tasks.config import AnyNetwork, BiattentiveConfig, LinearConfig, TowersConfig, reads_apart
from firth.tasks.features import Features, Unit, make_features
from firth.tasks.rows import N_SEGMENTS

# Standard deviation of a head's initial weights. Source: google-research/bert run_classifier.py.
HEAD_INIT_RANGE = 0.02
# Between the hidden layer and the output (Howard & Ruder 2018; specification of ULMFiT, §3).
_HIDDEN_DROPOUT = 0.1


class HiddenLayerHead(nn.Module):
    """A head with one hidden ReLU layer, batch normalisation and dropout before and after it.

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
    """The constructor of the head above the features, from input and output width."""
    if isinstance(network, BiattentiveConfig):
        return partial(BiattentiveNetwork, width=network.width, dropout=network.dropout)
    if isinstance(network, TowersConfig):
        return partial(TowersNetwork, compare=network.compare, dropout=network.dropout)
    if isinstance(network, LinearConfig) and network.hidden_width:
        return partial(HiddenLayerHead, hidden_width=network.hidden_width, dropout=network.dropout)
    return nn.Linear


class SharedBias(nn.Linear):
    """A linear head for a sum of two vectors, applied to each, so that the outputs add up to that of the sum.

    W h₁ + b/2 + W h₂ + b/2 = W (h₁ + h₂) + b (Radford et al. 2018, §3.3, similarity).
    """

    def forward(self, x: Float[Tensor, "N width"]) -> Float[Tensor, "N K"]:
        return F.linear(x, self.weight, self.bias / 2)


def merge_rows(x: Float[Tensor, "B K"], rows_per_example: Int[Tensor, " E"], how: str) -> Float[Tensor, "E K"]:
    """Combine the outputs of a text's sequences: mean, maximum or sum."""
    if rows_per_example.numel() == x.shape[0]:
        return x
    return pool_runs(x, rows_per_example.to(x.device), how)


class TaskModel(Objective):
    """An encoder with a task head: an objective that can also predict.

    ``unit``: what an output belongs to. ``outputs(tokens)``: named tensors; the first axis counts the units
    (sequences, target words or tokens) of the batch. ``forward`` calls ``read``, ``logits``, ``step``: the encoder runs
    once. ``joins_rows``: each text of a pair is its own sequence and the network compares the two, so both must be in
    one batch; their outputs add up to those of the pair.
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
        """Build the parts that every task has. ``weights``: of the task's own loss terms.

        ``head``: constructor from input and output width, if not the network's own; ``reads``: what its input vectors
        represent, if not the ``unit``.

        ConfigError for features or segments that the encoder lacks, and for ``auxiliary_lm`` with a bidirectional
        encoder.
        """
        if getattr(config, "mark_shared_words", False):  # taggers do not read pairs
            if not isinstance(encoder, Bert):
                raise ConfigError(
                    "head.mark_shared_words=true: words are marked by segment embeddings, which only BERT has: leave "
                    "it out"
                )
            encoder.extend_segments(2 * N_SEGMENTS)
        self.encoder, self.config, self.weights = encoder, config, weights
        self.joins_rows = reads_apart(config.network)
        self.features = make_features(encoder, config.network, reads or self.unit)
        self.head = (head or _last_layers(config.network))(self.features.width, n_outputs)
        truncated_normal_(self.head, HEAD_INIT_RANGE)
        if isinstance(self.head, BiattentiveNetwork):
            xavier_(
                self.head
            )  # the small weights that suit one layer on an encoder would shrink the signal over six layers
        self.keep = self.features.keep
        if config.network.mix_l2:
            self.weights["mix"] = config.network.mix_l2
        auxiliary = getattr(config, "auxiliary_lm", 0.0)
        if not auxiliary:
            return
        if not encoder.causal:
            raise ConfigError(
                f"head.auxiliary_lm={auxiliary}: only a left-to-right encoder predicts the next token: leave it out, "
                "or use such a model"
            )
        if config.auxiliary_form == "published" and not isinstance(encoder, Gpt):
            raise ConfigError("auxiliary_form='published' is of GPT's position rows: leave it out, or take a GPT")
        self.keep = tuple(sorted({*self.keep, len(encoder.widths) - 1}))
        self.weights["lm"] = auxiliary

    @property
    def passes(self) -> int:
        """How often a step of training reads its batch: once, unless the task's options have ``passes``."""
        return int(getattr(self.config, "passes", 1))

    def counts(self, batch: Batch) -> dict[str, int]:
        counts = {**batch.counts(), "mix": 1}
        if "lm" in self.weights and self.config.auxiliary_form == "published":
            counts["lm"] = batch.tokens.rows.n_rows
        return counts

    def read(self, tokens: Tokens, keep: Sequence[int] | None = None) -> Hidden:
        """Run the encoder and return the layers that ``logits`` and ``step`` need, or ``keep``; if none, skip it."""
        keep = self.keep if keep is None else keep
        if not keep and not self.features.summary:
            return Hidden(layers={}, rows=tokens.rows)
        if self.joins_rows:
            tokens = replace(tokens, segments=None)  # they mark the second text; the encoder must not see them
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
        """Combine the task's loss terms with the auxiliary ones.

        ``auxiliary_lm`` adds term ``lm``: every token, special ones included, predicts the next by a softmax over the
        products of its top vector with the input embeddings, without a bias; the mean is over all predictions of an
        update (``auxiliary_form``: over sequences, see ``_published_lm``). Source: Radford et al. 2018, §3.2.
        ``mix_l2`` adds term ``mix`` in training: the sum of squares of the scalar mix weights, once per micro-batch.
        """
        if "lm" in self.weights and self.config.auxiliary_form == "published":
            losses["lm"], correct["lm"] = self._published_lm(hidden, batch)
        elif "lm" in self.weights:
            target, embedding = batch.targets["lm"], self.encoder.piece_embedding
            chosen = hidden.top.index_select(0, target.index)
            losses["lm"], correct["lm"] = vocabulary_loss(chosen, embedding, None, target.label)
        if "mix" in self.weights and self.training:
            losses["mix"] = torch.stack([weights.square().sum() for weights in self.features.mix_weights()]).sum()
        return Step(losses, correct)

    def _published_lm(self, hidden: Hidden, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum over sequences of the mean next-token loss, and of the share of correct predictions.

        A position's embedding can be predicted like a token. Source: openai/finetune-transformer-lm
        train.py, model. Differs: dropout on embeddings does not reach the output softmax.
        """
        assert isinstance(self.encoder, Gpt)
        table = torch.cat([self.encoder.piece_embedding, self.encoder.embeddings.positions.weight])
        target, rows = batch.targets["lm"], batch.tokens.rows
        n_predictions = (rows.lengths - 1).index_select(0, rows.row_of_token().index_select(0, target.index))
        loss, correct = table.new_zeros(()), table.new_zeros(())
        for n in n_predictions.unique().tolist():  # sequences of one length together: each prediction weighs 1/n
            (chosen,) = (n_predictions == n).nonzero(as_tuple=True)
            vectors = hidden.top.index_select(0, target.index.index_select(0, chosen))
            found, right = vocabulary_loss(vectors, table, None, target.label.index_select(0, chosen))
            loss, correct = loss + found / n, correct + right / n
        return loss, correct

    def outputs(self, tokens: Tokens) -> dict[str, Tensor]:
        """The model outputs that predictions are decoded from."""
        return {"logits": self.logits(self.read(tokens), tokens)}
