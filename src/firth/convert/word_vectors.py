"""Read word-vector files of other tools as a stream of blocks, in bounded memory.

GloVe's text            ``word 0.1 0.2``, one per line; newer files begin with ``count width``
GloVe's binary file     float64 without words, which are in a separate vocabulary file
word2vec's text         ``count width``, then as GloVe's; fastText's .vec is the same
word2vec's binary file  ``count width``, then each word, a space, and its float32 numbers
fastText's .bin         words and n-grams of characters

All but GloVe's binary file are recognised by their contents. They may be compressed as .gz, .xz, .bz2 or .zst, except
GloVe's binary file and fastText's .bin, which are memory-mapped. Specification of checkpoints §7; of word vectors §2,
§3.
"""

import mmap
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float

from firth.errors import InputError
from firth.layers.subwords import ngram_buckets, word_bytes
from firth.text.archives import BROKEN_ARCHIVE, open_packed
from firth.text.finding import PACKED

VectorFormat = Literal["text", "word2vec", "fasttext", "glove", "gensim", "firth"]
VectorBlock = tuple[list[str], Float[np.ndarray, "n width"]]

NAMES: dict[VectorFormat, str] = {
    "text": "text (GloVe, word2vec, fastText .vec)",
    "word2vec": "word2vec's binary file",
    "fasttext": "fastText's .bin",
    "glove": "GloVe's binary file",
    "gensim": "vectors in memory",
    "firth": "a model folder",
}
_AT_ONCE = 4096  # words per block
_MAGIC, _VERSIONS = 793_712_314, (11, 12)
_SUPERVISED = 3
_MOST_WIDTH = 100_000  # numbers per word; no real file has more, so such a line is not a header
_LONGEST_WORD = 1 << 16  # bytes
_START = 1 << 20  # bytes read to detect the format
_CONTROLS = bytes({*range(32)} - {*b"\t\n\r"})
_BOM = "\ufeff".encode()  # some editors put it before a text
_FIRST_LINES, _NEARLY_ALL = 20, 0.9  # lines that show how many numbers a word has, and the share that must agree


@dataclass(slots=True)
class Met:
    """Counts so far: words, repeated words (the first stays), words that are not UTF-8."""

    words: int = 0
    repeated: int = 0
    not_utf8: int = 0


@dataclass(frozen=True, slots=True)
class Subwords:
    """fastText's n-grams: ``rows`` (buckets, width) of a memory-mapped file, for n-grams of ``shortest`` to
    ``longest`` characters."""

    rows: Float[np.ndarray, "G width"]
    shortest: int
    longest: int


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A file of word vectors. ``blocks()``: words and their vectors, float32, in the order of the file."""

    path: Path
    format: VectorFormat
    width: int
    blocks: Callable[[], Iterator[VectorBlock]]
    subwords: Subwords | None = None
    met: Met = field(default_factory=Met)


def blocks_of(words: Sequence[str], rows: Float[np.ndarray, "n width"]) -> Iterator[VectorBlock]:
    """Yield words and their vectors, which are in memory, in blocks."""
    for at in range(0, len(rows), _AT_ONCE):
        yield list(words[at : at + _AT_ONCE]), rows[at : at + _AT_ONCE]


def open_vectors(path: str | Path, glove_vocab: Path | None = None) -> VectorFile:
    """Detect the format of a file and open it. InputError if it cannot be read, or has none of the formats.

    ``glove_vocab``: the words of GloVe's binary file, one per line (a count may follow).
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder: expected a file of word vectors")
    if glove_vocab is not None:
        return _open_glove(path, glove_vocab)
    with _reading(path) as stream:
        start = stream.read(_START).removeprefix(_BOM)
    if not start:
        raise InputError(f"{path}: the file is empty, expected word vectors")
    if len(start) >= 8 and struct.unpack_from("<i", start)[0] == _MAGIC:
        return _open_fasttext(path)
    first, _, rest = start.partition(b"\n")
    header = _header(first)
    if header is not None and _is_binary(rest, header[1]):
        return _open_word2vec(path, *header)
    return _open_text(path, first, rest, header)


def looks_like_vectors(path: Path) -> bool:
    """Whether a file has one of the formats, judging by its beginning."""
    try:
        return path.is_file() and bool(open_vectors(path))
    except InputError:
        return False


