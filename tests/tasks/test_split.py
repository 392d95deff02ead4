"""Held-out parts and samples: independent of order, never splitting a group."""

import random
from dataclasses import replace
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.errors import ConfigError, InputError
from firth.tasks.split import content_key, hold_out, is_divided, limit, split_key
from firth.text.records import Answer, Choice, Question, Tagged, Text

# Few distinct texts and groups, so that duplicates occur.
TEXTS = st.lists(
    st.builds(
        Text,
        st.sampled_from("abcdefg"),
        st.sampled_from(["x", "y"]),
        second=st.sampled_from([None, "s"]),
        group=st.sampled_from(["", "", "g", "h"]),
    ),
    max_size=30,
)


def key(record: Text) -> object:
    return record.group or (record.text, record.second)


@given(TEXTS, st.floats(0.01, 0.99))
def test_hold_out_parts_the_records_without_tearing(records: list[Text], share: float) -> None:
    if len({key(r) for r in records}) < 2:
        with pytest.raises(InputError, match="requires at least two"):
            hold_out(records, share)
        return
    train, held = hold_out(records, share)
    assert train and held
    assert sorted(map(repr, train + held)) == sorted(map(repr, records))
    assert not {key(r) for r in train} & {key(r) for r in held}


@given(TEXTS.filter(lambda records: len({key(r) for r in records}) > 1), st.randoms())
def test_hold_out_does_not_depend_on_order(records: list[Text], rng: random.Random) -> None:
    other = list(records)
    rng.shuffle(other)
    assert sorted(map(repr, hold_out(records)[1])) == sorted(map(repr, hold_out(other)[1]))


def test_hold_out_takes_the_share_and_keeps_the_order() -> None:
    records = [Text(str(i)) for i in range(200)]
    train, held = hold_out(records, 0.1)
    assert len(held) == 20
    assert [int(r.text) for r in train] == sorted(int(r.text) for r in train)
    assert [int(r.text) for r in held] == sorted(int(r.text) for r in held)
    assert hold_out(records, 0.1) == (train, held)
    # Recorded: the same on every machine and in every version.
    assert [r.text for r in held[:4]] == ["0", "3", "10", "37"]


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_hold_out_refuses_a_share_of_nothing_or_all(share: float) -> None:
    with pytest.raises(ConfigError, match="more than 0 and less than 1"):
        hold_out([Text("a"), Text("b")], share)


def test_every_kind_of_record_stays_with_its_equals() -> None:
    kinds = [
        lambda i: Tagged(f"word {i}", ((0, 4),)),
        lambda i: Question("who?", f"context {i}", (Answer("c", 0),)),
        lambda i: Choice("t", f"question {i}", ("a", "b"), 0),
    ]
    for make in kinds:
        train, held = hold_out([make(i) for i in range(10) for _ in range(3)], 0.3)
        assert len(held) == 9
        assert not set(map(repr, train)) & set(map(repr, held))


def test_composed_and_decomposed_text_is_one() -> None:
    text, question = Text("좋은 영화", second="나쁜"), Question("누가", "영화", ())
    decomposed = [
        replace(text, text=normalize("NFD", "좋은 영화"), second=normalize("NFD", "나쁜")),
        replace(question, question=normalize("NFD", "누가"), context=normalize("NFD", "영화")),
    ]
    for one, other in zip([text, question], decomposed, strict=True):
        assert other != one and content_key(other) == content_key(one) and split_key(other) == split_key(one)


@pytest.mark.parametrize("group", ["", "one article"])
def test_one_article_is_divided_by_its_passages(group: str) -> None:
    def asked(context: str, n: int) -> Question:
        return Question(f"who {n}?", context, (Answer("c", 0),), group=group)

    records = [asked(f"context {i}", n) for i in range(10) for n in range(3)]
    train, held = hold_out(records, 0.3)
    assert len(held) == 9 and not {r.context for r in train} & {r.context for r in held}
    assert is_divided(train, held) == bool(group)
    same = [asked("context", n) for n in range(10)]
    train, held = hold_out(same, 0.3)
    assert len(held) == 3 and is_divided(train, held)


def test_choices_about_one_passage_stay_together() -> None:
    records = [Choice(f"text {i}", f"what {n}?", ("a", "b"), 0) for i in range(10) for n in range(3)]
    train, held = hold_out(records, 0.3)
    assert len(held) == 9 and not {r.text for r in train} & {r.text for r in held} and not is_divided(train, held)


def test_questions_about_one_paragraph_stay_together() -> None:
    records = [Question(f"who {n}?", f"context {i}", (Answer("c", 0),)) for i in range(10) for n in range(3)]
    train, held = hold_out(records, 0.3)
    assert len(held) == 9 and not {r.context for r in train} & {r.context for r in held}
    assert len(set(map(content_key, records))) == 30 and len(set(map(split_key, records))) == 10


@given(TEXTS, st.integers(1, 40), st.integers(0, 5))
def test_limit_takes_exactly_n_of_records_without_group(records: list[Text], n: int, seed: int) -> None:
    alone = [Text(r.text, r.label) for r in records]
    taken = limit(alone, n, seed)
    assert len(taken) == min(n, len(alone))
    places = iter(alone)
    assert all(any(record is other for other in places) for record in taken)  # in the order given


@given(TEXTS, st.integers(1, 40), st.integers(0, 5))
def test_limit_takes_whole_groups(records: list[Text], n: int, seed: int) -> None:
    taken = limit(records, n, seed)
    assert len(taken) >= min(n, len(records))
    for group in ("g", "h"):
        assert sum(r.group == group for r in taken) in (0, sum(r.group == group for r in records))


def test_limit_depends_on_the_seed_and_grows_by_adding() -> None:
    records = [Text(str(i)) for i in range(100)]
    small, large = limit(records, 10, seed=1), limit(records, 30, seed=1)
    assert set(small) < set(large)
    assert limit(records, 10, seed=2) != small
    with pytest.raises(ConfigError, match="limit=0"):
        limit(records, 0, seed=1)


def test_documents_of_one_size_are_not_held_out_by_their_names() -> None:
    names = [f"{n:02}" for n in range(20)]
    records = [Text(f"{name}{n}", group=name) for name in names for n in range(1 if name != "05" else 200)]
    held = {record.group for record in hold_out(records, 0.05)[1]}
    assert len(held) == 11 and held != set(names[:12]) - {"05"}


def test_a_few_long_documents_leave_most_to_learn_from() -> None:
    """In hash order alone, one of two long documents would be held out, whatever its length."""
    for long in "abcdefgh":
        records = [Text(f"{group}{n}", group=group) for group in "abcdefgh" for n in range(90 if group == long else 4)]
        train, held = hold_out(records)
        assert 12 <= len(held) <= 24 < len(train)
        assert not {r.group for r in train} & {r.group for r in held}
