"""Recover answer texts from predicted spans as google-research/bert does.

Source: google-research/bert run_squad.py, get_final_text and write_predictions (specification of tasks §4). Firth
answers with exactly the characters of a span; the published code searches for the joined tokens of the span in the
whole words around them, and returns these words if it does not find them.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from firth.errors import ConfigError
from firth.tasks.predictions import Answered, Span
from firth.text.records import Question
from firth.text.tokenizer import Encoded, Tokenizer
from firth.text.tokenizer_kinds import WORDPIECE
from firth.text.words import build_normalizer, build_pre_tokenizer

# The published code splits words at this white space only.
_WORD = re.compile("[^ \t\r\n\u202f]+")


def recover_published(
    questions: Sequence[Question], answers: Sequence[Answered], tokenizer: Tokenizer
) -> list[Answered]:
    """Replace the texts of answers and their n-best by those that the published code gives for the same spans.

    If n-best answers then share a text, the first is kept. ConfigError unless the tokenizer is WordPiece.
    """
    if tokenizer.kind is not WORDPIECE:
        raise ConfigError(f"published answer texts require a WordPiece model, this one has {tokenizer.kind.name}")
    return [
        _recovered(question.context, answer, encoded, tokenizer)
        for question, answer, encoded in zip(
            questions, answers, tokenizer.encode_many([question.context for question in questions]), strict=True
        )
    ]


def _recovered(context: str, answer: Answered, encoded: Encoded, tokenizer: Tokenizer) -> Answered:
    kept: dict[str, Span] = {}
    for span in answer.n_best:
        text, begin, end = _text(context, span.start, span.end, encoded, tokenizer) if span.text else ("", 0, 0)
        kept.setdefault(text, replace(span, text=text, start=begin, end=end))
    text, begin, end = ("", 0, 0)
    if answer.text:
        text, begin, end = _text(context, answer.start, answer.end, encoded, tokenizer)
    return replace(answer, text=text, start=begin, end=end, n_best=tuple(kept.values()))


def _text(context: str, start: int, end: int, encoded: Encoded, tokenizer: Tokenizer) -> tuple[str, int, int]:
    """The recovered text of the characters [start:end], and where it starts and ends."""
    pieces = [
        tokenizer.pieces[i] for i, (a, b) in zip(encoded.ids, encoded.offsets, strict=True) if start <= a and b <= end
    ]
    predicted = " ".join(" ".join(pieces).replace(" ##", "").replace("##", "").split())
    words = [match.span() for match in _WORD.finditer(context)]
    begins = [a for a, _ in words]
    chosen = words[max(bisect_right(begins, start) - 1, 0) : bisect_right(begins, end - 1)]
    # Each character of the words, joined by single blanks, and its index in the context.
    places = [place for a, b in chosen for place in (*range(a, b), b)][:-1]
    original = " ".join(context[a:b] for a, b in chosen)
    a, b = find_in_words(predicted, original, lowercase=tokenizer.lowercase)
    return original[a:b], places[a], places[b - 1] + 1


def find_in_words(predicted: str, original: str, *, lowercase: bool) -> tuple[int, int]:
    """Find the joined tokens ``predicted`` in the raw text ``original``: characters [a:b], or all if not found.

    Both are compared without blanks, after the lower-casing and splitting of google-research/bert; if that changes the
    number of characters, nothing is found.
    """
    normalizer, splitter = build_normalizer(lowercase=lowercase, keep_accents=False, google=True), build_pre_tokenizer()
    tokens = " ".join(token for token, _ in splitter.pre_tokenize_str(normalizer.normalize_str(original)))
    at = tokens.find(predicted)
    theirs = [i for i, character in enumerate(original) if character != " "]
    ours = [i for i, character in enumerate(tokens) if character != " "]
    if at < 0 or not predicted or len(theirs) != len(ours):
        return 0, len(original)
    return theirs[ours.index(at)], theirs[ours.index(at + len(predicted) - 1)] + 1
