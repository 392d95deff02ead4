"""Properties that every kind of task must have over every system of the table. Float32 to 1e-5, or nearer."""

import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_options import network_of
from systems_under_test import TINY, tiny_recipe
from torch import Tensor

from firth.data.loader import Place
from firth.data.shards import Corpus
from firth.finetuning.base import rate_scales
from firth.folder import read_model, write_model
from firth.inference.outputs import row_outputs
from firth.layers.dropout import Dropout
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
from firth.tasks.example_source import ExampleSource
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker, collate
from firth.tasks.table import TASKS
from firth.text.records import Answer, Choice, Question, Tagged, Text
from firth.text.tokenizer import Tokenizer
from firth.training.checkpoint import list_checkpoints
from firth.training.config import OptimConfig, TrainConfig
from firth.training.trainer import Trainer

BEGIN = Place()
WINDOWS = WindowConfig(length=24)
SENTENCES = [
    "The old farmer walked to the river in the morning.",
    "A young doctor wrote about the mill before winter!",
    "늙은 농부는 강가에서 편지를 썼다.",
    "The queen painted. " * 6,
    "Our teacher?",
    "My neighbour returned to the market, and the baker never forgot the harbour.",
]


def texts(labels: Sequence[Any]) -> list[Text]:
    """Single texts and pairs, one of them longer than a row."""
    seconds = [None, "The captain waited.", None, None, "작은 아이는 시장에서 빵을 먹었다.", None]
    return [
        Text(text, label, f"f:{i}", second)
        for i, (text, label, second) in enumerate(zip(SENTENCES, labels, seconds, strict=True), 1)
    ]


def tagged() -> list[Tagged]:
    found = []
    for number, text in enumerate(SENTENCES):
        spans, at = [], 0
        for word in text.split():
            at = text.index(word, at)
            spans.append((at, at + len(word)))
            at += len(word)
        tags = (["O"] * (number % 3) + ["B-X", "I-X", "O"] * len(spans))[: len(spans)]
        found.append(Tagged(text, tuple(spans), tuple(tags), f"f:{number}", group="doc" if number < 2 else ""))
    return found


def questions() -> list[Question]:
    def one(text: str, answer: str) -> Question:
        found = (Answer(answer, text.index(answer)),) if answer else ()
        return Question("Who walked where?", text, found, "f:1")

    answers = ["farmer", "the mill", "강가에서", "", "teacher", "the harbour"]
    return [one(text, answer) for text, answer in zip(SENTENCES, answers, strict=True)]


def choices() -> list[Choice]:
    endings = ("the river", "a green hill", "after the war", "every Sunday")
    return [Choice(text, "He saw", endings[: 2 + i % 3], i % 2, f"f:{i}") for i, text in enumerate(SENTENCES)]


# Options and records of each kind. A new kind adds its line.
KINDS: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    "classify": (ClassifyConfig(labels=("a", "b", "c"), windows=WINDOWS), lambda: texts([*"abcabc"])),
    "multilabel": (
        MultiLabelConfig(labels=("a", "b"), windows=WINDOWS),
        lambda: texts([("a",), (), ("a", "b"), ("b",), (), ("a",)]),
    ),
    "regress": (RegressConfig(windows=WINDOWS), lambda: texts([0.0, 1.5, 5.0, 2.0, -1.0, 3.0])),
    "tag": (TagConfig(labels=("O", "B-X", "I-X"), crf=True, windows=WINDOWS), tagged),
    "answer": (AnswerConfig(can_refuse=True, windows=WINDOWS), questions),
    "choose": (ChooseConfig(windows=WINDOWS), choices),
}
every_kind = pytest.mark.parametrize("kind", sorted(TASKS))
every_system = pytest.mark.parametrize("system", sorted(SYSTEMS))


def test_every_kind_and_system_is_tested() -> None:
    assert set(KINDS) == set(TASKS)
    assert set(TINY) == set(SYSTEMS)


@lru_cache
def tokenizer_of(system: str, corpus: Path) -> Tokenizer:
    return SYSTEMS[system].reads(Corpus(corpus).tokenizer)


def tiny_model(kind: str, system: str, corpus: Path, **features: Any) -> TaskModel:
    options = dataclasses.replace(KINDS[kind][0], network=network_of(**features))
    torch.manual_seed(0)
    model = TASKS[kind].model(SYSTEMS[system].encoder(tiny_recipe(system, corpus).encoder), options)
    for name, parameter in model.named_parameters():
        if not name.startswith("encoder."):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def made(kind: str, system: str, corpus: Path, records: Sequence[Any] | None = None) -> list[Example]:
    tokenizer = tokenizer_of(system, corpus)
    maker = RowMaker(tokenizer, SYSTEMS[system].layout(tokenizer), WINDOWS, None)
    return TASKS[kind].examples(KINDS[kind][1]() if records is None else records, maker, KINDS[kind][0])


def answers(kind: str, model: TaskModel, system: str, corpus: Path, records: Sequence[Any]) -> list[Any]:
    examples = made(kind, system, corpus, records)
    return TASKS[kind].answers(records, examples, row_outputs(model, examples), model.config)


