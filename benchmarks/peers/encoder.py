"""Texts to vectors with transformers, as the servers of the peers compute them: means over the top layer's tokens."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Encoder:
    """A model folder in the dtype of this name."""

    def __init__(self, folder: str | Path, precision: str):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModel.from_pretrained(folder, dtype=TYPES[precision], add_pooling_layer=False)
        self.model.eval()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text; texts are padded to the longest one."""
        given = self.tokenizer(list(texts), padding=True, truncation=True, max_length=512, return_tensors="pt")
        hidden = self.model(**given).last_hidden_state.float()
        real = given["attention_mask"][..., None].float()
        vectors: list[list[float]] = ((hidden * real).sum(1) / real.sum(1)).tolist()
        return vectors


def given() -> tuple[str, str, int]:
    """Folder, precision and port, as a server's command line has them."""
    folder, precision, port = sys.argv[1:4]
    return folder, precision, int(port)