def distinct(file: VectorFile) -> Iterator[VectorBlock]:
    """Yield the blocks of a file without repeated words: the first stays, the others are counted."""
    seen: set[str] = set()
    for words, rows in file.blocks():
        keep = [i for i, word in enumerate(words) if not (word in seen or seen.add(word))]  # type: ignore[func-returns-value]  # add returns None
        file.met.words += len(keep)
        file.met.repeated += len(words) - len(keep)
        if keep:
            yield ([words[i] for i in keep], rows[keep]) if len(keep) < len(words) else (words, rows)


def _open_text(path: Path, first: bytes, rest: bytes, header: tuple[int, int] | None) -> VectorFile:
    """Open a text file. Numbers are counted from the right: a word may contain spaces, as in GloVe's 840B set."""
    n_fields = len(_trimmed(rest.partition(b"\n")[0]).split(b" "))
    if header is not None and n_fields == 2 != header[1] + 1:
        header = None  # not a header, but a numeric word with a vector of one number
    n_words, width = header or (None, _trailing_numbers(first))
    if width < 1:
        raise InputError(
            f"{path}:1: expected a word and its numbers, or the count of words and of numbers a word; found "
            f"{_shown(first)}"
        )

    _check_width(path, width, rest)
    met = Met()

    def made(numbers: list[float], last_line: int) -> Float[np.ndarray, "n width"]:
        rows = _narrow(np.array(numbers)).reshape(-1, width)
        _check_finite(rows, f"{path}:", last_line - len(rows) + 1)
        return rows

    def blocks() -> Iterator[VectorBlock]:
        words, numbers, n_lines, blank = list[str](), list[float](), 0, 0
        with _reading(path) as stream:
            for number, line in enumerate(stream, 1):
                if number == 1 and n_words is not None:
                    continue
                if not line.strip():
                    blank = blank or number
                    continue
                if blank:  # but not at the end
                    raise InputError(f"{path}:{blank}: expected a word and {width} numbers, found a blank line")
                n_lines += 1
                line = line.removeprefix(_BOM) if number == 1 else line
                fields = _trimmed(line).rsplit(b" ", width)
                try:
                    numbers += map(float, fields[1:])
                except ValueError:
                    fields = []
                if len(fields) != width + 1 or not fields[0]:
                    raise InputError(f"{path}:{number}: expected a word and {width} numbers, found {_shown(line)}")
                words.append(_word(fields[0], met))
                if len(words) == _AT_ONCE:
                    yield words, made(numbers, number)
                    words, numbers = [], []
            if words:
                yield words, made(numbers, number)
        if n_words is not None and n_lines != n_words:
            raise InputError(f"{path}: {n_lines:,} words, but its first line says {n_words:,}: is it whole?")

    return VectorFile(path, "text", width, blocks, met=met)


def _check_width(path: Path, width: int, rest: bytes) -> None:
    """Raise InputError if later lines have more numbers than line 1 has or states: they would be read as part of words.

    A few may: in ``at 5 0.1 0.2`` the 5 is part of the word.
    """
    lines = enumerate(rest.split(b"\n", _FIRST_LINES)[:_FIRST_LINES], 2)
    found = {number: _trailing_numbers(line) for number, line in lines if _trimmed(line)}
    wider = [number for number, n in found.items() if n > width]
    if len(wider) > 1 and len(wider) >= _NEARLY_ALL * len(found):
        raise InputError(
            f"{path}:{wider[0]}: expected a word and {width} numbers, as line 1 has it, found {found[wider[0]]} "
            f"numbers, and more than {width} in {len(wider)} of {len(found)} lines: correct line 1"
        )


