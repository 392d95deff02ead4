"""BERT on padded batches, for tools without packed sequences (ONNX).

The same weights, computed step by step as in the papers (Devlin et al. 2018, §3; Vaswani et al. 2017, §3.2.1) and with
plain operations only, so that an exporter can trace them. ``ids``, ``mask`` and ``segments`` are (B, S); ``mask`` is
1 at real tokens and 0 at padding, which comes last in its row. There is no dropout: these modules only predict.
"""

import math
from collections.abc import Callable, Collection

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from firth.data.batch import Objective
from firth.errors import ConfigError
from firth.layers.attention import SelfAttention
from firth.layers.blocks import PostNormBlock
from firth.layers.towers import TowersNetwork
from firth.layers.vocabulary import VocabularyHead
from firth.models.bert import Bert
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_token import CausalLM
from firth.tasks.answer import Answerer
from firth.tasks.choose import Chooser
from firth.tasks.config import LinearConfig, TowersConfig
from firth.tasks.learnt import POOLER
from firth.tasks.model import TaskModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Inputs of models that encode the texts of a pair separately: each is a single text, entirely in the first segment.
PAIR_INPUTS = ("input_ids", "attention_mask", "second_input_ids", "second_attention_mask")


class PaddedBert(nn.Module):
    """``Bert`` on padded batches: its layers 0 (embeddings) to L (B, S, H), and its summary (B, H)."""

    def __init__(self, encoder: Bert):
        super().__init__()
        self.encoder = encoder

    def forward(
        self, ids: Int[Tensor, "B S"], mask: Int[Tensor, "B S"], segments: Int[Tensor, "B S"]
    ) -> tuple[list[Tensor], Tensor]:
        # Queries must not attend to these keys.
        hidden = mask.eq(0)[:, None, None, :]
        if self.encoder.config.causal:
            place = torch.arange(ids.shape[1], device=ids.device)
            hidden = hidden | (place > place[:, None])
        embeddings = self.encoder.embeddings
        if embeddings.segments.num_embeddings == 1:
            segments = segments * 0  # both texts of a pair have it; the graph keeps its input
        x = embeddings.pieces(ids) + embeddings.positions.weight[: ids.shape[1]] + embeddings.segments(segments)
        layers = [embeddings.norm(x)]
        for block in self.encoder.blocks:
            assert isinstance(block, PostNormBlock)
            layers.append(padded_block(block, layers[-1], hidden))
        chosen = last_tokens(layers[-1], mask) if self.encoder.config.causal else layers[-1][:, 0]
        return layers, torch.tanh(self.encoder.pooler(chosen))


def padded_block(
    block: PostNormBlock, x: Float[Tensor, "B S H"], hidden: Bool[Tensor, "B 1 _ S"]
) -> Float[Tensor, "B S H"]:
    """Self-attention and a feed-forward network, each followed by a residual connection and LayerNorm."""
    x = block.attention_norm(x + padded_attention(block.attention, x, hidden))
    inner = block.activate(block.feed_forward(x))
    return block.feed_forward_norm(x + block.feed_forward_output(inner))


def padded_attention(
    attention: SelfAttention, x: Float[Tensor, "B S H"], hidden: Bool[Tensor, "B 1 _ S"]
) -> Float[Tensor, "B S H"]:
    """softmax(q kᵀ / √D) v in each head, over the keys that are not hidden."""
    heads = attention.query_key_value(x).unflatten(-1, (3, attention.n_heads, -1))
    q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    # Not minus infinity: a row of only padding belongs to no text, but must not become NaN.
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    return attention.output((weights @ v).transpose(1, 2).flatten(2))


def last_tokens(x: Float[Tensor, "B S H"], mask: Int[Tensor, "B S"]) -> Float[Tensor, "B H"]:
    """The vector of each row's last real token."""
    return x[torch.arange(x.shape[0], device=x.device), mask.sum(1) - 1]


def padded_pool(x: Float[Tensor, "B S H"], mask: Int[Tensor, "B S"], how: str) -> Float[Tensor, "B H"]:
    """One vector per row: that of its first or last token, or the mean or maximum over all real ones."""
    if how == "first":
        return x[:, 0]
    if how == "last":
        return last_tokens(x, mask)
    real = mask.ne(0)[:, :, None]
    if how == "mean":
        return (x * real).sum(1) / real.sum(1)
    return x.masked_fill(~real, torch.finfo(x.dtype).min).amax(1)


def padded_attention_pool(
    x: Float[Tensor, "B S H"], mask: Int[Tensor, "B S"], scores: Float[Tensor, "B S 1"]
) -> Float[Tensor, "B H"]:
    """The mean of each row's real tokens, weighted by the softmax of their scores."""
    weights = scores.masked_fill(mask.eq(0)[:, :, None], torch.finfo(x.dtype).min).softmax(1)
    return (x * weights).sum(1)


