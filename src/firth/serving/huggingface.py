"""The routes of Hugging Face's inference tasks, ``{inputs, parameters}``, and of multiple choice."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Any

from pydantic import TypeAdapter

from firth.inference.defaults import BEAM, LENGTH_PENALTY, NEW_TOKENS, TOP_P
from firth.serving.asking import (
    TASK_ROUTES,
    Context,
    Listed,
    Route,
    Texts,
    refuse_other,
    request_body,
    validated,
)
from firth.serving.hosted import Hosted
from firth.serving.labels import label_scores
from firth.serving.refusals import RefusalError
from firth.serving.searches import check_prompts, check_writing, generate, prompt_ids, translate
from firth.serving.tei import Direction, SimilarityBody, embed, similarity
from firth.tasks.predictions import Answered, Chosen, TaggedText


@request_body
class TaskBody:
    """The body of every task. ``options``, which control other servers' caches, change nothing here."""

    inputs: Any
    parameters: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    stream: bool = False


@request_body
class FeatureBody:
    """Texts to vectors; here the parameters are fields beside the inputs."""

    inputs: Texts
    normalize: bool | None = None
    truncate: bool | None = False
    truncation_direction: Direction = "right"
    prompt_name: str | None = None
    dimensions: int | None = None
    parameters: dict[str, Any] | None = None


@request_body
class ClassificationParameters:
    top_k: int | None = None
    function_to_apply: str | None = None


@request_body
class TokenParameters:
    aggregation_strategy: str | None = None
    ignore_labels: Listed[str] = field(default_factory=list)
    stride: int | None = None


@request_body
class QuestionParameters:
    top_k: int = 1
    align_to_words: bool | None = None
    handle_impossible_answer: bool | None = None


@request_body
class MaskParameters:
    top_k: int = 5


@request_body
class GenerationParameters:
    max_new_tokens: int = NEW_TOKENS
    do_sample: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = TOP_P
    num_beams: int = 1
    seed: int = 0
    return_full_text: bool = True
    # Clients send these with values that change nothing; other values are refused.
    best_of: int = 1
    decoder_input_details: bool = False
    details: bool = False
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: Listed[str] = field(default_factory=list)
    typical_p: float = 1.0
    watermark: bool = False


_OF_SAMPLES = frozenset({"temperature", "top_k", "top_p", "seed"})
_SEARCHES = {"beam": "beam search (num_beams)", "greedy": "the most probable tokens (do_sample=false)"}
_NOT_SUPPORTED = (
    "best_of",
    "decoder_input_details",
    "details",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "typical_p",
    "watermark",
)


@request_body
class TranslationParameters:
    num_beams: int = BEAM
    length_penalty: float = LENGTH_PENALTY


@request_body
class ChoiceInputs:
    """``text``: what the question is about; either may be empty."""

    choices: Listed[str]
    text: str = ""
    question: str = ""


@request_body
class QuestionInputs:
    """A question about a context."""

    question: str
    context: str


@request_body
class PairInputs:
    """A text, or a pair of texts."""

    text: str
    text_pair: str | None = None


CHOICE_INPUTS: TypeAdapter[Any] = TypeAdapter(ChoiceInputs)
_INPUTS: dict[str, TypeAdapter[Any]] = {
    "texts": TypeAdapter(Texts),
    "pairs": TypeAdapter(str | PairInputs | Listed[str | PairInputs]),
    "questions": TypeAdapter(QuestionInputs | Listed[QuestionInputs]),
    "choices": TypeAdapter(ChoiceInputs | Listed[ChoiceInputs]),
}
_PARAMETERS: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind)
    for kind in (
        ClassificationParameters,
        TokenParameters,
        QuestionParameters,
        MaskParameters,
        GenerationParameters,
        TranslationParameters,
    )
}


async def _inputs(context: Context, body: TaskBody, kind: str) -> tuple[list[Any], bool]:
    """Return the inputs as a list, and whether they were given as one."""
    found = await context.aside(lambda: validated(_INPUTS[kind], body.inputs, "inputs"))
    return (found, True) if isinstance(found, list) else ([found], False)


