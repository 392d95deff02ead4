"""Ensembles: means by hand, labels in any order, and models that cannot be averaged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.baseline.config import CommonestTagConfig
from firth.baseline.model import Baseline
from firth.baseline.tags import CommonestTag
from firth.errors import ConfigError, InputError
from firth.folder import Loaded
from firth.inference.ensemble import Ensemble, _answered, check_members, ensemble_records
from firth.inference.model import Model
from firth.inference.outputs import row_outputs
from firth.systems import SYSTEMS
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
    WindowConfig,
)
from firth.tasks.model import TaskModel
from firth.tasks.predictions import Answered, Span
from firth.tasks.rows import RowMaker
from firth.tasks.table import TASKS
from firth.text.records import Choice, Question, Record, Tagged, Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcdefghij"
PIECES = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TEXTS = [Text("a bc"), Text(""), Text("cab dig", second="j a"), Text("ab cd ef gh ij " * 5)]
TAGGED = [
    Tagged("ab c def", ((0, 2), (3, 4), (5, 8))),
    Tagged("j" * 20 + " a" * 20, ((0, 20), *((i, i + 1) for i in range(21, 60, 2)))),
    Tagged("", ()),
]
CHOICES = [Choice("a b", "c", ("d", "e f", "g")), Choice("", "a", ("b", "c"))]
WINDOWS = WindowConfig(length=16)
QUESTIONS = [Question("a b", "a b c d e a c b d"), Question("c", "b a " * 12), Question("e", "d")]
# For each kind: the options of two models, and the input of both. Their labels are in different orders.
KINDS: dict[str, tuple[Any, Any, list[Any]]] = {
    "classify": (
        ClassifyConfig(labels=("x", "y", "z"), temperature=0.5, windows=WINDOWS),
        ClassifyConfig(labels=("z", "x", "y"), temperature=3.0),
        TEXTS,
    ),
    "multilabel": (
        MultiLabelConfig(labels=("x", "y"), threshold=0.2, windows=WINDOWS),
        MultiLabelConfig(labels=("y", "x"), threshold=0.9),
        TEXTS,
    ),
    "regress": (RegressConfig(windows=WINDOWS), RegressConfig(lowest=-0.1, highest=0.1), TEXTS),
    "choose": (ChooseConfig(temperature=2.0, windows=WINDOWS), ChooseConfig(), CHOICES),
    "tag": (
        TagConfig(labels=("O", "B-X", "I-X"), windows=WINDOWS),
        TagConfig(labels=("I-X", "O", "B-X"), crf=True),
        TAGGED,
    ),
    "answer": (
        AnswerConfig(n_best=4, max_answer=3, can_refuse=True, threshold=-1.0, windows=WINDOWS),
        AnswerConfig(n_best=6, max_answer=4, can_refuse=True, threshold=2.0),
        QUESTIONS,
    ),
}


def tokenizer(lowercase: bool = True) -> Tokenizer:
    return Tokenizer.from_vocab(PIECES, lowercase=lowercase)


def member(kind: str, options: Any, system: str = "lstm", seed: int = 1, pieces: Tokenizer | None = None) -> Loaded:
    """A tiny model whose head is untrained but confident."""
    sizes: dict[str, Any] = {"vocab_size": len(PIECES), "width": 8}
    if system == "bert":
        sizes |= {"n_layers": 1, "n_heads": 2, "feed_forward_width": 12, "max_positions": 32}
    torch.manual_seed(seed)
    model = TASKS[kind].model(SYSTEMS[system].encoder(SYSTEMS[system].config(**sizes)), options)
    torch.nn.init.normal_(model.head.weight, std=3.0)
    return Loaded(system, kind, model.eval(), pieces or tokenizer())


def pair(kind: str) -> list[Loaded]:
    """Two models with different systems, lengths, tokens and label orders."""
    one, other, _ = KINDS[kind]
    return [member(kind, one), member(kind, other, "bert", seed=2, pieces=tokenizer(lowercase=False))]


def ensemble(members: list[Loaded]) -> Ensemble:
    return Ensemble([Model(loaded, torch.device("cpu")) for loaded in members])


@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress", "choose"])
def test_the_mean_by_hand(kind: str) -> None:
    members, records = pair(kind), KINDS[kind][2]
    found = ensemble(members).predict(list(records))
    alone = [Model(loaded, torch.device("cpu")).predict(list(records)) for loaded in members]
    for record, mean, one, other in zip(records, found, *alone, strict=True):
        assert type(mean) is type(one) and (mean.windows, mean.cut) == (max(one.windows, other.windows), False)
        if kind == "regress":
            assert mean.value == pytest.approx((one.value + other.value) / 2)
        elif kind == "choose":
            expected = [(a + b) / 2 for a, b in zip(one.probabilities, other.probabilities, strict=True)]
            assert mean.probabilities == pytest.approx(expected)
            assert mean.choice == int(np.argmax(expected)) and mean.text == record.choices[mean.choice]
        else:
            names = KINDS[kind][0].labels
            expected = {name: (one.probabilities[name] + other.probabilities[name]) / 2 for name in names}
            assert mean.probabilities == pytest.approx(expected) and tuple(mean.probabilities) == names
            if kind == "classify":
                assert mean.label == max(expected, key=expected.__getitem__)
                assert mean.probability == pytest.approx(max(expected.values()))
            else:
                # The thresholds are averaged too: 0.2 and 0.9.
                assert mean.labels == tuple(name for name in names if expected[name] >= 0.55)
    assert any(answer.windows > 1 for answer in found) == (kind != "choose")


def test_tags_are_the_likeliest_of_the_mean_marginals() -> None:
    """The models' windows differ, one decodes with a CRF, and their labels are in different orders."""
    members = pair("tag")
    found = ensemble(members).predict(list(TAGGED))
    tables = [marginals(loaded, TAGGED) for loaded in members]
    for number, (record, answer) in enumerate(zip(TAGGED, found, strict=True)):
        assert len(answer.tags) == len(record.spans)
        for place, tag in enumerate(answer.tags):
            one, other = (table[number, place] for table in tables)
            mean = {label: (one[label] + other[label]) / 2 for label in one}
            assert tag == max(mean, key=mean.__getitem__)
            assert answer.probabilities[place] == pytest.approx(mean[tag])
    alone = [Model(loaded, torch.device("cpu")).predict(TAGGED[1]) for loaded in members]
    assert found[1].windows == max(answer.windows for answer in alone) > 1 and alone[0].cut and found[1].cut
    assert any(answer.entities for answer in found)


