"""The texts of the benchmarks: real ones where they are available, else made-up words in real lengths.

``lengths.json`` has the lengths (written by ``record_lengths.py``), so that a machine without the texts does the
same work.
"""

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from firth.bench.synthetic import plain_texts, plain_tokenizer
from firth.text.tokenizer import Tokenizer

VOCABULARY = "bert-vocab/bert-base-uncased-vocab.txt"
LENGTHS = Path(__file__).with_name("lengths.json")
VOCAB_SIZE = 30_522
# A typical mix: sentences of reviews, questions, paragraphs; the paragraphs hold most of the tokens.
MIXED = {"sentences": 5, "questions": 2, "paragraphs": 1}
# BERT's maximum length, less two special tokens.
_MOST = 510


def real(data: Path) -> bool:
    """Whether the real texts are available."""
    return all((data / name).is_file() for name in (VOCABULARY, "glue/SST-2/dev.tsv", "squad-v1.1/dev.json"))


def tokenizer_for(data: Path, size: int = VOCAB_SIZE) -> Tokenizer:
    """Google's uncased vocabulary, or one of as many made-up words."""
    return Tokenizer.load(data / VOCABULARY) if real(data) else plain_tokenizer(size)


def read(data: Path, kind: str) -> list[str]:
    """All texts of a kind: sentences (SST-2 dev), questions or paragraphs (SQuAD dev)."""
    if kind == "sentences":
        rows = (data / "glue/SST-2/dev.tsv").read_text("utf-8").splitlines()[1:]
        return [row.split("\t")[0].strip() for row in rows]
    articles: list[dict[str, Any]] = json.loads((data / "squad-v1.1/dev.json").read_text("utf-8"))["data"]
    paragraphs: list[dict[str, Any]] = [paragraph for article in articles for paragraph in article["paragraphs"]]
    if kind == "paragraphs":
        return [str(paragraph["context"]) for paragraph in paragraphs]
    return [str(question["question"]) for paragraph in paragraphs for question in paragraph["qas"]]


def recorded(kind: str) -> list[int]:
    """The lengths of all texts of a kind, in tokens without special ones."""
    histogram = json.loads(LENGTHS.read_text("utf-8"))["histograms"][kind]
    return [int(length) for length, n in histogram.items() for _ in range(n)]


def texts(data: Path, kind: str, n: int, tokenizer: Tokenizer, seed: int = 1) -> list[str]:
    """``n`` texts in random order: ``sentences`` or ``mixed``; none that BERT would have to split."""
    rng = np.random.default_rng(seed)
    shares = MIXED if kind == "mixed" else {kind: 1}
    found = list[str]()
    for part, share in shares.items():
        wanted = max(round(n * share / sum(shares.values())), 1)
        found += _draw(read(data, part), wanted, rng) if real(data) else _make(part, wanted, tokenizer, rng)
    lengths = [len(ids) for ids in tokenizer.ids_many(found)]
    found = [text for text, length in zip(found, lengths, strict=True) if length <= _MOST]
    return [found[i] for i in rng.permutation(len(found))[:n]]


def _draw(every: Sequence[str], n: int, rng: np.random.Generator) -> list[str]:
    """``n`` of the items; if there are fewer, each is repeated about equally often."""
    order = np.concatenate([rng.permutation(len(every)) for _ in range(-(-n // len(every)))])
    return [every[i] for i in order[:n]]


def _make(part: str, n: int, tokenizer: Tokenizer, rng: np.random.Generator) -> list[str]:
    return plain_texts(tokenizer, rng.choice(recorded(part), n).tolist(), seed=int(rng.integers(1 << 30)))


def documents(data: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """Documents of English articles and novels, repeated in a new order each time; made up where missing."""
    paths = [path for name in ("en-wiki", "en-books") if (path := data / name / "train.txt.xz").is_file()]
    if paths:
        every = [text for path in paths for text in lzma.decompress(path.read_bytes()).decode().split("\n\n")]
    else:
        every = [_made_document(tokenizer, seed) for seed in range(500)]
    rng = np.random.default_rng(2)
    while True:
        yield from (every[i] for i in rng.permutation(len(every)))


def _made_document(tokenizer: Tokenizer, seed: int) -> str:
    """Twenty sentences that a splitter recognises."""
    lengths = np.random.default_rng(seed).choice(recorded("article sentences"), 20).tolist()
    return " ".join(sentence.capitalize() + "." for sentence in plain_texts(tokenizer, lengths, seed))


def write_text(path: Path, n_bytes: int, data: Path, tokenizer: Tokenizer) -> int:
    """Write documents until the file has ``n_bytes``; returns its size."""
    with open(path, "wb") as file:
        for document in documents(data, tokenizer):
            file.write(document.strip().encode() + b"\n\n")
            if file.tell() >= n_bytes:
                return file.tell()
    raise AssertionError("documents do not end")
