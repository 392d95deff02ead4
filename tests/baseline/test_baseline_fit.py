"""Fitting TF-IDF with a linear model: it learns, it selects on unseen examples, and it is deterministic."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from firth.baseline import fit as fitting
from firth.baseline.config import GramConfig, TfidfConfig
from firth.baseline.fit import FEWEST_HELD, FittedTfidf, Score, fit_linear, fit_tfidf, folds_of, weightiest
from firth.baseline.tfidf import fit_vectorizer
from firth.errors import InputError
from firth.tasks.scoring import score_label_sets, score_labels, score_values
from firth.text.records import Text

THINGS = ("file", "folder", "path", "disk", "letter", "page", "table", "door")
GRAMS = (GramConfig(words=1, longest=0), GramConfig(words=1, shortest=2, longest=3))


def told(n: int = 1) -> list[Text]:
    """Verbs determine the label, things do not."""
    verbs = {"open": "read", "scan": "read", "send": "write", "reply": "write", "erase": "delete"}
    told = [(f"{verb} the {thing}", label) for verb, label in verbs.items() for thing in THINGS]
    return [Text(f"{text} {i}", label) for i in range(n) for text, label in told]


LABELS = ("delete", "read", "write")


def accuracy(labels: Sequence[str]) -> Score:
    return lambda records, answers: score_labels(records, answers, labels)["accuracy"]


def fitted(train: Sequence[Text], held: Sequence[Text] = (), labels: Sequence[str] = LABELS) -> FittedTfidf:
    return fit_tfidf("classify", labels, train, held, accuracy(labels), grams=GRAMS)


def test_words_of_a_class_are_learned() -> None:
    found = fitted(told())
    answers = found.model.answers([Text("open a drawer"), Text("reply to the door"), Text("erase it")])
    assert [answer.label for answer in answers] == ["read", "write", "delete"]  # type: ignore[union-attr]
    assert all(abs(sum(a.probabilities.values()) - 1) < 1e-9 for a in answers)  # type: ignore[union-attr]
    assert found.chosen.score > 0.9 and "cross-validation over 5 folds" in found.by
    # All settings that were tried, and the held-out outputs of the chosen one.
    assert len(found.tried) == len(GRAMS) + 5 and len(found.outputs) == len(found.records) == 40
    best = weightiest(found.model, 3)
    assert set(best) == set(LABELS) and any("erase" in name for name, _ in best["delete"])


def test_it_is_the_same_each_time() -> None:
    one, other = fitted(told()), fitted(list(reversed(told())))
    assert one.chosen.grams == other.chosen.grams and one.chosen.strength == other.chosen.strength
    again = fitted(told())
    assert np.array_equal(one.model.weight, again.model.weight) and one.model.config == again.model.config


def test_two_labels_have_one_row_of_weights() -> None:
    two = [text for text in told() if text.label != "delete"]
    found = fitted(two, labels=("read", "write"))
    assert found.model.weight.shape[0] == 1
    assert found.model.answers([Text("scan it")])[0].label == "read"  # type: ignore[union-attr]


def test_enough_held_out_examples_take_the_place_of_folds() -> None:
    some = told(12)
    train, held = some[:-FEWEST_HELD], some[-FEWEST_HELD:]
    found = fitted(train, held)
    assert found.by == "held-out training examples" and found.records == held


def test_any_of_the_labels() -> None:
    both = [
        Text(f"{a} and {b} the {t}", (x, y))
        for a, x in (("open", "r"), ("scan", "r"))
        for b, y in (("send", "w"),)
        for t in THINGS
    ]
    one = [Text(f"{a} the {t}", (x,)) for a, x in (("open", "r"), ("send", "w")) for t in THINGS]
    none = [Text(f"see the {t}", ()) for t in THINGS]

    def score(records: Sequence[Text], answers: Sequence[Any]) -> float:
        return score_label_sets(records, answers, ("r", "w"))["micro_f1"]

    found = fit_tfidf("multilabel", ("r", "w"), [*both, *one, *none], [], score, grams=GRAMS[:1])
    answers = found.model.answers([Text("open it and send it"), Text("send"), Text("see")])
    assert [answer.labels for answer in answers] == [("r", "w"), ("w",), ()]  # type: ignore[union-attr]
    assert 0.05 <= found.model.config.threshold <= 0.95


def test_values_of_pairs_follow_what_the_texts_share() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(60)]
    pairs = []
    for _ in range(120):
        a = rng.choice(words, 6, replace=False)
        n = int(rng.integers(0, 7))
        b = [*a[:n], *rng.choice(words, 6 - n, replace=False)]
        pairs.append(Text(" ".join(a), n / 6 * 5, second=" ".join(b)))

    def score(records: Sequence[Text], answers: Sequence[Any]) -> float:
        return score_values(records, answers, ())["pearson"]

    found = fit_tfidf("regress", (), pairs, [], score, grams=GRAMS[:1])
    # Only the number of shared words matters, not the words or their order.
    assert found.chosen.score > 0.8 and found.model.config.pairs
    low, high = (
        found.model.answers([Text("w1 w2 w3 w4 w5 w6", second=second)])[0]
        for second in ("w11 w12 w13 w14 w15 w16", "w1 w2 w3 w4 w5 w6")
    )
    assert 0 <= low.value < 1.7 < 3.3 < high.value <= 5  # type: ignore[union-attr]


def test_a_label_that_no_example_of_a_fold_has_is_only_unlikely() -> None:
    config = TfidfConfig(labels=LABELS)
    texts = [text for text in told() if text.label != "delete"]
    reader = fit_vectorizer(texts, GramConfig())
    weight, bias = fit_linear(config, reader.read(texts), texts)
    assert not weight[0].any() and bias[0] < -3


def test_folds_hold_each_example_out_once_and_keep_equal_texts_together() -> None:
    records = [*told(), Text("open the file 0", "write"), Text("open the file 0", "read")]
    folds = folds_of(records, 5)
    assert sorted(r.text for _, ask in folds for r in ask) == sorted(r.text for r in records)
    for fit, ask in folds:
        assert not {r.text for r in fit} & {r.text for r in ask}
        assert {r.label for r in fit} == set(LABELS)


def test_folds_keep_groups_together_and_spread_labels_and_sizes() -> None:
    sizes = {"a": (6, 3, 3, 3, 2, 1), "b": (6, 4, 3, 2, 2, 1)}
    records = [
        Text(f"{label} {n} {i}", label, group=f"{label}{n}")
        for label, some in sizes.items()
        for n, size in enumerate(some)
        for i in range(size)
    ]
    folds = folds_of(records, 3)
    for fit, ask in folds:
        assert not {r.group for r in fit} & {r.group for r in ask}
        assert 11 <= len(ask) <= 13
        assert all(5 <= sum(r.label == label for r in ask) <= 7 for label in sizes)
    assert sorted(r.text for _, ask in folds for r in ask) == sorted(r.text for r in records)
    again = folds_of(records[::-1], 3)
    assert [{r.text for r in ask} for _, ask in again] == [{r.text for r in ask} for _, ask in folds]
    assert len(folds_of([r for r in records if r.group in ("a0", "b0")], 5)) == 2


def test_folds_without_groups_stay_as_recorded() -> None:
    """Recorded baseline scores depend on these folds."""
    assert [sorted(r.text for r in ask)[:2] for _, ask in folds_of(told(), 5)] == [
        ["erase the folder 0", "erase the table 0"],
        ["erase the letter 0", "erase the page 0"],
        ["erase the door 0", "erase the file 0"],
        ["erase the path 0", "open the door 0"],
        ["erase the disk 0", "open the disk 0"],
    ]


def test_what_cannot_be_learned_is_said() -> None:
    with pytest.raises(InputError, match="all 8 examples have the label 'read'; expected two"):
        fitted([Text(thing, "read", f"t.tsv:{n}") for n, thing in enumerate(THINGS)])
    with pytest.raises(InputError, match="1 labelled examples: expected two at least"):
        fitted([Text("a", "read")])
    with pytest.raises(InputError, match="all examples have one text, or are of one group"):
        fitted([Text("a", "read", group="g"), Text("b", "write", group="g")])


def test_many_labels_have_fewer_n_grams_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_MOST_WEIGHTS", 60)
    found = fitted(told()).model
    assert found.config.grams.most == 10 and found.weight.shape[0] == 3 and found.weight.size <= 60