def marginals(loaded: Loaded, records: list[Tagged]) -> dict[tuple[int, int], dict[str, float]]:
    """The probability of each tag of each word, by record and word number."""
    model = loaded.objective
    assert isinstance(model, TaskModel)
    layout = loaded.system.layout(loaded.tokenizer)
    maker = RowMaker(loaded.tokenizer, layout, model.config.windows, loaded.max_length)
    examples = TASKS["tag"].examples(records, maker, model.config)
    found = {}
    for example, (row,) in zip(examples, row_outputs(model, examples), strict=True):
        for word, shares in zip(example.about, row["probability"].tolist(), strict=True):
            found[word.record, word.first_unit] = dict(zip(model.config.labels, shares, strict=True))
    return found


@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress", "choose", "tag"])
def test_a_model_with_itself_or_alone_answers_as_it_does(kind: str) -> None:
    loaded, records = member(kind, KINDS[kind][0]), list(KINDS[kind][2])
    alone = Model(loaded, torch.device("cpu")).predict(records)
    assert ensemble([loaded]).predict(records) == alone
    for one, both in zip(alone, ensemble([loaded, loaded]).predict(records), strict=True):
        decided = ("label", "labels", "tags", "choice", "windows", "cut")
        assert [getattr(one, name, None) for name in decided] == [getattr(both, name, None) for name in decided]


def test_one_item_several_and_a_stream() -> None:
    both = firth.Ensemble(ensemble(pair("classify")).models)
    several = both.predict(["a bc", ("cab dig", "j a")])
    assert both.predict("a bc").label == several[0].label
    streamed = list(both.predict_stream(iter(["a bc", ("cab dig", "j a")]), at_once=1))
    assert [record.text for record, _ in streamed] == ["a bc", "cab dig"]
    assert [answer.label for _, answer in streamed] == [answer.label for answer in several]
    assert both.predict([]) == []
    with pytest.raises(InputError, match="is one text: expected a list of them"):
        list(both.predict_stream("a bc"))


