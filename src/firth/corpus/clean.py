"""The reasons for which corpus cleaning removes text, and the rules that apply to a single document."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from firth.corpus.duplicates import LONG, RECURRING
from firth.corpus.fingerprints import DIGIT, IDEOGRAPH, LETTER, OPEN, SCRIPTS, SYMBOL, FingerprintBlock, fingerprint
from firth.errors import ConfigError

# Each reason and what it removes; its number is its position here, from 1. The first six remove documents.
REASONS = {
    "other-script": "documents with less than half of their letters in the given scripts",
    "other-language": "documents in none of the given languages, judged by frequent words",
    "damaged": "documents with more than one U+FFFD in 50 characters: wrongly decoded text",
    "duplicates": "documents whose paragraphs have the words of an earlier one's, ignoring case and punctuation",
    "near-duplicates": "documents that share most of their five-word windows with an earlier one",
    "nothing-left": f"documents in which the rules below leave no paragraph of {LONG} words",
    "tables": "paragraphs with three or more cell separators",
    "numbers": "paragraphs with more digits than letters",
    "symbols": "paragraphs with more than three symbols in ten characters: formulas, code",
    "lists": "runs of five or more short paragraphs that end without punctuation, or start with a bullet",
    "repeated": f"paragraphs of {LONG} words or more that occur {RECURRING} times or more; the first occurrence stays",
    "evaluation": "paragraphs that share a run of words with an evaluation file",
}
ALWAYS = ("other-script", "other-language", "nothing-left", "evaluation")  # controlled by their own options
OPTIONAL = tuple(name for name in REASONS if name not in ALWAYS)

_LIST_RUN = 5  # paragraphs
_LIST_WIDTH = 60  # characters; an ideograph counts as two
_LEAST_DIGITS = 12
_LEAST_VISIBLE = 20  # fewest visible characters of a paragraph in which symbols are counted
_LEAST_LANGUAGE_WORDS = 20
_LEAST_COMMON = 0.05  # smallest share of words that must be among the most frequent of the language

_LANGUAGE_SCRIPTS = {
    "ar": ("arabic",), "el": ("greek",), "he": ("hebrew",), "hi": ("devanagari",), "ja": ("kana", "han"),
    "ko": ("hangul",), "ru": ("cyrillic",), "th": ("thai",), "zh": ("han",),
}  # fmt: skip
_COMMON_WORDS = {
    "de": "der die und das nicht ein eine ist zu den mit von dem des auf sich auch als für wurde werden sind",
    "en": "the of and to was is that it for with as on by he his at from which are this were had be",
    "es": "el la los las que y del en por con una un se es su para como más fue al lo",
    "fr": "le la les et des du une un est dans que qui pour par sur au avec il ne pas sont aux",
    "it": "il di che e la della per un una con non sono del si è da gli le dei nel alla",
    "nl": "de het een van en dat die niet zijn voor met op werd is te aan door ook bij naar uit",
    "pt": "o a os as que e do da em um uma para com não por se foi dos das ao no na",
}
LANGUAGES = tuple(sorted([*_LANGUAGE_SCRIPTS, *_COMMON_WORDS]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """Options of cleaning: what to remove from a corpus, and what to compare it with.

    ``rules``: names of REASONS. ``similarity``: Jaccard similarity from which a document is a near-duplicate.
    ``scripts``, ``languages``: of documents to keep (either is enough); empty: any. ``against``: evaluation
    files to search for in the corpus; ``remove_overlap`` removes the paragraphs where they are found.
    ``memory``: bytes of hashes to hold before they move to disk.
    """

    rules: tuple[str, ...] = ()
    similarity: float = 0.8
    scripts: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    against: tuple[Path, ...] = ()
    remove_overlap: bool = False
    memory: int = 1_000_000_000

    def __post_init__(self) -> None:
        for what, names, known in (
            ("rule of cleaning", self.rules, OPTIONAL),
            ("script", self.scripts, SCRIPTS),
            ("language", self.languages, LANGUAGES),
        ):
            for name in names:
                if name not in known:
                    raise ConfigError(f"no {what} called {name!r}; known: {', '.join(known)}")
        if not 0.3 <= self.similarity <= 1:
            raise ConfigError(f"similarity={self.similarity}: expected 0.3 to 1")
        if self.remove_overlap and not self.against:
            raise ConfigError("remove_overlap requires evaluation files: give them with --against")
        if self.memory < 1_000_000:
            raise ConfigError(f"memory={self.memory}: expected at least 1,000,000 bytes (--memory 1MB)")

    @property
    def wanted(self) -> bool:
        """Whether any cleaning is requested."""
        return bool(self.rules or self.scripts or self.languages or self.against)


def code(reason: str) -> int:
    """The number of a reason, from 1."""
    return list(REASONS).index(reason) + 1


def document_reasons(block: FingerprintBlock, cleaning: Cleaning) -> np.ndarray:
    """Number of the reason to remove each document, or 0; uint8 (D,)."""
    reasons = np.zeros(len(block.paragraph_starts) - 1, np.uint8)
    if "damaged" in cleaning.rules:
        sums = np.concatenate((np.zeros((1, 2), np.int64), np.cumsum(
            np.stack((block.damaged, block.kinds.sum(1)), 1), 0)))  # fmt: skip
        damaged, characters = np.diff(sums[block.paragraph_starts], axis=0).T
        reasons[damaged * 50 > characters] = code("damaged")
    if cleaning.scripts or cleaning.languages:
        fits = _in_scripts(block, cleaning.scripts) if cleaning.scripts else np.zeros(len(reasons), bool)
        for language in cleaning.languages:
            fits |= _in_language(block, language)
        reasons[~fits] = code("other-language" if cleaning.languages else "other-script")
    return reasons


def _in_scripts(block: FingerprintBlock, scripts: Collection[str]) -> np.ndarray:
    columns = [SCRIPTS.index(script) for script in scripts]
    letters = block.scripts.sum(1)
    return (block.scripts[:, columns].sum(1) * 2 >= letters) & (letters > 0)


def _in_language(block: FingerprintBlock, language: str) -> np.ndarray:
    """Whether each document is in a language: by script if that decides it, else by frequent words (Latin script)."""
    if language in _LANGUAGE_SCRIPTS:
        fits = _in_scripts(block, _LANGUAGE_SCRIPTS[language])
        kana = block.scripts[:, SCRIPTS.index("kana")] * 20 > block.scripts.sum(1)
        return fits & kana if language == "ja" else fits & ~kana if language == "zh" else fits
    starts = block.document_starts
    shares = {}
    for name in _COMMON_WORDS:
        sums = np.concatenate(([0], np.cumsum(np.isin(block.words, _common_hashes(name)))))
        shares[name] = np.diff(sums[starts]) / np.maximum(np.diff(starts), 1)
    best = np.max(list(shares.values()), axis=0)
    # Too few words do not identify a language: use the script.
    short = np.diff(starts) < _LEAST_LANGUAGE_WORDS
    return _in_scripts(block, ("latin",)) & (short | ((shares[language] >= _LEAST_COMMON) & (shares[language] == best)))


@cache
def _common_hashes(language: str) -> np.ndarray:
    return fingerprint([[_COMMON_WORDS[language]]]).words


def paragraph_reasons(block: FingerprintBlock, rules: Collection[str]) -> np.ndarray:
    """Number of the reason to remove each paragraph, or 0; uint8 (P,)."""
    kinds = block.kinds
    letters = kinds[:, LETTER] + kinds[:, IDEOGRAPH]
    visible = letters + kinds[:, DIGIT] + kinds[:, SYMBOL]
    short = visible + kinds[:, IDEOGRAPH] <= _LIST_WIDTH
    listed = _long_runs(short & ((block.ends == OPEN) | (block.bullets > 0)), block.paragraph_starts)
    reasons = np.zeros(len(kinds), np.uint8)
    # If several apply, the first in REASONS wins: it is written last.
    for name, applies in (
        ("lists", listed),
        ("symbols", (kinds[:, SYMBOL] * 10 > visible * 3) & (visible >= _LEAST_VISIBLE)),
        ("numbers", (kinds[:, DIGIT] > letters) & (kinds[:, DIGIT] >= _LEAST_DIGITS)),
        ("tables", block.bars >= 3),
    ):
        if name in rules:
            reasons[applies] = code(name)
    return reasons


def _long_runs(chosen: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Keep those of ``chosen`` in a run of five or more; runs do not cross documents."""
    begins = np.zeros(len(chosen) + 1, bool)
    begins[starts] = True
    begins = begins[:-1]
    new = chosen & (begins | ~np.concatenate(([False], chosen[:-1])))
    run = np.cumsum(new)  # index of each chosen paragraph's run
    sizes = np.bincount(run[chosen], minlength=int(run[-1]) + 1 if len(run) else 1)
    return chosen & (sizes[run] >= _LIST_RUN)
