"""The routes of text-embeddings-inference."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from firth.serving.asking import (
    TASK_ROUTES,
    Context,
    Listed,
    Route,
    Texts,
    as_list,
    checked_ids,
    ids_of,
    refuse_other,
    request_body,
)
from firth.serving.hosted import Hosted
from firth.serving.labels import label_scores
from firth.serving.refusals import RefusalError
from firth.tasks.predictions import Labelled, Valued

if TYPE_CHECKING:
    from firth.serving.huggingface import FeatureBody

Direction = Literal["left", "right", "Left", "Right"]
# Pairs of labels of which one says that a text answers a query, with that one second; also ``not_X`` and X.
_RELEVANT = (("0", "1"), ("false", "true"), ("no", "yes"), ("negative", "positive"))


@request_body
class EmbedBody:
    """Texts (or token ids of this model's tokenizer) to vectors."""

    inputs: str | Listed[str] | Listed[int] | Listed[Listed[int]]
    normalize: bool = True
    truncate: bool | None = False
    truncation_direction: Direction = "right"
    prompt_name: str | None = None
    dimensions: int | None = None


@request_body
class EmbedAllBody:
    """Texts to a vector for each token."""

    inputs: Texts
    truncate: bool | None = False
    truncation_direction: Direction = "right"
    prompt_name: str | None = None


@request_body
class PredictBody:
    """A text, a pair of texts (a list of two), or a batch: a list of one-text and pair lists."""

    inputs: str | Listed[str] | Listed[Listed[str]]
    raw_scores: bool = False
    truncate: bool | None = False
    truncation_direction: Direction = "right"


@request_body
class RerankBody:
    """How well each text answers a query."""

    query: str
    texts: Listed[str]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = False
    truncation_direction: Direction = "right"


@request_body
class SimilarityInputs:
    """One text and those it is compared with."""

    source_sentence: str
    sentences: Listed[str]


@request_body
class SimilarityBody:
    """Cosines of one text with others."""

    inputs: SimilarityInputs
    parameters: dict[str, Any] | None = None


@request_body
class TokenizeBody:
    """Texts to tokens."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None


@request_body
class DecodeBody:
    """Token ids to texts."""

    ids: Listed[int] | Listed[Listed[int]]
    skip_special_tokens: bool = True


def side(truncate: bool | None, direction: Direction) -> Literal["no", "left", "right"]:
    """The side at which long texts are cut, if they are."""
    return ("left" if direction.lower() == "left" else "right") if truncate else "no"


async def embed(context: Context, body: "EmbedBody | FeatureBody") -> Any:
    hosted = context.hosted("embed")
    refuse_other("prompt_name", body.prompt_name, None)
    inputs = context.texts_or_ids(hosted, body.inputs, "inputs")
    cut = side(body.truncate, body.truncation_direction)
    vectors = await context.ask(hosted.embed(inputs, unit=body.normalize, truncate=cut))
    refuse_other("dimensions", body.dimensions, None, len(vectors[0]))
    return vectors


async def embed_all(context: Context, body: EmbedAllBody) -> Any:
    hosted = context.hosted("embed")
    refuse_other("prompt_name", body.prompt_name, None)
    texts, cut = context.texts(as_list(body.inputs)), side(body.truncate, body.truncation_direction)
    most = context.state.limits.vector_numbers
    return await context.ask(hosted.embed_all(texts, truncate=cut, most_numbers=most))


async def predict(context: Context, body: PredictBody) -> Any:
    hosted = context.hosted("predict")
    if hosted.task not in ("classify", "multilabel", "regress"):
        raise RefusalError(
            400, "task", f"{hosted.name} is a model for {hosted.task}: ask POST {TASK_ROUTES[hosted.task]}"
        )
    refuse_other("raw_scores", body.raw_scores, False)
    inputs = body.inputs
    several = isinstance(inputs, list) and (not inputs or isinstance(inputs[0], list))
    rows: list[Any] = inputs if several else [inputs]  # type: ignore[assignment]  # lists of texts
    items = [_item(row) for row in rows]
    two, pair = '{"inputs": [["first text"], ["second text"]]}', '{"inputs": ["first text", "second text"]}'
    context.check_pairs(hosted, items, two, pair)
    context.texts([item[0] if isinstance(item, tuple) else item for item in items])
    context.texts([item[1] for item in items if isinstance(item, tuple)] or [""])
    found = [label_scores(hosted, answer) for _, answer in await context.ask(hosted.predict(items))]
    return found if several else found[0]


def _item(row: str | list[str]) -> str | tuple[str, str]:
    if isinstance(row, str):
        return row
    if len(row) == 1:
        return row[0]
    if len(row) != 2:
        message = (
            f"inputs: a list of {len(row)} texts: expected a text, a pair as a list of two, or several as "
            '[["first text"], ["second text"]]'
        )
        raise RefusalError(422, "body", message, "inputs")
    return row[0], row[1]


async def rerank(context: Context, body: RerankBody) -> Any:
    hosted = context.hosted("predict")
    ranks = hosted.task == "regress" or (hosted.task == "classify" and len(hosted.predictor.labels) == 2)
    if not ranks or hosted.pairs is False:
        message = f"{hosted.name} does not rank: expected a model for pairs, of values or of two labels"
        raise RefusalError(400, "task", message)
    relevant = "" if hosted.task == "regress" else relevant_label(hosted.predictor.labels)
    if relevant is None:
        message = (
            f"{hosted.name} does not say which of its labels, {' and '.join(hosted.predictor.labels)}, is that of "
            "relevant texts: expected X and not_X, no and yes, false and true, or 0 and 1"
        )
        raise RefusalError(400, "task", message)
    refuse_other("raw_scores", body.raw_scores, False)
    context.texts([body.query], "query")
    texts = context.texts(body.texts, "texts")
    answers = await context.ask(hosted.predict([(body.query, text) for text in texts]))
    scores = [_relevance(answer, relevant) for _, answer in answers]
    found = [
        {"index": i, "score": scores[i]} | ({"text": texts[i]} if body.return_text else {}) for i in range(len(texts))
    ]
    return sorted(found, key=lambda one: -one["score"])


def relevant_label(labels: Sequence[str]) -> str | None:
    """The one of two labels that says that a text answers a query; None if their names do not tell."""
    for first, second in (labels, labels[::-1]):
        denied, stated = first.lower(), second.lower()
        if (denied, stated) in _RELEVANT or re.fullmatch(f"(not?|non)[ _-]{re.escape(stated)}", denied):
            return second
    return None


def _relevance(answer: Any, relevant: str) -> float:
    """A value, or the probability of the relevant label."""
    if isinstance(answer, Valued):
        return answer.value
    assert isinstance(answer, Labelled)
    return answer.probabilities[relevant]


async def similarity(context: Context, body: SimilarityBody) -> Any:
    hosted = context.hosted("embed")
    refuse_other("parameters", body.parameters, None, {})
    texts = context.texts([body.inputs.source_sentence], "source_sentence")
    texts += context.texts(body.inputs.sentences, "sentences")
    vectors = np.stack(await context.ask(hosted.embed(texts, unit=True)))
    return (vectors[1:] @ vectors[0]).clip(-1, 1).tolist()  # rounding would give 1.0000001 for equal ones


async def tokenize(context: Context, body: TokenizeBody) -> Any:
    hosted = context.hosted("embed")
    refuse_other("prompt_name", body.prompt_name, None)
    texts = context.texts(as_list(body.inputs))
    most, given = context.state.limits.characters, sum(map(len, texts))
    if given > most:
        message = f"inputs: texts of {given:,} characters; this server splits at most {most:,} in one request"
        raise RefusalError(422, "length", message, "inputs")
    context.admit()
    async with context.state.engine.tokenizer_turn(context.caller):
        return await context.aside(lambda: token_lists(hosted, texts, special=body.add_special_tokens))


def token_lists(hosted: Hosted, texts: Sequence[str], *, special: bool = True) -> list[list[dict[str, Any]]]:
    """The tokens of each text with their character offsets ``start`` and ``stop``, which special ones do not have."""
    tokenizer, layout = hosted.model.loaded.tokenizer, hosted.model.loaded.layout

    def added(numbers: tuple[int, ...]) -> list[dict[str, Any]]:
        pieces = [(number, tokenizer.piece(number)) for number in numbers if special]
        return [{"id": i, "text": piece, "special": True, "start": None, "stop": None} for i, piece in pieces]

    found = []
    for row in tokenizer.encode_many(texts):
        tokens = [
            {"id": i, "text": tokenizer.piece(i), "special": False, "start": a, "stop": b}
            for i, (a, b) in zip(row.ids, row.offsets, strict=True)
        ]
        found.append([*added(layout.first), *tokens, *added(layout.last)])
    return found


async def decode(context: Context, body: DecodeBody) -> Any:
    hosted = context.hosted("embed")
    refuse_other("skip_special_tokens", body.skip_special_tokens, True)
    context.check_number(bool(body.ids), "ids")
    rows = checked_ids(hosted, ids_of(body.ids) or [], context.state.limits)
    context.admit()
    return await context.aside(lambda: [hosted.model.loaded.tokenizer.decode(row) for row in rows])


async def info(context: Context, body: None) -> Any:
    from firth.inference.attention_maps import encodes_apart
    from firth.version import firth_version

    hosted, limits = context.state.model(context.request.path_params.get("model")), context.state.limits
    baseline = "embed" not in hosted.abilities
    loaded = None if baseline else hosted.model.loaded
    pool = None if loaded is None else loaded.embedding.pool
    labels = dict(enumerate(hosted.predictor.labels))
    kind: dict[str, Any] = {"embedding": {"pooling": pool}}
    if hosted.task in ("classify", "multilabel"):
        kind = {"classifier": {"id2label": {str(i): label for i, label in labels.items()}}}
    return {
        "model_id": hosted.name,
        "model_sha": None,
        "model_dtype": hosted.precision,
        "model_type": kind,
        "system": hosted.predictor.system,
        "task": hosted.task,
        "abilities": sorted(hosted.abilities),
        "pairs": hosted.pairs,
        "apart": loaded is not None and encodes_apart(loaded),
        "layers": None if loaded is None else len(loaded.objective.encoder.widths) - 1,
        "vocabulary_size": None if loaded is None else loaded.tokenizer.size,
        "max_concurrent_requests": limits.requests,
        "max_input_length": None if loaded is None else loaded.max_length,
        "max_client_batch_size": limits.inputs,
        "version": firth_version(),
    }


_ROUTES = (
    Route("POST", "/embed", embed, EmbedBody, "Texts to vectors"),
    Route("POST", "/embed_all", embed_all, EmbedAllBody, "Texts to a vector for each token"),
    Route("POST", "/predict", predict, PredictBody, "Labels or a value for a text or a pair"),
    Route("POST", "/rerank", rerank, RerankBody, "Texts ordered by a query"),
    Route("POST", "/similarity", similarity, SimilarityBody, "Cosines of one text with others"),
    Route("POST", "/tokenize", tokenize, TokenizeBody, "Texts to tokens"),
    Route("POST", "/decode", decode, DecodeBody, "Token ids to texts"),
    Route("GET", "/info", info, None, "What the model is"),
)
ROUTES = tuple(
    Route(route.method, prefix + route.path, route.answer, route.body, route.summary)
    for route in _ROUTES
    for prefix in ("", "/models/{model}")
)
