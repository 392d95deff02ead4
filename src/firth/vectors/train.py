"""Train word vectors on text with gensim, and write a model folder of the system ``vectors``."""

import dataclasses
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from firth.config import AMOUNT, COUNT, OPTIONAL_COUNT, RATE, SHARE, Bounds, check_bounds, option, to_dict
from firth.convert.word_vectors import Subwords, VectorFile, blocks_of
from firth.errors import ConfigError, InputError
from firth.files import as_text, check_new, saving, temporary_file
from firth.progress import Progress
from firth.text.corpus import CorpusReader, ReadReport
from firth.vectors.folder import (
    VectorOptions,
    VectorsReport,
    WordSplitting,
    paragraphs_of_words,
    rule_of,
    text_rules,
    write_vectors,
)
from firth.workers import WORKERS_EACH, check_processors, cpu_count

# Bounds of seeds of NumPy's generators.
_SEED = Bounds("0 or more and less than 2^32", lambda x: 0 <= x < 1 << 32)
_OF_NGRAMS = ("n_buckets", "shortest_ngram", "longest_ngram")


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorTraining:
    """Options for training word vectors. Defaults: word2vec.c's, and fastText's where it differs."""

    kind: Literal["word2vec", "fasttext"] = option("word2vec", "fasttext: with n-grams of characters")
    algorithm: Literal["skip-gram", "cbow"] = option("skip-gram", "a word predicts those around it, or the reverse")
    width: int = option(100, "numbers of a vector", COUNT)
    window: int = option(5, "words on either side, at most", COUNT)
    negative: int = option(5, "words of noise for each that is right; 0: hierarchical softmax", OPTIONAL_COUNT)
    epochs: int = option(5, "times that the text is read", COUNT)
    min_count: int = option(5, "times that a word must occur", COUNT)
    sample: float | None = option(
        None, "frequency above which words are left out at times; 0: none are; default 1e-3, fastText 1e-4", RATE
    )
    learning_rate: float = option(0.0, "learning rate at the start; 0: 0.025, with cbow or fastText 0.05", SHARE)
    n_buckets: int = option(2_000_000, "vectors for n-grams, of fastText", COUNT)
    shortest_ngram: int = option(3, "characters of an n-gram, the marks of begin and end of a word included", COUNT)
    longest_ngram: int = option(6, "the same")
    lowercase: bool = option(False, "text is read in lower case")
    seed: int = option(1, "of the initial vectors and of all sampling", _SEED)
    workers: int = option(0, "threads; 0: all processors. Only with 1 are two runs the same", AMOUNT)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_processors("workers", self.workers or 1, WORKERS_EACH)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if self.kind != "fasttext" and field.name in _OF_NGRAMS and value != field.default:
                raise ConfigError(f"{field.name}={value}: n-grams are of fastText alone: --kind fasttext")
        if self.longest_ngram < self.shortest_ngram:
            raise ConfigError(
                f"longest_ngram={self.longest_ngram}: expected at least shortest_ngram={self.shortest_ngram}"
            )


def train_vectors(
    texts: Sequence[str | Path], out: str | Path, training: VectorTraining, reading: VectorOptions
) -> VectorsReport:
    """Train word vectors on text and write the new model folder ``out``. ConfigError without gensim.

    ``reading``: the vectors of words outside the vocabulary; its ``lowercase`` is replaced by that of ``training``.
    """
    rule_of(reading, training.kind, ngrams=training.kind == "fasttext")  # check before training, not after it
    gensim = _gensim()
    split = reading.split or "words"
    reading = replace(reading, lowercase=training.lowercase, split=split)
    place = Path(out).parent
    check_new(Path(out))
    place.mkdir(parents=True, exist_ok=True)
    with saving(Path(out)), temporary_file(Path(f"{out}.words")) as file, as_text(file) as words:
        n_words, found = write_words(texts, training.lowercase, split, words)
        words.flush()
        vectors = _train(gensim, Path(file.name), n_words, training)
    origin = {"texts": [str(t) for t in texts], "training": to_dict(training)}
    return write_vectors(_as_file(vectors, training), out, reading, origin, found=found)


