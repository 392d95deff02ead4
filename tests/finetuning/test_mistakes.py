"""The mistakes that a report shows: the most confident first, with the weight of each word."""

import math
from pathlib import Path

import pytest

from firth.errors import InputError
from firth.finetuning import mistakes, runs
from firth.finetuning.finetune import run_resolved
from firth.finetuning.mistakes import find_mistakes
from firth.finetuning.resolve import resolve
from firth.folder import Loaded, read_model
from firth.inference.answering import answer_records
from firth.tasks.predictions import Labelled
from firth.text.records import Text


@pytest.fixture(scope="module")
def classifier(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("mistakes")
    train = folder / "t.tsv"
    train.write_text("text\tlabel\n" + "".join(f"the river {i}\ta\nwinter {i}\tb\n" for i in range(10)), "utf-8")
    plain = {"task": "classify", "model": str(tiny_run), "data": {"train": str(train)}, "train": {"epochs": 0.1}}
    run_resolved(resolve(plain, ["train.precision=float32"], "test"), folder / "out", tell=lambda text: None)
    return read_model(folder / "out")


def answer(loaded: Loaded, record: Text) -> Labelled:
    return answer_records(loaded, [record])[0][0]


def test_the_most_confident_mistakes_come_first(classifier: Loaded) -> None:
    texts = ["the river", "winter", "the old farmer", "an empty house", "the winter river"]
    answers = [answer(classifier, Text(text)) for text in texts]
    wrong = {"a": "b", "b": "a"}
    records = [Text(t, wrong[a.label], where=f"t.tsv:{n}") for n, (t, a) in enumerate(zip(texts, answers, strict=True))]
    records[0] = Text(texts[0], answers[0].label)  # right
    found = find_mistakes(classifier, records, answers, most=3)
    assert len(found) == 3
    assert [m.probability for m in found] == sorted((a.probability for a in answers[1:]), reverse=True)[:3]
    assert all(m.predicted == wrong[m.gold] and m.where.startswith("t.tsv:") for m in found)


def test_a_words_weight_is_what_its_absence_costs(classifier: Loaded) -> None:
    record = Text("the old farmer", second="an empty house")
    whole = answer(classifier, record)
    (found,) = find_mistakes(classifier, [record], [whole])  # without a gold label every answer is wrong
    assert [word for word, _ in found.words] == ["the", "old", "farmer", "an", "empty", "house"]
    for n, without in (
        (1, Text("the farmer", second="an empty house")),
        (5, Text("the old farmer", second="an empty")),
    ):
        p, q = whole.probability, answer(classifier, without).probabilities[whole.label]
        assert found.words[n][1] == pytest.approx(math.log(p / (1 - p)) - math.log(q / (1 - q)), abs=1e-5)


def test_a_word_that_is_alone_in_its_text_stays(classifier: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Text] = []
    real = mistakes.answer_records
    monkeypatch.setattr(mistakes, "answer_records", lambda loaded, some: (asked.extend(some), real(loaded, some))[1])
    records = [Text("the old farmer", second="house"), Text("river", second="winter")]
    pair, alone = sorted(
        find_mistakes(classifier, records, [answer(classifier, r) for r in records]), key=lambda m: -len(m.words)
    )
    assert [weight is None for _, weight in pair.words] == [False, False, False, True]
    assert alone.words == (("river", None), ("winter", None))
    assert len(asked) == 3 and all(record.text and record.second for record in asked)


def test_a_training_is_kept_where_its_mistakes_cannot_be_explained(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise InputError("t.tsv:1: cannot be read")

    monkeypatch.setattr(runs, "find_mistakes", fail)
    train = tmp_path / "t.tsv"
    train.write_text("text\tlabel\n" + "".join(f"the river {i}\ta\nwinter {i}\tb\n" for i in range(10)), "utf-8")
    plain = {"task": "classify", "model": str(tiny_run), "data": {"train": str(train)}, "train": {"epochs": 0.1}}
    told: list[str] = []
    run_resolved(resolve(plain, ["train.precision=float32"], "test"), tmp_path / "out", tell=told.append)
    assert "no mistakes are explained: t.tsv:1: cannot be read" in told
    assert read_model(tmp_path / "out").task == "classify"


def test_a_long_text_is_shown_without_weights(classifier: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistakes, "_MOST_WORDS", 2)
    record = Text("the old farmer")
    (found,) = find_mistakes(classifier, [record], [answer(classifier, record)])
    assert found.words == (("the", None), ("old", None), ("farmer", None))
