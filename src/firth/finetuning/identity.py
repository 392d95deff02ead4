"""What identifies a fine-tuning: hashes of its options, examples, initial weights and word vectors."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import torch

from firth.finetuning.base import Base, FirstVectors
from firth.finetuning.labelled import LabelledData

IDENTITY = "identity.json"


def hash_of_records(*parts: Sequence[Any]) -> str:
    """Hash the contents of labelled examples, regardless of where they were read."""
    found = hashlib.sha256()
    for record in itertools.chain(*parts):
        found.update(repr(dataclasses.replace(record, where="")).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def hash_of_base(base: Base) -> str:
    """Hash the weights and the tokenizer that a fine-tuning starts from."""
    found = hashlib.sha256(base.tokenizer.fingerprint.encode())
    for name, tensor in sorted((base.weights or {}).items()):
        found.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def identity(
    recipe: dict[str, Any], base: Base, labelled: LabelledData, vectors: Sequence[FirstVectors] = ()
) -> dict[str, str]:
    """Hash the inputs of a fine-tuning: options, examples, initial weights and word vectors.

    ``recipe``: as stored in its file.
    """
    examples = hash_of_records(labelled.train, labelled.held, *labelled.dev.values())
    options = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    found = {"the recipe": options, "the labelled data": examples, "the model": hash_of_base(base)}
    if not vectors:
        return found
    words = hashlib.sha256()
    for some in vectors:
        words.update(repr(some.rows.shape).encode() + some.numbers.numpy().tobytes() + some.rows.numpy().tobytes())
    return found | {"the word vectors": words.hexdigest()}
