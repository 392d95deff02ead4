"""Greedy search, sampling and beam search over any left-to-right model.

A model provides one function: ``advance(ids, state) -> (log_probs, state)`` reads the next token of each of R
sequences, ``ids (R,)``, and returns natural log-probabilities of the token after it, ``(R, V)``. Its ``state`` needs
one method: ``state.select(chosen)`` reorders, drops or repeats sequences.

``greedy``, ``sample`` and ``beam_search`` start from ``first (B,)``, the first input of each sequence (the start token,
or the last one of a prompt whose others are in ``state``), and generate at most ``most[b]`` tokens for sequence b, the
end token included. A sequence's result does not depend on the batch. If log-probabilities are NaN, as with damaged
weights, each raises CheckpointError.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.data.hashing import draw, seed_of, uniform
from firth.errors import CheckpointError, ConfigError
from firth.inference.outputs import NOT_FINITE

# Published values are at most 1; above that, longer is always better, and at 70 the penalty of long texts overflows.
_MOST_LENGTH_PENALTY = 10.0

S = TypeVar("S", bound="DecodingState")


@runtime_checkable
class DecodingState(Protocol):
    """The decoding state of R sequences."""

    def select(self: S, chosen: Int[Tensor, " R"]) -> S:
        """Select sequences in the given order; one may be taken several times."""


Advance = Callable[[Int[Tensor, " R"], S], tuple[Float[Tensor, "R V"], S]]
# Runs one step of a model, which reads the given number of tokens, and returns its result: in this thread or the one
# that owns the model.
Through = Callable[[Callable[[], Any], int], Any]


def here(step: Callable[[], Any], tokens: int) -> Any:
    """Run a step in the calling thread."""
    return step()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A continuation. ``ids``: its tokens without the end token. ``log_prob``: total, with the end token
    if it ``ended`` with one. ``score``: the ranking score in beam search, else ``log_prob``."""

    ids: list[int]
    log_prob: float
    score: float
    ended: bool


def check_length_penalty(length_penalty: float) -> None:
    """ConfigError for an exponent that is negative, or too large for ``penalty_of`` to be finite at any length."""
    if not 0 <= length_penalty <= _MOST_LENGTH_PENALTY:
        raise ConfigError(
            f"length_penalty={length_penalty}: expected 0 (no length penalty) to {_MOST_LENGTH_PENALTY:g}; Vaswani et "
            "al. have 0.6"
        )


def penalty_of(length: int, length_penalty: float) -> float:
    """The divisor of log-probabilities: ``((5 + length) / 6) ** length_penalty``; ``length`` counts the end token.

    Source: Wu et al. 2016, §7, as in tensor2tensor; Vaswani et al. 2017, §6.1.
    """
    return ((5 + length) / 6) ** length_penalty


@torch.inference_mode()
def greedy(
    advance: Advance[S], state: S, first: Int[Tensor, " B"], *, end_id: int | None, most: Sequence[int]
) -> list[Hypothesis]:
    """Greedy search: the most probable token at each step. ``end_id`` None: only ``most`` ends a sequence."""

    def choose(log_probs: Tensor, rows: Sequence[int], step: int) -> Tensor:
        return log_probs.argmax(1)

    return _one_each(advance, state, first, choose, end_id, most)


@torch.inference_mode()
def sample(
    advance: Advance[S],
    state: S,
    first: Int[Tensor, " B"],
    *,
    end_id: int | None,
    most: Sequence[int],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[Hypothesis]:
    """Sample a token at each step from the probabilities of ``filtered``.

    The sample is a function of ``seed``, the sequence's number and the step, so the same call gives the same text.
    ``numbers``: the sequences' numbers, if they are part of a larger set; default 0, 1, 2 …
    """
    check_sampling(temperature, top_k, top_p)
    key, number_of = seed_of("sample", seed), np.arange(len(most)) if numbers is None else np.asarray(numbers)

    def choose(log_probs: Tensor, rows: Sequence[int], step: int) -> Tensor:
        draws = torch.from_numpy(uniform(draw(key, number_of[list(rows)], step))).to(log_probs.device)
        sums = filtered(log_probs, temperature, top_k, top_p).double().cumsum(1)
        _check_numbers(sums[:, -1].tolist())
        # Scale by the total, which rounding leaves near 1; the first cumulative sum above belongs to an allowed token.
        return torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True).squeeze(1)

    return _one_each(advance, state, first, choose, end_id, most)


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Check the options of ``sample``; ConfigError for invalid ones."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ConfigError(f"temperature={temperature}: expected above 0 (values near 0 approach greedy search)")
    if top_k < 0:
        raise ConfigError(f"top_k={top_k}: expected 1 or more, or 0 for all tokens")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p={top_p}: expected above 0 and at most 1")


