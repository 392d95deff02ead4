"""Tokenization with a fastai vocabulary against fastai's own rules over spaCy's English tokenizer."""

import csv
import gzip
from importlib.util import find_spec
from pathlib import Path

import pytest

from firth.text.fastai_words import tokenizer_of_fastai

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("fastai") is None, reason="fastai is elsewhere: scripts/test_fastai runs this"),
]
MARKS = ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", "xxrep", "xxwrep", "xxup", "xxmaj"]
SENTENCES = [
    "The cat, don't  NASA U.S. McDonald I A cat.",
    "AC/DC's album cost $3.50 (1,500 sold) at 10:30 a.m. on Monday.",
    "Fans of Mr. Smith and J. Doe vs. Acme Inc. can't say; they'd left...",
    "It amp; s &lt;b&gt;bold&lt;/b&gt; #39;quoted#39; and broken &quot;here&quot;.",
    "An SR-71 flew over New-York, e.g. near example.com \\ at noon!",
    "He said: \"We'll see\" - didn't he? U.N. CEO of IBM, cannot.",
]


def both(texts: list[str]) -> list[tuple[list[str], list[str]]]:
    """Their words and ours for each text, with a vocabulary that contains all of theirs."""
    from fastai.text.core import SpacyTokenizer, defaults

    prepared = []
    for text in texts:
        for rule in defaults.text_proc_rules:
            text = rule(text)
        prepared.append(text)
    theirs = [[word for word in words if word != "xxbos"] for words in SpacyTokenizer(lang="en")(prepared)]
    tokenizer, _ = tokenizer_of_fastai([*MARKS, *sorted({w for words in theirs for w in words} - {*MARKS})], "itos")
    ours = [[tokenizer.pieces[i] for i in tokenizer.encode(text).ids] for text in texts]
    return list(zip(theirs, ours, strict=True))


def test_sentences_come_out_alike() -> None:
    for theirs, ours in both(SENTENCES):
        assert ours == theirs


def test_most_real_texts_come_out_alike(shared_data: Path) -> None:
    with gzip.open(shared_data / "ag-news/dev.tsv.gz", "rt", encoding="utf-8", newline="") as file:
        texts = [row[0] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][:300]
    found = both(texts)
    assert sum(theirs == ours for theirs, ours in found) > 0.8 * len(found)
