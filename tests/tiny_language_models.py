"""A tiny untrained language model of every system, for tests that run on all of them."""

from typing import Any

import torch

from firth.folder import PRETRAINING, Loaded
from firth.inference.model import Model
from firth.systems import SYSTEMS
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS

NAMES = [f"{c}{i}" for c in "abcdef" for i in range(6)]
PIECES = [*SPECIALS, *NAMES, "##s"]
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"n_heads": 2, "feed_forward_width": 16, "max_positions": 16},
    "bert-ltr": {"n_heads": 2, "feed_forward_width": 16, "max_positions": 16},
    "gpt": {"n_heads": 2, "max_positions": 16},
    "lstm": {},
    "awd-lstm": {"hidden_width": 12},
    "awd-lstm backward": {"hidden_width": 12, "backward": True},
    "elmo": {"cells": 12, "character_width": 4, "filters": ((1, 8), (2, 8))},
}
LEFT_TO_RIGHT = [name for name in SIZES if name != "bert"]


def tiny_language_model(name: str) -> Model:
    """The model with normal weights from seed 0, on the CPU."""
    system_name = name.split()[0]
    system = SYSTEMS[system_name]
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    if system.characters:
        tokenizer = system.reads(Tokenizer.from_words([*WORDS.specials, *NAMES], lowercase=True))
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.size, "width": 16, "n_layers": 2} | SIZES[name] | dict(system.fixed)
    objective = system.objective(system.encoder(system.config(**sizes)), system.objective_config())
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Model(Loaded(system_name, PRETRAINING, objective.eval(), tokenizer), torch.device("cpu"), budget_tokens=40)
