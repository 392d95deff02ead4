"""fastai's vocabularies: the position of each word, and how texts are read with them."""

from pathlib import Path

import pytest

from firth.errors import TokenizerError
from firth.text.fastai_words import tokenizer_of_fastai
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS

SECOND = ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", "xxrep", "xxwrep", "xxup", "xxmaj", "the", ",", ".", "n't", "do",
          "nasa", "cat", "mcdonald", "u.s", "a", "i", "xxfake", "xxfake", "xxfake"]  # fmt: skip
FIRST = ["_unk_", "_pad_", "the", ",", ".", "t_up", "nasa", "is", "cat", "n't", "do"]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.pieces[i] for i in tokenizer.encode(text).ids]


def test_special_words_take_their_parts_and_fillers_get_names() -> None:
    tokenizer, n_new = tokenizer_of_fastai(SECOND, "itos.txt")
    assert n_new == 0 and tokenizer.kind is WORDS and tokenizer.size == len(SECOND)
    assert tokenizer.pieces[:6] == ["<unk>", "xxpad", "<s>", "</s>", "<sep>", "xxrep"]
    assert tokenizer.pieces[-3:] == ["xxfake", "[row21]", "[row22]"]
    assert (tokenizer.unk_id, tokenizer.start_id, tokenizer.between_id, tokenizer.end_id) == (0, 2, 4, 3)


def test_special_words_that_are_missing_stand_behind_the_others() -> None:
    tokenizer, n_new = tokenizer_of_fastai(FIRST, "itos.txt")
    assert n_new == 3 and tokenizer.pieces[len(FIRST) :] == ["<s>", "<sep>", "</s>"] and tokenizer.unk_id == 0


def test_capitals_are_marked_as_the_second_generation_does() -> None:
    tokenizer, _ = tokenizer_of_fastai(SECOND, "itos.txt")
    assert words(tokenizer, "The cat, don't  NASA\nU.S. McDonald I A cat.") == [
        "xxmaj", "the", "cat", ",", "do", "n't", "xxup", "nasa", "xxup", "u.s", ".", "mcdonald", "i", "a", "cat", ".",
    ]  # fmt: skip
    assert words(tokenizer, "dog") == ["<unk>"] and words(tokenizer, " \n") == []


def test_only_capitals_are_marked_in_the_first() -> None:
    tokenizer, _ = tokenizer_of_fastai(FIRST, "itos.txt")
    assert words(tokenizer, "The NASA IS IT cat") == ["the", "t_up", "nasa", "is", "<unk>", "cat"]


def test_a_folder_reads_texts_alike(tmp_path: Path) -> None:
    tokenizer, _ = tokenizer_of_fastai(SECOND, "itos.txt")
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint and again.lowercase
    assert words(again, "The NASA cat") == words(tokenizer, "The NASA cat")
    assert tokenizer.fingerprint != Tokenizer.from_words(tokenizer.pieces, lowercase=True).fingerprint


def test_other_lists_are_refused() -> None:
    with pytest.raises(TokenizerError, match=r"itos.txt: has neither xxunk nor _unk_"):
        tokenizer_of_fastai(["the", "a"], "itos.txt")