def _parameters(body: TaskBody, kind: type[Any]) -> Any:
    refuse_other("stream", body.stream, False)
    given = {name: value for name, value in (body.parameters or {}).items() if value is not None}
    return validated(_PARAMETERS[kind], given, "parameters")


async def _predictions(context: Context, hosted: Hosted, task: str, items: list[Any]) -> list[tuple[Any, Any]]:
    if TASK_ROUTES.get(hosted.task) != task:
        message = f"{hosted.name} is a model for {hosted.task}: ask POST {TASK_ROUTES[hosted.task]}"
        raise RefusalError(400, "task", message)
    found: list[tuple[Any, Any]] = await context.ask(hosted.predict(items))
    return found


async def classification(context: Context, body: TaskBody) -> Any:
    inputs, _ = await _inputs(context, body, "pairs")
    options = _parameters(body, ClassificationParameters)
    hosted = context.hosted("predict")
    refuse_other("function_to_apply", options.function_to_apply, None, _APPLIED.get(hosted.task))
    _check_top_k(options.top_k)
    pairs = [(one, None) if isinstance(one, str) else (one.text, one.text_pair) for one in inputs]
    context.texts([text for text, _ in pairs])
    context.texts([second for _, second in pairs if second is not None] or [""])
    items = [text if second is None else (text, second) for text, second in pairs]
    two, pair = '["first text", "second text"]', '{"text": "first text", "text_pair": "second text"}'
    context.check_pairs(hosted, items, f'{{"inputs": {two}}}', f'{{"inputs": {pair}}}')
    answers = await _predictions(context, hosted, "/text-classification", items)
    # Nested for one text as well: clients take the first element.
    return [label_scores(hosted, answer, options.top_k) for _, answer in answers]


# The function that turns a model's outputs into scores, by task.
_APPLIED = {"classify": "softmax", "multilabel": "sigmoid", "regress": "none"}


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise RefusalError(422, "option", f"top_k={top_k}: expected at least 1", "top_k")


async def tokens(context: Context, body: TaskBody) -> Any:
    inputs, several = await _inputs(context, body, "texts")
    options = _parameters(body, TokenParameters)
    refuse_other("aggregation_strategy", options.aggregation_strategy, None, "simple", "first", "average", "max")
    refuse_other("stride", options.stride, None)
    hosted = context.hosted("predict")  # a reload may replace it before the answers are there
    answers = await _predictions(context, hosted, "/token-classification", context.texts(inputs))
    found = [_entities(record, answer, options.ignore_labels, hosted.tags_entities) for record, answer in answers]
    return found if several else found[0]


def _entities(record: Any, answer: TaggedText, ignored: list[str], of_entities: bool) -> list[dict[str, Any]]:
    """Named entities; if the tags are not ``of_entities``, each word's tag."""
    if of_entities:
        spans = [(e.label, e.score, e.start, e.end) for e in answer.entities]
    else:
        words = zip(answer.tags, answer.probabilities, record.spans, strict=True)
        spans = [(tag, share, start, end) for tag, share, (start, end) in words]
    return [
        {"entity_group": label, "score": score, "word": record.text[start:end], "start": start, "end": end}
        for label, score, start, end in spans
        if label not in ignored
    ]


async def question(context: Context, body: TaskBody) -> Any:
    inputs, several = await _inputs(context, body, "questions")
    options = _parameters(body, QuestionParameters)
    _check_top_k(options.top_k)
    refuse_other("align_to_words", options.align_to_words, None)
    context.texts([one.question for one in inputs], "question")
    context.texts([one.context for one in inputs], "context")
    items = [{"question": one.question, "context": one.context} for one in inputs]
    answers = await _predictions(context, context.hosted("predict"), "/question-answering", items)
    may_refuse = options.handle_impossible_answer is not False
    found = [_answers(answer, options.top_k, may_refuse) for _, answer in answers]
    return found if several else found[0]


