"""What a model folder records about its training data."""

import pytest

from firth.errors import InputError
from firth.tasks.learnt import check_each, check_pair, check_pairs, learnt_columns, learnt_pairs
from firth.text.records import Tagged, Text


def test_columns_and_pairs_are_known_from_the_folder() -> None:
    assert learnt_columns({"recipe": {"data": {"columns": "text=1,label=0"}}}) == "text=1,label=0"
    assert learnt_columns({"recipe": "another tool's"}) == ""
    assert learnt_pairs({"pairs": True}) is True and learnt_pairs({"pairs": False}) is False
    assert learnt_pairs({}) is None


def test_one_text_is_no_pair_and_a_pair_is_not_one_text() -> None:
    one, pair, words = (
        Text("a", where="d.tsv:1"),
        Text("a", second="", where="d.tsv:2"),
        Tagged("a b", ((0, 1), (2, 3))),
    )
    with pytest.raises(InputError, match="^a pair of texts, and the model has learnt from single texts: give it one"):
        check_pair(pair, False)
    with pytest.raises(InputError, match="^a single text, and the model has learnt from pairs of texts: give it two"):
        check_pair(one, True)
    with pytest.raises(InputError, match=r"^d\.tsv:2: a pair of texts, .*--columns text=COLUMN$"):
        list(check_each([one, pair], False))
    with pytest.raises(InputError, match=r"^d\.tsv:1: a single text, .*--columns text=0,second=1$"):
        list(check_each([pair, one], True))
    assert [check_pair(record, False) for record in (one, words)] == [one, words]
    assert [check_pair(record, True) for record in (pair, words)] == [pair, words]
    assert list(check_each([one, pair, words], None)) == [one, pair, words]


def test_labelled_texts_are_pairs_where_pairs_were_learnt() -> None:
    one, pair = Text("a", where="d.tsv:1"), Text("a", second="", where="d.tsv:2")
    with pytest.raises(InputError, match=r"d\.tsv:2: a pair of texts, and the model has learnt from single texts"):
        check_pairs([one, pair], False)
    with pytest.raises(InputError, match=r"d\.tsv:1: a single text, and the model has learnt from pairs of texts"):
        check_pairs([one, one], True)
    check_pairs([one, pair], True)
    check_pairs([one, pair], None)
    check_pairs([Tagged("a b", ((0, 1), (2, 3)))], None)
