"""Query a table of word vectors: nearest words and analogies."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from firth.baseline.folder import read_about
from firth.config import from_dict, read_json
from firth.errors import CheckpointError, ConfigError, InputError
from firth.folder import WEIGHTS, Loaded, find_model
from firth.formats.table import find_format, open_model
from firth.layers.subwords import ngram_mean, word_bytes
from firth.models.config import VectorsConfig
from firth.models.vectors import Vectors
from firth.text.tokenizer import Tokenizer, whole_text
from firth.text.tokenizer_kinds import WORDS
from firth.training.checkpoint import load_tensors

# Words whose vectors are compared at once.
_AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A word and its cosine similarity to the query."""

    word: str
    cosine: float


@dataclass(frozen=True, slots=True)
class Ngrams:
    """Vectors of n-grams of ``shortest`` to ``longest`` characters, used to compute vectors of new words."""

    rows: Float[Tensor, "G H"]
    shortest: int
    longest: int

    def of(self, word: str) -> Float[Tensor, " H"]:
        """The mean of a word's n-gram vectors; zeros if it has none."""
        return ngram_mean(word_bytes([whole_text(word).encode()]), self.rows, self.shortest, self.longest)[0]


class WordTable:
    """Words and their vectors, read in blocks so that they may be memory-mapped.

    ``rows`` (V, H): the vectors of ``words``, frequent ones first. ``n_special``: number of special tokens at the
    start. ``ngrams``: for vectors of words outside the table, if any. ``tokenizer``: the model's, which says how it
    reads a word; None: as it is written.
    """

    def __init__(
        self,
        words: Sequence[str],
        rows: Float[Tensor, "V H"],
        *,
        n_special: int = 0,
        tokenizer: Tokenizer | None = None,
        ngrams: Ngrams | None = None,
    ):
        self.words, self.rows, self.n_special, self.tokenizer, self.ngrams = words, rows, n_special, tokenizer, ngrams
        self.numbers = {word: i for i, word in enumerate(words) if i >= n_special}

    @cached_property
    def scales(self) -> Float[Tensor, " V"]:
        """The factor that normalises each vector to length 1; 0 for zero vectors and special tokens."""
        lengths = torch.cat([block.float().norm(dim=1) for block in self.rows.split(_AT_ONCE)])
        scales = torch.where(lengths > 0, lengths.reciprocal(), 0.0)
        scales[: self.n_special] = 0
        return scales

    def number(self, word: str) -> int | None:
        """The index of a word in the vocabulary, as the model reads it or as it is written; None if it is missing."""
        number = self.numbers.get(self.read(word))
        return self.numbers.get(self._cased(word)) if number is None else number

    def read(self, word: str) -> str:
        """A word as the model reads it. One that text is split into several words for, such as ``U.S.``, is composed
        (NFC): macOS decomposes Korean syllables and accented letters."""
        words = self.tokenizer.words(word) if self.tokenizer is not None else []
        return words[0] if len(words) == 1 else normalize("NFC", self._cased(word))

    def _cased(self, word: str) -> str:
        return word.lower() if self.tokenizer is not None and self.tokenizer.lowercase else word

    def unit(self, word: str) -> Float[Tensor, " H"] | None:
        """The vector of a word, normalised to length 1 (a zero vector stays 0); None if it has none."""
        number = self.number(word)
        if number is not None:
            return self.rows[number].float() * self.scales[number]
        if self.ngrams is None:
            return None
        made = self.ngrams.of(self.read(word))
        return made / made.norm().clamp(min=1e-30)

    def nearest(self, word: str, top_k: int = 10) -> list[Neighbour]:
        """The words nearest to a word by cosine similarity, without the word itself.

        InputError for a word without a vector, or with a zero vector.
        """
        return self._neighbours(self._known(word), [word], top_k)

    def analogy(self, a: str, b: str, c: str, top_k: int = 5) -> list[Neighbour]:
        """The words d for which a is to b as c is to d: those nearest to b - a + c, excluding a, b and c.

        The vectors are normalised to length 1; the cosine is with the sum. Source: Mikolov et al. 2013 (3CosAdd).
        InputError for a word without a vector, or if the sum is zero.
        """
        first, second, third = map(self._known, (a, b, c))
        query = second - first + third
        if not query.any():
            raise InputError(f"the vectors of {b!r} - {a!r} + {c!r} add up to zero: no word is near it")
        return self._neighbours(query / query.norm(), [a, b, c], top_k)

    def _known(self, word: str) -> Float[Tensor, " H"]:
        """The normalised vector of a word; InputError if it has none, or zeros."""
        vector = self.unit(word)
        if vector is None:
            raise InputError(f"{word!r} is not among the {len(self.numbers):,} words of the model")
        if not vector.any():
            raise InputError(f"the vector of {word!r} is all zeros, so it has no neighbours")
        return vector

    def _neighbours(self, query: Float[Tensor, " H"], left_out: Sequence[str], top_k: int) -> list[Neighbour]:
        if top_k < 1:
            raise ConfigError(f"top_k={top_k}: expected at least 1")
        numbers = [number for word in left_out if (number := self.number(word)) is not None]
        values, best = self.best(query[None], [numbers], top_k)
        found = zip(best[0].tolist(), values[0].tolist(), strict=True)
        return [Neighbour(self.words[i], value) for i, value in found if value > -torch.inf]

    def best(
        self, queries: Float[Tensor, "Q H"], without: Sequence[Sequence[int]], top_k: int, first: int = 0
    ) -> tuple[Float[Tensor, "Q k"], Tensor]:
        """Cosines (times the queries' lengths) and indices of the ``top_k`` nearest words of each query.

        ``without``: words to exclude, for each query. ``first``: search only this many words; 0: all. There are at
        most as many columns as words; where fewer than ``top_k`` words remain, the value is -∞.
        """
        last = min(self.n_special + first, len(self.words)) if first else len(self.words)
        row = np.repeat(np.arange(len(without)), [len(some) for some in without])
        column = np.array([number for some in without for number in some], np.int64)
        top_k = max(min(top_k, last - self.n_special), 1)
        values = queries.new_full((len(queries), top_k), -torch.inf)
        best = torch.zeros(len(queries), top_k, dtype=torch.int64)
        for start in range(self.n_special, last, _AT_ONCE):
            end = min(start + _AT_ONCE, last)
            scores = queries @ self.rows[start:end].float().T * self.scales[start:end]
            scores[:, self.scales[start:end] == 0] = -torch.inf  # a zero vector is near nothing
            here = (column >= start) & (column < end)
            scores[torch.from_numpy(row[here]), torch.from_numpy(column[here] - start)] = -torch.inf
            joined = torch.cat([values, scores], 1)
            numbers = torch.cat([best, torch.arange(start, end).expand(len(queries), -1)], 1)
            values, order = joined.topk(top_k, 1)
            best = numbers.gather(1, order)
        return values, best

    def folded(self, first: int = 0) -> dict[str, list[int]]:
        """Group the indices of the first words (0: all) by their upper-case form, most frequent first."""
        last = self.n_special + first if first else len(self.words)
        groups = defaultdict[str, list[int]](list)
        for number, word in enumerate(self.words[:last]):
            if number >= self.n_special:
                groups[word.upper()].append(number)
        return groups


