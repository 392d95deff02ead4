"""Ids cached by runs of characters equal those of the tokenizer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from firth.text import id_cache
from firth.text.id_cache import IdCache
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import BPE_SPECIALS, SPECIALS

LETTERS = "aäbeήσςΣΑα나다Ⅷﬁ漢"
BPE_PIECES = [*BPE_SPECIALS, "▁", "_", *LETTERS, *".,'-:;()!", "▁a", "ab"]
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS), *".,'-:;()!", "ab", "don", "##\u0301"]
# All kinds of white space, dropped characters, marks and their neighbours, half of a surrogate pair.
ALPHABET = LETTERS + "▁ABn .,'-:;()!=\u0301\u0338\t\n\r\xa0\u2028\u200b\x1c\x00\ufffd\u037e\ud800[]"
TEXTS = st.lists(st.text(ALPHABET, max_size=30) | st.sampled_from(["[MASK] a", "", "ΑΣ.Α ΑΣ. a", "don't"]), max_size=8)


def bert(lowercase: bool) -> Tokenizer:
    """BERT's tokenizer as published in tokenizer.json."""
    backend = Backend(models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(list(SPECIALS))
    return Tokenizer(backend)


MADE = {
    "cased": Tokenizer.from_vocab(PIECES, lowercase=False),
    "lower-cased": Tokenizer.from_vocab(PIECES, lowercase=True),
    "lower-cased with accents": Tokenizer.from_vocab(PIECES, lowercase=True, keep_accents=True),
    "Google's": Tokenizer.from_vocab(PIECES, lowercase=True, google=True),
    "BERT's of transformers": bert(True),
    "BERT's of transformers, cased": bert(False),
    "words": Tokenizer.from_words([*BPE_SPECIALS, "ab", "don", ".", "'"], lowercase=True),
    "split at blanks alone": Tokenizer.from_words([*BPE_SPECIALS, "ab", "don't"], lowercase=True, split="blanks"),
    "spaced words": Tokenizer.from_spaced_words([*BPE_SPECIALS, "ab", "don't"]),
    "BPE": Tokenizer.from_merges(BPE_PIECES, [("▁", "a"), ("a", "b")], lowercase=False),
    "BPE, lower-cased": Tokenizer.from_merges(BPE_PIECES, [("▁", "a"), ("a", "b")], lowercase=True),
}


@pytest.mark.parametrize("name", MADE)
@given(blocks=st.lists(TEXTS, max_size=3))
@settings(max_examples=100)
def test_they_are_the_tokenizers(name: str, blocks: list[list[str]]) -> None:
    tokenizer = MADE[name]
    cache = IdCache(tokenizer)
    assert cache._remembers
    for texts in blocks:
        ids, sizes = cache.ids_many(texts)
        expected = tokenizer.ids_many(texts)
        assert ids.tolist() == [number for row in expected for number in row]
        assert sizes.tolist() == [len(row) for row in expected] and ids.dtype == np.uint16


def test_large_vocabularies_have_larger_numbers() -> None:
    tokenizer = Tokenizer.from_vocab([*SPECIALS, *(f"w{i}" for i in range(70_000))], lowercase=False)
    ids, sizes = IdCache(tokenizer).ids_many(["w69999 w1"])
    assert ids.dtype == np.uint32 and ids.tolist() == [70_004, 6] and sizes.tolist() == [2]


def test_each_run_is_made_once_and_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_cache, "MOST_RUNS", 3)
    tokenizer = MADE["cased"]
    asked: list[str] = []
    encode_runs = tokenizer.encode_runs
    monkeypatch.setattr(tokenizer, "encode_runs", lambda runs: (asked.extend(runs), encode_runs(runs))[1])
    cache = IdCache(tokenizer)
    cache.ids_many(["ab, ab", "ab"])
    cache.ids_many(["don ab"])
    assert sorted(asked) == ["", ",", "ab", "don"]
    ids, _ = cache.ids_many(["don"])
    assert asked[4:] == ["don"] and ids.tolist() == [PIECES.index("don")]
    monkeypatch.setattr(id_cache, "MOST_CHARACTERS", 2)
    cache.ids_many(["don"])
    assert asked[5:] == ["don"]


def test_a_tokenizer_with_pieces_that_reach_over_blanks_is_asked_each_time(tmp_path: Path) -> None:
    backend = MADE["cased"]._backend.from_str(MADE["cased"]._backend.to_str())
    backend.add_tokens([AddedToken("ab don", normalized=False)])
    tokenizer = Tokenizer(backend)
    cache = IdCache(tokenizer)
    ids, sizes = cache.ids_many(["ab don ab", ""])
    assert not cache._remembers and ids.tolist() == [len(PIECES), PIECES.index("ab")] and sizes.tolist() == [2, 0]