def _narrow(numbers: np.ndarray) -> np.ndarray:
    """Convert to float32; values that are too large become infinite, which ``_check_finite`` detects."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _check_finite(rows: np.ndarray, place: str, first: int) -> None:
    """Raise InputError for values that are not finite; ``place``, ``first``: how messages name the first row."""
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        at = first + int(np.flatnonzero(bad)[0])
        raise InputError(f"{place}{at}: a number of this vector is not finite in float32; repair or remove it")


def _trailing_numbers(line: bytes) -> int:
    """Count the numbers at the end of a line whose first field is a word."""
    fields = _trimmed(line).split(b" ")
    for n, text in enumerate(reversed(fields[1:])):
        try:
            float(text)
        except ValueError:
            return n
    return len(fields) - 1


def _trimmed(line: bytes) -> bytes:
    # Not strip(): a word may start with a character that Python treats as white space.
    return line.rstrip(b" \r\n")


def _header(line: bytes) -> tuple[int, int] | None:
    """Parse ``count width``; None for any other line."""
    fields = _trimmed(line).split(b" ")
    if len(fields) != 2 or not all(text.isdigit() and len(text) < 12 for text in fields):
        return None
    n_words, width = map(int, fields)
    return (n_words, width) if 1 <= width <= _MOST_WIDTH else None


def _is_binary(rest: bytes, width: int) -> bool:
    """Whether a header is followed by a word and float32 numbers rather than a line of text."""
    line = rest.lstrip(b"\n").partition(b" ")[2].partition(b"\n")[0]
    as_text = len(line) >= 2 * width - 1 and not line.translate(None, b"+-.0123456789eEinfaINFA \r")
    return not as_text and len(rest.translate(None, _CONTROLS)) < len(rest)


def _open_word2vec(path: Path, n_words: int, width: int) -> VectorFile:
    """Open word2vec's binary file. Some writers end each vector with a newline: leading ones of a word are dropped."""
    size, met = 4 * width, Met()

    def blocks() -> Iterator[VectorBlock]:
        with _reading(path) as stream:
            stream.readline()
            held, at, done = b"", 0, 0
            while done < n_words:
                words, vectors = list[str](), list[bytes]()
                while len(words) < min(_AT_ONCE, n_words - done):
                    blank = held.find(b" ", at)
                    if blank < 0 or blank + 1 + size > len(held):
                        more = stream.read(1 << 20)
                        if not more or (blank < 0 and len(held) - at > _LONGEST_WORD):
                            raise InputError(
                                f"{path}: ends within word {done + len(words) + 1:,} of {n_words:,}: fetch it again"
                            )
                        held, at = held[at:] + more, 0
                        continue
                    words.append(_word(held[at:blank].lstrip(b"\n"), met))
                    at = blank + 1 + size
                    vectors.append(held[blank + 1 : at])
                rows = np.frombuffer(b"".join(vectors), "<f4").reshape(-1, width)
                _check_finite(rows, f"{path}: word ", done + 1)
                done += len(words)
                yield words, rows
            if (held[at:] + stream.read(1 << 10)).strip(b"\n"):
                raise InputError(f"{path}: more follows the {n_words:,} words that its first line says")

    return VectorFile(path, "word2vec", width, blocks, met=met)


def _open_glove(path: Path, vocab: Path) -> VectorFile:
    """Open GloVe's binary file: V rows of vector and bias, then V for contexts; a word is their sum without biases.

    Source: stanfordnlp/GloVe src/glove.c, save_params with its default of write_header 0 and model 2.
    """
    if path.suffix.lower() in PACKED:
        raise InputError(f"{path}: GloVe's binary file is read in place: unpack it first")
    met = Met()
    with _reading(vocab) as stream:
        lines = [_trimmed(line).split(b" ")[0] for line in stream]
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    width = size // (16 * len(lines)) - 1 if lines else 0
    if width < 1 or size != 16 * len(lines) * (width + 1):
        raise InputError(
            f"{path}: {size:,} bytes are not two float64 rows for each of the {len(lines):,} words of {vocab}: are "
            "they of one make?"
        )
    both = np.memmap(path, "<f8", "r", shape=(2, len(lines), width + 1))

    def blocks() -> Iterator[VectorBlock]:
        for at in range(0, len(lines), _AT_ONCE):
            some = slice(at, at + _AT_ONCE)
            rows = _narrow(both[:, some, :width].sum(0))
            _check_finite(rows, f"{path}: word ", at + 1)
            yield [_word(line, met) for line in lines[some]], rows

    return VectorFile(path, "glove", width, blocks, met=met)


