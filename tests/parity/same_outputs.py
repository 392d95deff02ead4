"""What a comparison with another library's BERT takes: the same input, padded, and a tolerance."""

import torch
from torch import Tensor

from firth.packed import Tokens, to_padded


def padded(tokens: Tokens) -> dict[str, Tensor]:
    """Arguments of a model of transformers."""
    assert tokens.segments is not None
    ids, real = to_padded(tokens.ids, tokens.rows)
    segments, _ = to_padded(tokens.segments, tokens.rows)
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": real.long()}


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