def _answers(answer: Answered, top_k: int, may_refuse: bool) -> Any:
    """The best answer, or a list with it first; ``may_refuse``: "no answer", an empty one, may be among them."""
    best = {"answer": answer.text, "score": answer.probability, "start": answer.start, "end": answer.end}
    spans = [{"answer": s.text, "score": s.probability, "start": s.start, "end": s.end} for s in answer.n_best]
    # A separate threshold decides whether there is an answer, so the list may start with another one.
    ranked = [best, *(span for span in spans if (span["start"], span["end"]) != (answer.start, answer.end))]
    if not may_refuse:
        ranked = [one for one in ranked if one["answer"]] or ranked
    return ranked[0] if top_k == 1 else ranked[:top_k]


async def mask(context: Context, body: TaskBody) -> Any:
    inputs, several = await _inputs(context, body, "texts")
    top_k = _parameters(body, MaskParameters).top_k
    hosted = context.hosted("fill-mask")
    texts = context.texts(inputs)
    _check_candidates(context, texts, top_k)
    found = await context.ask(hosted.fill_mask(texts, top_k))

    def make() -> list[Any]:
        numbers = _numbers(hosted, found)
        return [[_filled(text, mask, numbers) for mask in masks] for text, masks in zip(texts, found, strict=True)]

    made = await context.aside(make)
    # One list for a text with one mask, a list per mask for others, as in Hugging Face's pipeline.
    by_text = [masks[0] if len(masks) == 1 else masks for masks in made]
    return by_text if several else by_text[0]


def _check_candidates(context: Context, texts: Sequence[str], top_k: int) -> None:
    """Raise RefusalError for more candidates than an answer has room for: each repeats its text."""
    from firth.inference.masks import MASK

    most = context.state.limits.candidate_characters
    if (size := sum(text.count(MASK) * top_k * len(text) for text in texts)) > most:
        message = (
            f"top_k={top_k}: candidates in their texts have {size:,} characters; this server answers with at most "
            f"{most:,}: ask for fewer, or send fewer masks or shorter texts"
        )
        raise RefusalError(422, "option", message, "top_k")


def _numbers(hosted: Hosted, found: list[Any]) -> dict[str, int]:
    """The id of each candidate's token."""
    wanted = {candidate.token for masks in found for mask in masks for candidate in mask.candidates}
    return {piece: i for i, piece in enumerate(hosted.model.loaded.tokenizer.pieces) if piece in wanted}


def _filled(text: str, mask: Any, numbers: dict[str, int]) -> list[dict[str, Any]]:
    from firth.inference.masks import MASK

    before, after = text[: mask.start], text[mask.start + len(MASK) :]
    return [
        {
            "score": c.probability,
            "token": numbers[c.token],
            "token_str": c.token,
            "sequence": (before.rstrip() + c.token.removeprefix("##") if c.token.startswith("##") else before + c.token)
            + after,
        }
        for c in mask.candidates
    ]


async def translation(context: Context, body: TaskBody) -> Any:
    inputs, _ = await _inputs(context, body, "texts")
    options = _parameters(body, TranslationParameters)
    hosted, texts = context.hosted("translate"), context.texts(inputs)
    found = await translate(context, hosted, texts, options.num_beams, options.length_penalty)
    return [{"translation_text": text} for text in found]


async def generation(context: Context, body: TaskBody) -> Any:
    inputs, several = await _inputs(context, body, "texts")
    o = _parameters(body, GenerationParameters)
    for name in _NOT_SUPPORTED:
        refuse_other(name, getattr(o, name), getattr(GenerationParameters(), name))
    how = "beam" if o.num_beams > 1 else "sample" if o.do_sample else "greedy"
    given = {name for name, value in (body.parameters or {}).items() if value is not None}
    for name in sorted(given & _OF_SAMPLES) if how != "sample" else ():
        message = f"{name} is for samples, and these parameters ask for {_SEARCHES[how]}: leave it out"
        raise RefusalError(422, "option", message, name)
    if how == "beam" and o.do_sample and "do_sample" in given:
        raise RefusalError(422, "option", "do_sample is not supported with num_beams: leave one out", "do_sample")
    check_writing(context, o.max_new_tokens, len(inputs), beam=o.num_beams)
    texts, found = context.texts(inputs), []
    hosted = context.hosted("generate")
    await prompt_ids(context, hosted, texts)
    await check_prompts(context, hosted, texts, o.max_new_tokens)
    for text in texts:
        writing: dict[str, Any] = {"how": how, "max_new_tokens": o.max_new_tokens}
        if how == "beam":
            writing["beam"] = o.num_beams
        if how == "sample":
            writing |= {name: getattr(o, name) for name in _OF_SAMPLES}
        made = await generate(context, hosted, text, writing)
        found.append([{"generated_text": (text if o.return_full_text else "") + made.text}])
    return found if several else found[0]