class PaddedPretrained(nn.Module):
    """A pre-trained model: the top layer, and its summary and token logits if they are trained."""

    def __init__(self, encoder: Bert, head: VocabularyHead | None, *, summary: bool):
        super().__init__()
        self.bert, self.head, self.summary = PaddedBert(encoder), head, summary

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
        layers, summary = self.bert(ids, mask, segments)
        top = layers[-1]
        outputs = {"last_hidden_state": top}
        if self.summary:
            outputs["pooler_output"] = summary
        if self.head is not None:
            logits = self.head.logits(top.flatten(0, 1), self.bert.encoder.piece_embedding)
            outputs["logits"] = logits.unflatten(0, ids.shape)
        return outputs


class PaddedTask(nn.Module):
    """A fine-tuned model: the outputs of its head for each row, or for every token.

    The head is linear, so a word's tokens can be pooled after it as well as before; the caller does that.
    """

    def __init__(self, model: TaskModel):
        super().__init__()
        self.features, self.head, self.named = PaddedFeatures(model), model.head, naming(model)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
        return self.named(self.head(self.features(ids, mask, segments)))


class PaddedTowers(nn.Module):
    """A model that encodes the texts of a pair separately: the outputs of its head for each pair of rows."""

    def __init__(self, model: TaskModel):
        super().__init__()
        assert isinstance(model.head, TowersNetwork)
        self.features, self.head, self.named = PaddedFeatures(model), model.head, naming(model)

    def forward(self, ids: Tensor, mask: Tensor, second_ids: Tensor, second_mask: Tensor) -> dict[str, Tensor]:
        u = self.features(ids, mask, torch.zeros_like(ids))
        v = self.features(second_ids, second_mask, torch.zeros_like(second_ids))
        return self.named(self.head.compared(u, v))


class PaddedFeatures(nn.Module):
    """The input of a head: a vector for each row (B, width), or for every token (B, S, width)."""

    def __init__(self, model: TaskModel):
        super().__init__()
        assert isinstance(model.encoder, Bert)
        self.bert, self.mix = PaddedBert(model.encoder), model.features.mix
        self.scorer = model.features.scorer
        self.pool = model.features.pool if model.unit == "row" else None

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        layers, summary = self.bert(ids, mask, segments)
        if self.mix is None:
            return summary
        # The mixes read tokens along one axis.
        mixed = self.mix({number: layer.flatten(0, 1) for number, layer in enumerate(layers)})
        x: Tensor = mixed.unflatten(0, ids.shape)
        if self.scorer is not None:
            return padded_attention_pool(x, mask, self.scorer(x))
        return x if self.pool is None else padded_pool(x, mask, self.pool)


def naming(model: TaskModel) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function that names a head's outputs: start and end separately, choices without the last axis."""
    if isinstance(model, Answerer):
        return lambda logits: {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    if isinstance(model, Chooser):
        return lambda logits: {"logits": logits[..., 0]}
    return lambda logits: {"logits": logits}


def vocabulary_head(objective: Objective) -> VocabularyHead | None:
    """Return the head of a pre-trained model that predicts tokens; None if it has none."""
    if isinstance(objective, MaskedLM):
        return objective.mlm
    return objective.lm if isinstance(objective, CausalLM) else None


def make_padded(objective: Objective, untrained: Collection[str]) -> tuple[nn.Module, tuple[str, ...]]:
    """Build the padded form of a model, without its ``untrained`` parts, such as ``"mlm"`` or ``"encoder.pooler"``;
    also return the names of its inputs, in order.

    ConfigError for an encoder other than BERT, and for a BiLSTM, a CRF or a hidden layer after it.
    """
    encoder = objective.encoder
    if not isinstance(encoder, Bert):
        raise ConfigError(f"an encoder of the kind {type(encoder).__name__} has no padded form: only BERT has")
    if isinstance(objective, TaskModel):
        network = objective.config.network
        if not isinstance(network, (LinearConfig, TowersConfig)):
            raise ConfigError(f"a head of network.kind={network.kind!r} has no padded form: train a linear one")
        if network.layer_norm:
            raise ConfigError("a mix with network.layer_norm has no padded form: train one without")
        if getattr(objective, "crf", None) is not None:
            raise ConfigError("a tagger with a CRF (head.crf) has no padded form: train one without")
        if isinstance(network, TowersConfig):
            return PaddedTowers(objective).eval(), PAIR_INPUTS
        if not isinstance(objective.head, nn.Linear):
            raise ConfigError("a head with network.hidden_width has no padded form: train one without")
        return PaddedTask(objective).eval(), INPUTS
    head = None if {"mlm", "lm"} & set(untrained) else vocabulary_head(objective)
    return PaddedPretrained(encoder, head, summary=POOLER not in untrained).eval(), INPUTS
