"""A corpus folder written directly, without preprocessing: several shards, one of them empty."""

from pathlib import Path

import numpy as np

from firth.data.shards import FORMAT, VERSION, Manifest, write_manifest, write_shard
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

PIECES = [*SPECIALS, *(f"w{i}" for i in range(60)), *(f"##s{i}" for i in range(15))]

DocumentLengths = list[list[int]]


def random_documents(n: int, seed: int) -> DocumentLengths:
    rng = np.random.default_rng(seed)
    return [rng.integers(2, 9, rng.integers(1, 8)).tolist() for _ in range(n)]


def write_corpus(
    folder: Path,
    train: list[DocumentLengths] | None = None,
    dev: list[DocumentLengths] | None = None,
    *,
    seed: int = 0,
) -> Path:
    """Write a corpus folder whose shards have sentences of these lengths and random tokens."""
    tokenizer = Tokenizer.from_vocab(PIECES, lowercase=True)
    folder.mkdir(parents=True)
    tokenizer.save(folder / "tokenizer")
    if train is None:
        train = [random_documents(14, 1), random_documents(5, 2), [], random_documents(9, 3)]
    if dev is None:
        dev = [random_documents(6, 4)]
    rng = np.random.default_rng(seed)
    infos = {}
    for split, shards in (("train", train), ("dev", dev)):
        infos[split] = tuple(
            write_shard(
                folder,
                f"{split}-{number:05}",
                rng.integers(len(SPECIALS), len(PIECES), sum(map(sum, lengths))).astype(np.uint16),
                np.cumsum([0, *(n for document in lengths for n in document)]),
                np.cumsum([0, *map(len, lengths)]),
            )
            for number, lengths in enumerate(shards)
        )
    write_manifest(
        folder,
        Manifest(format=FORMAT, version=VERSION, tokenizer=tokenizer.fingerprint, sources=(), options="{}", **infos),
    )
    return folder
