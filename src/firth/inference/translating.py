"""Translate lines: batched by length, with the paper's beam search."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.folder import PRETRAINING, Loaded
from firth.inference.batching import in_batches
from firth.inference.decoding import Through, beam_search, check_length_penalty, here
from firth.inference.defaults import BEAM, EXTRA, LENGTH_PENALTY
from firth.packed import Tokens

AT_ONCE = 2048
# Limit on a batch's next-token log-probabilities, which would dominate memory with many short lines.
MOST_SCORES = 2**23
# Limit on a batch's output tokens, per token of the budget; lines of typical length stay below it.
MOST_WRITTEN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Options of the search for translations."""

    beam: int = BEAM
    length_penalty: float = LENGTH_PENALTY
    extra: int = EXTRA

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ConfigError(f"beam={self.beam}: expected at least 1 (greedy search)")
        check_length_penalty(self.length_penalty)
        if self.extra < 1:
            raise ConfigError(f"extra={self.extra}: expected at least 1")


@dataclass(frozen=True, slots=True)
class Translated:
    """A translation; empty for a line without text.

    ``log_prob``: over all its ``tokens``. ``score``: the search's ranking score. ``ended``: False if it reached the
    maximum length before an end token. ``read``: the number of source tokens, the end token included.
    """

    text: str
    score: float
    log_prob: float
    tokens: int
    ended: bool
    read: int = 0


@runtime_checkable
class Translator(Protocol):
    """The interface of an objective that translates; ``state`` is its own (``decoding.State``)."""

    def begin(self, tokens: Tokens) -> Any:
        """Encode the source sequences; returns the initial decoding state."""

    def advance(self, ids: Int[Tensor, " R"], state: Any) -> tuple[Float[Tensor, "R V"], Any]:
        """Read one more token per sequence: log-probabilities of the next one, and the new state."""


def translates(loaded: Loaded) -> bool:
    """Whether a model was trained to translate and still has its decoder."""
    learnt = loaded.task == PRETRAINING and loaded.system.predict == "translation"
    return learnt and getattr(loaded.objective, "decoder", None) is not None


def translation_model(loaded: Loaded) -> Translator:
    """The translation objective of a model; ConfigError if it has none."""
    if not translates(loaded):
        what = f"system {loaded.system_name}" + ("" if loaded.task == PRETRAINING else f" for {loaded.task}")
        what += ", only an encoder," if loaded.system.predict == "translation" and loaded.task == PRETRAINING else ""
        raise ConfigError(
            f"a model of {what} does not translate: train one with firth pretrain --model transformer-mini"
        )
    return cast(Translator, loaded.objective)


def translate_stream(
    loaded: Loaded,
    texts: Iterable[str],
    search: Search,
    *,
    device: torch.device,
    budget_tokens: int = 4096,
    at_once: int = AT_ONCE,
    on_progress: Callable[[int], None] | None = None,
    through: Through = here,
) -> Iterator[Translated]:
    """Translate texts in order; holds ``at_once`` texts in memory.

    ``budget_tokens``: source tokens of a batch over all beams; outputs and next-token scores have their own limits
    (``MOST_WRITTEN``, ``MOST_SCORES``). A line of n tokens has a translation of at most n + ``search.extra`` tokens, or
    one more without an end token. ``on_progress`` receives the number of lines done since its last call. ``through``
    runs each step of the model. CheckpointError for a model whose probabilities are NaN.
    """
    translation_model(loaded)
    source = iter(texts)
    while some := list(islice(source, at_once)):
        yield from _translate_some(loaded, some, search, device, budget_tokens, on_progress, through)


@torch.inference_mode()
def _translate_some(
    loaded: Loaded,
    texts: list[str],
    search: Search,
    device: torch.device,
    budget_tokens: int,
    on_progress: Callable[[int], None] | None,
    through: Through,
) -> list[Translated]:
    model, tokenizer = translation_model(loaded), loaded.tokenizer
    layout = loaded.layout
    ids = tokenizer.ids_many(texts)
    found = [Translated("", 0.0, 0.0, 0, ended=True)] * len(texts)
    # A line without tokens has nothing to translate. Longest first, as in batches, where many lines may cost the same.
    asked = sorted((number for number, pieces in enumerate(ids) if pieces), key=lambda number: -len(ids[number]))
    rows = [layout.single(ids[number]) for number in asked]
    # A vocabulary of whole words has taught the model to write <unk>, which is no translation.
    never = torch.tensor([i for i in tokenizer.special_ids if i != tokenizer.end_id], dtype=torch.int64, device=device)

    def advance(ids: Int[Tensor, " R"], state: Any) -> tuple[Float[Tensor, "R V"], Any]:
        log_probs, following = through(partial(model.advance, ids, state), len(ids))
        return log_probs.index_fill(1, never, -torch.inf), following

    if on_progress is not None:
        on_progress(len(texts) - len(asked))
    for batch in in_batches(_costs([len(row) for row in rows], search, tokenizer.size, budget_tokens), budget_tokens):
        tokens = pack_lists([rows[i] for i in batch]).to(device)
        state = through(partial(model.begin, tokens), sum(len(rows[i]) for i in batch))
        first = torch.full((len(batch),), tokenizer.start_id, device=device)
        hypotheses = beam_search(
            advance,
            state,
            first,
            end_id=tokenizer.end_id,
            beam=search.beam,
            length_penalty=search.length_penalty,
            most=[len(rows[i]) + search.extra for i in batch],
        )
        for i, (best, *_) in zip(batch, hypotheses, strict=True):
            text = tokenizer.decode(best.ids)
            found[asked[i]] = Translated(text, best.score, best.log_prob, len(best.ids), best.ended, len(rows[i]))
        if on_progress is not None:
            on_progress(len(batch))
    return found


def _costs(lengths: Sequence[int], search: Search, n_pieces: int, budget_tokens: int) -> list[int]:
    """Cost of each line in the budget: its source tokens, or more if another limit is reached sooner."""
    scores = math.ceil(budget_tokens * n_pieces / MOST_SCORES)
    return [search.beam * max(n, math.ceil((n + search.extra) / MOST_WRITTEN), scores) for n in lengths]