def trainer_of(kind: str, system: str, corpus: Path, run: Path, *, steps: int, budget: int = 200) -> Trainer:
    model = tiny_model(kind, system, corpus)
    examples = made(kind, system, corpus)
    run.mkdir(exist_ok=True)
    return Trainer(
        objective=model,
        source=ExampleSource(examples, 4, budget, seed=1),
        dev=None,
        config=TrainConfig(steps=steps, log_every=1, save_every=2, eval_every=0, keep_checkpoints=9),
        optim=OptimConfig(),
        rate=lambda step: 1e-3,
        flops=lambda batch: 1.0,
        run=run,
        save_model=lambda folder, facts, weights: write_model(
            folder, system, kind, model, tokenizer_of(system, corpus), facts, weights=weights
        ),
        scales=rate_scales(model, 0.5),
        tell=lambda text: None,
    )


@every_system
@every_kind
def test_two_steps_have_finite_losses_and_move_every_part(
    kind: str, system: str, tiny_corpus: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(kind, system, tiny_corpus, tmp_path / "run", steps=2)
    before = {name: p.detach().clone() for name, p in trainer.objective.named_parameters()}
    batches, _ = next(trainer.source.steps(BEGIN, step=0, rank=0, world=1))
    sums = trainer.train_step(batches)
    for term in trainer.objective.weights:
        assert math.isfinite(sums[f"{term}_loss"])
        assert sums[f"{term}_count"] == sum(batch.counts()[term] for batch in batches) > 0
        assert 0 <= sums.get(f"{term}_correct", 0) <= sums[f"{term}_count"]
    for name, parameter in trainer.objective.named_parameters():
        # Only text tasks read the pooled vector; a constant added to all scores of a row has no gradient.
        unread = "pooler" in name and kind in ("tag", "answer")
        if (kind, name) in (("answer", "head.bias"), ("choose", "head.bias")):
            continue
        assert (parameter.grad is not None and bool(parameter.grad.any())) != unread, name
        assert torch.equal(parameter, before[name]) == unread, name
    assert trainer.fit()


@every_system
@every_kind
def test_examples_together_are_the_examples_one_by_one(kind: str, system: str, tiny_corpus: Path) -> None:
    model, examples = tiny_model(kind, system, tiny_corpus).eval(), made(kind, system, tiny_corpus)
    alone = [outputs for example in examples for outputs in row_outputs(model, [example], budget_tokens=1)]
    same_outputs(row_outputs(model, examples), alone, at_most=1e-5)
    whole, parts = model(collate(examples)), [model(collate([example])) for example in examples]
    for term, loss in whole.losses.items():
        torch.testing.assert_close(loss, torch.stack([part.losses[term] for part in parts]).sum(), rtol=1e-5, atol=1e-5)
    for term, right in whole.correct.items():
        assert right == sum(int(part.correct[term]) for part in parts)


def same_outputs(ours: Sequence[Any], theirs: Sequence[Any], at_most: float = 0.0) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            assert set(a) == set(b)
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=0, atol=at_most)


@every_kind
def test_a_step_is_the_same_however_it_is_cut(kind: str, tiny_corpus: Path, tmp_path: Path) -> None:
    gradients: list[dict[str, Tensor]] = []
    for budget in (1, 100, 10_000):
        trainer = trainer_of(kind, "bert", tiny_corpus, tmp_path / str(budget), steps=2, budget=budget)
        for module in trainer.objective.modules():
            # Dropout differs between micro-batches.
            if isinstance(module, Dropout):
                module.p = 0.0
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        batches, _ = next(trainer.source.steps(BEGIN, step=0, rank=0, world=1))
        assert len(batches) == {1: 4, 10_000: 1}.get(budget, len(batches))
        trainer.train_step(batches)
        gradients.append({n: p.grad.clone() for n, p in trainer.objective.named_parameters() if p.grad is not None})
    for other in gradients[1:]:
        assert set(other) == set(gradients[0])
        for name, gradient in other.items():
            torch.testing.assert_close(gradient, gradients[0][name], rtol=1e-4, atol=1e-5, msg=name)


@every_system
@every_kind
def test_a_folder_answers_as_the_model_did(kind: str, system: str, tiny_corpus: Path, tmp_path: Path) -> None:
    model, examples = tiny_model(kind, system, tiny_corpus).eval(), made(kind, system, tiny_corpus)
    write_model(tmp_path, system, kind, model, tokenizer_of(system, tiny_corpus), {})
    loaded = read_model(tmp_path)
    assert (loaded.system_name, loaded.task, loaded.objective.config) == (system, kind, model.config)
    assert isinstance(loaded.objective, TaskModel)
    same_outputs(row_outputs(loaded.objective, examples), row_outputs(model, examples))


