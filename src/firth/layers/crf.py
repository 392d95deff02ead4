"""A linear-chain conditional random field: the tags of a sequence are scored and decoded jointly.

The score of tags y is the start score of y_1, the word scores s_k(y_k), the transition scores
A[y_(k-1), y_k] and the end score of y_n; their probability is the softmax over all tag sequences that
the constraints allow. Source: Lafferty et al. 2001; as in Peters et al. 2017, §2.1.

All sequences advance together, one word per step, longest first; finished ones drop out.
``alphas[t]``: for each sequence left at step t, and each tag of its word t, the score of all earlier tags
(log-sum-exp, or maximum).
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from firth.layers.recurrent import by_time
from firth.packed import Rows

# Score of forbidden transitions. Finite, so that a tag no path reaches has gradient 0 and not NaN; so
# large that in float32 anything added to it is lost.
FORBIDDEN = -1e30


class Crf(nn.Module):
    """Transition, start and end scores, initialised to 0, and the constraints on them.

    ``allowed[i, j]``: tag j may follow tag i; ``starts``, ``ends``: tags that may start or end a sequence. They
    follow from the labels and are not part of the saved weights; they must allow some tags for every
    sequence length. All sums are in float32, under autocast too (in float64 for float64 scores).
    """

    allowed: Tensor
    starts: Tensor
    ends: Tensor

    def __init__(self, n_tags: int, allowed: Bool[Tensor, "K K"], starts: Bool[Tensor, " K"], ends: Bool[Tensor, " K"]):
        super().__init__()
        shapes = [tuple(constraint.shape) for constraint in (allowed, starts, ends)]
        if shapes != [(n_tags, n_tags), (n_tags,), (n_tags,)]:
            raise ValueError(f"constraints of shapes {shapes} do not fit {n_tags} tags")
        _check_lengths(allowed, starts, ends)
        self.transition_scores = nn.Parameter(torch.zeros(n_tags, n_tags))
        self.start_scores = nn.Parameter(torch.zeros(n_tags))
        self.end_scores = nn.Parameter(torch.zeros(n_tags))
        self.register_buffer("allowed", allowed.clone(), persistent=False)
        self.register_buffer("starts", starts.clone(), persistent=False)
        self.register_buffer("ends", ends.clone(), persistent=False)

    def loss(self, scores: Float[Tensor, "W K"], tags: Int[Tensor, " W"], rows: Rows) -> Float[Tensor, ""]:
        """-log p(tags), summed over sequences. ValueError names the sequence whose tags break the constraints."""
        self._check_tags(tags, rows)
        # Subtracting a constant from all scores of a word changes no probability, and keeps long sums small.
        scores = _fine(scores).log_softmax(1)
        transition, start, end = self._tables(scores.dtype)
        steps, _ = _steps(scores, rows)
        alphas = _alphas(steps, transition, start, torch.logsumexp)
        n_going = [*(len(alpha) for alpha in alphas[1:]), 0]
        ended = torch.cat([alpha[n:] for alpha, n in zip(alphas, n_going, strict=True)])
        log_partition = (ended + end).logsumexp(1).sum()
        word = torch.arange(len(tags), device=tags.device) * len(start) + tags
        inner = transition.flatten().index_select(0, self._transition_of(tags))
        return log_partition - (
            scores.flatten().index_select(0, word).sum()
            + torch.where(rows.positions > 0, inner, 0.0).sum()
            + start.index_select(0, tags.index_select(0, rows.first)).sum()
            + end.index_select(0, tags.index_select(0, rows.last)).sum()
        )

    @torch.no_grad()
    def decode(self, scores: Float[Tensor, "W K"], rows: Rows) -> Int[Tensor, " W"]:
        """The allowed tags of each sequence with the highest score (Viterbi)."""
        transition, start, end = self._tables(_fine(scores).dtype)
        steps, order = _steps(_fine(scores), rows)
        alphas = _alphas(steps, transition, start, torch.amax)
        tags = [order[:0]]
        for alpha in reversed(alphas):
            # After each word: the transition to the tag chosen for the next one, or the end score.
            going = transition.T.index_select(0, tags[-1])
            after = torch.cat([going, end.expand(len(alpha) - len(going), -1)])
            tags.append((alpha + after).argmax(1))
        return torch.cat(tags[::-1]).index_select(0, order.argsort())

    @torch.no_grad()
    def marginals(self, scores: Float[Tensor, "W K"], rows: Rows) -> Float[Tensor, "W K"]:
        """The marginal probability of each tag of each word (forward-backward)."""
        scores = _fine(scores).log_softmax(1)
        transition, start, end = self._tables(scores.dtype)
        steps, order = _steps(scores, rows)
        alphas = _alphas(steps, transition, start, torch.logsumexp)
        betas = [end.expand(len(steps[-1]), -1)]
        for step, previous in zip(steps[:0:-1], steps[-2::-1], strict=True):
            going = (transition + (step + betas[-1])[:, None, :]).logsumexp(2)
            betas.append(torch.cat([going, end.expand(len(previous) - len(going), -1)]))
        posterior = (torch.cat(alphas) + torch.cat(betas[::-1])).softmax(1)
        return posterior.index_select(0, order.argsort())

    def _tables(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Transition, start and end scores with the constraints applied."""
        return (
            self.transition_scores.to(dtype).masked_fill(~self.allowed, FORBIDDEN),
            self.start_scores.to(dtype).masked_fill(~self.starts, FORBIDDEN),
            self.end_scores.to(dtype).masked_fill(~self.ends, FORBIDDEN),
        )

    def _transition_of(self, tags: Tensor) -> Tensor:
        """The flat index of the transition into each word (meaningless at a sequence's first word)."""
        return tags.roll(1) * len(self.starts) + tags

    def _check_tags(self, tags: Tensor, rows: Rows) -> None:
        n_tags = len(self.starts)
        _refuse((tags < 0) | (tags >= n_tags), tags, rows, f"expected 0 to {n_tags - 1}")
        begins, ends = rows.positions == 0, rows.positions.roll(-1) == 0
        follows = self.allowed.flatten().index_select(0, self._transition_of(tags))
        _refuse(~follows & ~begins, tags, rows, "may not follow the tag before it")
        _refuse(~self.starts.index_select(0, tags) & begins, tags, rows, "may not begin a row")
        _refuse(~self.ends.index_select(0, tags) & ends, tags, rows, "may not end a row")


