"""Convert word vectors of another tool, or vectors just trained by one, to a model folder of the system ``vectors``.

Vectors go from the file to a temporary one next to ``out`` and from there, memory-mapped, into the folder: at most one
copy of the table is ever in memory.
"""

import dataclasses
import tempfile
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor

from firth.baseline.folder import read_about
from firth.config import read_json
from firth.convert.word_vectors import NAMES, Subwords, VectorBlock, VectorFile, distinct, open_vectors
from firth.errors import ConfigError, InputError
from firth.files import check_new, make_folder
from firth.folder import PRETRAINING, WEIGHTS, find_model, write_model
from firth.formats.table import find_format
from firth.inference.word_table import open_table
from firth.models.config import Unknown, VectorsConfig
from firth.models.vectors import UNKNOWN, Vectors
from firth.objectives.cbow import Cbow
from firth.objectives.config import CbowConfig
from firth.progress import Progress
from firth.tasks.config import EmbeddingConfig
from firth.text.corpus import CorpusReader, ReadReport
from firth.text.shapes import SHAPES, shape_of
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.training.checkpoint import load_tensors

WordSplitting = Literal["words", "blanks"]

# Number of words whose mean represents unknown words, as in GloVe (specification of word vectors §2).
_RAREST = 100
# Default number of random vectors for unknown words.
_BUCKETS = 1000
# A file in which a smaller share of words has a capital letter was made from lower-cased text.
_CASED_SHARE = 1e-3
_AT_ONCE = 1 << 16
_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorOptions:
    """What is taken from a file of word vectors, and the vectors of words outside it.

    ``texts``: only words that occur there, ``min_count`` times or more. ``max_words``: only this many words, 0: all.
    ``lowercase``: whether the model reads text in lower case; None: if the words are lower-cased. ``split``: text is
    split at punctuation too, or only at white space; None: as in the model folder, or for a file at punctuation too.
    ``unknown``: as in ``VectorsConfig``; None: that of the model folder, with its vectors, or for a file n-grams if it
    has them, else one vector. ``stand_in`` is that vector: the mean of the file's rarest words, the mean of all, or
    zeros; None: the file's own ``<unk>`` if it has one, else the mean of its rarest words. ``n_buckets``: for
    unknown="hashed"; None: as many as the model folder has, or else 1000.
    """

    glove_vocab: Path | None = None
    texts: tuple[str | Path, ...] = ()
    min_count: int = 1
    max_words: int = 0
    lowercase: bool | None = None
    split: WordSplitting | None = None
    unknown: Unknown | None = None
    stand_in: Literal["rarest", "mean", "zero"] | None = None
    n_buckets: int | None = None

    def __post_init__(self) -> None:
        if self.min_count < 1 or self.max_words < 0 or (self.n_buckets is not None and self.n_buckets < 1):
            raise ConfigError(
                f"min_count={self.min_count}, max_words={self.max_words}, n_buckets={self.n_buckets}: expected at "
                "least 1, 0 and 1"
            )
        if self.min_count > 1 and not self.texts:
            raise ConfigError(
                f"min_count={self.min_count} counts words of texts: add --texts, or leave out --min-count"
            )


_PLAIN = VectorOptions()


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorsReport:
    """What a folder of word vectors was made from. ``left_out``: words of the file that were not requested.

    ``never_read``: words that the tokenizer can never produce (with capitals if text is lower-cased, with spaces or
    marks if it is split there), and the first of them. ``bad_*`` and ``cut_*``: as the reader reported them for the
    training text.
    """

    source: str
    format: str
    out: str
    words: int
    width: int
    repeated: int
    not_utf8: int
    left_out: int
    lowercase: bool
    split: WordSplitting
    unknown: str
    n_unknown: int
    never_read: int
    first_never_read: str | None
    bad_bytes: int
    bad_places: tuple[tuple[str, int], ...]
    cut_lines: int
    cut_documents: int


