"""Transfer a word-level model's weights to another vocabulary."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from firth.folder import Loaded
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS


def has_other_words(loaded: Loaded, tokenizer: Tokenizer) -> bool:
    """Whether a model reads whole words and ``tokenizer`` has a different word vocabulary."""
    both = loaded.tokenizer.kind is WORDS and tokenizer.kind is WORDS
    return both and loaded.tokenizer.fingerprint != tokenizer.fingerprint


def makes_same_words(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether both split text into the same words, whatever their vocabularies."""
    ours, theirs = one.rules(), other.rules()
    return all(ours[step] == theirs[step] for step in ("normalizer", "pre_tokenizer"))


def weights_for_words(loaded: Loaded, tokenizer: Tokenizer) -> tuple[dict[str, Tensor], int]:
    """The model's weights for ``tokenizer``'s words, and how many words are new to the model.

    A shared word keeps its vector and its bias; a new one is initialised with the mean of all old words, or
    with zeros in a frozen table.
    Source: Howard & Ruder 2018, §3.2 (specification §3).
    """
    old = {piece: i for i, piece in enumerate(loaded.tokenizer.pieces)}
    # New words read the row after the last.
    rows = torch.tensor([old.get(piece, len(old)) for piece in tokenizer.pieces])
    state = loaded.objective.state_dict()
    by_word = _by_word(loaded, state)
    fixed = dict(loaded.objective.named_buffers())
    new = {name: state[name].mean(0, keepdim=True) * (name not in fixed) for name in by_word}
    moved = {name: torch.cat([state[name], new[name]])[rows] for name in by_word}
    return {**state, **moved}, int((rows == len(old)).sum())


def _by_word(loaded: Loaded, state: Mapping[str, Tensor]) -> list[str]:
    """The tensors with a row per word: those whose length depends on the vocabulary."""
    objective = loaded.objective
    config = objective.encoder.config
    larger = dataclasses.replace(config, vocab_size=config.vocab_size + 1)
    with torch.device("meta"):
        other = loaded.system.objective(loaded.system.encoder(larger), objective.config).state_dict()
    return [name for name, tensor in state.items() if tensor.shape != other[name].shape]