def test_answers_have_the_mean_probability_of_their_text() -> None:
    members, records = pair("answer"), KINDS["answer"][2]
    found = ensemble(members).predict(list(records))
    alone = [Model(loaded, torch.device("cpu")).predict(list(records)) for loaded in members]
    for record, mean, *each in zip(records, found, *alone, strict=True):
        shares: dict[str, float] = {}
        for answer in each:
            for span in answer.n_best:
                shares[span.text] = shares.get(span.text, 0) + span.probability / 2
        assert {s.text: s.probability for s in mean.n_best} == pytest.approx(shares)
        assert [s.probability for s in mean.n_best] == sorted(shares.values(), reverse=True)
        beyond = (each[0].no_answer_score + 1.0 + each[1].no_answer_score - 2.0) / 2
        assert mean.no_answer_score == pytest.approx(beyond - 1.0)
        assert (mean.text == "") == (beyond > 0 or not any(shares))
        if mean.text:
            assert record.context[mean.start : mean.end] == mean.text
            assert mean.probability == pytest.approx(max(share for text, share in shares.items() if text))


def test_one_answer_at_two_places_is_one() -> None:
    def said(start: int, other: str) -> Answered:
        spans = (Span("Paris", start, start + 5, 1.0, probability=0.4), Span(other, 9, 15, 0.9, probability=0.35))
        return Answered("Paris", start, start + 5, 0.4, None, spans)

    config = AnswerConfig()
    found = _answered(Question("q", "c"), [said(0, "London"), said(50, "London")], [config, config])
    assert (found.text, found.start, found.probability) == ("Paris", 0, pytest.approx(0.4))


def test_only_one_model_that_can_refuse_is_no_ensemble() -> None:
    one, _, _ = KINDS["answer"]
    members = [member("answer", one), member("answer", replace(one, can_refuse=False, threshold=0.0))]
    with pytest.raises(ConfigError, match="of b and a, only a has learnt from questions without an answer"):
        check_members(members, ["a", "b"])


def test_texts_too_long_for_one_of_them_are_counted_once() -> None:
    _, noted = ensemble_records(pair("classify"), TEXTS)
    assert noted == {"read in windows": 1}


CHARACTERS = TagConfig(labels=("O", "B-X", "I-X"), unit="character")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            KINDS["classify"][0],
            ClassifyConfig(labels=("x", "y")),
            "b has other labels than a: only one of them knows 'z'",
        ),
        (KINDS["classify"][0], RegressConfig(), "b is a model for regress, a for classify"),
        (CHARACTERS, replace(CHARACTERS, unit="word"), "b and a differ in head.unit: word, character"),
        (CHARACTERS, CHARACTERS, "b and a tag characters by different tokens: average models of one tokenizer"),
    ],
)
def test_models_that_cannot_answer_as_one(first: Any, second: Any, message: str) -> None:
    kind_of = {task.config: kind for kind, task in TASKS.items()}
    members = [member(kind_of[type(options)], options) for options in (first, second)]
    members[1] = replace(members[1], tokenizer=tokenizer(lowercase=False))
    with pytest.raises(ConfigError, match=message) as error:
        check_members(members, ["a", "b"])
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError):
        ensemble(members)


def test_a_model_of_pairs_and_one_of_single_texts_do_not_answer_as_one() -> None:
    members = [
        replace(member("classify", KINDS["classify"][0]), provenance={"pairs": pairs}) for pairs in (True, False)
    ]
    with pytest.raises(ConfigError, match="of b and a, one has learnt from pairs of texts and the other from single"):
        check_members(members, ["a", "b"])
    check_members([members[0], replace(members[0], provenance={})], ["a", "b"])


def test_a_baseline_answers_alone() -> None:
    method = CommonestTag(CommonestTagConfig(labels=("O",)), {}, ("O", 1.0))
    with pytest.raises(ConfigError, match="model 1 is a baseline .commonest-tag., which answers alone"):
        Ensemble([Baseline(method)])


def test_an_ensemble_of_no_models() -> None:
    with pytest.raises(ConfigError, match="an ensemble needs at least one model"):
        Ensemble([])


def test_taggers_of_characters_in_the_same_pieces() -> None:
    members = [member("tag", CHARACTERS, seed=seed) for seed in (1, 2)]
    record: Record = Tagged("abc de", tuple((i, i + 1) for i in (0, 1, 2, 4, 5)))
    (answer,) = ensemble(members).predict([record])
    assert len(answer.tags) == 5