def _gensim() -> Any:
    """Import the package ``gensim.models`` without opening a socket.

    gensim's URL reader imports urllib3 if it is installed, which binds a socket to test for IPv6. During the import it
    is told that there is no IPv6; afterwards its setting is restored.
    """
    found, asked = socket.has_ipv6, "urllib3.util.connection" in sys.modules
    socket.has_ipv6 = False
    try:
        import gensim.models
    except ImportError:
        raise ConfigError("word vectors are trained by gensim: pip install 'firth[vectors]'") from None
    finally:
        socket.has_ipv6 = found
        if not asked and (connection := sys.modules.get("urllib3.util.connection")) is not None:
            connection.HAS_IPV6 = found  # type: ignore[attr-defined]  # a module that is not imported here
    return gensim.models


def write_words(
    texts: Sequence[str | Path], lowercase: bool, split: WordSplitting, file: Any
) -> tuple[int, ReadReport]:
    """Write one line per paragraph, its words separated by spaces, as a model will see them.

    Returns the number of words, and the reader's report on the text.
    """
    reader, n_words = CorpusReader(texts), 0
    for words in paragraphs_of_words(reader, text_rules(lowercase=lowercase, split=split)):
        n_words += len(words)
        file.write(" ".join(words) + "\n")
    return n_words, reader.report


def _train(gensim: Any, words: Path, n_words: int, training: VectorTraining) -> Any:
    """Train with gensim; returns its vectors by word."""
    from gensim.models.callbacks import CallbackAny2Vec
    from gensim.models.word2vec import LineSentence

    fast = training.kind == "fasttext"
    rate = training.learning_rate or (0.05 if fast or training.algorithm == "cbow" else 0.025)
    options: dict[str, Any] = {
        "vector_size": training.width,
        "window": training.window,
        "min_count": training.min_count,
        "sg": int(training.algorithm == "skip-gram"),
        "negative": training.negative,
        "hs": int(not training.negative),
        "sample": (1e-4 if fast else 1e-3) if training.sample is None else training.sample,
        "alpha": rate,
        "min_alpha": 1e-4 * rate,  # as in word2vec.c; gensim's own default is 1e-4 at any rate
        "epochs": training.epochs,
        "seed": training.seed,
        "workers": training.workers or cpu_count(),
    }
    if fast:
        options |= {"bucket": training.n_buckets, "min_n": training.shortest_ngram, "max_n": training.longest_ngram}
        # fastText's noise distribution (specification §3); word2vec.c's is gensim's default.
        options["ns_exponent"] = 0.5
    model = (gensim.FastText if fast else gensim.Word2Vec)(**options)
    model.build_vocab(LineSentence(str(words)))
    if not len(model.wv):
        raise InputError(
            f"none of {n_words:,} words occurs {training.min_count} times: give more text, or --min-count 1"
        )

    with Progress("train", training.epochs, "epochs") as progress:

        class Told(CallbackAny2Vec):
            def on_epoch_end(self, model: Any) -> None:
                progress.advance(1)

        model.train(
            LineSentence(str(words)), total_examples=model.corpus_count, epochs=training.epochs, callbacks=[Told()]
        )
    return model.wv


def _as_file(vectors: Any, training: VectorTraining) -> VectorFile:
    """Present gensim's vectors as if they came from a file."""
    blocks = partial(blocks_of, vectors.index_to_key, np.asarray(vectors.vectors, np.float32))
    subwords = None
    if training.kind == "fasttext":
        grams = np.asarray(vectors.vectors_ngrams, np.float32)
        subwords = Subwords(grams, training.shortest_ngram, training.longest_ngram)
    return VectorFile(Path(f"gensim's {training.kind}"), "gensim", training.width, blocks, subwords)
