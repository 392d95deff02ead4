"""Decide which documents are held out for evaluation: a share of them, sampled by a hash of their text."""

import heapq
from itertools import chain

from firth.corpus.selection import Selection, document_hash
from firth.text.records import Document

# Minimum number of held-out documents if the text has ten times as many; of less text a tenth, of two documents one.
LEAST_HELD_OUT = 10


def is_held_out(document: Document, share: float) -> bool:
    """Whether a document is held out, by a hash of its text."""
    return document_hash(document.paragraphs) < share * 2**64


def threshold(text: Selection, share: float) -> int:
    """Return the hash threshold below which documents are held out: a share of them, but at least a few.

    Equal documents count once. Text is read ahead until enough documents are held out, so only small corpora are read
    to the end.
    """
    if not share:
        return 0
    limit = int(share * 2**64)
    lowest: list[int] = []  # the smallest hashes, negated: a heap with the largest of them on top
    seen = set[int]()
    # Distinct documents, and the distinct ones that the share holds out; as many of each as matter.
    documents, held = set[int](), set[int]()
    is_left = False
    for document, copy in text:
        if copy:  # copies follow all first readings
            break
        if not any(character.isprintable() and character not in " \ufffd" for character in chain(*document.paragraphs)):
            continue  # has no tokens and will be left out
        hashed = document_hash(document.paragraphs)
        if len(documents) < 10 * LEAST_HELD_OUT:
            documents.add(hashed)
        if hashed >= limit:
            is_left = True
        elif len(held) < LEAST_HELD_OUT:
            held.add(hashed)
        if len(held) == LEAST_HELD_OUT and is_left:
            return limit
        if hashed not in seen:
            seen.add(hashed)
            heapq.heappush(lowest, -hashed)
            if len(lowest) > LEAST_HELD_OUT + 1:
                seen.discard(-heapq.heappop(lowest))
    hashes = sorted(-negated for negated in lowest)
    if len(hashes) < 2:
        return 0
    least = min(LEAST_HELD_OUT, max(1, len(documents) // 10), len(hashes) - 1)
    limit = max(limit, hashes[least - 1] + 1)
    # If there are only a few documents, keep at least one to train on.
    return min(limit, hashes[-1]) if len(hashes) <= LEAST_HELD_OUT else limit
