"""The auxiliary language-model loss of a task: what it predicts, that it is added, that it appears nowhere else."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from network_options import network_of
from torch import Tensor

from firth.data.loader import Place
from firth.errors import ConfigError
from firth.folder import read_model, write_model
from firth.inference.outputs import row_outputs
from firth.packed import Encoder, Rows, Tokens
from firth.systems import SYSTEMS
from firth.tasks.config import (
    ChooseConfig,
    ClassifyConfig,
    MultiLabelConfig,
    RegressConfig,
    TagConfig,
    WindowConfig,
)
from firth.tasks.example_source import ExampleSource
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker, collate, following
from firth.tasks.table import TASKS
from firth.text.records import Choice, Tagged, Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS

LETTERS = "abcdefgh"
TOKENIZER = Tokenizer.from_vocab([*SPECIALS, *LETTERS], lowercase=True)
LONG = "h g f e " * 6


def texts(*labels: Any) -> list[Text]:
    return [
        Text(text, label, f"f:{i}", second)
        for i, (text, label, second) in enumerate(zip(["a b c", LONG, "d"], labels, [None, None, "e f"], strict=True))
    ]


def tagged() -> list[Tagged]:
    return [Tagged("a b c", ((0, 1), (2, 3), (4, 5)), ("O", "B-X", "I-X"), "f:1"), Tagged("d", ((0, 1),), ("O",))]


KINDS: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    "classify": (ClassifyConfig(labels=("n", "y")), lambda: texts("y", "n", "n")),
    "multilabel": (MultiLabelConfig(labels=("n", "y")), lambda: texts(("y",), (), ("n", "y"))),
    "regress": (RegressConfig(), lambda: texts(0.5, 2.0, -1.0)),
    "tag": (TagConfig(labels=("O", "B-X", "I-X")), tagged),
    "choose": (ChooseConfig(), lambda: [Choice("a b", "c", ("d", "e f"), 1), Choice(LONG, "", ("a", "b c"), 0)]),
}
every_kind = pytest.mark.parametrize("kind", sorted(KINDS))
both_systems = pytest.mark.parametrize("system", ["bert-ltr", "gpt", "lstm"])


def encoder_of(system: str, dropout: float = 0.0) -> Encoder:
    row = SYSTEMS[system]
    sizes: dict[str, Any] = {
        "vocab_size": TOKENIZER.size,
        "width": 8,
        "n_layers": 2,
        "n_heads": 2,
        "feed_forward_width": 12,
        "max_positions": 16,
        "dropout": dropout,
        "attention_dropout": dropout,
        "embedding_dropout": dropout,
    }
    known = {f.name for f in fields(row.config)}
    encoder = row.encoder(row.config(**{name: n for name, n in sizes.items() if name in known}, **row.fixed))
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return encoder


def built(kind: str, system: str, weight: float, dropout: float = 0.0, **features: Any) -> TaskModel:
    torch.manual_seed(0)
    config = replace(KINDS[kind][0], auxiliary_lm=weight, network=network_of(dropout=dropout, **features))
    return TASKS[kind].model(encoder_of(system, dropout), config)


def examples_of(kind: str, system: str) -> list[Example]:
    maker = RowMaker(TOKENIZER, SYSTEMS[system].layout(TOKENIZER), WindowConfig(), 16)
    return TASKS[kind].examples(KINDS[kind][1](), maker, KINDS[kind][0])


def gradients(model: TaskModel, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_every_token_but_the_last_of_its_row_is_followed() -> None:
    target = following(Tokens(Rows.from_lengths([3, 1, 2]), torch.tensor([5, 6, 7, 8, 9, 10])))
    assert target.index.tolist() == [0, 1, 4]
    assert target.label.tolist() == [6, 7, 10]
    alone = following(Tokens(Rows.from_lengths([1]), torch.tensor([5])))
    assert alone.index.numel() == alone.label.numel() == 0


@both_systems
@every_kind
def test_the_gradient_is_that_of_both_losses(kind: str, system: str) -> None:
    model, weight = built(kind, system, 0.5).train(), 0.5
    batch = collate(examples_of(kind, system), next_tokens=True)
    step, counts = model(batch), batch.counts()
    assert set(model.weights) == set(step.losses) == set(counts)
    assert model.weights["lm"] == weight
    found = gradients(model, sum(w * step.losses[term] / counts[term] for term, w in model.weights.items()))

    own = built(kind, system, 0.0).train()
    own_step = own(collate(examples_of(kind, system)))
    (term,) = own_step.losses
    torch.testing.assert_close(step.losses[term], own_step.losses[term])
    expected = gradients(own, own_step.losses[term] / counts[term])

    bare = built(kind, system, 0.0).train()
    tokens, ends = batch.tokens, batch.tokens.rows.offsets.tolist()
    logits = bare.encoder(tokens).top @ bare.encoder.piece_embedding.T
    rows = list(zip(ends, ends[1:], strict=False))
    losses = [F.cross_entropy(logits[a : b - 1], tokens.ids[a + 1 : b], reduction="sum") for a, b in rows]
    right = sum(int((logits[a : b - 1].argmax(1) == tokens.ids[a + 1 : b]).sum()) for a, b in rows)
    total, n = torch.stack(losses).sum(), sum(b - a - 1 for a, b in rows)
    assert (counts["lm"], step.correct["lm"]) == (n, right)
    torch.testing.assert_close(step.losses["lm"], total)
    for name, gradient in gradients(bare, weight * total / n).items():
        expected[name] = expected.get(name, 0) + gradient
    assert set(found) == set(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6, msg=name)


@every_kind
def test_the_published_form_averages_each_sequence_and_predicts_positions_too(kind: str) -> None:
    torch.manual_seed(0)
    config = replace(KINDS[kind][0], auxiliary_lm=0.5, auxiliary_form="published", network=network_of(dropout=0.0))
    model = TASKS[kind].model(encoder_of("gpt"), config).train()
    batch = collate(examples_of(kind, "gpt"), next_tokens=True)
    step, ends = model(batch), batch.tokens.rows.offsets.tolist()
    embeddings = model.encoder.embeddings
    logits = model.encoder(batch.tokens).top @ torch.cat([embeddings.pieces.weight, embeddings.positions.weight]).T
    rows = list(zip(ends, ends[1:], strict=False))
    means = [F.cross_entropy(logits[a : b - 1], batch.tokens.ids[a + 1 : b]) for a, b in rows]
    assert len({b - a for a, b in rows}) > 1 and model.counts(batch)["lm"] == len(rows)
    torch.testing.assert_close(step.losses["lm"], torch.stack(means).sum())
    found = gradients(model, model(batch).losses["lm"])
    expected = torch.autograd.grad(torch.stack(means).sum(), embeddings.positions.weight)[0]
    torch.testing.assert_close(found["encoder.embeddings.positions.weight"], expected, rtol=1e-5, atol=1e-6)


def test_the_published_form_needs_a_gpt() -> None:
    config = replace(KINDS["classify"][0], auxiliary_lm=0.5, auxiliary_form="published")
    with pytest.raises(ConfigError, match="auxiliary_form='published' is of GPT's position rows"):
        TASKS["classify"].model(encoder_of("bert-ltr"), config)


@every_kind
def test_the_encoder_runs_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(kind, "bert-ltr", 0.5)
    calls: list[Tokens] = []
    model.encoder.register_forward_pre_hook(lambda module, given: calls.append(given[0]))
    model(collate(examples_of(kind, "bert-ltr"), next_tokens=True))
    assert len(calls) == 1


@pytest.mark.parametrize("pool", ["summary", "mean"])
def test_the_language_model_reads_the_top_whatever_the_head_reads(pool: Any) -> None:
    layers = (-1,) if pool == "summary" else (0,)
    model = built("classify", "bert-ltr", 0.5, pool=pool, layers=layers)
    batch = collate(examples_of("classify", "bert-ltr"), next_tokens=True)
    top = model.encoder(batch.tokens).top
    target = batch.targets["lm"]
    logits = top.index_select(0, target.index) @ model.encoder.piece_embedding.T
    torch.testing.assert_close(model(batch).losses["lm"], F.cross_entropy(logits, target.label, reduction="sum"))


@every_kind
def test_a_weight_of_zero_changes_nothing(kind: str) -> None:
    """Adds no loss term, keeps no layer and draws no random number."""
    model = built(kind, "bert-ltr", 0.0, dropout=0.3).train()
    assert "lm" not in model.weights and model.keep == model.features.keep
    batch = collate(examples_of(kind, "bert-ltr"))
    torch.manual_seed(3)
    step = model(batch)
    torch.manual_seed(3)
    hidden = model.encoder(batch.tokens, keep=model.features.keep)
    logits = model.head(model.features.dropout(model.features(hidden, batch.tokens))).float()
    torch.manual_seed(3)
    assert torch.equal(model.logits(model.read(batch.tokens), batch.tokens), logits)
    assert "lm" not in step.losses


def test_training_batches_alone_ask_for_the_next_tokens() -> None:
    examples = examples_of("classify", "bert-ltr")
    asking = ExampleSource(examples, 3, 100, seed=1, next_tokens=True)
    (batch,), _ = next(asking.steps(Place(), step=0))
    assert batch.counts()["lm"] == batch.tokens.rows.n_tokens - batch.tokens.rows.n_rows
    (batch,), _ = next(ExampleSource(examples, 3, 100, seed=1).steps(Place(), step=0))
    assert set(batch.targets) == set(collate(examples).targets) == {"label"}


@every_kind
def test_answers_do_not_know_of_it(kind: str, tmp_path: Path) -> None:
    """A model folder with the weight gives the same answers as one without."""
    examples = examples_of(kind, "bert-ltr")
    found = []
    for weight in (0.0, 0.5):
        folder = tmp_path / str(weight)
        folder.mkdir()
        write_model(folder, "bert-ltr", kind, built(kind, "bert-ltr", weight), TOKENIZER, {})
        model = read_model(folder).objective
        assert model.config.auxiliary_lm == weight
        found.append(row_outputs(model, examples))
    for one, other in zip(*found, strict=True):
        for a, b in zip(one, other, strict=True):
            assert all(np.array_equal(a[name], b[name]) for name in a)


@every_kind
def test_an_encoder_that_reads_both_ways_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"auxiliary_lm=0\.5: only a left-to-right encoder predicts"):
        built(kind, "bert", 0.5)


@pytest.mark.parametrize("weight", [-0.5, float("inf"), float("nan")])
@every_kind
def test_impossible_weights_are_refused(kind: str, weight: float) -> None:
    with pytest.raises(ConfigError, match="auxiliary_lm="):
        replace(KINDS[kind][0], auxiliary_lm=weight)
