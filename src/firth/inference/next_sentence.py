"""Predict whether one text follows another, with a model that has a next-sentence head."""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from firth.data.rows import pack_lists
from firth.errors import ConfigError, InputError, LengthError
from firth.folder import PRETRAINING, Loaded
from firth.inference.batching import in_batches
from firth.inference.outputs import check_finite
from firth.objectives.masked_lm import MaskedLM
from firth.tasks.learnt import POOLER

AT_ONCE = 256  # pairs


def next_sentence_model(loaded: Loaded) -> MaskedLM:
    """Return the objective of a model that predicts the next sentence; else ConfigError, saying how to train one."""
    objective = loaded.objective
    has_head = isinstance(objective, MaskedLM) and objective.nsp is not None and loaded.task == PRETRAINING
    if not has_head or "nsp" in loaded.untrained or POOLER in loaded.untrained:
        raise ConfigError(
            f"this model of system {loaded.system_name} for {loaded.task} has no trained next-sentence head: train one "
            "with firth pretrain --model bert-mini --recipe published (the recipe small, the default below base size, "
            "leaves it out), or take a published BERT with its pre-training heads"
        )
    assert isinstance(objective, MaskedLM)
    return objective


@torch.inference_mode()
def follow_probabilities(
    loaded: Loaded,
    pairs: Iterable[tuple[str, str]],
    *,
    device: torch.device,
    budget_tokens: int,
    at_once: int = AT_ONCE,
) -> Iterator[float]:
    """Yield for each pair the probability that the second text follows the first, in order; holds ``at_once`` pairs.

    ConfigError for a model without the head, InputError for an empty text, LengthError for a pair too long.
    """
    objective = next_sentence_model(loaded)
    source = iter(pairs)
    while some := list(islice(source, at_once)):
        rows = [pair_row(loaded, first, second) for first, second in some]
        found = [0.0] * len(rows)
        for chosen in in_batches([len(ids) for ids, _ in rows], budget_tokens):
            tokens = pack_lists([rows[i][0] for i in chosen], [rows[i][1] for i in chosen]).to(device)
            hidden = objective.encoder(tokens, keep=())
            probabilities = objective.next_sentence_logits(hidden.summary).float().softmax(1)[:, 0]
            for i, value in zip(chosen, probabilities.tolist(), strict=True):
                found[i] = value
        check_finite([found])
        yield from found


def pair_row(loaded: Loaded, first: str, second: str) -> tuple[list[int], list[int]]:
    """The ids and segments of a pair; InputError for an empty text, LengthError for a pair too long."""
    ids = loaded.tokenizer.ids_many([first, second])
    for text, some in zip((first, second), ids, strict=True):
        if not some:
            raise InputError(f"{text[:60]!r} has no tokens: give two texts with a word in each")
    row, segments = loaded.layout.pair(*ids)
    if loaded.max_length is not None and len(row) > loaded.max_length:
        raise LengthError(
            f"the pair of {first[:40]!r} and {second[:40]!r} has {len(row)} tokens, the model reads at most "
            f"{loaded.max_length}: shorten it"
        )
    return row, segments
