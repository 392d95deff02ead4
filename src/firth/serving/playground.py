"""The playground: one page that shows what the models do, and the data it draws: attention, masks, hidden states."""

import base64
from importlib.resources import files
from typing import Any

import numpy as np
from starlette.responses import Response

from firth.data.config import MaskingConfig
from firth.serving.asking import Context, Route, Texts, as_list, request_body
from firth.serving.hosted import Hosted
from firth.serving.refusals import RefusalError
from firth.serving.searches import translate
from firth.serving.tei import token_lists

# Maximum tokens of a request for weights or vectors: 128 of BERT-base are 2.4 MB of either.
MOST_TOKENS = 128
# Maximum number of words that /nearest returns.
MOST_WORDS = 100
# Number of predictions to show for each masked token.
_CANDIDATES = 3
_LARGEST_FLOAT16 = float(np.finfo(np.float16).max)


@request_body
class AttentionBody:
    """A text or a pair of texts."""

    inputs: str
    second: str | None = None


@request_body
class CrossAttentionBody:
    """A text and its translation; without one the model translates it first."""

    inputs: str
    target: str | None = None


@request_body
class NextSentenceBody:
    """Two texts."""

    inputs: str
    second: str


@request_body
class MaskingBody:
    """A text, the share of its tokens to predict, and the seed that selects them: equal seeds mask the same tokens."""

    inputs: str
    share: float = MaskingConfig().share
    seed: int = 0


@request_body
class HiddenStatesBody:
    """A text, or several."""

    inputs: Texts


@request_body
class NearestBody:
    """A word, and how many others to return."""

    inputs: str
    top_k: int = 10


async def attention(context: Context, body: AttentionBody) -> Any:
    hosted = context.hosted("attention")
    texts = context.texts([body.inputs, *([] if body.second is None else [body.second])])
    await _tokens(context, hosted, texts)
    found = await context.ask(hosted.attention(*texts, *([None] * (2 - len(texts)))))
    return {"tokens": found.tokens, **_as_levels(found.weights)}


async def cross_attention(context: Context, body: CrossAttentionBody) -> Any:
    hosted = context.hosted("cross-attention")
    (source,) = context.texts([body.inputs])
    # Before the model translates, which takes long for a long text.
    (tokens,) = await _tokens(context, hosted, [source])
    if body.target is None:
        from firth.inference.translating import Search

        search = Search()
        (target,) = await translate(context, hosted, [source], search.beam, search.length_penalty)
    else:
        (target,) = context.texts([body.target], "target")
    (translated,) = await _tokens(context, hosted, [target])
    _check_tokens([tokens, translated])
    found = await context.ask(hosted.cross_attention(source, target))
    return {"tokens": found.tokens, "source": found.columns, "translation": target, **_as_levels(found.weights)}


def _as_levels(weights: np.ndarray) -> dict[str, Any]:
    """Encode weights (L, N, rows, columns) from 0 to 1 as bytes from 0 to 255, in base64."""
    levels = np.round(weights * 255).astype(np.uint8)
    return {"shape": list(weights.shape), "weights": base64.b64encode(levels.tobytes()).decode("ascii")}


async def next_sentence(context: Context, body: NextSentenceBody) -> Any:
    hosted = context.hosted("follow")
    return {"probability": await context.ask(hosted.follows(*context.texts([body.inputs, body.second])))}


async def nearest(context: Context, body: NearestBody) -> Any:
    hosted = context.hosted("find-nearest")
    (word,) = context.texts([body.inputs])
    if not 1 <= body.top_k <= MOST_WORDS:
        raise RefusalError(422, "option", f"top_k={body.top_k}: expected 1 to {MOST_WORDS}", "top_k")
    return [{"label": one.word, "score": one.cosine} for one in await context.ask(hosted.nearest(word, body.top_k))]


async def masking(context: Context, body: MaskingBody) -> Any:
    hosted = context.hosted("fill-mask")
    (text,) = context.texts([body.inputs])
    (tokens,) = await _tokens(context, hosted, [text])
    row, guesses = await context.ask(hosted.masking(text, body.share, body.seed, _CANDIDATES))
    assert len(tokens) == len(row.ids), "masked models read texts with the special tokens of their pre-training"
    masked = [
        {
            "index": index,
            "how": _how(hosted, row.ids[index], label),
            "shown": hosted.model.loaded.tokenizer.piece(row.ids[index]),
            "probability": guess.probability,
            "candidates": [{"token_str": c.token, "score": c.probability} for c in guess.candidates],
        }
        for index, label, guess in zip(row.chosen, row.labels, guesses, strict=True)
    ]
    return {"tokens": tokens, "masked": masked}


