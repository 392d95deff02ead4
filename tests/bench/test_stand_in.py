"""Synthetic texts and corpora of given lengths."""

from pathlib import Path

import numpy as np
import pytest

from firth.bench.synthetic import ARTICLE_SENTENCES, plain_corpus, plain_texts, plain_tokenizer
from firth.data.shards import Corpus
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS


def test_texts_have_their_lengths() -> None:
    tokenizer = plain_tokenizer(100)
    assert tokenizer.size == 100
    texts = plain_texts(tokenizer, [1, 7, 30])
    assert [len(ids) for ids in tokenizer.ids_many(texts)] == [1, 7, 30]
    assert not {i for ids in tokenizer.ids_many(texts) for i in ids} & set(tokenizer.special_ids)
    assert texts == plain_texts(tokenizer, [1, 7, 30]) != plain_texts(tokenizer, [1, 7, 30], seed=1)


@pytest.mark.parametrize("pieces", [["good", "film", "##s", "."], ["##a", "##b"]])
def test_texts_in_another_vocabulary(pieces: list[str]) -> None:
    texts = plain_texts(Tokenizer.from_vocab([*SPECIALS, *pieces], lowercase=True), [5, 9])
    assert [len(text.split()) for text in texts] == [5, 9]


def test_a_corpus_is_one_that_training_reads(tmp_path: Path) -> None:
    tokenizer = plain_tokenizer(100)
    corpus = Corpus(plain_corpus(tmp_path / "corpus", tokenizer, 20_000))
    corpus.check_tokenizer(tokenizer, "it")
    (info,) = corpus.shards("train")
    assert 15_000 < info.tokens < 25_000 and corpus.shards("dev") == ()
    shard = corpus.open(info)
    assert set(np.diff(shard.sentences).tolist()) == set(ARTICLE_SENTENCES)
    assert info.documents > 5 and int(shard.ids.min()) >= len(SPECIALS)
