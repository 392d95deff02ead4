"""Each word's commonest tag."""

from firth.baseline.config import CommonestTagConfig
from firth.baseline.tags import fit_commonest_tag
from firth.tasks.predictions import Entity
from firth.text.records import Tagged

ENTITIES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def tagged(text: str, tags: str) -> Tagged:
    spans, at = [], 0
    for word in text.split():
        spans.append((at, at + len(word)))
        at += len(word) + 1
    return Tagged(text, tuple(spans), tuple(tags.split()) or None)


def test_a_word_gets_its_commonest_tag_and_a_new_one_that_of_rare_words() -> None:
    model = fit_commonest_tag(
        [
            tagged("New York is in New York", "B-LOC I-LOC O O B-LOC I-LOC"),
            tagged("York is big", "B-PER O O"),
            tagged("in Ada we trust", "O B-PER O O"),
            tagged("is", "O"),
            tagged("big Bob", "O B-PER"),
            tagged("Ann trusts", "B-PER B-PER"),
        ],
        CommonestTagConfig(labels=ENTITIES),
    )
    (answer,) = model.answers([tagged("Eve is in New York", "")])
    assert answer.tags == ("B-PER", "O", "O", "B-LOC", "I-LOC")
    # York is I-LOC in two of three occurrences; of the six words that occur once, four are B-PER.
    assert answer.probabilities == (4 / 6, 1.0, 1.0, 1.0, 2 / 3)
    assert answer.entities == (Entity("PER", 0, 3, "Eve", 4 / 6), Entity("LOC", 10, 18, "New York", (1 + 2 / 3) / 2))


def test_without_words_that_occur_once_all_words_decide() -> None:
    labels = ("NOUN", "VERB")
    model = fit_commonest_tag(
        [tagged("a b a b a", "VERB NOUN VERB NOUN VERB")], CommonestTagConfig(labels=labels, scheme="plain")
    )
    (answer,) = model.answers([tagged("c b", "")])
    assert answer.tags == ("VERB", "NOUN") and answer.entities == ()


def test_composed_and_decomposed_words_are_one() -> None:
    composed, decomposed = "\ud55c\uad6d\uc740", "\u1112\u1161\u11ab\u1100\u116e\u11a8\u110b\u1173\u11ab"
    config = CommonestTagConfig(labels=("NOUN", "VERB"), scheme="plain")
    for ours, theirs in ((composed, decomposed), (decomposed, composed)):
        model = fit_commonest_tag([tagged(f"{ours} x x", "NOUN VERB VERB"), tagged("y", "VERB")], config)
        assert model.answers([tagged(theirs, "")])[0].tags == ("NOUN",)


def test_ties_go_to_the_first_label() -> None:
    records = [tagged("x x", "VERB NOUN"), tagged("y y", "NOUN NOUN")]
    model = fit_commonest_tag(records, CommonestTagConfig(labels=("NOUN", "VERB"), scheme="plain"))
    assert model.answers([tagged("x", "")])[0].tags == ("NOUN",)