def open_table(path: str | Path) -> WordTable:
    """Open the words of a model and their vectors; those of the system ``vectors`` are memory-mapped.

    Any model of whole words with an input embedding works. ConfigError for others.
    """
    located = find_format(path)
    if located.format.key == "firth" and read_about(find_model(located.path))["system"] == "vectors":
        return _mapped(find_model(located.path))
    return table_of(open_model(path))


def table_of(loaded: Loaded) -> WordTable:
    """Return the words of a loaded model with the vectors of its input embedding."""
    encoder, tokenizer = loaded.objective.encoder, loaded.tokenizer
    try:
        rows = encoder.piece_embedding.detach()
    except NotImplementedError:  # raised by Encoder: words read by their characters have no embedding table
        rows = None
    if tokenizer.kind is not WORDS or rows is None:
        raise ConfigError(
            f"{loaded.system_name} models with a {tokenizer.kind.name} tokenizer have no vectors "
            "of whole words: choose a model of the system vectors"
        )
    return _table(rows, encoder if isinstance(encoder, Vectors) else None, tokenizer)


def _mapped(folder: Path) -> WordTable:
    """Open a folder of the system ``vectors``, reading only the words."""
    sizes = {key: value for key, value in read_json(folder / "config.json").items() if key != "model_type"}
    config = from_dict(VectorsConfig, sizes, str(folder / "config.json"))
    found = load_tensors(folder / WEIGHTS)
    state = {name.removeprefix("encoder."): t for name, t in found.items() if name.startswith("encoder.")}
    with torch.device("meta"):
        encoder = Vectors(config)
    expected = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    tokenizer = Tokenizer.load(folder)
    if {name: t.shape for name, t in state.items()} != expected or tokenizer.size != config.vocab_size:
        raise CheckpointError(f"{folder}: its files do not belong together, or are damaged")
    encoder.load_state_dict(state, assign=True)
    return _table(encoder.embeddings.weight.detach(), encoder, tokenizer)


def _table(rows: Tensor, encoder: Vectors | None, tokenizer: Tokenizer) -> WordTable:
    ngrams = None
    if encoder is not None and encoder.unknown is not None and encoder.config.unknown == "ngrams":
        config = encoder.config
        ngrams = Ngrams(encoder.unknown.weight.detach(), config.shortest_ngram, config.longest_ngram)
    n_special = len(WORDS.specials)
    return WordTable(tokenizer.pieces, rows, n_special=n_special, tokenizer=tokenizer, ngrams=ngrams)
