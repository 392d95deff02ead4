"""Attention weights for pages that draw them."""

import base64
from typing import Any

import numpy as np

from firth.serving.asking import Context, Route, checked
from firth.serving.refusals import RefusalError

# Tokens of a text whose weights are sent: 128 of BERT-base are 2.4 MB.
MOST_TOKENS = 128


@checked
class AttentionBody:
    """A text or a pair of texts."""

    inputs: str
    second: str | None = None


async def attention(context: Context, body: AttentionBody) -> Any:
    hosted = context.hosted("attention")
    texts = context.texts([body.inputs, *([] if body.second is None else [body.second])])
    model = hosted.model
    if sum(len(model.tokenize(text)) for text in texts) + 3 > MOST_TOKENS:
        raise RefusalError(422, "length", f"more than {MOST_TOKENS} tokens: shorten the text", "inputs")
    found = await context.ask(hosted.attention(*texts, *([None] * (2 - len(texts)))))
    n_layers, n_heads, n_tokens, _ = found.weights.shape
    levels = np.round(found.weights * 255).astype(np.uint8)
    return {
        "tokens": found.pieces,
        "shape": [n_layers, n_heads, n_tokens, n_tokens],
        "weights": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


ROUTES = (Route("POST", "/attention", attention, AttentionBody, "Attention weights, uint8 L×N×T×T in base64"),)
