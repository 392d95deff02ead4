"""Generation and translation for the routes: whole, or token by token."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from firth.serving.asking import Context
from firth.serving.refusals import RefusalError

if TYPE_CHECKING:
    from firth.inference.decoding import Through
    from firth.inference.generation import Continuation
    from firth.serving.hosted import Hosted


async def prompt_ids(context: Context, hosted: "Hosted", texts: list[str], name: str = "inputs") -> list[list[int]]:
    """The token ids of prompts, or of texts to translate; RefusalError 422 if one has more than a step may read.

    A search reads each in one step, and everybody else waits for its end. ``name``: the field's name.
    """
    context.admit()
    rows = await context.aside(lambda: hosted.model.loaded.tokenizer.ids_many(texts))
    context.caller.tokens += sum(map(len, rows))
    context.caller.unknown += hosted.unknown(rows)
    most, longest = context.state.limits.prompt_tokens, max(map(len, rows))
    if longest > most:
        message = f"{name}: a text of {longest:,} tokens; this server continues or translates at most {most:,}"
        raise RefusalError(422, "length", message, name)
    return rows


async def check_prompts(context: Context, hosted: "Hosted", prompts: list[str], new_tokens: int) -> None:
    """Raise InputError or LengthError for a prompt that cannot be continued, before another one is."""
    from firth.inference.generation import check_prompt

    def check() -> None:
        for prompt in prompts:
            check_prompt(hosted.model.loaded, prompt, new_tokens)

    await context.aside(check)


async def generate(context: Context, hosted: "Hosted", prompt: str, writing: dict[str, Any]) -> "Continuation":
    """Continue a prompt; equal requests get equal continuations, whatever other requests run at the same time."""
    return await context.state.engine.search(context.caller, hosted, _run(hosted, prompt, writing, None))


async def generate_parts(
    context: Context, hosted: "Hosted", prompt: str, ids: list[int], writing: dict[str, Any]
) -> AsyncGenerator[str]:
    """Yield a continuation in parts, as soon as tokens are known; joined, they are the text. ``ids``: the prompt's."""
    from firth.inference.generation import follows_unwritten
    from firth.text.tokenizer_kinds import PREFIX

    loop, queue = asyncio.get_running_loop(), asyncio.Queue[int | None]()
    tokenizer, sent = hosted.model.loaded.tokenizer, ""
    # The text of a token depends only on the one before it; special tokens are not written at all.
    last, new = [number for number in ids if number not in tokenizer.special_ids][-1:], list[int]()

    def note(newest: list[int]) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, newest[0])

    search = asyncio.ensure_future(
        context.state.engine.search(context.caller, hosted, _run(hosted, prompt, writing, note))
    )
    search.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (number := await queue.get()) is not None:
            new.append(number)
            before, text = tokenizer.decode(last), tokenizer.decode([*last, *new])
            # A token may change the text of those before it: wait until the text only grows.
            if text.startswith(before) and len(text) > len(before):
                part = text[len(before) :]
                if not sent and follows_unwritten(tokenizer, ids):
                    part = f" {part.removeprefix(PREFIX)}"
                last, new, sent = new, [], sent + part
                yield part
        whole = (await search).text
        if whole.startswith(sent) and len(whole) > len(sent):
            yield whole[len(sent) :]
    finally:
        search.cancel()


def _run(
    hosted: "Hosted", prompt: str, writing: dict[str, Any], on_ids: Callable[[list[int]], None] | None
) -> Callable[["Through"], "Continuation"]:
    from firth.inference.generation import Writing, generate_stream

    options, model = Writing(**writing), hosted.model

    def run(through: "Through") -> "Continuation":
        # One prompt per search: it is number 0, whatever else the request has.
        found = generate_stream(
            model.loaded,
            [prompt],
            options,
            device=model.device,
            budget_tokens=model.budget_tokens,
            through=through,
            on_ids=on_ids,
        )
        return next(found)

    return run


async def translate(
    context: Context, hosted: "Hosted", texts: list[str], beam: int, length_penalty: float
) -> list[str]:
    """Translate each text."""
    from firth.inference.translating import Search, translate_stream

    search, model = Search(beam=beam, length_penalty=length_penalty), hosted.model
    _check_beam(beam)
    await prompt_ids(context, hosted, texts)
    # Several texts are also read in one step.
    budget = min(model.budget_tokens, context.state.limits.prompt_tokens)

    def run(through: "Through") -> list[str]:
        found = translate_stream(
            model.loaded, texts, search, device=model.device, budget_tokens=budget, through=through
        )
        return [one.text for one in found]

    return await context.state.engine.search(context.caller, hosted, run)


_MOST_BEAMS = 16


def check_writing(
    context: Context, max_new_tokens: int, texts: int, name: str = "max_new_tokens", beam: int = 1
) -> None:
    """Raise RefusalError for more new tokens than a request may have in all its texts; ``name``: the field's name."""
    _check_beam(beam)
    if max_new_tokens < 1:
        raise RefusalError(422, "option", f"{name}={max_new_tokens}: expected at least 1", name)
    most = context.state.limits.new_tokens
    if max_new_tokens * texts > most:
        each = "" if texts == 1 else f" for each of {texts} texts"
        message = f"{name}={max_new_tokens}{each}: this server generates at most {most} tokens a request"
        raise RefusalError(422, "option", message, name)


def _check_beam(beam: int) -> None:
    if beam > _MOST_BEAMS:
        raise RefusalError(422, "option", f"num_beams={beam}: this server takes {_MOST_BEAMS}", "num_beams")
