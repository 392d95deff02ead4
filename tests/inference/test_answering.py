"""Items in, predictions out: accepted inputs, order, offsets, documents, long texts."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firth.errors import CheckpointError, ConfigError, InputError
from firth.folder import Loaded, read_model
from firth.inference.answering import answer_records, answer_stream, task_model
from firth.inference.model import Model
from firth.tasks.config import (
    AnswerConfig,
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
)
from firth.tasks.items import chunks, record_of, words_of
from firth.tasks.model import TaskModel
from firth.tasks.table import TASKS
from firth.text.records import Choice, Question, Record, Tagged, Text

OPTIONS: dict[str, Any] = {
    "classify": ClassifyConfig(labels=("a", "b", "c")),
    "multilabel": MultiLabelConfig(labels=("a", "b")),
    "regress": RegressConfig(lowest=0.0, highest=5.0),
    "tag": TagConfig(labels=("O", "B-X", "I-X")),
    "answer": AnswerConfig(can_refuse=True, max_question=16),
    "choose": ChooseConfig(),
}
ITEMS: dict[str, list[Any]] = {
    "classify": ["the river", "", ("the river", "winter"), {"text": "the river"}, {"text": "a", "second": "b"}],
    "multilabel": ["the river", ""],
    "regress": [("a", "b"), "c"],
    "tag": ["The old farmer, Kim, walked.", "", ["the", "river"], {"text": "winter"}, "\u200b \u2060"],
    "answer": [("Who?", "the old farmer"), ("Who?", ""), {"question": "who " * 100, "context": "the river " * 60}],
    "choose": [
        {"text": "winter", "question": "how?", "choices": ["cold", "warm"]},
        {"text": "", "choices": ["a", "b", "c"]},
    ],
}


@pytest.fixture(scope="module")
def loaded(tiny_run: Path) -> dict[str, Loaded]:
    """A model for each kind of task, with an untrained head."""
    base = read_model(tiny_run)
    models = {}
    for number, (kind, options) in enumerate(OPTIONS.items()):
        torch.manual_seed(number)
        model = TASKS[kind].model(base.objective.encoder, options)
        # Scores differ, so that a wrong order shows.
        model.head.weight.data.mul_(50)
        models[kind] = Loaded(base.system_name, kind, model.eval(), base.tokenizer)
    return models


def model_of(loaded: Loaded) -> Model:
    return Model(loaded, torch.device("cpu"))


@pytest.mark.parametrize("kind", list(OPTIONS))
def test_each_item_is_answered_alike_alone_and_among_others(loaded: dict[str, Loaded], kind: str) -> None:
    model = model_of(loaded[kind])
    together = model.predict(ITEMS[kind])
    assert len(together) == len(ITEMS[kind])
    for item, answer in zip(ITEMS[kind], together, strict=True):
        # A list is several items: a list of words must be wrapped in a record.
        alone = model.predict(model.record(item))
        assert type(alone) is type(answer)
        assert numbers(alone) == pytest.approx(numbers(answer), abs=1e-4)
    assert model.predict([]) == []


def test_several_items_need_not_be_a_list(loaded: dict[str, Loaded]) -> None:
    model = model_of(loaded["classify"])
    expected = model.predict(["a", "b"])
    for several in (np.array(["a", "b"]), ("ab"[n] for n in range(2)), {"a": 0, "b": 1}.keys()):
        assert model.predict(several) == expected


def numbers(answer: Any) -> list[float]:
    """The probabilities (or the value) of an answer."""
    if hasattr(answer, "value"):
        return [answer.value]
    if hasattr(answer, "n_best"):
        return [span.probability for span in answer.n_best[:1]]
    found = answer.probabilities
    return list(found.values() if isinstance(found, dict) else found)


@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_a_stream_keeps_the_order_whatever_is_held_at_once(loaded: dict[str, Loaded], at_once: int) -> None:
    records = [Text(text) for text in ("the river", "winter", "", "an empty house " * 30, "the mill")]
    expected, _ = answer_records(loaded["classify"], records)
    found = list(answer_stream(loaded["classify"], iter(records), at_once=at_once))
    assert [record for record, _ in found] == records
    assert [numbers(a) for _, a in found] == [pytest.approx(numbers(a), abs=1e-4) for a in expected]


def test_a_stream_reads_no_more_than_it_holds(loaded: dict[str, Loaded]) -> None:
    taken = 0

    def source() -> Iterator[Record]:
        nonlocal taken
        for number in range(100):
            taken = number + 1
            yield Text(f"line {number}")

    answers = answer_stream(loaded["classify"], source(), at_once=4)
    assert taken == 0
    next(answers)
    assert taken == 4


def test_a_sentence_of_600_words_has_600_tags(loaded: dict[str, Loaded]) -> None:
    words = [f"the river{'.' * (i % 3)}" for i in range(600)]
    record = model_of(loaded["tag"]).record([word.split()[i % 2] for i, word in enumerate(words)])
    (answer,), noted = answer_records(loaded["tag"], [record])
    assert len(answer.tags) == 600 and noted == {"document read in windows": 1}
    (one,), noted = answer_records(loaded["classify"], [Text("winter " * 600)])
    assert noted == {"read in windows": 1}
    assert answer.windows > 1 and one.windows > 1 and not answer.cut and not one.cut


def test_entities_carry_characters_of_the_raw_text(loaded: dict[str, Loaded]) -> None:
    text = "  The old farmer,\tKim (강가에서) walked…  to\u00a0the river! " * 3
    (answer,) = model_of(loaded["tag"]).predict([text])
    assert answer.entities, "a head without training should call something an entity here"
    for entity in answer.entities:
        assert text[entity.start : entity.end] == entity.text.strip() == entity.text


def test_answers_carry_characters_of_the_raw_context(loaded: dict[str, Loaded]) -> None:
    context = "Émile,\u202f  강가에서 😀 walked to\u00a0the river. " * 4
    (answer,) = model_of(loaded["answer"]).predict([("Who?", context)])
    assert any(span.text for span in answer.n_best)
    assert all(context[span.start : span.end] == span.text for span in answer.n_best)


def test_an_empty_context_has_no_answer(loaded: dict[str, Loaded]) -> None:
    answer = model_of(loaded["answer"]).predict(("Who?", ""))
    assert (answer.text, answer.start, answer.end, answer.no_answer_score) == ("", 0, 0, float("inf"))


def test_a_long_question_is_cut_and_noted(loaded: dict[str, Loaded]) -> None:
    record = Question("who walked " * 50, "the old farmer")
    (answer,), noted = answer_records(loaded["answer"], [record])
    assert noted == {"question cut to 16 tokens": 1}
    assert answer.cut


def test_texts_of_unknown_tokens_alone_are_noted(loaded: dict[str, Loaded]) -> None:
    texts = [Text("日本"), Text("the 日本"), Text(""), Text("本", second="日")]
    assert answer_records(loaded["classify"], texts)[1] == {"nothing but [UNK]": 2}


def test_a_model_that_has_learnt_no_task(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="is not fine-tuned for a task: fine-tune it"):
        task_model(read_model(tiny_run))


@pytest.mark.parametrize("kind", list(OPTIONS))
def test_a_model_that_computes_no_numbers_is_no_answer(loaded: dict[str, Loaded], kind: str) -> None:
    broken = copy.deepcopy(loaded[kind].objective)
    assert isinstance(broken, TaskModel)
    broken.head.weight.data[0, 0] = torch.nan
    with pytest.raises(CheckpointError, match="outputs are not finite numbers"):
        model_of(replace(loaded[kind], objective=broken)).predict(ITEMS[kind])


def test_a_record_of_another_task(loaded: dict[str, Loaded]) -> None:
    with pytest.raises(InputError, match="a model for tag reads Tagged, not Text"):
        answer_records(loaded["tag"], [Text("x")])


@pytest.mark.parametrize(
    ("task", "item", "expected"),
    [
        ("classify", 5, "a text, a pair of texts"),
        ("classify", ("a", "b", "c"), "a text, a pair of texts"),
        ("classify", {"txt": "a"}, "a text, a pair of texts"),
        ("classify", ("a", 5), "a text, a pair of texts"),
        ("regress", None, "a text, a pair of texts"),
        ("tag", 5, "a text or a list of words"),
        ("tag", ["a", 5], "a text or a list of words"),
        ("tag", {"tokens": ["a", " "]}, "a list of words, none of them empty"),
        ("answer", "who?", '"question": …, "context"'),
        ("answer", {"question": "who?"}, '"question": …, "context"'),
        ("choose", "a", '"choices"'),
        ("choose", {"text": "a"}, '"choices"'),
        ("choose", {"text": "a", "choices": [1, 2]}, '"choices"'),
        ("choose", {"text": "a", "choices": 3}, '"choices"'),
        ("choose", {"text": "a", "choices": "ab"}, '"choices"'),
    ],
)
def test_items_that_are_none(task: str, item: Any, expected: str) -> None:
    with pytest.raises(InputError) as error:
        record_of(task, item)
    assert repr(item) in str(error.value) and expected in str(error.value)


def test_records_are_taken_as_they_are() -> None:
    for task, record in {
        "classify": Text("a", id="7"),
        "tag": Tagged("a b", ((0, 1), (2, 3)), id="7"),
        "answer": Question("q", "c", id="7"),
        "choose": Choice("t", "q", ("a", "b"), id="7"),
    }.items():
        assert record_of(task, record) is record


def test_context_is_another_name_of_the_text_of_choices() -> None:
    fields = {"question": "how?", "choices": ["cold", "warm"]}
    expected = Choice("winter", "how?", ("cold", "warm"))
    assert record_of("choose", {**fields, "text": "winter"}) == expected
    assert record_of("choose", {**fields, "context": "winter"}) == expected


def test_a_list_of_words_is_a_text_with_spaces() -> None:
    record = record_of("tag", ["Ann", "Lee", "!"])
    assert record_of("tag", {"tokens": ["Ann", "Lee", "!"], "text": "Ann Lee!"}) == record
    assert isinstance(record, Tagged)
    assert (record.text, record.words) == ("Ann Lee !", ("Ann", "Lee", "!"))


def test_words_and_characters_of_a_raw_text() -> None:
    assert words_of("It's  Kim.", "word").words == ("It", "'", "s", "Kim", ".")
    assert words_of("늙은 농부", "character").words == ("늙", "은", "농", "부")


@given(st.text())
def test_units_lie_in_order_and_leave_out_nothing_but_space(text: str) -> None:
    for unit in ("word", "character"):
        spans = words_of(text, unit).spans
        flat = [place for span in spans for place in span]
        assert flat == sorted(flat) and all(a < b for a, b in spans)
        outside = set(range(len(text))) - {i for a, b in spans for i in range(a, b)}
        assert all(text[i].isspace() for i in outside)


def test_sentences_of_one_document_stay_together() -> None:
    def sentence(group: str) -> Tagged:
        return Tagged("a", ((0, 1),), group=group)

    records = [sentence(group) for group in ("1", "1", "1", "2", "", "", "3", "3")]
    sizes = [len(some) for some in chunks(records, 2)]
    assert sizes == [3, 2, 3]
    assert [record for some in chunks(records, 2) for record in some] == records
    assert list(chunks([], 2)) == []
