"""The post-norm Transformer block of the paper, BERT and GPT."""

from collections.abc import Collection, Iterable

from jaxtyping import Float
from torch import Tensor, nn

from firth.layers.activations import ACTIVATIONS
from firth.layers.attention import Joined, KeysValues, Past, SelfAttention
from firth.layers.dropout import Dropout
from firth.packed import Rows


class PostNormBlock(nn.Module):
    """Self-attention and a feed-forward part, each followed by dropout, residual sum and LayerNorm.

    Source: Vaswani et al. 2017, §3.1 and §5.4.
    """

    def __init__(
        self,
        *,
        width: int,
        n_heads: int,
        feed_forward_width: int,
        activation: str,
        dropout: float,
        attention_dropout: float,
        norm_epsilon: float,
        causal: bool,
        attention_bias: bool = True,
        feed_forward_dropout: float = 0.0,
    ):
        super().__init__()
        self.attention = SelfAttention(
            width=width, n_heads=n_heads, dropout=attention_dropout, causal=causal, bias=attention_bias
        )
        self.attention_norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.feed_forward = nn.Linear(width, feed_forward_width)
        self.activate = ACTIVATIONS[activation]
        self.inner_dropout = Dropout(feed_forward_dropout)
        self.feed_forward_output = nn.Linear(feed_forward_width, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        return self._after_attention(x, self.attention(x, rows))

    def step(
        self, x: Float[Tensor, "T H"], joined: Joined, past: KeysValues | None
    ) -> tuple[Float[Tensor, "T H"], KeysValues]:
        """``forward`` of tokens that continue sequences; also returns the key-value cache of all tokens."""
        context, kept = self.attention.step(x, joined, past)
        return self._after_attention(x, context), kept

    def _after_attention(self, x: Tensor, context: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(context))
        inner = self.inner_dropout(self.activate(self.feed_forward(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward_output(inner)))


def run_blocks(
    blocks: Iterable[nn.Module], x: Float[Tensor, "T H"], rows: Rows, kept: Collection[int]
) -> tuple[Float[Tensor, "T H"], dict[int, Float[Tensor, "T H"]]]:
    """Top states, and the inputs of the blocks whose numbers are in ``kept``: 0 is the first one's."""
    layers = {}
    for number, block in enumerate(blocks):
        if number in kept:
            layers[number] = x
        x = block(x, rows)
    return x, layers


def step_blocks(
    blocks: Iterable[nn.Module], x: Float[Tensor, "T H"], joined: Joined, past: Past | None
) -> tuple[Float[Tensor, "T H"], Past]:
    """Top states of tokens that continue sequences, and the cache of all tokens; ``past``: None at the start."""
    layers = []
    for number, block in enumerate(blocks):
        assert isinstance(block, PostNormBlock)
        x, kept = block.step(x, joined, None if past is None else past.layers[number])
        layers.append(kept)
    return x, Past(joined.every, tuple(layers))