def _how(hosted: Hosted, shown: int, label: int) -> str:
    """What pre-training did with a token that it selected."""
    if shown == label:
        return "kept"
    return "mask" if shown == hosted.model.loaded.tokenizer.mask_id else "random"


async def hidden_states(context: Context, body: HiddenStatesBody) -> Any:
    hosted = context.hosted("embed")
    texts = context.texts(as_list(body.inputs))
    tokens = await _tokens(context, hosted, texts)
    if not all(tokens):
        raise RefusalError(422, "empty", "a text has no tokens: give texts with a word in each", "inputs")
    most = hosted.model.loaded.window_length
    if most is not None and any(len(row) > most for row in tokens):
        raise RefusalError(422, "length", f"a text of more than {most} tokens: the model reads it in parts", "inputs")
    found = await context.ask(hosted.hidden_states(texts))
    if any(np.abs(layer).max() > _LARGEST_FLOAT16 for layers in found for layer in layers):
        raise RefusalError(424, "outputs", "a hidden state is too large for float16")
    return [
        {"tokens": row, "layers": [_as_float16(layer) for layer in layers]}
        for row, layers in zip(tokens, found, strict=True)
    ]


def _as_float16(layer: np.ndarray) -> dict[str, Any]:
    """Encode the vectors of a layer (T, H) as little-endian float16 in base64."""
    states = np.ascontiguousarray(layer, "<f2").tobytes()
    return {"shape": list(layer.shape), "states": base64.b64encode(states).decode("ascii")}


async def _tokens(context: Context, hosted: Hosted, texts: list[str]) -> list[list[dict[str, Any]]]:
    """The tokens of each text; RefusalError if there are more than can be drawn."""
    rows = await context.aside(lambda: token_lists(hosted, texts))
    _check_tokens(rows)
    return rows


def _check_tokens(rows: list[list[dict[str, Any]]]) -> None:
    if sum(map(len, rows)) > MOST_TOKENS:
        raise RefusalError(422, "length", f"more than {MOST_TOKENS} tokens: shorten the text", "inputs")


# The files of the page; nothing is loaded from elsewhere.
PAGE = {
    "index.html": "text/html; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "playground.css": "text/css; charset=utf-8",
    "playground.js": "text/javascript; charset=utf-8",
    "drawings.js": "text/javascript; charset=utf-8",
    "words.js": "text/javascript; charset=utf-8",
}


async def page(context: Context, body: None) -> Any:
    name = context.request.path_params.get("file", "index.html")
    if name not in PAGE:
        raise RefusalError(404, "route", f"the playground has no {name[:40]!r}")
    content = (files("firth.serving") / "static" / name).read_bytes()
    return Response(content, 200, {"content-type": PAGE[name], "cache-control": "no-cache"})


_DRAWN: tuple[tuple[str, Any, Any, str], ...] = (
    ("/attention", attention, AttentionBody, "Attention weights, uint8 L×N×T×T in base64"),
    ("/cross_attention", cross_attention, CrossAttentionBody, "Weights of a translation over its source, L×N×T×S"),
    ("/next_sentence", next_sentence, NextSentenceBody, "The probability that the second text follows the first"),
    ("/nearest", nearest, NearestBody, "The words whose vectors have the highest cosine with a word's"),
    ("/masking", masking, MaskingBody, "A text as pre-training masks it, and the model's predictions"),
    ("/hidden_states", hidden_states, HiddenStatesBody, "The vectors of every layer, float16 T×H in base64"),
)
ROUTES = (
    Route("GET", "/", page, None, "The playground", PAGE["index.html"]),
    Route("GET", "/playground/{file}", page, None, "Its parts", "*/*"),
    *(
        Route("POST", prefix + path, answer, body, summary)
        for path, answer, body, summary in _DRAWN
        for prefix in ("", "/models/{model}")
    ),
)
