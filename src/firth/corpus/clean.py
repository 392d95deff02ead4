"""Names of what corpus cleaning removes, and the rules that judge a single document."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from firth.corpus.duplicates import LONG, RECURRING
from firth.corpus.fingerprints import DIGIT, IDEOGRAPH, LETTER, OPEN, SCRIPTS, SYMBOL, Block, measure
from firth.errors import ConfigError

# Each reason with what it removes; its number is its place here, from 1. The first six remove documents.
REASONS = {
    "other-script": "documents of which less than half of the letters are in the scripts asked for",
    "other-language": "documents that the commonest words show to be in none of the languages asked for",
    "damaged": "documents of which more than one character in 50 is U+FFFD: text that was decoded wrongly",
    "duplicates": "documents with the words of an earlier one, whatever their case, punctuation and white space",
    "near-duplicates": "documents that share most of their five-word windows with an earlier one",
    "nothing-left": f"documents of which the rules below leave no paragraph of {LONG} words",
    "tables": "paragraphs with three or more cell separators",
    "numbers": "paragraphs with more digits than letters",
    "symbols": "paragraphs with more than three symbols in ten characters: formulas, code",
    "lists": "runs of five or more short paragraphs that end without punctuation, or begin with a bullet",
    "repeated": f"paragraphs of {LONG} words or more that occur {RECURRING} times or more; the first occurrence stays",
    "evaluation": "paragraphs that share a run of words with an evaluation file",
}
ALWAYS = ("other-script", "other-language", "nothing-left", "evaluation")  # asked for by options of their own
OPTIONAL = tuple(name for name in REASONS if name not in ALWAYS)

_LIST_RUN = 5  # paragraphs
_LIST_WIDTH = 60  # characters; an ideograph counts as two
_LEAST_DIGITS = 12
_LEAST_VISIBLE = 20  # characters of a paragraph that symbols are counted in
_LEAST_LANGUAGE_WORDS = 20
_LEAST_COMMON = 0.05  # share of words that are among the commonest of the language

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
    """What to remove from a corpus, and what to compare it with.

    ``rules``: names of REASONS. ``similarity``: the Jaccard similarity from which on a document is a near-duplicate.
    ``scripts``, ``languages``: what the documents are to be in (either is enough); empty: any. ``against``: evaluation
    files whose texts are searched in the corpus; ``remove_overlap`` removes the paragraphs where they are found.
    ``memory``: bytes of hashes that are held before they move to disk.
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
            raise ConfigError("there is nothing to remove the overlap with: give the evaluation files with --against")
        if self.memory < 1_000_000:
            raise ConfigError(f"memory={self.memory}: expected at least 1,000,000 bytes (--memory 1MB)")

    @property
    def wanted(self) -> bool:
        """Whether any of it is asked for."""
        return bool(self.rules or self.scripts or self.languages or self.against)


def code(reason: str) -> int:
    """The number of a reason, from 1."""
    return list(REASONS).index(reason) + 1


def document_reasons(block: Block, cleaning: Cleaning) -> np.ndarray:
    """For each document the number of the reason to remove it by itself, or 0; uint8 (D,)."""
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


def _in_scripts(block: Block, scripts: Collection[str]) -> np.ndarray:
    columns = [SCRIPTS.index(script) for script in scripts]
    letters = block.scripts.sum(1)
    return (block.scripts[:, columns].sum(1) * 2 >= letters) & (letters > 0)


def _in_language(block: Block, language: str) -> np.ndarray:
    """By the script where that decides; else by the commonest words of each language written in Latin letters."""
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
    # Too few words tell nothing apart: their script has to do.
    short = np.diff(starts) < _LEAST_LANGUAGE_WORDS
    return _in_scripts(block, ("latin",)) & (short | ((shares[language] >= _LEAST_COMMON) & (shares[language] == best)))


@cache
def _common_hashes(language: str) -> np.ndarray:
    return measure([[_COMMON_WORDS[language]]]).words


def paragraph_reasons(block: Block, rules: Collection[str]) -> np.ndarray:
    """For each paragraph the number of the reason to remove it by itself, or 0; uint8 (P,)."""
    kinds = block.kinds
    letters = kinds[:, LETTER] + kinds[:, IDEOGRAPH]
    visible = letters + kinds[:, DIGIT] + kinds[:, SYMBOL]
    short = visible + kinds[:, IDEOGRAPH] <= _LIST_WIDTH
    listed = _long_runs(short & ((block.ends == OPEN) | (block.bullets > 0)), block.paragraph_starts)
    reasons = np.zeros(len(kinds), np.uint8)
    # Where several apply, the first of the table is named: it is written last.
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
    """Those of ``chosen`` that stand in a run of five or more; a run ends with its document."""
    begins = np.zeros(len(chosen) + 1, bool)
    begins[starts] = True
    begins = begins[:-1]
    new = chosen & (begins | ~np.concatenate(([False], chosen[:-1])))
    run = np.cumsum(new)  # the number of the run that each of the chosen belongs to
    sizes = np.bincount(run[chosen], minlength=int(run[-1]) + 1 if len(run) else 1)
    return chosen & (sizes[run] >= _LIST_RUN)
