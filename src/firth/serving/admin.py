"""Health, metrics, and reloading a model while the old one answers."""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.responses import PlainTextResponse

from firth.errors import ConfigError, FirthError
from firth.progress import say
from firth.serving.asking import Context, Route, ServerState, request_body
from firth.serving.forward import Job
from firth.serving.hosted import Hosted, load_hosted
from firth.serving.refusals import RefusalError

_Made = TypeVar("_Made")

CANARY = "The old farmer walked to the river in the morning."
# Numbers of texts in the warm-up: one short text, one long, several; their times initialise the cost model.
_WARM_UP = (1, 1, 8, 4)
# Tokens per second above which connections cost more than computing: they then get every CPU but one.
_TINY_RATE = 50_000
# The text format of Prometheus.
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@request_body
class ReloadBody:
    """``force``: accept the new model even if its task or labels differ."""

    force: bool = False


def canary(hosted: Hosted, repeat: int = 1, texts: int = 1) -> Job:
    """A test question that a model of any kind can answer."""
    text = " ".join([CANARY] * repeat)
    if hosted.task == "answer":
        return hosted.predict([{"question": "Who walked?", "context": text}] * texts)
    if hosted.task == "choose":
        return hosted.predict([{"text": text, "question": "Who walked?", "choices": ["a farmer", "a queen"]}] * texts)
    if "predict" not in hosted.abilities:
        return hosted.embed([text] * texts)
    return hosted.predict([[text, text] if hosted.pairs else text] * texts)


def apart(do: Callable[[], _Made]) -> _Made:
    """Return what ``do`` returns, called in a thread that ends with it.

    A thread that has run a model keeps its OpenMP threads for as long as it lives. If there are more of them than CPUs,
    those of the engine wait for one another by system calls, and a sentence takes a third longer.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(do).result()


def warm(hosted: Hosted) -> None:
    """Run a model before it is served, to choose kernels and measure times; CheckpointError if outputs are not finite.

    Runs in the calling thread: the engine must not know the model yet.
    """
    import time

    import torch

    for round_number, texts in enumerate(_WARM_UP):
        job = canary(hosted, repeat=1 + 4 * (round_number == 1), texts=texts)
        prepared = job.prepare()
        started_s = time.monotonic()
        with torch.inference_mode():
            outputs = job.forward.run([row.work for row in prepared.rows])
        seconds = time.monotonic() - started_s
        prepared.answers(outputs)
        if round_number:  # the first one chooses kernels
            squares = float(sum(row.tokens**2 for row in prepared.rows))
            hosted.cost.learn(sum(row.tokens for row in prepared.rows), squares, seconds)


def renewed(old: Hosted, *, force: bool) -> Hosted:
    """Load and warm up the model now in a folder; ConfigError if task, labels or inputs differ, unless ``force``."""
    new = load_hosted(old.name, old.path, old.precision, old.threshold)
    if not force and new.task != old.task:
        raise ConfigError(f"{old.path} is for {new.task}, and the model that is served for {old.task}; force takes it")
    if not force and (labels := new.predictor.labels) != old.predictor.labels:
        others = ", ".join(sorted(set(labels) ^ set(old.predictor.labels))[:5]) or "in another order"
        raise ConfigError(f"{old.path} has other labels than the model that is served ({others}); force takes it")
    if not force and {new.pairs, old.pairs} == {True, False}:
        reads = {True: "pairs of texts", False: "single texts"}
        raise ConfigError(
            f"{old.path} reads {reads[new.pairs is True]}, and the model that is served {reads[old.pairs is True]}; "
            "force takes it"
        )
    warm(new)
    return new


async def reload_model(state: ServerState, name: str, *, force: bool = False) -> Hosted:
    """Load a model in the background and swap it in; the old one answers what is queued, and stays on failure.

    Only one reload runs at a time: the model that was read last is the one that stays, and memory must hold only one
    more.
    """
    async with state.reloads:
        old = state.model(name)
        new = await asyncio.get_running_loop().run_in_executor(None, apart, lambda: renewed(old, force=force))
        state.models[name] = new
        leave_processors(state)
        show_models(state)
        del old
        forget_garbage()
        return new


def leave_processors(state: ServerState) -> None:
    """Compute with one thread if all models are tiny: two would wait for each other while connections use a core."""
    rates = [hosted.cost.rate(state.limits.slice_ms / 1e3) for hosted in state.models.values()]
    state.engine.one_thread = min(rates) > _TINY_RATE


def forget_garbage() -> None:
    """Collect garbage, and exempt what is left from further collections: it lives as long as the server.

    Every full collection would traverse it, which takes a tenth of a second, while all requests wait.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def why_not(error: BaseException) -> str:
    """Why a model was not loaded, in one line."""
    if isinstance(error, FirthError):
        return str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter is PyTorch's
        return "there is not enough memory for it and the new one"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def show_models(state: ServerState) -> None:
    """Record in the metrics which models are served."""
    gauge = state.engine.metrics.models
    gauge.clear()
    for hosted in state.models.values():
        gauge.labels(hosted.name, hosted.predictor.system, hosted.task, str(hosted.path)).set(1)


async def reload(context: Context, body: ReloadBody) -> Any:
    """Reload a model. A reload goes on without the client that asked for it, and is then reported in the log."""
    state, name = context.state, context.state.model(context.request.path_params["model"]).name
    context.model_name = name
    work = asyncio.create_task(reload_model(state, name, force=body.force))
    state.reloading.add(work)
    work.add_done_callback(state.reloading.discard)
    try:
        new = await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: say(_outcome(name, done)))
        raise
    except Exception as error:
        raise RefusalError(409, "reload", _kept(error)) from None
    return {"name": name, "task": new.task, "system": new.predictor.system}


def _outcome(name: str, done: asyncio.Task[Hosted]) -> str:
    if done.cancelled():
        return f"{name}: not loaded again: the server ended"
    return loaded_again(name, done.exception())


def loaded_again(name: str, error: BaseException | None) -> str:
    """What the log says of a reload."""
    return f"{name}: loaded again" if error is None else f"{name}: {_kept(error)}"


def _kept(error: BaseException) -> str:
    return f"the old model keeps serving: {why_not(error)}"


async def alive(context: Context, body: None) -> Any:
    return {"status": "alive"}


async def ready(context: Context, body: None) -> Any:
    context.state.check_ready()
    return {"status": "ready"}


async def metrics(context: Context, body: None) -> Any:
    engine = context.state.engine
    requests, tokens = engine.waiting()
    engine.metrics.queued_requests.set(requests)
    engine.metrics.queued_tokens.set(tokens)
    engine.metrics.in_flight.set(engine.in_flight)
    engine.metrics.ready.set(context.state.ready)
    return PlainTextResponse(engine.metrics.text(), media_type=_METRICS)


ROUTES = (
    Route("GET", "/health", alive, None, "Whether the process answers"),
    Route("GET", "/ping", alive, None, "The same"),
    Route("GET", "/ready", ready, None, "Whether requests are taken"),
    Route("GET", "/metrics", metrics, None, "Figures for Prometheus", _METRICS),
    Route("POST", "/admin/models/{model}/reload", reload, ReloadBody, "Load a model again"),
)
