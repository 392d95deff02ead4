"""Vocabularies of whole words: which words are chosen, and the tokenizer made from them."""

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.errors import TokenizerError
from firth.text.added_tokens import check_extendable
from firth.text.layouts import gpt_layout, source_layout
from firth.text.tokenizer import WORD_LIMIT, Tokenizer
from firth.text.tokenizer_kinds import WORDS
from firth.text.word_list import choose_words
from firth.text.wordpiece import WordSplitter

TEXT = "The cat sat on the mat. It was a good mat, said the cat. 고양이가 매트 위에 앉았다. 中文 don't"
COUNTS = WordSplitter(lowercase=False).count([TEXT])
TOKENIZER = Tokenizer.from_words(choose_words(COUNTS, 4 + len(COUNTS)), lowercase=False)


def test_the_most_frequent_words_and_ties_by_string() -> None:
    counts = {"b": 2, "a": 2, "c": 5, "A": 2, "d": 1, "z" * (WORD_LIMIT + 1): 9, "": 9, "none": 0}
    assert choose_words(counts, 8) == ["<unk>", "<s>", "<sep>", "</s>", "c", "A", "a", "b"]
    assert choose_words(dict(reversed(counts.items())), 9)[4:] == ["c", "A", "a", "b", "d"]
    with pytest.raises(TokenizerError, match="supports at most 9 tokens, not 10; pass --size 9 or give more text"):
        choose_words(counts, 10)
    with pytest.raises(TokenizerError, match="no words of at most 200 characters"):
        choose_words({"": 3}, 10)


def test_words_are_pieces_and_all_others_are_unknown() -> None:
    encoded = TOKENIZER.encode("The dog sat , don't 中文字 매트")
    pieces = [TOKENIZER.pieces[i] for i in encoded.ids]
    assert pieces == ["The", "<unk>", "sat", ",", "don", "'", "t", "中", "文", "<unk>", "매트"]
    assert encoded.words == list(range(11)) and encoded.offsets[:3] == [(0, 3), (4, 7), (8, 11)]
    assert TOKENIZER.encode("").ids == [] == TOKENIZER.encode(" \n ").ids
    assert TOKENIZER.ids_of_words(["cat", "dog"]) == [[TOKENIZER.pieces.index("cat")], [TOKENIZER.unk_id]]
    assert TOKENIZER.decode(encoded.ids) == "The sat , don ' t 中 文 매트"
    assert not TOKENIZER.continues.any() and TOKENIZER.continues.shape == (TOKENIZER.size,)


@settings(max_examples=100)
@given(st.text(max_size=30))
def test_one_id_for_each_word_of_any_text(text: str) -> None:
    encoded = TOKENIZER.encode(text)
    assert TOKENIZER.ids_many([text]) == [encoded.ids]
    assert encoded.words == list(range(len(encoded.ids)))
    assert sum(WordSplitter(lowercase=False).count([text]).values()) == len(encoded.ids)


def test_special_pieces_by_the_part_they_play() -> None:
    assert TOKENIZER.kind is WORDS and TOKENIZER.special_ids == (0, 1, 2, 3)
    assert (TOKENIZER.unk_id, TOKENIZER.start_id, TOKENIZER.between_id, TOKENIZER.end_id) == (0, 1, 2, 3)
    with pytest.raises(TokenizerError, match="a words vocabulary has no mask token; use a WordPiece"):
        _ = TOKENIZER.mask_id
    assert not {1, 2, 3} & set(TOKENIZER.encode("<s> The </s><sep>").ids), "in a text they are text"
    assert gpt_layout(TOKENIZER).pair([10], [11])[0] == [1, 10, 2, 11, 3]
    assert source_layout(TOKENIZER).single([10]) == [10, 3]


def test_save_load_and_pickle(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "t", max_length=64)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    for again in (Tokenizer.load(tmp_path / "t"), pickle.loads(pickle.dumps(TOKENIZER))):
        assert again.kind is WORDS and again.pieces == TOKENIZER.pieces
        assert again.fingerprint == TOKENIZER.fingerprint
        assert again.encode(TEXT) == TOKENIZER.encode(TEXT)
    lowered = Tokenizer.from_words([*TOKENIZER.pieces], lowercase=True)
    assert lowered.lowercase and lowered.fingerprint != TOKENIZER.fingerprint
    assert lowered.decode(lowered.encode("CAT cat dog").ids) == "cat cat"
    with pytest.raises(TokenizerError, match="this vocabulary is cased"):
        Tokenizer.load(tmp_path / "t", lowercase=True)


def test_transformers_gives_the_same_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    TOKENIZER.save(tmp_path, max_length=64)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXT, " The  dog\n", ""):
        row = gpt_layout(TOKENIZER).single(TOKENIZER.encode(text).ids)
        assert theirs(text)["input_ids"] == row
        assert theirs.decode(row, skip_special_tokens=True) == TOKENIZER.decode(row)
    a, b = TOKENIZER.encode("The cat").ids, TOKENIZER.encode("a dog").ids
    assert theirs("The cat", "a dog")["input_ids"] == gpt_layout(TOKENIZER).pair(a, b)[0]
    assert (theirs.unk_token_id, theirs.bos_token_id, theirs.sep_token_id, theirs.eos_token_id) == (0, 1, 2, 3)


def test_vocabularies_that_lack_special_pieces_are_refused(tmp_path: Path) -> None:
    message = "lacks <sep> </s>; add them or choose one made by firth vocab --kind words"
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_words(["<unk>", "<s>", "a"], lowercase=False)
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    with pytest.raises(TokenizerError, match="tokenizer.json: lacks <unk> <s> <sep> </s>; add them or choose one"):
        Tokenizer.load(tmp_path)


def test_words_are_not_extended_piece_by_piece() -> None:
    with pytest.raises(
        TokenizerError, match="a model of whole words takes those of the corpus when you continue its pre-training"
    ):
        check_extendable(TOKENIZER)
