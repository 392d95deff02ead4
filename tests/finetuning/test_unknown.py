"""Texts that a model's vocabulary does not cover: reported with numbers."""

import pytest

from firth.errors import ConfigError
from firth.finetuning.unknown import check_known
from firth.text.records import Question, Tagged, Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

TOKENIZER = Tokenizer.from_vocab([*SPECIALS, "a", "good", "film"], lowercase=True)


def test_known_texts_need_no_word() -> None:
    assert check_known([Text("a good film"), Text("a film")], TOKENIZER, "m") == ""


def test_some_unknown_tokens_are_counted() -> None:
    said = check_known([Text("a good film"), Text("a bad"), Text("хороший")], TOKENIZER, "runs/a")
    assert said.startswith(
        "33% of the tokens of the first 3 texts, which are mostly in Latin script, are [UNK] to runs/a, and 1 text is "
        "nothing "
    )
    assert said.endswith("(firth extend adds words)")


@pytest.mark.parametrize(
    "record", [Text("좋은 영화", second="나쁜"), Tagged("좋은 영화", ((0, 2), (3, 5))), Question("누가", "영화")]
)
def test_another_script_is_refused(record: Text | Tagged | Question) -> None:
    with pytest.raises(
        ConfigError, match="100% of the tokens .* mostly in Hangul, .* whose vocabulary has that script"
    ):
        check_known([record] * 3, TOKENIZER, "m")


def test_a_script_that_the_vocabulary_has_little_more_of_than_letters_is_said() -> None:
    words = [chr(0xAC00 + n) + chr(0xAC00 + n // 2) for n in range(200)]
    korean = Tokenizer.from_vocab([*SPECIALS, *"abcdefg", *(f"##{c}" for c in "abcdefg"), *words], lowercase=True)
    said = check_known([Text("a bad egg"), Text("a cab")], korean, "m")
    assert said.startswith(
        "the texts are mostly in Latin script, as are only 14 of the 219 tokens of m: 2.2 tokens a word"
    )
    assert check_known([Text(words[5])], korean, "m") == ""
