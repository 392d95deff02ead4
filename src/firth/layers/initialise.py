"""How parameters begin."""

from torch import nn


def truncated_normal_(module: nn.Module, std: float) -> None:
    """BERT's: matrices and embeddings from N(0, std²) re-drawn outside ±2 std, biases 0, norms 1 and 0.

    Source: google-research/bert modeling.py, create_initializer. The sample deviation is about 0.88 std.
    """
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