def _open_fasttext(path: Path) -> VectorFile:
    """Open fastText's .bin; the vector of a word is the mean of its own row and those of its n-grams.

    Source: facebookresearch/fastText src/args.cc, dictionary.cc, fasttext.cc, densematrix.cc.
    """
    met = Met()
    with _mapped(path) as data:
        reader = _Reader(path, data)
        _, version = reader.numbers("<ii")
        if version not in _VERSIONS:
            raise InputError(f"{path}: fastText file of version {version}: expected one of {_VERSIONS}")
        width, *_, kind, n_buckets, shortest, longest, _, _ = reader.numbers("<12id")
        if kind == _SUPERVISED and version == 11:
            longest = 0  # these files say otherwise, but were trained without n-grams (fasttext.cc, loadModel)
        n_entries, n_words, n_labels, _, n_pruned = reader.numbers("<iiiqq")
        if min(width, n_words) < 1 or min(n_labels, n_buckets) < 0 or n_words + n_labels != n_entries:
            raise InputError(f"{path}: {n_words} words of {width} numbers among {n_entries} entries: it is damaged")
        words = reader.words(n_words)
        reader.words(n_labels, labels=True)
        if n_pruned > 0 or reader.numbers("<?")[0]:
            raise InputError(f"{path}: a quantised model, of which the vectors are lost: fetch the one that is not")
        shape = reader.numbers("<qq")
        size = len(data)
    if shape != (n_words + n_buckets, width) or reader.at + 4 * shape[0] * width > size:
        raise InputError(
            f"{path}: a matrix of {shape[0]:,} x {shape[1]:,}, expected {n_words + n_buckets:,} x {width:,}, all of it "
            "in the file: is it whole?"
        )
    # Copy-on-write, though never written: torch does not accept read-only arrays.
    rows = np.memmap(path, "<f4", "c", reader.at, shape)
    has_ngrams = longest > 0 and n_buckets > 0 and n_pruned < 0
    subwords = Subwords(rows[n_words:], max(shortest, 1), longest) if has_ngrams else None

    def blocks() -> Iterator[VectorBlock]:
        for at in range(0, n_words, _AT_ONCE):
            names, own = words[at : at + _AT_ONCE], np.array(rows[at : min(at + _AT_ONCE, n_words)])
            found = own if subwords is None else _with_ngrams(names, own, subwords)
            _check_finite(found, f"{path}: word ", at + 1)
            yield [_word(name, met) for name in names], found

    return VectorFile(path, "fasttext", width, blocks, subwords, met)


def _with_ngrams(words: list[bytes], own: np.ndarray, subwords: Subwords) -> np.ndarray:
    """Average each word's own row (n, width) and the rows of its n-grams; ``</s>`` has none."""
    found = np.empty_like(own)
    order = np.argsort([len(word) for word in words], kind="stable")
    # Group words of similar length: one long word would widen the padded rectangle of all.
    for numbers in np.array_split(order, max(len(words) // 512, 1)):
        chosen = [b"" if words[i] == b"</s>" else words[i] for i in numbers]
        sums, counts = _ngram_sums(chosen, subwords)
        found[numbers] = (own[numbers] + sums) / (counts[:, None] + 1)
    return found


def _ngram_sums(words: Sequence[bytes], subwords: Subwords) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the n-grams' rows (n, width) and their counts (n,), both float32."""
    buckets, counts = ngram_buckets(word_bytes(words), subwords.shortest, subwords.longest, len(subwords.rows))
    begins = counts.cumsum(0) - counts
    sums = F.embedding_bag(buckets, torch.from_numpy(subwords.rows), begins, mode="sum")
    return sums.numpy(), counts.float().numpy()


class _Reader:
    """Reads the numbers and names of a binary file in sequence. ``at``: the position of the next one."""

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.at = path, data, 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        if self.at + struct.calcsize(form) > len(self.data):
            raise self._cut()
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def words(self, n: int, *, labels: bool = False) -> list[bytes]:
        """Read ``n`` NUL-terminated names of words, or of labels."""
        found = []
        for _ in range(n):
            end = self.data.find(b"\0", self.at, self.at + _LONGEST_WORD)
            if end < 0:
                raise self._cut()
            found.append(self.data[self.at : end])
            self.at = end + 1
            if self.numbers("<qb")[1] != labels:
                raise InputError(f"{self.path}: words and labels are not in order: it is damaged")
        return found

    def _cut(self) -> InputError:
        return InputError(f"{self.path}: ends, or is damaged, at byte {self.at:,} of its header: fetch it again")


def _word(name: bytes, met: Met) -> str:
    """Compose a word (NFC), as all tokenizers except those for already split text do before looking words up."""
    try:
        return normalize("NFC", name.decode())
    except UnicodeDecodeError:
        met.not_utf8 += 1
        return normalize("NFC", name.decode(errors="replace"))


def _shown(line: bytes) -> str:
    text = _trimmed(line).decode(errors="replace")
    return repr(text if len(text) <= 60 else text[:57] + "…")


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed; errors in reading it become InputError."""
    suffix = path.suffix.lower()
    try:
        with open_packed(path) as stream:
            yield stream
    except BROKEN_ARCHIVE as error:
        raise InputError(f"{path}: broken or truncated {suffix} archive ({error}); fetch or pack it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """Memory-map a file inside the context."""
    with _reading(path) as stream:
        if path.suffix.lower() in PACKED:
            raise InputError(f"{path}: fastText's .bin is read where it lies: unpack it first")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
