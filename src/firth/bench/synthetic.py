"""Synthetic batches with realistic sequence lengths, for speed measurements."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.data.shards import FORMAT, VERSION, Manifest, write_manifest, write_shard
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import PREFIX, SPECIALS

# Tokens per sentence, without special ones: every tenth percentile from the 5th, of SST-2's dev sentences and of
# sentences of English Wikipedia, both in Google's uncased vocabulary.
REVIEW_SENTENCES = (8, 12, 15, 18, 21, 24, 27, 30, 35, 42)
ARTICLE_SENTENCES = (3, 9, 15, 18, 22, 25, 29, 34, 40, 55)
_SENTENCES_A_DOCUMENT = 50


def plain_tokenizer(size: int) -> Tokenizer:
    """A tokenizer of ``size`` tokens that has each word of ``plain_texts`` as one token."""
    words = [f"w{number}" for number in range(size - len(SPECIALS))]
    return Tokenizer.from_vocab([*SPECIALS, *words], lowercase=True)


def plain_texts(tokenizer: Tokenizer, lengths: Sequence[int], seed: int = 0) -> list[str]:
    """Texts of as many random words as each of ``lengths``; a word is one token if the tokenizer has whole words."""
    whole = [p for p in tokenizer.pieces if p.isalnum()] or [
        p.removeprefix(PREFIX) for p in tokenizer.pieces if p not in SPECIALS
    ]
    rng = np.random.default_rng(seed)
    return [" ".join(whole[i] for i in rng.integers(len(whole), size=length)) for length in lengths]


def plain_corpus(folder: Path, tokenizer: Tokenizer, n_tokens: int) -> Path:
    """Write a corpus folder of about ``n_tokens`` random tokens, with sentence lengths as in articles."""
    rng = np.random.default_rng(0)
    n_documents = max(n_tokens // (_SENTENCES_A_DOCUMENT * int(np.mean(ARTICLE_SENTENCES))), 1)
    lengths = rng.choice(ARTICLE_SENTENCES, n_documents * _SENTENCES_A_DOCUMENT)
    sentences = np.cumsum([0, *lengths])
    pieces = np.setdiff1d(np.arange(tokenizer.size), tokenizer.special_ids)
    ids = rng.choice(pieces, sentences[-1]).astype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    folder.mkdir(parents=True)
    tokenizer.save(folder / "tokenizer")
    documents = np.arange(0, len(lengths) + 1, _SENTENCES_A_DOCUMENT)
    info = write_shard(folder, "train-00000", ids, sentences, documents)
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        tokenizer=tokenizer.fingerprint,
        sources=(),
        options="{}",
        train=(info,),
        dev=(),
    )
    write_manifest(folder, manifest)
    return folder
