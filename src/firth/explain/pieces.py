"""How WordPiece splits a word: longest token first, step by step."""

from dataclasses import dataclass

from firth.text.tokenizer import WORD_LIMIT
from firth.text.tokenizer_kinds import PREFIX


@dataclass(frozen=True, slots=True)
class PieceStep:
    """One step: the rest of the word, how many of its prefixes were looked up, and the longest one in the
    vocabulary (None: there is none, so the whole word is unknown)."""

    rest: str
    tried: int
    found: str | None


def wordpiece_steps(word: str, vocabulary: frozenset[str]) -> list[PieceStep]:
    """Return the steps for a normalised word; ``vocabulary``: all tokens.

    A word longer than ``WORD_LIMIT`` characters is unknown at once. Source: Wu et al. 2016, §4.1; google-research/bert
    tokenization.py, WordpieceTokenizer.
    """
    if len(word) > WORD_LIMIT:
        return [PieceStep(word, 0, None)]
    steps, begin = list[PieceStep](), 0
    while begin < len(word):
        rest = word[begin:]
        lengths = range(len(rest), 0, -1)
        mark = PREFIX if begin else ""
        longest = next((n for n in lengths if mark + rest[:n] in vocabulary), None)
        if longest is None:
            return [*steps, PieceStep(rest, len(rest), None)]
        steps.append(PieceStep(rest, len(rest) - longest + 1, mark + rest[:longest]))
        begin += longest
    return steps