def filtered(log_probs: Float[Tensor, "R V"], temperature: float, top_k: int, top_p: float) -> Float[Tensor, "R V"]:
    """Probabilities to sample from: scaled by ``temperature``, limited to the ``top_k`` most probable tokens (0: all),
    and to the fewest of them that hold ``top_p`` of the probability (Holtzman et al. 2019, §3.1)."""
    n_kept = min(top_k, log_probs.shape[1]) if top_k else log_probs.shape[1]
    scores = log_probs.double()
    # Relative to the most probable token, so that the lowest temperatures give no infinities.
    best = ((scores - scores.amax(1, keepdim=True)) / temperature).topk(n_kept)
    ordered = best.values.softmax(1).float()
    if top_p < 1:
        # A token stays if those before it hold less than top_p; the first one stays even if top_p rounds to 0.
        beyond = ordered.cumsum(1) - ordered >= top_p
        beyond[:, 0] = False
        ordered = ordered.masked_fill(beyond, 0)
    kept = torch.zeros_like(log_probs, dtype=torch.float32).scatter_(1, best.indices, ordered)
    return kept / kept.sum(1, keepdim=True)


def _one_each(
    advance: Advance[S],
    state: S,
    first: Tensor,
    choose: Callable[[Tensor, Sequence[int], int], Tensor],
    end_id: int | None,
    most: Sequence[int],
) -> list[Hypothesis]:
    """Generate one continuation per sequence; ``choose(log_probs, rows, step)`` returns the next tokens."""
    _check_most(most, first)
    ids: list[list[int]] = [[] for _ in most]
    log_prob, ended = [0.0] * len(most), [False] * len(most)
    rows, last = list(range(len(most))), first
    for step in range(max(most, default=0)):
        log_probs, state = advance(last, state)
        last = choose(log_probs, rows, step)
        gained = log_probs.gather(1, last[:, None]).squeeze(1).tolist()
        _check_numbers(gained)
        going = []
        for place, (row, piece, gain) in enumerate(zip(rows, last.tolist(), gained, strict=True)):
            log_prob[row] += gain
            if piece == end_id:
                ended[row] = True
                continue
            ids[row].append(piece)
            if len(ids[row]) < most[row]:
                going.append(place)
        if not going:
            break
        if len(going) < len(rows):
            chosen = torch.tensor(going, device=last.device)
            rows, last, state = [rows[place] for place in going], last.index_select(0, chosen), state.select(chosen)
    return [Hypothesis(*found) for found in zip(ids, log_prob, log_prob, ended, strict=True)]


def _check_numbers(values: Sequence[float]) -> None:
    """Raise CheckpointError for NaN. NaN sorts as the greatest value, so checking the chosen values is enough."""
    if any(map(math.isnan, values)):
        raise CheckpointError(NOT_FINITE)


def _check_most(most: Sequence[int], first: Tensor) -> None:
    if len(most) != len(first) or any(n < 1 for n in most):
        raise ValueError(f"most={list(most)}: expected at least 1 for each of {len(first)} sequences")


@dataclass(frozen=True, slots=True)
class _Alive:
    """An unfinished hypothesis. ``place``: its index in the model's state; ``ids``: its tokens."""

    place: int
    ids: tuple[int, ...]
    log_prob: float

    def hypothesis(self, length_penalty: float, *, ended: bool) -> Hypothesis:
        score = self.log_prob / penalty_of(len(self.ids) + ended, length_penalty)
        return Hypothesis(list(self.ids), self.log_prob, score, ended)


