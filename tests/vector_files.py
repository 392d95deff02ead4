"""Word-vector files in the formats of other tools, written by hand."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Rows = Sequence[tuple[bytes, Sequence[float]]]


def write_text(path: Path, rows: Rows, header: bool = False, end: bytes = b"") -> Path:
    """Write GloVe's text format, or word2vec's with ``header``; ``end`` follows the last number of each line."""
    lines = [b" ".join([word, *(repr(x).encode() for x in row)]) + end + b"\n" for word, row in rows]
    if header:
        lines.insert(0, f"{len(rows)} {len(rows[0][1])}\n".encode())
    path.write_bytes(b"".join(lines))
    return path


def write_word2vec(path: Path, rows: Rows, newlines: bool) -> Path:
    """Write word2vec's binary file, with or without a newline after each vector."""
    width = len(rows[0][1])
    parts = [f"{len(rows)} {width}\n".encode()]
    for word, row in rows:
        parts.append(word + b" " + struct.pack(f"<{width}f", *row) + (b"\n" if newlines else b""))
    path.write_bytes(b"".join(parts))
    return path


def write_fasttext(
    path: Path,
    words: Sequence[bytes],
    matrix: np.ndarray,
    *,
    n_buckets: int,
    labels: Sequence[bytes] = (),
    version: int = 12,
    kind: int = 2,
    ngrams: tuple[int, int] = (3, 6),
    pruned: int = -1,
    quantised: bool = False,
    magic: int = 793_712_314,
) -> Path:
    """Write fastText's .bin, field by field (specification of checkpoints §7); ``kind``: 2 skip-gram, 3 supervised."""
    width = matrix.shape[1]
    parts = [struct.pack("<ii", magic, version)]
    # dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate, t
    parts.append(struct.pack("<12id", width, 5, 5, 1, 5, 1, 2, kind, n_buckets, *ngrams, 100, 1e-4))
    parts.append(struct.pack("<iiiqq", len(words) + len(labels), len(words), len(labels), 100, pruned))
    for entry in (*words, *labels):
        parts.append(entry + b"\0" + struct.pack("<qb", 5, entry in labels))
    parts.append(b"" if pruned < 1 else struct.pack("<ii", 0, 0) * pruned)
    rows = matrix.astype("<f4")
    parts.append(struct.pack("<?qq", quantised, *rows.shape) + rows.tobytes())
    parts.append(struct.pack("<?qq", False, 1, width) + bytes(4 * width))
    path.write_bytes(b"".join(parts))
    return path


def fnv(ngram: str, n_buckets: int) -> int:
    """fastText's hash, as specified (word vectors §3)."""
    state = 2_166_136_261
    for byte in ngram.encode():
        signed = byte - 256 if byte > 127 else byte
        state = ((state ^ (signed & 0xFFFF_FFFF)) * 16_777_619) & 0xFFFF_FFFF
    return state % n_buckets


def ngram_mean_of(word: str, grams: np.ndarray, shortest: int = 3, longest: int = 6) -> np.ndarray:
    """fastText's vector of an unseen word: the mean of its n-grams' rows of ``grams`` (buckets, width)."""
    text = f"<{word}>"
    spans = [(i, i + n) for n in range(shortest, longest + 1) for i in range(len(text) - n + 1)]
    return grams[[fnv(text[a:b], len(grams)) for a, b in spans]].mean(0)
