"""Fine-tuning on labelled texts: the source of batches, learning, and a model folder that answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.data.loader import Place
from firth.errors import InputError, LengthError
from firth.folder import read_model
from firth.jobs.finetune import LabelledRows, finetune_classifier, label_numbers, make_rows, predict_labels
from firth.text.records import Text
from firth.training.config import OptimConfig, TrainConfig

LABELS = ("river", "winter")
TEXTS = [
    Text(text, label, f"{label}:{i}")
    for i in range(6)
    for label, text in (
        ("river", f"the old farmer walked to the river{'.' * i}"),
        ("winter", f"a young doctor wrote before winter{'!' * i}"),
    )
]
OPTIM = OptimConfig(kind="adamw", peak_rate=3e-3, warmup_share=0.1)
TRAIN = TrainConfig(steps=30, batch_tokens=64, seed=1, precision="float32", eval_every=0, save_every=0)


def source(budget: int = 12, slots: int = 1) -> LabelledRows:
    return LabelledRows([[1] * n for n in (3, 4, 5, 6, 20, 2)], [0, 1, 0, 1, 0, 1], budget, seed=7, slots=slots)


def test_an_epoch_holds_each_row_once_within_the_budget() -> None:
    rows = source()
    for epoch in range(3):
        cuts = rows.epoch(epoch)
        assert sorted(np.concatenate(cuts).tolist()) == [0, 1, 2, 3, 4, 5]
        assert all(sum(len(rows.rows[i]) for i in cut) <= 12 or len(cut) == 1 for cut in cuts)
    assert [c.tolist() for c in rows.epoch(0)] != [c.tolist() for c in rows.epoch(1)]


def test_labels_stay_with_their_rows() -> None:
    batch = source().batch([4, 1])
    assert batch.tokens.rows.lengths.tolist() == [20, 4]
    assert batch.targets["label"].label.tolist() == [0, 1] and batch.counts() == {"label": 2}


@pytest.mark.parametrize("slots", [1, 2])
def test_the_stream_can_be_entered_at_any_place(slots: int) -> None:
    rows = source(slots=slots)
    stream, places, seen = rows.steps(Place(), step=0), [Place()], []
    for _ in range(9):
        batches, place = next(stream)
        seen.append([b.place for b in batches])
        places.append(place)
    for step in range(9):
        batches, place = next(rows.steps(places[step], step=step))
        assert [b.place for b in batches] == seen[step] and place == places[step + 1]
    ranks = [[b.place for b in next(rows.steps(Place(), step=0, rank=r, world=slots))[0]] for r in range(slots)]
    assert [place for rank in ranks for place in rank] == seen[0]


def test_a_classifier_learns_and_its_folder_answers_as_it_does(tiny_run: Path, tmp_path: Path) -> None:
    base = read_model(tiny_run)
    classifier = finetune_classifier(base, TEXTS, LABELS, tmp_path / "run", optim=OPTIM, train=TRAIN)
    given = predict_labels(classifier, base, TEXTS)
    assert given.shape == (12, 2) and np.allclose(given.sum(1), 1, atol=1e-5)
    assert (given.argmax(1) == label_numbers(TEXTS, LABELS)).all()
    loaded = read_model(tmp_path / "run")
    assert loaded.task == "classify" and loaded.objective.config.labels == LABELS
    again = predict_labels(loaded.objective, loaded, TEXTS)  # type: ignore[arg-type]  # a Classifier
    assert np.array_equal(again, given)


def test_the_same_seed_gives_the_same_weights(tiny_run: Path, tmp_path: Path) -> None:
    def train(name: str, seed: int) -> dict[str, torch.Tensor]:
        config = replace(TRAIN, seed=seed, steps=4)
        return finetune_classifier(
            read_model(tiny_run), TEXTS, LABELS, tmp_path / name, optim=OPTIM, train=config
        ).state_dict()

    first, second, other = train("a", 1), train("b", 1), train("c", 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_bad_texts_are_named(tiny_run: Path) -> None:
    base = read_model(tiny_run)
    with pytest.raises(InputError, match="f:3: label 'summer': expected one of river, winter"):
        label_numbers([Text("a", "summer", "f:3")], LABELS)
    with pytest.raises(LengthError, match="f:4: 202 pieces, the model reads at most 64"):
        make_rows(base, [Text("! " * 200, "river", "f:4")])
