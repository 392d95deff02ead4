"""Train GloVe word vectors from text: co-occurrence counts, then weighted least squares by AdaGrad.

Source: Pennington, Socher and Manning 2014, equations 8 (the sum of squares) and 9 (its weights), §4.2 for the options.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from firth.config import AMOUNT, COUNT, PART, check_bounds, option, to_dict
from firth.convert.word_vectors import VectorFile, blocks_of
from firth.errors import InputError
from firth.files import as_text, check_new, saving, temporary_file
from firth.progress import Progress
from firth.vectors.folder import VectorOptions, VectorsReport, rule_of, write_vectors
from firth.vectors.train import write_words

# Words of text whose pairs are counted together; with a window of 10 the pairs take about 320 bytes per word.
_BLOCK = 1 << 19
# Counts per update. More are hardly faster and learn less from each count (docs/verbs/vectors.md).
_BATCH = 1 << 11
# The released code clips each number of a vector's gradient to this.
_LONGEST = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GloveTraining:
    """Options for training GloVe word vectors. Defaults: the paper's, §4.2."""

    width: int = option(100, "numbers of a vector", COUNT)
    window: int = option(10, "words on either side; one at distance d counts 1/d", COUNT)
    epochs: int = option(50, "times that all counts are learned from (paper: 50, from 300 dimensions 100)", COUNT)
    min_count: int = option(5, "times that a word must occur", COUNT)
    learning_rate: float = option(0.05, "AdaGrad's", PART)
    x_max: float = option(100.0, "counts above it weigh no more; small text wants 10", AMOUNT)
    exponent: float = option(0.75, "of the weight of smaller counts: (count / x_max) to this power", AMOUNT)
    lowercase: bool = option(False, "text is read in lower case")
    seed: int = option(1, "of the first vectors and of the order of the counts", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class Counts:
    """Co-occurrence counts: word ``rows[n]`` near word ``columns[n]``, each pair once; symmetric."""

    rows: Int[np.ndarray, " N"]
    columns: Int[np.ndarray, " N"]
    values: Float[np.ndarray, " N"]


def train_glove(
    texts: Sequence[str | Path], out: str | Path, training: GloveTraining, reading: VectorOptions
) -> VectorsReport:
    """Train word vectors on text by GloVe and write the new model folder ``out``.

    Memory holds the distinct pairs of words that co-occur, about 100 bytes each. InputError if fewer than two words
    occur often enough.
    """
    rule_of(reading, "glove", ngrams=False)  # check before training, not after it
    split = reading.split or "words"
    reading = replace(reading, lowercase=training.lowercase, split=split)
    check_new(Path(out))
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with saving(Path(out)), temporary_file(Path(f"{out}.words")) as file, as_text(file) as stream:
        n_words, found = write_words(texts, training.lowercase, split, stream)
        stream.flush()
        words = _frequent(Path(file.name), training.min_count)
        if len(words) < 2:
            raise InputError(
                f"{len(words)} of {n_words:,} words occur {training.min_count} times: give more text, or --min-count 1"
            )
        counts = count_pairs(Path(file.name), words, training.window, n_words)
    if not len(counts.values):
        raise InputError("no two words of the vocabulary stand in one line: give text with sentences in it")
    rows = fit(counts, len(words), training)

    vectors = VectorFile(Path("GloVe"), "gensim", training.width, partial(blocks_of, words, rows), None)
    origin = {"texts": [str(t) for t in texts], "training": to_dict(training)}
    return write_vectors(vectors, out, reading, origin, found=found)


def _frequent(path: Path, min_count: int) -> list[str]:
    """The words of a text file that occur often enough, most frequent first."""
    counts = Counter[str]()
    with open(path, encoding="utf-8") as file:
        for line in file:
            counts.update(line.split())
    kept = [(word, n) for word, n in counts.items() if n >= min_count]
    return [word for word, _ in sorted(kept, key=lambda item: (-item[1], item[0]))]


def count_pairs(path: Path, words: Sequence[str], window: int, n_words: int) -> Counts:
    """Count pairs of words of a line within ``window`` words, on both sides, weighted by 1/d at distance d.

    Words outside the vocabulary are left out first, as GloVe's own counter does.
    """
    number = {word: i for i, word in enumerate(words)}
    keys, sums = np.zeros(0, np.int64), np.zeros(0)
    with Progress("co-occurrence counts", n_words, "words") as progress, open(path, encoding="utf-8") as file:
        ids, lines, n_read = list[int](), list[int](), 0
        for line_number, line in enumerate(file):
            text = line.split()
            known = [number[word] for word in text if word in number]
            ids += known
            lines += [line_number] * len(known)
            n_read += len(text)
            if len(ids) >= _BLOCK:
                keys, sums = _merged(keys, sums, *_pairs(np.array(ids), np.array(lines), window, len(words)))
                progress.advance(n_read)
                ids, lines, n_read = [], [], 0
        if ids:
            keys, sums = _merged(keys, sums, *_pairs(np.array(ids), np.array(lines), window, len(words)))
        progress.advance(n_read)
    return Counts(keys // len(words), keys % len(words), sums.astype(np.float32))


def _pairs(ids: np.ndarray, lines: np.ndarray, window: int, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    keys, values = [np.zeros(0, np.int64)], [np.zeros(0)]
    for distance in range(1, min(window, len(ids) - 1) + 1):
        same = lines[:-distance] == lines[distance:]
        left, right = ids[:-distance][same], ids[distance:][same]
        keys += [left * n_words + right, right * n_words + left]
        values += [np.full(2 * len(left), 1 / distance)]
    return np.concatenate(keys), np.concatenate(values)


def _merged(
    keys: np.ndarray, sums: np.ndarray, more_keys: np.ndarray, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    both, places = np.unique(np.concatenate([keys, more_keys]), return_inverse=True)
    return both, np.bincount(places, np.concatenate([sums, more]), len(both))


def pair_weights(counts: Float[Tensor, " N"], x_max: float, exponent: float) -> Float[Tensor, " N"]:
    """f(x) = (x / x_max)^α below x_max, else 1 (equation 9)."""
    return (counts / x_max).pow(exponent).clamp(max=1.0)


def fit(counts: Counts, n_words: int, training: GloveTraining) -> Float[np.ndarray, "V H"]:
    """Find the vectors that minimise Σ f(X_ij) (w_i · w̃_j + b_i + b̃_j − log X_ij)² (equation 8): w + w̃ of each word.

    AdaGrad with sums of squares that start at 1 and initial vectors within ±0.5 / H, as in the released code. An
    update uses many counts at once: a word's gradient is their sum. Deterministic.
    """
    generator = torch.Generator().manual_seed(training.seed)
    # One table: words, then contexts; the last number of each is its bias.
    table = (torch.rand(2 * n_words, training.width + 1, generator=generator) - 0.5) / training.width
    squares = torch.ones_like(table)
    rows, columns = torch.from_numpy(counts.rows), torch.from_numpy(counts.columns) + n_words
    values = torch.from_numpy(counts.values)
    logs, weights = values.log(), pair_weights(values, training.x_max, training.exponent)
    with Progress("train", training.epochs, "epochs") as progress:
        for _ in range(training.epochs):
            for chosen in torch.randperm(len(values), generator=generator).split(_BATCH):
                _update(table, squares, rows[chosen], columns[chosen], logs[chosen], weights[chosen], training)
            progress.advance(1)
    if not bool(table.isfinite().all()):
        raise InputError(
            f"the vectors are not finite numbers after training with --set learning_rate={training.learning_rate}: "
            "give a lower one"
        )
    return (table[:n_words, :-1] + table[n_words:, :-1]).numpy()


def _update(
    table: Float[Tensor, "U W"],
    squares: Float[Tensor, "U W"],
    rows: Int[Tensor, " B"],
    columns: Int[Tensor, " B"],
    logs: Float[Tensor, " B"],
    weights: Float[Tensor, " B"],
    training: GloveTraining,
) -> None:
    """Apply one step of AdaGrad to both sides of some counts, in place.

    As in the released code, each count adds the square of its gradient times the learning rate; biases are neither
    clipped nor multiplied by the learning rate (specification of word vectors §2).
    """
    left, right = table[rows], table[columns]
    misses = (left[:, :-1] * right[:, :-1]).sum(1) + left[:, -1] + right[:, -1] - logs
    slope = (weights * misses)[:, None]
    of_vectors = slope.repeat(2, 1) * torch.cat([right[:, :-1], left[:, :-1]])
    of_vectors = of_vectors.clamp_(-_LONGEST, _LONGEST) * training.learning_rate
    gradients = torch.cat([of_vectors, slope.repeat(2, 1)], 1)
    touched, places = torch.cat([rows, columns]).unique(return_inverse=True)
    nothing = table.new_zeros(len(touched), table.shape[1])
    # Before the step: applied one by one, each of a word's counts would have made the step of the next one smaller.
    squares[touched] += nothing.index_add(0, places, gradients.square())
    table[touched] -= nothing.index_add(0, places, gradients) / squares[touched].sqrt()
