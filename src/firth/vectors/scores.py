"""Evaluate word vectors: analogies (Mikolov et al. 2013a, §4.1) and word similarity.

``: capital-common-countries``, then ``Athens Greece Baghdad Iraq``, one question per line     questions-words.txt
``love sex 6.77``, one pair per line, by spaces or tabs; lines that begin with # are comments     wordsim353, SimLex-999
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch

from firth.errors import InputError
from firth.inference.word_table import WordTable
from firth.metrics.correlation import pearson, spearman
from firth.progress import Progress
from firth.tasks.readers.files import read_lines

_AT_ONCE = 256  # questions
# Prefix of the grammatical sections in Google's set; the others are semantic.
_GRAMMAR = "gram"


@dataclass(frozen=True, slots=True)
class Section:
    """Questions of one kind: their number, how many have only known words, and how many were answered correctly."""

    name: str
    questions: int
    known: int
    right: int

    @property
    def accuracy(self) -> float:
        """Accuracy on the questions whose words are known; 0 if there are none."""
        return self.right / self.known if self.known else 0.0


@dataclass(frozen=True, slots=True)
class AnalogyQuestion:
    """``a`` is to ``b`` as ``c`` is to ``d``; the answer is ``d``."""

    section: str
    words: tuple[str, str, str, str]


def read_questions(path: Path) -> list[AnalogyQuestion]:
    """Read analogy questions; InputError names the first line that is neither a section nor four words."""
    section, found = "", list[AnalogyQuestion]()
    for number, line in read_lines(path):
        fields = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif len(fields) == 4:
            a, b, c, d = (normalize("NFC", field) for field in fields)
            found.append(AnalogyQuestion(section, (a, b, c, d)))
        elif fields:
            raise InputError(f"{path}:{number}: expected four words, or a colon and a name; found {line[:60]!r}")
    if not found:
        raise InputError(f"{path}: no question in it")
    return found


def analogies(
    table: WordTable, questions: Sequence[AnalogyQuestion], *, fold: bool = False, first: int = 0
) -> list[Section]:
    """Score every section of the questions, the semantic and the grammatical ones together, and all of them.

    The answer is the word nearest to b - a + c, each normalised to length 1, other than these three (3CosAdd).
    ``fold``: ignore case; of words that differ only in case, the most frequent one is used. ``first``: only this many
    words, the most frequent ones, are known; 0: all.
    Source: word2vec compute-accuracy.c, which folds and knows 30,000; questions with unknown words, or with vectors of
    zeros, are not counted.
    """
    groups = table.folded(first) if fold else {}
    known, right = dict.fromkeys(_sections(questions), 0), dict.fromkeys(_sections(questions), 0)
    asked = []
    for question in questions:
        words = [
            groups.get(table.read(word).upper(), []) if fold else _numbers(table, word, first)
            for word in question.words
        ]
        if all(words) and all(table.scales[numbers[0]] for numbers in words):
            asked.append((question.section, words))
            known[question.section] += 1
    with Progress("analogies", len(asked), "questions") as progress:
        for at in range(0, len(asked), _AT_ONCE):
            some = asked[at : at + _AT_ONCE]
            units = [
                [table.rows[words[0]].float() * table.scales[words[0]] for words in question] for _, question in some
            ]
            queries = torch.stack([b - a + c for a, b, c, _ in units])
            without = [sorted({number for words in question[:3] for number in words}) for _, question in some]
            values, best = table.best(queries, without, 1, first)
            for (section, (*_, wanted)), number, value in zip(some, best[:, 0].tolist(), values[:, 0], strict=True):
                right[section] += number in wanted and bool(value > -torch.inf)
            progress.advance(len(some))
    n = {name: sum(question.section == name for question in questions) for name in known}
    sections = [Section(name, n[name], known[name], right[name]) for name in known]
    return [*sections, *_totals(sections)]


def _sections(questions: Sequence[AnalogyQuestion]) -> list[str]:
    return list(dict.fromkeys(question.section for question in questions))


def _numbers(table: WordTable, word: str, first: int) -> list[int]:
    number, last = table.number(word), table.n_special + first if first else len(table.words)
    return [number] if number is not None and number < last else []


def _totals(sections: Sequence[Section]) -> Iterator[Section]:
    """Yield the totals over semantic and over grammatical sections, if they are Google's, and over all."""
    grammar = [section for section in sections if section.name.startswith(_GRAMMAR)]
    parts = {"meaning": [s for s in sections if s not in grammar], "grammar": grammar} if grammar else {}
    for name, some in (parts | {"total": list(sections)}).items():
        if some:
            yield Section(name, *(sum(getattr(s, key) for s in some) for key in ("questions", "known", "right")))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two words, and how similar people judge them to be."""

    a: str
    b: str
    score: float


@dataclass(frozen=True, slots=True)
class Likeness:
    """How well cosines agree with human scores: ``spearman`` over the pairs that have vectors. ``made``: of these
    pairs, those with a word outside the vocabulary, whose vector comes from its n-grams."""

    name: str
    pairs: int
    known: int
    made: int
    spearman: float
    pearson: float


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs with scores; InputError names the first line that is not two words and a finite number."""
    found = []
    for number, line in read_lines(path):
        if line.startswith("#") or not line.strip():
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        try:
            a, b, text = (normalize("NFC", field.strip()) for field in fields)
            score = float(text)
        except ValueError:
            raise InputError(f"{path}:{number}: expected two words and a number; found {line[:60]!r}") from None
        if not math.isfinite(score):
            raise InputError(f"{path}:{number}: expected two words and a finite number; found {line[:60]!r}")
        found.append(Pair(a, b, score))
    if not found:
        raise InputError(f"{path}: no pair of words in it")
    return found


def similarity(table: WordTable, name: str, pairs: Sequence[Pair], *, fold: bool = False) -> Likeness:
    """Correlate cosines with the scores of pairs; ``fold`` as in ``analogies``.

    InputError if fewer than two pairs have vectors.
    """
    groups = table.folded() if fold else {}
    gold, cosines, made = list[float](), list[float](), 0
    for pair in pairs:
        found = [(word, groups.get(table.read(word).upper())) for word in (pair.a, pair.b)]
        words = [table.words[numbers[0]] if numbers else word for word, numbers in found]
        a, b = (table.unit(word) for word in words)
        if a is not None and b is not None and a.any() and b.any():
            gold.append(pair.score)
            cosines.append(float(a @ b))
            made += any(table.number(word) is None for word in words)
    if len(gold) < 2:
        raise InputError(f"{name}: {len(gold)} of {len(pairs):,} pairs have vectors: there is nothing to correlate")
    y, x = np.array(gold), np.array(cosines)
    return Likeness(name, len(pairs), len(gold), made, spearman(y, x), pearson(y, x))
