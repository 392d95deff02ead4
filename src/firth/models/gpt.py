"""OpenAI GPT's encoder, in the order of the paper.

Source: Radford et al. 2018, §3.1 and §4.1; openai/finetune-transformer-lm train.py.
"""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn

from firth.layers.attention import Joined, Past
from firth.layers.blocks import PostNormBlock, run_blocks, step_blocks
from firth.layers.dropout import Dropout
from firth.layers.initialise import normal_
from firth.machine import compute_dtype
from firth.models.config import GptConfig
from firth.packed import Encoder, Hidden, Tokens, check_length, kept_layers


class GptEmbeddings(nn.Module):
    """Sum of token and position embeddings, then dropout; no scaling and no LayerNorm.

    Differs: the released code has one table of tokens and positions and drops its entries, the same ones for the whole
    batch and the output softmax. Here, as in transformers, dropout applies to the sum. Without dropout both agree.
    """

    def __init__(self, config: GptConfig):
        super().__init__()
        self.pieces = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.max_positions, config.width)
        self.dropout = Dropout(config.embedding_dropout)

    def forward(self, ids: Int[Tensor, " T"], positions: Int[Tensor, " T"]) -> Float[Tensor, "T H"]:
        x = self.pieces(ids) + self.positions(positions)
        # From here on the residual sums have the dtype of the matrix products, as in BERT.
        return self.dropout(x.to(compute_dtype(x)))


class Gpt(Encoder):
    """OpenAI GPT: a causal post-norm Transformer without a final LayerNorm.

    ``summary`` is the top state of the last token (the extract token in fine-tuning), without a pooler.
    """

    def __init__(self, config: GptConfig):
        super().__init__()
        self.config = config
        self.embeddings = GptEmbeddings(config)
        self.blocks = nn.ModuleList(
            PostNormBlock(
                width=config.width,
                n_heads=config.n_heads,
                feed_forward_width=config.feed_forward_width,
                activation="gelu_tanh",
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                norm_epsilon=config.norm_epsilon,
                causal=True,
            )
            for _ in range(config.n_layers)
        )
        normal_(self, config.init_range)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of layers 0 (embeddings) to L."""
        return (self.config.width,) * (self.config.n_layers + 1)

    @property
    def causal(self) -> bool:
        return True

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        kept = kept_layers(keep, self.config.n_layers)
        check_length(tokens.rows, self.config.max_positions)
        x, layers = run_blocks(self.blocks, self.embeddings(tokens.ids, tokens.rows.positions), tokens.rows, kept)
        if self.config.n_layers in kept:
            layers[self.config.n_layers] = x
        return Hidden(layers=layers, rows=tokens.rows, summary=x.index_select(0, tokens.rows.last))

    def step(self, tokens: Tokens, past: Past | None) -> tuple[Float[Tensor, "T H"], Past]:
        """Top states of tokens that continue sequences, equal to those of ``forward``; in evaluation mode.

        ``past``: the cache from the previous call, None at the start.
        """
        joined = Joined.of(None if past is None else past.rows, tokens.rows)
        check_length(joined.every, self.config.max_positions)
        return step_blocks(self.blocks, self.embeddings(tokens.ids, joined.positions), joined, past)

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.embeddings.pieces.weight

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """All parameters, bottom to top: embeddings, each block."""
        return [list(part.parameters()) for part in (self.embeddings, *self.blocks)]

    def regions(self) -> list[nn.Module]:
        return list(self.blocks)
