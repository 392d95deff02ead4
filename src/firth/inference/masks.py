"""Fill masks in two steps: text -> sequence -> the most probable tokens of each mask.

The first needs only the tokenizer; the caller runs the model and chooses the batches. The masks are those of the text,
or those that pre-training would put into it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.data.config import MaskingConfig
from firth.data.masking import Masker
from firth.data.rows import pack_lists
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, Loaded
from firth.inference.outputs import check_finite
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Hidden
from firth.systems import has_weights
from firth.text.tokenizer import whole_text

MASK = "[MASK]"
# Positions predicted at a time: each has a number for every token of the vocabulary.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate token for a mask, with its ``probability`` over the vocabulary."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One ``[MASK]`` of a text: its first character, and the best candidates, best first."""

    start: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A tokenised text with masks, and the first character of each mask."""

    ids: list[int]
    starts: list[int]


@dataclass(frozen=True, slots=True)
class HiddenRow:
    """A text masked as in pre-training: ``ids`` with masks, the positions to predict, and the original tokens there."""

    ids: list[int]
    chosen: list[int]
    labels: list[int]


@dataclass(frozen=True, slots=True)
class Guess:
    """The prediction at one position: the original token's probability, and the best candidates, best first."""

    probability: float
    candidates: tuple[Candidate, ...]


def check_masked(loaded: Loaded, top_k: int) -> MaskedLM:
    """Return the masked-LM objective of a model; ConfigError if it has none, and for an invalid ``top_k``."""
    if loaded.system.predict != "masked" or not isinstance(loaded.objective, MaskedLM):
        raise ConfigError(
            f"{loaded.system_name} models for {loaded.task} cannot fill masks: that takes a pre-trained BERT with its "
            f"masked-LM head, such as firth fill-mask {masked_base(loaded)} TEXT"
        )
    if "mlm" in loaded.untrained:
        raise ConfigError(
            "this model was published without a masked-LM head: it cannot fill masks until "
            "firth pretrain --model trains one"
        )
    if not 1 <= top_k <= loaded.tokenizer.size:
        raise ConfigError(f"top_k={top_k}: expected 1 to {loaded.tokenizer.size}, the size of the vocabulary")
    return loaded.objective


def masked_base(loaded: Loaded) -> str:
    """Return the pre-trained model that a fine-tuned one comes from, if its folder names it; else a bundled one."""
    recipe = loaded.provenance.get("recipe")
    base = recipe.get("model") if isinstance(recipe, Mapping) and loaded.task != PRETRAINING else None
    return (
        base if isinstance(base, str) and loaded.system.predict == "masked" and has_weights(base) else "firth-mini-en"
    )


def masked_row(loaded: Loaded, text: str) -> MaskedRow:
    """Tokenise a text; InputError if it has no mask, LengthError if it is longer than the model's maximum."""
    tokenizer, layout = loaded.tokenizer, loaded.system.layout(loaded.tokenizer)
    parts = whole_text(text).split(MASK)
    if len(parts) == 1:
        raise InputError(f"{shorten(text)} has no {MASK}: write one in place of the word to predict")
    ids, starts, at = list[int](), list[int](), 0
    for number, part in enumerate(parts):
        if number:
            ids.append(tokenizer.mask_id)
            starts.append(at)
            at += len(MASK)
        ids += tokenizer.encode(part).ids
        at += len(part)
    row = layout.single(ids)
    if loaded.max_length is not None and len(row) > loaded.max_length:
        raise LengthError(
            f"{shorten(text)} has {len(row)} tokens, the model reads at most {loaded.max_length}: "
            f"shorten the text around its {MASK}"
        )
    return MaskedRow(row, starts)


def hidden_row(loaded: Loaded, text: str, config: MaskingConfig, seed: int) -> HiddenRow:
    """Mask a text as pre-training does; equal seeds give equal masks.

    InputError for a text without tokens, LengthError for one longer than the model's maximum.
    """
    tokenizer, layout = loaded.tokenizer, loaded.system.layout(loaded.tokenizer)
    ids = tokenizer.encode(text).ids
    if not ids:
        raise InputError(f"{shorten(text)} has no tokens")
    row = layout.single(ids)
    if loaded.max_length is not None and len(row) > loaded.max_length:
        raise LengthError(f"{shorten(text)} has {len(row)} tokens, the model reads at most {loaded.max_length}")
    special = np.ones(len(row), bool)
    special[len(layout.first) : len(layout.first) + len(ids)] = False
    masker = Masker(config, tokenizer.mask_id, tokenizer.continues, len(row))
    start, key = np.zeros(1, np.int64), np.ones(1, np.int64)
    seen, chosen, labels = masker(np.array(row, np.int64), start, special, key, seed)
    return HiddenRow(seen.tolist(), chosen.tolist(), labels.tolist())


@torch.inference_mode()
def guess_rows(loaded: Loaded, rows: Sequence[HiddenRow], top_k: int, device: torch.device) -> list[list[Guess]]:
    """Predict the chosen positions of each sequence, all in one batch; CheckpointError if outputs are not finite."""
    objective = check_masked(loaded, top_k)
    hidden = objective.encoder(pack_lists([row.ids for row in rows]).to(device), keep=(-1,))
    index = [at + place for at, row in zip(hidden.rows.first.tolist(), rows, strict=True) for place in row.chosen]
    labels = torch.tensor([label for row in rows for label in row.labels], dtype=torch.long, device=device)
    found = list[Guess]()
    for shares, asked in zip(_shares(objective, hidden, index), labels.split(_AT_ONCE), strict=True):
        own = shares.gather(1, asked[:, None]).squeeze(1).tolist()
        found += map(Guess, own, _best(shares, top_k, loaded.tokenizer.pieces))
    guesses = iter(found)
    return [[next(guesses) for _ in row.chosen] for row in rows]


@torch.inference_mode()
def fill_rows(loaded: Loaded, rows: Sequence[MaskedRow], top_k: int, device: torch.device) -> list[list[FilledMask]]:
    """Predict the masks of each sequence, all in one batch; CheckpointError if outputs are not finite."""
    objective, mask_id = check_masked(loaded, top_k), loaded.tokenizer.mask_id
    hidden = objective.encoder(pack_lists([row.ids for row in rows]).to(device), keep=(-1,))
    index = [
        at + place
        for at, row in zip(hidden.rows.first.tolist(), rows, strict=True)
        for place, piece in enumerate(row.ids)
        if piece == mask_id
    ]
    shares = _shares(objective, hidden, index)
    best = (found for some in shares for found in _best(some, top_k, loaded.tokenizer.pieces))
    return [[FilledMask(start, next(best)) for start in row.starts] for row in rows]


def _shares(objective: MaskedLM, hidden: Hidden, index: Sequence[int]) -> Iterator[Float[Tensor, "n V"]]:
    """Yield the probabilities of all tokens at some positions of a batch, ``_AT_ONCE`` positions at a time."""
    vectors = hidden.top.index_select(0, torch.tensor(index, dtype=torch.long, device=hidden.top.device))
    for some in vectors.split(_AT_ONCE):
        yield objective.logits(some).float().softmax(1)


def _best(shares: Float[Tensor, "n V"], top_k: int, pieces: Sequence[str]) -> list[tuple[Candidate, ...]]:
    best = shares.topk(top_k)
    check_finite([best.values.cpu().numpy()])
    return [
        tuple(Candidate(pieces[i], p) for i, p in zip(ids, values, strict=True))
        for values, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def shorten(text: str) -> str:
    """Shorten a text for a message."""
    return repr(text if len(text) <= 60 else text[:57] + "…")
