"""Generate text with a pre-trained language model, left to right, or right to left with a backward one.

Each prompt is read once; then every new token is one more step from the cached state: the keys and values of all tokens
before it, or the state of recurrent layers. Special tokens are never generated. A text ends only at its maximum length.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.rows import pack_words
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import Loaded
from firth.inference.batching import in_batches
from firth.inference.decoding import Hypothesis, Through, beam_search, check_sampling, greedy, here, sample
from firth.inference.defaults import BEAM, NEW_TOKENS, TOP_P
from firth.inference.language_models import LanguageModel, NextToken, language_model
from firth.inference.outputs import check_finite
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import PREFIX, WORDPIECE, WORDS

How = Literal["sample", "greedy", "beam"]
AT_ONCE = 64  # prompts


@dataclass(frozen=True, kw_only=True, slots=True)
class Writing:
    """How to continue a prompt: by sampling, greedily, or by beam search (``how``).

    ``max_new_tokens``: tokens to generate. ``beam``: beam width. ``temperature``, ``top_k`` (0: all), ``top_p`` and
    ``seed`` apply to sampling: the same seed gives the same text. ConfigError for invalid values, and for those of
    another search.
    """

    how: How = "sample"
    max_new_tokens: int = NEW_TOKENS
    beam: int = BEAM
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = TOP_P
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise ConfigError(f"how={self.how!r}: expected one of {', '.join(get_args(How))}")
        if self.max_new_tokens < 1 or self.beam < 1:
            raise ConfigError(f"max_new_tokens={self.max_new_tokens}, beam={self.beam}: expected at least 1")
        check_sampling(self.temperature, self.top_k, self.top_p)
        for field in fields(self):
            how, value = _SEARCH_OF.get(field.name, self.how), getattr(self, field.name)
            if how != self.how and value != field.default:
                raise ConfigError(f"{field.name}={value} is for how={how!r}, and how={self.how!r}: leave one out")


_SEARCH_OF: dict[str, How] = {
    "beam": "beam",
    "temperature": "sample",
    "top_k": "sample",
    "top_p": "sample",
    "seed": "sample",
}


@dataclass(frozen=True, slots=True)
class Continuation:
    """The text that a model generated after a prompt, or a backward model before it.

    ``text``: the generated text alone, with the space that separates it from the prompt. ``log_prob``: its natural
    log-probability under the model, over all tokens.
    """

    prompt: str
    text: str
    tokens: list[str]
    log_prob: float
    before: bool = False

    @property
    def whole(self) -> str:
        """The prompt and the generated text, in reading order."""
        return self.text + self.prompt if self.before else self.prompt + self.text


@dataclass(frozen=True, slots=True)
class Written:
    """The state of R sequences: ``waiting`` tokens, to be read with the next one, and the ``past`` of those read."""

    waiting: tuple[tuple[int, ...], ...]
    past: Any

    def select(self, chosen: Int[Tensor, " R"]) -> "Written":
        waiting = tuple(self.waiting[i] for i in chosen.tolist()) if self.waiting else ()
        return Written(waiting, None if self.past is None else self.past.select(chosen))


class NextTokenModel:
    """A language model with the interface of ``decoding``. ``hidden_ids``: tokens never generated.

    ``through``: runs each step. ``on_ids``: called with the newest token of each sequence, except the last ones.
    """

    def __init__(
        self,
        objective: NextToken,
        tokenizer: Tokenizer,
        hidden_ids: Sequence[int],
        device: torch.device,
        through: Through = here,
        on_ids: Callable[[list[int]], None] | None = None,
    ):
        self.objective, self.tokenizer, self.device = objective, tokenizer, device
        self.through, self.on_ids = through, on_ids
        self.hidden_ids = torch.tensor(hidden_ids, dtype=torch.int64, device=device)

    def begin(self, rows: Sequence[Sequence[int]]) -> tuple[Written, Int[Tensor, " R"]]:
        """The state before the last token of each prompt, and those last tokens."""
        last = torch.tensor([row[-1] for row in rows], dtype=torch.int64, device=self.device)
        return Written(tuple(tuple(row[:-1]) for row in rows), None), last

    def advance(self, ids: Int[Tensor, " R"], state: Written) -> tuple[Float[Tensor, "R V"], Written]:
        """Log-probabilities of the next token, in float32, and the new state."""
        if self.on_ids is not None and state.past is not None:
            self.on_ids(ids.tolist())
        tokens = len(ids) + sum(map(len, state.waiting))
        found: tuple[Tensor, Written] = self.through(lambda: self._advance(ids, state), tokens)
        return found

    @torch.inference_mode()
    def _advance(self, ids: Int[Tensor, " R"], state: Written) -> tuple[Float[Tensor, "R V"], Written]:
        waiting = state.waiting or ((),) * len(ids)
        rows = [[*row, i] for row, i in zip(waiting, ids.tolist(), strict=True)]
        tokens = pack_words(rows, self.tokenizer).to(self.device)
        top, past = self.objective.encoder.step(tokens, state.past)
        log_probs = self.objective.logits(top.index_select(0, tokens.rows.last)).float().log_softmax(1)
        return log_probs.index_fill(1, self.hidden_ids, -torch.inf), Written((), past)


def generate_stream(
    loaded: Loaded,
    prompts: Iterable[str],
    writing: Writing,
    *,
    device: torch.device,
    budget_tokens: int,
    at_once: int = AT_ONCE,
    through: Through = here,
    on_ids: Callable[[list[int]], None] | None = None,
) -> Iterator[Continuation]:
    """Generate continuations in the order of the prompts; holds ``at_once`` prompts in memory.

    The n-th prompt's samples depend on the seed and n, not on the batch. ``through`` and ``on_ids``: as in
    ``NextTokenModel``. ConfigError for a model that cannot generate, InputError for a prompt without tokens,
    LengthError for one that is too long.
    """
    model = language_model(loaded)
    tokenizer = loaded.tokenizer
    writer = NextTokenModel(model.objective, tokenizer, tokenizer.special_ids, device, through, on_ids)
    first = 0
    source = iter(prompts)
    while some := list(islice(source, at_once)):
        rows = [prompt_row(loaded, model, prompt, writing.max_new_tokens) for prompt in some]
        found: list[Hypothesis | None] = [None] * len(rows)
        n_kept = writing.beam if writing.how == "beam" else 1
        for chosen in in_batches([n_kept * (len(row) + writing.max_new_tokens) for row in rows], budget_tokens):
            written = _search(writer, [rows[i] for i in chosen], writing, [first + i for i in chosen])
            for i, one in zip(chosen, written, strict=True):
                found[i] = one
        for prompt, row, hypothesis in zip(some, rows, found, strict=True):
            assert hypothesis is not None
            yield _continuation(loaded, model, prompt, row, hypothesis)
        first += len(some)


def prompt_row(loaded: Loaded, model: LanguageModel, prompt: str, length: int) -> list[int]:
    """Return the token ids of a prompt in the model's reading order, preceded by those that start a text."""
    ids = loaded.tokenizer.encode(prompt).ids
    shown = repr(prompt if len(prompt) <= 60 else prompt[:57] + "…")
    row = [*model.start, *(reversed(ids) if model.backward else ids)]
    if not row:
        raise InputError(f"{shown} has no tokens: generation needs a prompt of at least one word")
    if loaded.max_length is not None and len(row) + length > loaded.max_length:
        if not length:
            raise LengthError(f"{shown} has {len(row)} tokens, the model reads at most {loaded.max_length}: shorten it")
        raise LengthError(
            f"{shown} has {len(row)} tokens; {length} more exceed the model's maximum of "
            f"{loaded.max_length}: shorten the text, or generate fewer tokens"
        )
    return row