async def features(context: Context, body: FeatureBody) -> Any:
    refuse_other("parameters", body.parameters, None, {})
    return await embed(context, body)


async def choice(context: Context, body: TaskBody) -> Any:
    inputs, several = await _inputs(context, body, "choices")
    refuse_other("parameters", body.parameters, None, {})
    hosted = context.hosted("predict")
    answers = await _predictions(context, hosted, "/multiple-choice", choice_items(context, inputs))
    found = [_choice(hosted, answer) for _, answer in answers]
    return found if several else found[0]


def choice_items(context: Context, inputs: Sequence[ChoiceInputs]) -> list[dict[str, Any]]:
    """Return items of multiple choice, after checking number and lengths: each choice is a sequence to compute."""
    context.check_number(len(inputs))
    for one in inputs:
        context.texts([one.text, one.question])
        context.texts(one.choices, "choices")
    context.check_number(sum(len(one.choices) for one in inputs), "choices")
    return [{"text": one.text, "question": one.question, "choices": one.choices} for one in inputs]


def _choice(hosted: Hosted, answer: Chosen) -> dict[str, Any]:
    """Format a choice; below the model's threshold it is null, with all scores unchanged."""
    if hosted.abstains(max(answer.probabilities)):
        return {"choice": None, "label": None, "scores": list(answer.probabilities)}
    return {"choice": answer.choice, "label": answer.text, "scores": list(answer.probabilities)}


Answer = Callable[[Context, Any], Awaitable[Any]]
_TASKS: dict[str, tuple[Answer, Any, str]] = {
    "text-classification": (classification, TaskBody, "Labels, or a value, for texts and pairs"),
    "token-classification": (tokens, TaskBody, "Named entities, or each word's tag"),
    "question-answering": (question, TaskBody, "The answer to a question in a context"),
    "fill-mask": (mask, TaskBody, "The most probable tokens for each [MASK]"),
    "translation": (translation, TaskBody, "Translations"),
    "text-generation": (generation, TaskBody, "Continuations of prompts"),
    "feature-extraction": (features, FeatureBody, "Texts to vectors"),
    "sentence-similarity": (similarity, SimilarityBody, "Cosines of one text with others"),
    "multiple-choice": (choice, TaskBody, "The choice that fits best"),
}
_BODIES: dict[type[Any], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (TaskBody, FeatureBody, SimilarityBody)
}


async def root(context: Context, body: dict[str, Any]) -> Any:
    """The default model's own task."""
    hosted = context.state.model(None)
    task = TASK_ROUTES.get(hosted.task, "").removeprefix("/")
    for ability, name in (("fill-mask", "fill-mask"), ("generate", "text-generation"), ("translate", "translation")):
        task = task or (name if ability in hosted.abilities else "")
    answer, kind, _ = _TASKS[task or "feature-extraction"]
    return await answer(context, await context.aside(lambda: validated(_BODIES[kind], body)))


ROUTES = (
    *(Route("POST", f"/{task}", answer, body, words) for task, (answer, body, words) in _TASKS.items()),
    *(
        Route("POST", f"/models/{{model}}/pipeline/{task}", answer, body, words)
        for task, (answer, body, words) in _TASKS.items()
    ),
    Route("POST", "/", root, dict[str, Any], "What the default model is for"),
)
