"""Tag schemes: valid transitions, the scheme of a file, and conversion in both directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firth.errors import InputError
from firth.tasks.tag_schemes import allowed, find_violation, respelled, scheme_of, split_tag, to_bio, to_bioes

# Chunks as (label or None for words outside, length): they can represent any sentence.
CHUNKS = st.lists(st.tuples(st.sampled_from([None, "PER", "LOC"]), st.integers(1, 4)), max_size=8)
Chunks = list[tuple[str | None, int]]


def written(chunks: Chunks, scheme: str) -> list[str]:
    """The tags of chunks, written chunk by chunk from the definitions of the schemes."""
    tags: list[str] = []
    before: str | None = None
    for label, n in chunks:
        if label is None:
            tags += ["O"] * n
        elif scheme == "IOB1":
            tags += [f"{'B' if before == label else 'I'}-{label}", *[f"I-{label}"] * (n - 1)]
        elif scheme == "BIO":
            tags += [f"B-{label}", *[f"I-{label}"] * (n - 1)]
        else:
            tags += [f"S-{label}"] if n == 1 else [f"B-{label}", *[f"I-{label}"] * (n - 2), f"E-{label}"]
        before = label
    return tags


@given(CHUNKS)
def test_every_scheme_converts_to_the_same_bio_and_bioes(chunks: Chunks) -> None:
    bio, bioes = tuple(written(chunks, "BIO")), tuple(written(chunks, "BIOES"))
    for scheme in ("IOB1", "BIO", "BIOES"):
        tags = written(chunks, scheme)
        assert find_violation(tags, scheme) is None
        assert to_bio(tags, scheme) == bio
        assert to_bioes(tags, scheme) == bioes


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"]), max_size=7))
def test_tags_pass_the_check_only_if_chunks_can_be_written_so(tags: list[str]) -> None:
    """Tags that pass the check survive conversion to BIO and back; tags that fail it are never converted."""
    for scheme in ("BIO", "BIOES"):
        if find_violation(tags, scheme) is None:
            back = to_bio(tags, scheme) if scheme == "BIO" else to_bioes(to_bio(tags, scheme), "BIO")
            assert list(back) == tags
        else:
            with pytest.raises(InputError, match=scheme):
                to_bio(tags, scheme)


@pytest.mark.parametrize(
    ("previous", "following", "schemes"),
    [
        (None, "I-A", {"IOB1"}),
        ("O", "I-A", {"IOB1"}),
        ("O", "B-A", {"IOB1", "BIO", "BIOES"}),
        ("B-A", "I-A", {"IOB1", "BIO", "BIOES"}),
        ("B-A", "I-B", {"IOB1"}),
        ("B-A", "O", {"IOB1", "BIO"}),
        ("B-A", None, {"IOB1", "BIO"}),
        ("I-A", "E-A", {"BIOES"}),
        ("I-A", "E-B", set()),
        ("S-A", "S-A", {"BIOES"}),
        ("E-A", None, {"BIOES"}),
        ("O", "A", set()),
        ("A", "O", set()),
        (None, None, {"IOB1", "BIO", "BIOES"}),
    ],
)
def test_allowed_steps(previous: str | None, following: str | None, schemes: set[str]) -> None:
    assert {s for s in ("IOB1", "BIO", "BIOES") if allowed(previous, following, s)} == schemes
    assert allowed(previous, following, "plain")


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        ([["O", "I-A", "I-A", "B-A"]], "IOB1"),
        ([["O", "B-A", "I-A"], ["B-B"]], "BIO"),
        ([["S-A", "O"], ["B-A", "E-A"]], "BIOES"),
        ([["NOUN", "VERB"], ["X-RAY"]], "plain"),
        ([["O", "O"]], "BIO"),
        ([], "BIO"),
        # One invalid transition does not change the detected scheme, nor does one B- that IOB1 does not need.
        ([["B-A", "O", "B-A"], ["O", "I-A"]], "BIO"),
        ([["I-A", "O", "I-A"], ["O", "B-A"]], "IOB1"),
        ([["B-A"], ["I-A"]], "BIO"),
    ],
)
def test_scheme_is_the_one_that_is_broken_least(sentences: list[list[str]], scheme: str) -> None:
    assert scheme_of(sentences) == scheme


def test_check_names_the_first_impossible_step() -> None:
    assert find_violation(["O", "B-A", "I-B", "I-A"], "BIO") == "found I-B after B-A (word 3), which BIO does not allow"
    assert (
        find_violation(["I-A"], "BIO") == "found I-A at the beginning of a sentence (word 1), which BIO does not allow"
    )
    assert find_violation(["O", "B-A"], "BIOES") == "found B-A at the end of a sentence, which BIOES does not allow"
    assert find_violation(["O", "PER"], "BIO") == "found PER after O (word 2), which BIO does not allow"


def test_a_tag_is_split_at_its_prefix_only() -> None:
    assert split_tag("B-per-son") == ("B", "per-son")
    assert split_tag("O") == ("O", "")
    assert [split_tag(tag) for tag in ("NN", "-LRB-", "B-", "X-A")] == [("", t) for t in ("NN", "-LRB-", "B-", "X-A")]


def test_tags_are_respelled_if_most_are_of_entities() -> None:
    assert respelled(["O", "0", "PER_B", "PER_I"]) == {"O": "O", "PER_B": "B-PER", "PER_I": "I-PER"}
    assert respelled(["O", "B-PER", "I-PER"]) == {"O": "O", "B-PER": "B-PER", "I-PER": "I-PER"}
    assert respelled(["-", "PER_B", "ORG-U"]) == {"-": "O", "PER_B": "B-PER", "ORG-U": "S-ORG"}
    assert respelled(["NN", "PER-B"]) == respelled(["-", "O"]) == respelled([]) == {}