@torch.inference_mode()
def beam_search(
    advance: Advance[S],
    state: S,
    first: Int[Tensor, " B"],
    *,
    end_id: int | None,
    beam: int,
    length_penalty: float,
    most: Sequence[int],
) -> list[list[Hypothesis]]:
    """Beam search: the ``beam`` best continuations of each sequence, by log-probability over ``penalty_of``.

    Of the best ``2 * beam`` extensions of the unfinished hypotheses, those that end join the finished ones, of which
    the best ``beam`` are kept; the best ``beam`` others continue. A sequence is done when its worst finished hypothesis
    cannot be beaten: log-probabilities only fall, so an unfinished one never scores more than its log-probability so
    far over the penalty of the greatest length. If none finished within ``most``, the unfinished hypotheses are
    returned.

    With ``beam`` 1 this is greedy search, as in tensor2tensor: strictly by the procedure, a single
    hypothesis could also end at an end token that is only second best.
    Source: Vaswani et al. 2017, §6.1; tensor2tensor utils/beam_search.py.
    """
    if beam < 1:
        raise ConfigError(f"beam={beam}: expected at least 1")
    check_length_penalty(length_penalty)
    if beam == 1:
        found = greedy(advance, state, first, end_id=end_id, most=most)
        return [[_Alive(0, tuple(f.ids), f.log_prob).hypothesis(length_penalty, ended=f.ended)] for f in found]
    _check_most(most, first)
    alive = [[_Alive(row, (), 0.0)] for row in range(len(most))]
    finished: list[list[Hypothesis]] = [[] for _ in most]
    # The hypotheses of completed sequences in which none reached an end token.
    left: list[list[_Alive]] = [[] for _ in most]
    last = first
    for step in range(1, max(most, default=0) + 1):
        log_probs, state = advance(last, state)
        best = log_probs.topk(min(2 * beam, log_probs.shape[1]))
        values, pieces = best.values.tolist(), best.indices.tolist()
        _check_numbers([highest for highest, *_ in values])
        for row, beginnings in enumerate(alive):
            if not beginnings:
                continue
            ended, alive[row] = _extend(beginnings, values, pieces, beam, end_id)
            finished[row] += [beginning.hypothesis(length_penalty, ended=True) for beginning in ended]
            finished[row] = sorted(finished[row], key=lambda found: -found.score)[:beam]
            if step == most[row] or _cannot_improve(finished[row], alive[row], penalty_of(most[row], length_penalty)):
                left[row], alive[row] = alive[row], []
        going = [beginning for beginnings in alive for beginning in beginnings]
        if not going:
            break
        last = torch.tensor([beginning.ids[-1] for beginning in going], device=first.device)
        state = state.select(torch.tensor([beginning.place for beginning in going], device=first.device))
        places = iter(range(len(going)))
        alive = [[_Alive(next(places), b.ids, b.log_prob) for b in beginnings] for beginnings in alive]
    unended = [[beginning.hypothesis(length_penalty, ended=False) for beginning in beginnings] for beginnings in left]
    return [some or others for some, others in zip(finished, unended, strict=True)]


def _extend(
    beginnings: Sequence[_Alive], values: list[list[float]], pieces: list[list[int]], beam: int, end_id: int | None
) -> tuple[list[_Alive], list[_Alive]]:
    """Find the best ``2 * beam`` extensions of one sequence's hypotheses: those that end here, without the end token,
    and the best ``beam`` of the others."""
    extensions = [
        (beginning.log_prob + value, piece, beginning)
        for beginning in beginnings
        for value, piece in zip(values[beginning.place], pieces[beginning.place], strict=True)
        if value > -math.inf
    ]
    extensions.sort(key=lambda extension: -extension[0])
    ended, going = [], []
    for log_prob, piece, beginning in extensions[: 2 * beam]:
        if piece == end_id:
            ended.append(_Alive(beginning.place, beginning.ids, log_prob))
        else:
            going.append(_Alive(beginning.place, (*beginning.ids, piece), log_prob))
    return ended, going[:beam]


def _cannot_improve(finished: Sequence[Hypothesis], alive: Sequence[_Alive], greatest_penalty: float) -> bool:
    if not alive:
        return True
    return bool(finished) and finished[-1].score >= alive[0].log_prob / greatest_penalty