def convert_vectors(source: str | Path, out: str | Path, reading: VectorOptions = _PLAIN) -> VectorsReport:
    """Read a file of word vectors and write the new model folder ``out``, completely or not at all.

    ``source`` may also be a folder of this system, to make another one with fewer words or another rule.
    """
    file, rules = open_source(source, reading.glove_vocab)
    kept = None
    if rules is not None:
        reading, rules = _text_as_in(rules, reading)
        reading, kept = _unknown_as_in(Path(source), reading)
    return write_vectors(file, out, reading, {"from": str(source), "format": file.format}, kept, rules=rules)


def open_source(path: str | Path, glove_vocab: Path | None = None) -> tuple[VectorFile, Tokenizer | None]:
    """Open a file of word vectors, or a model folder as if it were one; also return the folder's tokenizer."""
    return _open_folder(Path(path)) if Path(path).is_dir() else (open_vectors(path, glove_vocab), None)


def _open_folder(folder: Path) -> tuple[VectorFile, Tokenizer | None]:
    """Open a model folder as if it were a file of another tool; also return its tokenizer."""
    table = open_table(folder)

    def blocks() -> Iterator[VectorBlock]:
        for at in range(0, len(table.words), _AT_ONCE):
            rows = table.rows[at : at + _AT_ONCE].float().numpy()
            # Zeros mean that a special token has no vector; only for unknown words they may be the vector itself.
            own = [table.words[at + i] == WORDS.unk or rows[i].any() for i in range(len(rows))]
            keep = [i for i in range(len(rows)) if at + i >= table.n_special or own[i]]
            yield [table.words[at + i] for i in keep], rows[keep]

    grams = table.ngrams
    subwords = None if grams is None else Subwords(grams.rows.float().numpy(), grams.shortest, grams.longest)
    return VectorFile(folder, "firth", table.rows.shape[1], blocks, subwords), table.tokenizer


def text_rules(*, lowercase: bool, split: WordSplitting, keep_accents: bool = True) -> Tokenizer:
    """A tokenizer without words, which normalises and splits text: ``with_words`` builds one with the same rules."""
    return Tokenizer.from_words(
        WORDS.specials, lowercase=lowercase, keep_accents=lowercase and keep_accents, split=split
    )


def _text_as_in(rules: Tokenizer, reading: VectorOptions) -> tuple[VectorOptions, Tokenizer]:
    """Fill in how text is read from a model's tokenizer; also return the tokenizer with what ``reading`` changes."""
    own: tuple[bool, WordSplitting] = (rules.lowercase, "blanks" if len(rules.words("a,b")) == 1 else "words")
    lowercase = own[0] if reading.lowercase is None else reading.lowercase
    split = reading.split or own[1]
    if (lowercase, split) != own:
        rules = text_rules(lowercase=lowercase, split=split, keep_accents=rules.words("é") != ["e"])
    return replace(reading, lowercase=lowercase, split=split), rules


def _unknown_as_in(path: Path, reading: VectorOptions) -> tuple[VectorOptions, Tensor | None]:
    """Fill in the rule for unknown words from a model folder; also return its vectors of them if they are kept."""
    located = find_format(path)
    if located.format.key != "firth":
        return reading, None
    folder = find_model(located.path)
    if reading.unknown is not None or read_about(folder)["system"] != "vectors":
        return reading, None
    unknown: Unknown = read_json(folder / "config.json")["unknown"]
    kept = load_tensors(folder / WEIGHTS).get("encoder.unknown.weight")
    other = unknown == "hashed" and reading.n_buckets not in (None, len(kept) if kept is not None else 0)
    return replace(reading, unknown=unknown), None if other else kept


