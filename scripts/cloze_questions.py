"""Make questions from unlabelled articles, in SQuAD's format, to teach a small encoder to find spans.

    .venv/bin/python scripts/cloze_questions.py TEXT.xz 15000 questions.json [SQUAD.json ...]

A name or number that occurs in several sentences of an article is replaced by a question word in one of them, with a
few words on either side; the context is some consecutive sentences around another occurrence, which shares words with
the first. Contexts that share ten words in a row with those of the SQuAD files are left out. After Ram et al. 2021
(recurring spans) and Lewis et al. 2019 (cloze questions with a question word); docs/learning.md has the effect.
"""

import json
import lzma
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, islice, permutations
from pathlib import Path
from typing import Any, NamedTuple

from firth.errors import FirthError
from firth.files import write_text
from firth.text.sentences import split_sentences

SEED = 1
SPAN = re.compile(
    r"[A-Z][\w'’-]+(?: (?:(?:of|the|de|von|and) )?[A-Z][\w'’-]+)*|\d[\d.,]*\d(?: (?:million|percent|km))?"
)
YEAR = re.compile(r"(?:1\d|20)\d\d")
WORD = re.compile(r"\w+")
# Sentences per part of an article, and questions per part.
PART, MOST_QUESTIONS = 40, 3
# Characters per sentence, sentences per context, words on either side of the span, words that sentences share.
SENTENCE, CONTEXT, BESIDE, SHARED = (25, 350), (3, 7), (4, 16), 2
# Consecutive shared words that make a context count as known.
KNOWN = 10


class Question(NamedTuple):
    """``start``: the answer's offset in the context, in characters."""

    context: str
    question: str
    answer: str
    start: int


def parts(path: Path) -> Iterator[list[str]]:
    """The sentences of each part of an article; blank lines divide articles."""
    article = list[str]()
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in chain(lines, [""]):
            if line.strip():
                article += (s for s in split_sentences(line.strip()) if SENTENCE[0] <= len(s) <= SENTENCE[1])
            elif article:
                yield from (article[i : i + PART] for i in range(0, len(article), PART))
                article = []


def content_of(sentence: str, span: str) -> set[str]:
    """Words of four letters or more that are not in the span."""
    return {word for word in WORD.findall(sentence.lower()) if len(word) > 3} - set(WORD.findall(span.lower()))


def questions_of(sentences: list[str], rng: random.Random) -> Iterator[Question]:
    """The questions of a part of an article, in random order."""
    places: defaultdict[str, set[int]] = defaultdict(set)
    for number, sentence in enumerate(sentences):
        for match in SPAN.finditer(sentence):
            if match.start() or " " in match[0]:  # a sentence's first word is not a name
                places[match[0]].add(number)
    spans = [span for span, found in places.items() if 2 <= len(found) <= 4 and len(span) > 2]
    rng.shuffle(spans)
    for span in spans:
        shared = {
            (asked, read): len(content_of(sentences[asked], span) & content_of(sentences[read], span))
            for asked, read in permutations(sorted(places[span]), 2)
        }
        asked, read = max(shared, key=lambda pair: shared[pair])
        if shared[asked, read] < SHARED:
            continue
        # Sentences around the one with the answer, never the one that became the question.
        first, end = read, read + 1
        for _ in range(rng.randint(*CONTEXT) - 1):
            free = [n for n in (first - 1, end) if 0 <= n < len(sentences) and n != asked]
            if free:
                chosen = rng.choice(free)
                first, end = min(first, chosen), max(end, chosen + 1)
        context = " ".join(sentences[first:end])
        answer = re.compile(rf"(?<!\w){re.escape(span)}(?!\w)")
        start = answer.search(context, sum(len(s) + 1 for s in sentences[first:read]))
        if start is not None:  # not "1990" of "1990s"
            yield Question(context, asked_of(sentences[asked], span, rng), span, start.start())


def asked_of(sentence: str, span: str, rng: random.Random) -> str:
    """The sentence as a question about the span: the words before and after it, or those on one side alone."""
    before, _, after = sentence.rstrip(" .").partition(span)
    left, right = before.split()[-rng.randint(*BESIDE) :], after.split()[: rng.randint(*BESIDE)]
    if YEAR.fullmatch(span):
        word = rng.choice(("when", "in what year"))
    else:
        word = rng.choice(("how many", "what") if span[0].isdigit() else ("what", "what", "who", "which", "where"))
    order = rng.choice(((word, *left, *right), (*left, word, *right), (word, *(right if len(right) > 4 else left))))
    question = " ".join(order).strip(" ,;")
    return f"{question[0].upper()}{question[1:]}?"


def runs(text: str) -> set[tuple[str, ...]]:
    """All runs of ``KNOWN`` consecutive words."""
    words = WORD.findall(text.lower())
    return {tuple(words[i : i + KNOWN]) for i in range(len(words) - KNOWN + 1)}


def main(text: Path, n: int, out: Path, *against: Path) -> None:
    rng, known = random.Random(SEED), set[tuple[str, ...]]()
    for path in against:
        for article in json.loads(path.read_text("utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                known |= runs(paragraph["context"])
    every = (q for part in parts(text) for q in islice(questions_of(part, rng), MOST_QUESTIONS))
    found = islice((q for q in every if runs(q.context).isdisjoint(known)), n)
    # Each becomes an article of its own, so that some can be held out.
    data = [{"title": str(i), "paragraphs": [paragraph_of(i, question)]} for i, question in enumerate(found)]
    write_text(out, json.dumps({"version": "1.1", "data": data}, ensure_ascii=False))
    print(f"{out}: {len(data):,} questions")


def paragraph_of(number: int, question: Question) -> dict[str, Any]:
    answers = [{"text": question.answer, "answer_start": question.start}]
    return {
        "context": question.context,
        "qas": [{"id": str(number), "question": question.question, "answers": answers}],
    }


if __name__ == "__main__":
    if len(sys.argv) < 4 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *map(Path, sys.argv[4:]))
    except (FirthError, OSError, lzma.LZMAError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")
    except (KeyError, TypeError):
        sys.exit(f"error: {' '.join(sys.argv[4:])}: expected files in SQuAD's format")
