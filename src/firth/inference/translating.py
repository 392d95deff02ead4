"""Translate lines: batched by length, with the paper's beam search."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.folder import PRETRAINING, Loaded
from firth.inference.batching import in_batches
from firth.inference.decoding import Through, beam_search, here
from firth.packed import Tokens

AT_ONCE = 2048
# Most log-probabilities of a batch's next pieces at once: of many short lines they would be most of the memory.
MOST_SCORES = 2**23
# Most pieces that the lines of a batch may become, for each one of the budget: a line of usual length stays below.
MOST_WRITTEN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How translations are looked for. Defaults: Vaswani et al. 2017, §6.1."""

    beam: int = 4
    length_penalty: float = 0.6
    extra: int = 50

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ConfigError(f"beam={self.beam}: expected at least 1, which is the greedy search")
        if not 0 <= self.length_penalty < float("inf"):
            raise ConfigError(f"length_penalty={self.length_penalty}: expected 0 (no length penalty) or more")
        if self.extra < 1:
            raise ConfigError(f"extra={self.extra}: expected at least 1")


@dataclass(frozen=True, slots=True)
class Translated:
    """A translation. ``log_prob`` of all ``pieces`` of it by the model, ``score`` what it was chosen by.

    ``ended``: False where the longest length came before an end. Of a line without text all is empty. ``read``: how
    many pieces the line has, the end piece included.
    """

    text: str
    score: float
    log_prob: float
    pieces: int
    ended: bool
    read: int = 0


class Translator(Protocol):
    """What translating asks of an objective; ``state`` is its own (``decoding.State``)."""

    def begin(self, tokens: Tokens) -> Any:
        """The state from which rows of the source are translated."""

    def advance(self, ids: Int[Tensor, " R"], state: Any) -> tuple[Float[Tensor, "R V"], Any]:
        """Read one more piece a row: log-probabilities of the next one, and the state with it."""


def translates(loaded: Loaded) -> bool:
    """Whether a model has learnt to translate, and still has what it writes with."""
    learnt = loaded.task == PRETRAINING and loaded.system.predict == "translation"
    return learnt and getattr(loaded.objective, "decoder", None) is not None


def translation_model(loaded: Loaded) -> Translator:
    """The objective of a model that translates; ConfigError for any other."""
    if not translates(loaded):
        what = f"system {loaded.system_name}" + ("" if loaded.task == PRETRAINING else f" for {loaded.task}")
        what += ", an encoder alone," if loaded.system.predict == "translation" and loaded.task == PRETRAINING else ""
        raise ConfigError(
            f"a model of {what} does not translate: train one with firth pretrain --model transformer-mini"
        )
    return cast(Translator, loaded.objective)


def trained_length(loaded: Loaded) -> int | None:
    """The longest line of its training, in pieces, if the model says so; of a longer one it never saw the places."""
    recipe = loaded.provenance.get("recipe")
    said = [recipe.get(f"data.{name}") for name in ("length", "long_length")] if isinstance(recipe, dict) else []
    return max((n for n in said if isinstance(n, int) and n > 0), default=None)


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
    """The translation of each text, in the order of the texts; ``at_once`` texts are held in memory.

    ``budget_tokens``: of the source in all beams of a batch together; what may be written, and the scores of the next
    pieces, have bounds of their own (``MOST_WRITTEN``, ``MOST_SCORES``). A line of n pieces has a translation of at
    most n + ``search.extra``, or of one more that has no end. ``on_progress`` is called with how many more lines are
    done, in whatever order. ``through`` runs each step of the model. CheckpointError for a model whose
    probabilities are not numbers.
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
    # A line without pieces has nothing to translate. Longest first, as batches are: many lines may cost the same.
    asked = sorted((number for number, pieces in enumerate(ids) if pieces), key=lambda number: -len(ids[number]))
    rows = [layout.single(ids[number]) for number in asked]
    if on_progress is not None:
        on_progress(len(texts) - len(asked))
    for batch in in_batches(_costs([len(row) for row in rows], search, tokenizer.size, budget_tokens), budget_tokens):
        tokens = pack_lists([rows[i] for i in batch]).to(device)
        state = through(partial(model.begin, tokens))
        first = torch.full((len(batch),), tokenizer.start_id, device=device)
        hypotheses = beam_search(
            lambda ids, state: through(partial(model.advance, ids, state)),
            state,
            first,
            end_id=tokenizer.end_id,
            beam=search.beam,
            alpha=search.length_penalty,
            most=[len(rows[i]) + search.extra for i in batch],
        )
        for i, (best, *_) in zip(batch, hypotheses, strict=True):
            text = tokenizer.decode(best.ids)
            found[asked[i]] = Translated(text, best.score, best.log_prob, len(best.ids), best.ended, len(rows[i]))
        if on_progress is not None:
            on_progress(len(batch))
    return found


def _costs(lengths: Sequence[int], search: Search, n_pieces: int, budget_tokens: int) -> list[int]:
    """What lines take of the budget: the pieces that are read, or as much as what bounds a batch sooner."""
    scores = math.ceil(budget_tokens * n_pieces / MOST_SCORES)
    return [search.beam * max(n, math.ceil((n + search.extra) / MOST_WRITTEN), scores) for n in lengths]