def check_prompt(loaded: Loaded, prompt: str, length: int) -> None:
    """Raise InputError or LengthError for a prompt that cannot be continued by ``length`` tokens."""
    prompt_row(loaded, language_model(loaded), prompt, length)


def _search(
    writer: NextTokenModel, rows: Sequence[Sequence[int]], writing: Writing, numbers: Sequence[int]
) -> list[Hypothesis]:
    """Find the best continuation of each prompt; ``numbers``: the prompts' numbers, for sampling."""
    state, last = writer.begin(rows)
    most = [writing.max_new_tokens] * len(rows)
    if writing.how == "greedy":
        return greedy(writer.advance, state, last, end_id=None, most=most)
    if writing.how == "beam":
        # All continuations have the same length, so a length penalty would change nothing.
        best = beam_search(writer.advance, state, last, end_id=None, beam=writing.beam, length_penalty=0.0, most=most)
        return [hypotheses[0] for hypotheses in best]
    return sample(
        writer.advance,
        state,
        last,
        end_id=None,
        most=most,
        temperature=writing.temperature,
        top_k=writing.top_k,
        top_p=writing.top_p,
        seed=writing.seed,
        numbers=numbers,
    )


def follows_unwritten(tokenizer: Tokenizer, given: Sequence[int]) -> bool:
    """Whether the tokenizer decodes a prompt to nothing, so that the space after it has to be added.

    Only for kinds of tokenizer that put spaces between tokens: others have them inside their tokens.
    """
    unknown = bool(given) and all(number in tokenizer.special_ids for number in given)
    return unknown and tokenizer.kind in (WORDPIECE, WORDS)


def _continuation(loaded: Loaded, model: LanguageModel, prompt: str, row: list[int], found: Hypothesis) -> Continuation:
    tokenizer, given = loaded.tokenizer, row[len(model.start) :]
    if model.backward:
        ids = found.ids[::-1]
        after, whole = tokenizer.decode(given[::-1]), tokenizer.decode([*ids, *given[::-1]])
        joined = whole.endswith(after) and not follows_unwritten(tokenizer, given)
        text = whole[: len(whole) - len(after)] if joined else f"{tokenizer.decode(ids)} "
    else:
        ids = found.ids
        before, whole = tokenizer.decode(given), tokenizer.decode([*given, *ids])
        joined = whole.startswith(before) and not follows_unwritten(tokenizer, given)
        text = whole[len(before) :] if joined else f" {tokenizer.decode(ids).removeprefix(PREFIX)}"
    return Continuation(prompt, text, [tokenizer.piece(i) for i in ids], found.log_prob, model.backward)


@torch.inference_mode()
def next_tokens(loaded: Loaded, prompt: str, top_k: int, *, device: torch.device) -> list[tuple[str, float]]:
    """Return the most probable tokens after a text (before it for a backward model), with probabilities, best first.

    Special tokens are left out; their probability is not redistributed. ConfigError for a model that does not predict
    the next token, InputError for a text without tokens if the model needs one, LengthError for a text too long,
    CheckpointError for probabilities that are not finite.
    """
    model = language_model(loaded)
    if top_k < 1:
        raise ConfigError(f"top_k={top_k}: expected at least 1")
    row = prompt_row(loaded, model, prompt, 0)
    writer = NextTokenModel(model.objective, loaded.tokenizer, loaded.tokenizer.special_ids, device)
    state, last = writer.begin([row])
    log_probs, _ = writer.advance(last, state)
    best = log_probs[0].topk(min(top_k, loaded.tokenizer.size - len(loaded.tokenizer.special_ids)))
    check_finite([best.values.cpu().numpy()])
    pieces = (loaded.tokenizer.piece(i) for i in best.indices.tolist())
    return list(zip(pieces, best.values.exp().tolist(), strict=True))