def rule_of(reading: VectorOptions, source: str, *, ngrams: bool) -> Unknown:
    """Return the rule for words outside the vocabulary; ConfigError for a rule that ``source`` does not support.

    ``ngrams``: whether it has vectors of n-grams.
    """
    rule: Unknown = reading.unknown or ("ngrams" if ngrams else "one")
    if rule == "ngrams" and not ngrams:
        raise ConfigError(f"{source} has no n-grams for --unknown ngrams: only fastText has (of its files, the .bin)")
    if rule != "hashed" and reading.n_buckets is not None:
        raise ConfigError(
            f"n_buckets={reading.n_buckets}: vectors by hash: add --unknown hashed, or leave out --buckets"
        )
    return rule


def write_vectors(
    file: VectorFile,
    out: str | Path,
    reading: VectorOptions,
    origin: dict[str, Any],
    kept: Tensor | None = None,
    found: ReadReport | None = None,
    rules: Tokenizer | None = None,
) -> VectorsReport:
    """Write word vectors from any source as the new model folder ``out``.

    ``kept``: the vectors of unknown words, for the rule of ``reading``; None: they are computed. ``found``: the report
    on the text that the vectors were trained on. ``rules``: how the model reads text, as ``reading`` says; None: with
    accents.
    """
    out = Path(out)
    check_new(out)
    unknown = rule_of(reading, f"{file.path}: {NAMES[file.format]}", ngrams=file.subwords is not None)
    split = reading.split or "words"
    reading = replace(reading, split=split)
    if reading.texts and reading.lowercase is None:
        # Which words of the texts are looked up depends on it.
        reading = replace(reading, lowercase=_is_lowercase(file))
    wanted, read = _words_of(reading, rules)
    found = found or read
    reports = list[VectorsReport]()

    def fill(folder: Path) -> None:
        with tempfile.TemporaryFile(dir=out.parent) as rows:
            table = gather(file, rows, reading, wanted)
            config, state = _finish(table, file, unknown, reading, kept)
            tokenizer = (rules or text_rules(lowercase=table.lowercase, split=split)).with_words(table.words)
            with torch.device("meta"):
                encoder = Vectors(config)
                objective = Cbow(encoder, CbowConfig())
            objective.load_state_dict(state, assign=True)
            facts = {"origin": origin, "reading": _plain(reading)}
            embedding = EmbeddingConfig(pool="summary")
            write_model(folder, "vectors", PRETRAINING, objective, tokenizer, facts, embedding=embedding)
            never_read, first = _never_read(tokenizer, table.words)
            reports.append(
                VectorsReport(
                    source=str(file.path),
                    format=NAMES[file.format],
                    out=str(out),
                    width=file.width,
                    words=len(table.words) - len(WORDS.specials),
                    repeated=file.met.repeated,
                    not_utf8=file.met.not_utf8,
                    left_out=table.left_out,
                    lowercase=table.lowercase,
                    split=split,
                    unknown=unknown,
                    n_unknown=0 if encoder.unknown is None else encoder.unknown.num_embeddings,
                    never_read=never_read,
                    first_never_read=first,
                    bad_bytes=found.bad_bytes,
                    bad_places=tuple(found.bad_places),
                    cut_lines=found.cut_lines,
                    cut_documents=found.cut_documents,
                )
            )

    make_folder(out, fill)
    return reports[0]


