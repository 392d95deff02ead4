"""Turn documents into shards: a worker process splits each block of documents into sentences and tokenises it."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from firth.corpus.selection import Selection, document_hash
from firth.data.shards import ShardInfo, write_shard
from firth.text.id_cache import IdCache
from firth.text.sentences import split_sentences
from firth.text.tokenizer import Tokenizer

Lines = Literal["paragraph", "sentence", "book", "pair"]
_SENTENCES_AT_ONCE = 2000


@dataclass(slots=True)
class Block:
    """Documents that become one shard."""

    name: str
    documents: list[tuple[str, ...]]
    characters: int = 0


class Blocks:
    """Yields documents in blocks of about ``characters``; held-out documents get separate blocks.

    ``threshold``: documents of ``text`` with a lower hash are held out, as are all of ``dev``.
    """

    def __init__(self, text: Selection, dev: Selection | None, threshold: int, characters: int):
        self._parts = (text, *([dev] if dev else []))
        self._threshold, self._characters = threshold, characters
        text.threshold = threshold
        self._hashes = array("Q")

    @property
    def total_bytes(self) -> int:
        return sum(part.total_bytes for part in self._parts)

    @property
    def bytes_consumed(self) -> int:
        return sum(part.bytes_consumed for part in self._parts)

    def repeated(self) -> int:
        """Number of documents equal to an earlier one, not counting copies made by weight."""
        return len(self._hashes) - len(np.unique(np.frombuffer(self._hashes, np.uint64))) if self._hashes else 0

    def __iter__(self) -> Iterator[Block]:
        text, *dev = self._parts
        yield from self._of(text, "train")
        for part in dev:
            yield from self._of(part, "dev")

    def _of(self, text: Selection, split: str) -> Iterator[Block]:
        counts = {"train": 0, "dev": 0}
        open_blocks: dict[str, Block] = {}
        for document, copy in text:
            hashed = document_hash(document.paragraphs)
            kind = "dev" if split == "train" and hashed < self._threshold else split
            if split == "train" and not copy:
                self._hashes.append(hashed)
            block = open_blocks.setdefault(kind, Block(f"{kind}-{counts[kind]:05}", []))
            block.documents.append(document.paragraphs)
            block.characters += sum(map(len, document.paragraphs))
            if block.characters >= self._characters:
                counts[kind] += 1
                yield open_blocks.pop(kind)
        yield from open_blocks.values()


_worker_ids: IdCache | None = None


def start_worker(tokenizer: str) -> None:
    """Initialise a worker process with its own tokenizer."""
    global _worker_ids
    _worker_ids = IdCache(Tokenizer.load(tokenizer))


def make_shard(
    out: Path, name: str, documents: list[tuple[str, ...]], lines: Lines, lowercase: float = 0.0
) -> ShardInfo:
    """Split, tokenise and write one block; runs in a worker. ``lowercase``: share of its documents to lower-case."""
    assert _worker_ids is not None
    sentences, ends = list[str](), list[int]()
    for paragraphs in documents:
        begin = len(sentences)
        for paragraph in paragraphs:
            sentences += [paragraph] if lines in ("sentence", "pair") else split_sentences(paragraph)
        # Split sentences first: capitals show where they begin.
        if lowercase and document_hash(paragraphs, "lowercase") < lowercase * 2**64:
            sentences[begin:] = [sentence.lower() for sentence in sentences[begin:]]
        ends.append(len(sentences))
    blocks = [
        _worker_ids.ids_many(sentences[begin : begin + _SENTENCES_AT_ONCE])
        for begin in range(0, max(len(sentences), 1), _SENTENCES_AT_ONCE)
    ]
    ids = np.concatenate([block for block, _ in blocks])
    sizes = np.concatenate([block for _, block in blocks])
    # Drop sentences without tokens (control characters only) and documents without sentences; for a pair, both sides.
    if lines == "pair":
        empty = np.repeat((sizes.reshape(-1, 2) == 0).any(1), 2)
        ids = ids[~np.repeat(empty, sizes)]
        sizes[empty] = 0
    kept = np.concatenate(([0], np.cumsum(sizes > 0)))
    document_ends = np.unique(kept[np.array([0, *ends])])
    sentence_starts = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    return write_shard(out, name, ids, sentence_starts, document_ends)
