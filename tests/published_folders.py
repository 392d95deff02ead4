"""Folders in the formats that other tools publish, made without those tools: tiny, with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from firth.convert import hf_bert
from firth.convert.renames import expand, to_theirs
from firth.data.batch import Objective
from firth.folder import PRETRAINING, tensor_names
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.tasks.table import TASKS
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, *(form for c in "abcdehimnortuyABC.," for form in (c, "##" + c))]
SIZES = BertConfig(vocab_size=len(PIECES), width=8, n_layers=2, n_heads=2, feed_forward_width=12, max_positions=32)


def drawn(objective: Objective) -> Objective:
    """Sample every parameter, so that none is zero or one, which could hide a mistake."""
    torch.manual_seed(0)
    for parameter in objective.parameters():
        nn.init.normal_(parameter, std=0.5)
    return objective.eval()


def masked(*, next_sentence: bool = True) -> Objective:
    return drawn(MaskedLM(Bert(SIZES), MaskedLMConfig(next_sentence=next_sentence)))


def fine_tuned(task: str, options: Any) -> Objective:
    return drawn(TASKS[task].model(Bert(SIZES), options))


def weights(objective: Objective, task: str = PRETRAINING) -> dict[str, Tensor]:
    """The weights under Hugging Face's names."""
    names = tensor_names("bert", task, objective.config)
    assert names is not None
    return to_theirs(objective.state_dict(), expand(names, SIZES.n_layers))


def publish(
    folder: Path,
    state: dict[str, Tensor],
    *,
    architecture: str = "BertForPreTraining",
    vocab: list[str] | None = PIECES,
    **config: Any,
) -> Path:
    """Write a folder with config.json, model.safetensors and vocab.txt."""
    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors")
    about = hf_bert.config_to_hf(SIZES, architecture, 0) | config
    (folder / "config.json").write_text(json.dumps(about))
    if vocab is not None:
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in vocab), "utf-8")
    return folder


def encoder_alone(objective: Objective) -> dict[str, Tensor]:
    """Only the encoder, as sentence encoders are published: no heads, no prefix."""
    return {n.removeprefix("bert."): t for n, t in weights(objective).items() if n.startswith("bert.")}
