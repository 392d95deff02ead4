"""The playground: one page that shows what the models do, and the attention weights that it draws."""

import base64
from importlib.resources import files
from typing import Any

import numpy as np
from starlette.responses import Response

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


# What the page consists of; all of it comes from here.
PAGE = {
    "index.html": "text/html; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "playground.css": "text/css; charset=utf-8",
    "playground.js": "text/javascript; charset=utf-8",
}


async def page(context: Context, body: None) -> Any:
    name = context.request.path_params.get("file", "index.html")
    if name not in PAGE:
        raise RefusalError(404, "route", f"the playground has no {name[:40]!r}")
    content = (files("firth.serving") / "static" / name).read_bytes()
    return Response(content, 200, {"content-type": PAGE[name], "cache-control": "no-cache"})


ROUTES = (
    Route("GET", "/", page, None, "The playground"),
    Route("GET", "/playground/{file}", page, None, "Its parts"),
    *(
        Route("POST", prefix + "/attention", attention, AttentionBody, "Attention weights, uint8 L×N×T×T in base64")
        for prefix in ("", "/models/{model}")
    ),
)