@every_kind
def test_every_way_to_read_the_encoder_is_saved(kind: str, tiny_corpus: Path, tmp_path: Path) -> None:
    features = {"layers": (0, -1), "mix": "scalar", "lstm_layers": 1, "lstm_width": 4}
    # Words, texts or tokens: each kind of task reads the encoder in its own way.
    features |= {"tag": {"words": "last"}, "answer": {}}.get(kind, {"pool": "mean"})
    model = tiny_model(kind, "bert", tiny_corpus, **features).eval()
    write_model(tmp_path, "bert", kind, model, tokenizer_of("bert", tiny_corpus), {})
    loaded, examples = read_model(tmp_path).objective, made(kind, "bert", tiny_corpus)
    assert isinstance(loaded, TaskModel) and loaded.config == model.config
    same_outputs(row_outputs(loaded, examples), row_outputs(model, examples))


@every_system
@pytest.mark.parametrize("join", ["input", "first", "last", "none"])
def test_words_of_a_heads_own_are_learnt_and_saved(join: str, system: str, tiny_corpus: Path, tmp_path: Path) -> None:
    own = {"own_words": 4, "join": join, "cell": "gru", "lstm_layers": 2, "lstm_width": 4}
    own["own_characters"] = "gru" if SYSTEMS[system].characters else "none"
    model, examples = tiny_model("tag", system, tiny_corpus, **own), made("tag", system, tiny_corpus)
    model(collate(examples)).losses["tag"].backward()
    for name, parameter in model.named_parameters():
        if not name.startswith("encoder."):
            assert parameter.grad is not None and bool(parameter.grad.any()), name
    write_model(tmp_path, system, "tag", model.eval(), tokenizer_of(system, tiny_corpus), {})
    loaded = read_model(tmp_path).objective
    assert isinstance(loaded, TaskModel) and loaded.config == model.config
    same_outputs(row_outputs(loaded, examples), row_outputs(model, examples))


@every_system
@every_kind
def test_answers_do_not_depend_on_order_or_company(kind: str, system: str, tiny_corpus: Path) -> None:
    model = tiny_model(kind, system, tiny_corpus).eval()
    # Sentences of one document are context for one another: here each stands alone.
    records = [dataclasses.replace(record, group="") for record in KINDS[kind][1]()]
    whole = answers(kind, model, system, tiny_corpus, records)
    assert len(whole) == len(records)
    assert whole == answers(kind, model, system, tiny_corpus, records), "not the same twice"
    backward = answers(kind, model, system, tiny_corpus, records[::-1])[::-1]
    alone = [answers(kind, model, system, tiny_corpus, [record])[0] for record in records]
    for one, other, third in zip(whole, backward, alone, strict=True):
        assert same(one, other) and same(one, third)


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal, numbers to 1e-5."""
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
        )
    return bool(one == other)


@every_kind
def test_scores_of_answers_have_names_and_sizes(kind: str, tiny_corpus: Path) -> None:
    model, records = tiny_model(kind, "bert", tiny_corpus).eval(), KINDS[kind][1]()
    given = answers(kind, model, "bert", tiny_corpus, records)
    scores = TASKS[kind].score(records, given, getattr(model.config, "labels", ()))
    assert scores
    for name, value in scores.items():
        if name.endswith("_threshold"):  # a difference of scores, any number
            continue
        least = -1 if name in ("mcc", "pearson", "spearman") else 0
        assert least <= value <= 1 or name == "mean_absolute_error", name


@every_kind
def test_a_run_goes_on_bit_for_bit(kind: str, tiny_corpus: Path, tmp_path: Path) -> None:
    whole = trainer_of(kind, "bert", tiny_corpus, tmp_path / "whole", steps=4)
    assert whole.fit()
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for step, folder in list_checkpoints(tmp_path / "again" / "checkpoints"):
        if step > 2:
            shutil.rmtree(folder)
    again = trainer_of(kind, "bert", tiny_corpus, tmp_path / "again", steps=4)
    again.resume(lambda folder: read_model(folder).objective.state_dict())
    assert again.state.step == 2
    assert again.fit()
    expected = whole.objective.state_dict()
    for name, tensor in again.objective.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@every_system
def test_rates_fall_from_the_head_down(system: str, tiny_corpus: Path, tmp_path: Path) -> None:
    """Without decay and bias correction, the first update of a parameter is the learning rate times its scale."""
    trainer = trainer_of("classify", system, tiny_corpus, tmp_path / "run", steps=1)
    before = {name: p.detach().clone() for name, p in trainer.objective.named_parameters()}
    batches, _ = next(trainer.source.steps(BEGIN, step=0, rank=0, world=1))
    for group in trainer.optimizer.param_groups:
        group["weight_decay"], group["eps"] = 0.0, 1e-12
    trainer.train_step(batches)
    names = {id(p): name for name, p in trainer.objective.named_parameters()}
    groups = trainer.objective.encoder.layer_groups()
    depth = {names[id(p)]: len(groups) - n for n, group in enumerate(groups) for p in group}
    for name, parameter in trainer.objective.named_parameters():
        # m / √v of the first step is 0.1 g / √(0.001 g²), whatever the gradient g.
        most = float((parameter.detach() - before[name]).abs().max())
        assert most == pytest.approx(1e-3 * 0.5 ** depth.get(name, 0) * 0.1 / 0.001**0.5, rel=0.01), name