def _never_read(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[int, str | None]:
    """Count vocabulary entries that the tokenizer can never produce, and name the first."""
    found = list[str]()
    with Progress("words read as text", len(words) - len(WORDS.specials), "words") as progress:
        for at in range(len(WORDS.specials), len(words), _AT_ONCE):
            some = words[at : at + _AT_ONCE]
            ids = tokenizer.ids_many(some)
            found += [word for i, word in enumerate(some) if ids[i] != [at + i]]
            progress.advance(len(some))
    return len(found), found[0] if found else None


def _plain(reading: VectorOptions) -> dict[str, Any]:
    plain = dataclasses.asdict(reading)
    return {key: str(value) if isinstance(value, Path) else value for key, value in plain.items() if key != "texts"}


def _words_of(reading: VectorOptions, rules: Tokenizer | None) -> tuple[Counter[str] | None, ReadReport]:
    """Count the words of the texts, as the model will see them (None without texts), with the reader's report."""
    if not reading.texts:
        return None, ReadReport()
    reader, counts = CorpusReader(reading.texts), Counter[str]()
    rules = rules or text_rules(lowercase=bool(reading.lowercase), split=reading.split or "words")
    for words in paragraphs_of_words(reader, rules):
        counts.update(words)
    return counts, reader.report


def paragraphs_of_words(reader: CorpusReader, rules: Tokenizer) -> Iterator[list[str]]:
    """Yield the words of each paragraph of a text, as a model with these rules sees them."""
    with Progress("words", reader.total_bytes, "bytes") as progress:
        for document in reader:
            for text in document.paragraphs:
                yield rules.words(text)
            progress.advance(reader.bytes_consumed - progress.done)


def _is_lowercase(file: VectorFile) -> bool:
    """Whether the words of a file were lower-cased: a few with capital letters may be among them."""
    n_cased, n_seen, not_utf8 = 0, 0, file.met.not_utf8
    with Progress("upper and lower case", None, "words") as progress:
        for names, _ in file.blocks():
            n_cased += sum(name != name.lower() for name in names)
            n_seen += len(names)
            progress.advance(len(names))
    file.met.not_utf8 = not_utf8  # all are read once more
    return n_cased < _CASED_SHARE * n_seen


@dataclass(frozen=True, slots=True)
class Table:
    """``words``, special tokens first, and their ``rows`` in a memory-mapped file; ``own``: special tokens that the
    file of vectors has itself."""

    words: list[str]
    rows: np.ndarray
    own: frozenset[str]
    lowercase: bool
    left_out: int


def gather(file: VectorFile, rows: IO[bytes], reading: VectorOptions, wanted: Counter[str] | None) -> Table:
    """Copy the requested vectors to an open file."""
    words, special = list(WORDS.specials), dict[str, np.ndarray]()
    rows.write(np.zeros((len(words), file.width), np.float32).tobytes())
    n_cased = n_seen = 0
    allowed = None if wanted is None else {word for word, n in wanted.items() if n >= reading.min_count}
    with Progress("word vectors", None, "words") as progress:
        for names, block in distinct(file):
            special.update({name: block[i] for i, name in enumerate(names) if name in WORDS.specials})
            keep = [
                i
                for i, name in enumerate(names)
                if name not in special
                and (allowed is None or name in allowed or (reading.lowercase and lowered(name) in allowed))
            ]
            if reading.max_words:
                keep = keep[: reading.max_words + len(WORDS.specials) - len(words)]
            n_cased += sum(name != name.lower() for name in names)
            n_seen += len(names)
            words += [names[i] for i in keep]
            rows.write(block[keep].tobytes())
            progress.advance(len(names))
    if len(words) == len(WORDS.specials):
        raise InputError(f"{file.path}: none of its {n_seen:,} words is wanted: the vocabulary would be empty")
    rows.flush()
    table = np.memmap(rows, "<f4", "r+", shape=(len(words), file.width))
    for name, row in special.items():
        table[WORDS.specials.index(name)] = row
    lowercase = reading.lowercase if reading.lowercase is not None else n_cased < _CASED_SHARE * n_seen
    left_out = n_seen - len(special) - (len(words) - len(WORDS.specials))
    return Table(_all_lowered(words) if lowercase else words, table, frozenset(special), lowercase, left_out)


def vectors_for(file: VectorFile, wanted: Collection[str], *, lowercase: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each of the wanted words that a file has, with its vector; of a word that comes twice, the later counts.

    ``lowercase``: text is read in lower case, so a word that the file has only with capitals has the vector of the
    first such form.
    """
    own, lent = set[str](), set[str]()
    with Progress("word vectors", None, "words") as progress:
        for words, rows in distinct(file):
            for word, row in zip(words, rows, strict=True):
                low = lowered(word) if lowercase else word
                if word in wanted:
                    own.add(word)
                    yield word, row
                elif low in wanted and low not in own and low not in lent:
                    lent.add(low)
                    yield low, row
            progress.advance(len(words))


def lowered(word: str) -> str:
    """Return a word in the lower-cased form in which text is looked up."""
    return normalize("NFC", word.lower())


def _all_lowered(words: Sequence[str]) -> list[str]:
    """Lower-case words as in lookups; a word whose lower-cased form is in the list already stays unchanged."""
    taken, found = set(words), list[str]()
    for word in words:
        low = lowered(word)
        found.append(word if low in taken else low)
        taken.add(low)
    return found


def _finish(
    table: Table, file: VectorFile, unknown: Unknown, reading: VectorOptions, kept: Tensor | None
) -> tuple[VectorsConfig, dict[str, Tensor]]:
    """Build the configuration and the tensors of the objective; sets the table's vector of unknown words."""
    rows, n_special = table.rows, len(WORDS.specials)
    if reading.stand_in == "zero":
        rows[UNKNOWN] = 0.0
    elif reading.stand_in == "mean":
        rows[UNKNOWN] = _mean(rows[n_special:])
    elif reading.stand_in == "rarest" or WORDS.unk not in table.own:
        rows[UNKNOWN] = _mean(rows[-min(_RAREST, len(rows) - n_special) :])
    state = {"encoder.embeddings.weight": torch.from_numpy(rows), "bias": torch.zeros(len(rows))}
    sizes: dict[str, Any] = {"vocab_size": len(rows), "width": file.width, "unknown": unknown}
    if unknown == "ngrams":
        assert file.subwords is not None
        grams = file.subwords
        sizes |= {"n_buckets": len(grams.rows), "shortest_ngram": grams.shortest, "longest_ngram": grams.longest}
        state["encoder.unknown.weight"] = torch.from_numpy(grams.rows)
    elif kept is not None:
        sizes["n_buckets"] = len(kept) if unknown == "hashed" else 0
        state["encoder.unknown.weight"] = kept.float()
    elif unknown == "hashed":
        sizes["n_buckets"] = reading.n_buckets or _BUCKETS
        state["encoder.unknown.weight"] = torch.from_numpy(_random(rows[n_special:], sizes["n_buckets"]))
    elif unknown == "shapes":
        state["encoder.unknown.weight"] = torch.from_numpy(_of_shapes(table.words, rows))
    return VectorsConfig(**sizes), state


def _mean(rows: np.ndarray) -> np.ndarray:
    sums = sum(rows[at : at + _AT_ONCE].sum(0, np.float64) for at in range(0, len(rows), _AT_ONCE))
    return np.asarray(sums / len(rows), np.float32)


def _random(rows: np.ndarray, n: int) -> np.ndarray:
    """Sample ``n`` vectors from N(0, s²), s being the standard deviation of all numbers in ``rows``; deterministic."""
    squares = sum(
        float(np.square(rows[at : at + _AT_ONCE]).sum(dtype=np.float64)) for at in range(0, len(rows), _AT_ONCE)
    )
    mean = float(_mean(rows).mean(dtype=np.float64))
    spread = max(squares / rows.size - mean**2, 0.0) ** 0.5
    return (np.random.default_rng(_SEED).standard_normal((n, rows.shape[1])) * spread).astype(np.float32)


def _of_shapes(words: Sequence[str], rows: np.ndarray) -> np.ndarray:
    """The mean of the rarest words of each shape; the vector of unknown words for a shape without words."""
    rarest = [deque[int](maxlen=_RAREST) for _ in SHAPES]
    n_special = len(WORDS.specials)
    for number, word in enumerate(words[n_special:], n_special):
        rarest[shape_of(word)].append(number)
    return np.stack([_mean(rows[list(some)]) if some else rows[UNKNOWN] for some in rarest])