def _refuse(bad: Tensor, tags: Tensor, rows: Rows, why: str) -> None:
    if bool(bad.any()):
        word = int(bad.nonzero()[0])
        row, place = int(rows.row_of_token()[word]), int(rows.positions[word])
        raise ValueError(f"row {row}, word {place} (both from 0): tag {int(tags[word])}: {why}")


def _fine(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _steps(scores: Tensor, rows: Rows) -> tuple[tuple[Tensor, ...], Tensor]:
    """The scores ``(sequences left, K)`` of each step, and the order that produces them from the words."""
    if len(scores) != rows.n_tokens:
        raise ValueError(f"scores of {len(scores)} words for rows of {rows.n_tokens}")
    order, sizes = by_time(rows)
    return scores.index_select(0, order).split(sizes.tolist()), order


def _alphas(
    steps: tuple[Tensor, ...], transition: Tensor, start: Tensor, reduce: Callable[[Tensor, int], Tensor]
) -> list[Tensor]:
    """The forward recursion over all sequences; ``reduce``: logsumexp for all paths, amax for the best one."""
    alphas = [steps[0] + start]
    for step in steps[1:]:
        alphas.append(reduce(alphas[-1][: len(step), :, None] + transition, 1) + step)
    return alphas


def _check_lengths(allowed: Tensor, starts: Tensor, ends: Tensor) -> None:
    """Raise ValueError if the constraints allow no tags for some sequence length."""
    n_words, last, seen = 1, starts, set()
    while (reached := tuple(last.tolist())) not in seen:
        if not bool((last & ends).any()):
            raise ValueError(f"the constraints allow no tags for a row of {n_words} words")
        seen.add(reached)
        n_words, last = n_words + 1, (last[:, None] & allowed).any(0)
