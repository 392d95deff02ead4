"""Classifiers with a network on the encoder, on every system: ULMFiT's pooled head and the biattentive network."""

import math
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from firth import packed
from firth.config import from_dict
from firth.convert.padded import make_padded
from firth.data.loader import Place
from firth.errors import ConfigError
from firth.finetuning.base import rate_scales
from firth.finetuning.calibrate import calibrate
from firth.finetuning.features import store_features
from firth.folder import read_model, tensor_names, write_model
from firth.inference.model import Model
from firth.inference.outputs import row_outputs
from firth.inference.score import EncodedSplit
from firth.layers.batch_norm import BatchNorm
from firth.layers.dropout import Dropout
from firth.packed import Encoder
from firth.systems import SYSTEMS
from firth.tasks.config import (
    NETWORKS,
    BiattentiveConfig,
    BiLstmConfig,
    ClassifyConfig,
    LinearConfig,
    TowersConfig,
    WindowConfig,
)
from firth.tasks.example_source import ExampleSource
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowMaker, collate
from firth.tasks.table import TASKS
from firth.text.records import Text
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import SPECIALS, WORDS
from firth.training.checkpoint import list_checkpoints
from firth.training.config import OptimConfig, TrainConfig
from firth.training.optim import decays
from firth.training.trainer import Trainer

LABELS = ("n", "y", "z")
CONFIGS = {
    "hidden": ClassifyConfig(labels=LABELS, network=LinearConfig(hidden_width=6), windows=WindowConfig(length=16)),
    "biattentive": ClassifyConfig(
        labels=LABELS, network=BiattentiveConfig(width=4), windows=WindowConfig(length=16, long="cut")
    ),
    "towers": ClassifyConfig(labels=LABELS, network=TowersConfig(), windows=WindowConfig(length=16, long="cut")),
}
PAIRS = [
    ("a b", "c"),
    ("d", None),
    ("a b c d e f g h a b c d e f g", "h g f e"),
    ("c", "c"),
    ("e f d", "g"),
    ("h a", ""),
]
every_network = pytest.mark.parametrize("network", sorted(CONFIGS))
every_system = pytest.mark.parametrize("system", sorted(SYSTEMS))


@lru_cache
def tokenizer_of(system: str) -> Tokenizer:
    """A tokenizer of subword tokens, or of whole words for a system that reads words by their characters."""
    if not SYSTEMS[system].characters:
        return Tokenizer.from_vocab([*SPECIALS, *"abcdefgh"], lowercase=True)
    return SYSTEMS[system].reads(Tokenizer.from_words([*WORDS.specials, *"abcdefgh"], lowercase=True))


def encoder_of(system: str) -> Encoder:
    row = SYSTEMS[system]
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer_of(system).size,
        "width": 8,
        "n_layers": 2,
        "n_heads": 2,
        "feed_forward_width": 12,
        "max_positions": 16,
        "hidden_width": 12,
        "cells": 12,
        "character_width": 4,
        "filters": ((1, 8), (2, 8)),
        "n_highways": 1,
    }
    known = {f.name for f in fields(row.config)}
    return row.encoder(row.config(**{name: n for name, n in sizes.items() if name in known}, **row.fixed))


def built(network: str, system: str, config: ClassifyConfig | None = None) -> TaskModel:
    torch.manual_seed(0)
    model = TASKS["classify"].model(encoder_of(system), config or CONFIGS[network])
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.4)
    for part in model.head.modules():
        if isinstance(part, BatchNorm):
            part.running_mean.normal_()
    return model.eval()


def records(network: str) -> list[Text]:
    """Pairs, or single texts for a network that reads these."""
    alone = None if network != "towers" else "g"
    return [Text(a, LABELS[i % 3], f"f:{i}", b or alone) for i, (a, b) in enumerate(PAIRS)]


def made(network: str, system: str, config: ClassifyConfig | None = None) -> list[Example]:
    config, tokenizer = config or CONFIGS[network], tokenizer_of(system)
    maker = RowMaker(tokenizer, SYSTEMS[system].layout(tokenizer), config.windows, 16)
    return TASKS["classify"].examples(records(network), maker, config)


def logits_of(model: TaskModel, examples: list[Example], **options: Any) -> np.ndarray:
    """The logits of each example, merged as for answers."""
    config = model.config
    outputs = row_outputs(model, examples, **options)
    rows = [np.stack([row["logits"][0] for row in one]) for one in outputs]
    return np.stack([x.sum(0) if config.merge == "sum" else x.mean(0) for x in rows])


def trainer_of(network: str, system: str, run: Path, *, steps: int) -> Trainer:
    model = built(network, system)
    run.mkdir(exist_ok=True)
    return Trainer(
        objective=model,
        source=ExampleSource(made(network, system), 6, 40, seed=1),
        dev=None,
        config=TrainConfig(steps=steps, log_every=1, save_every=1, eval_every=0, keep_checkpoints=9),
        optim=OptimConfig(),
        rate=lambda step: 1e-2,
        flops=lambda batch: 1.0,
        run=run,
        save_model=lambda folder, facts, weights: write_model(
            folder, system, "classify", model, tokenizer_of(system), facts, weights=weights
        ),
        scales=rate_scales(model, 0.5),
        tell=lambda text: None,
    )


def test_every_network_is_tested() -> None:
    """The BiLSTM has tests of its own."""
    assert {type(config.network) for config in CONFIGS.values()} | {BiLstmConfig} == set(NETWORKS)


@every_system
@every_network
def test_a_step_moves_every_part(network: str, system: str, tmp_path: Path) -> None:
    trainer = trainer_of(network, system, tmp_path / "run", steps=1)
    before = {name: tensor.clone() for name, tensor in trainer.objective.state_dict().items()}
    batches, _ = next(trainer.source.steps(Place(), step=0, rank=0, world=1))
    assert len(batches) > 1, "statistics are those of a micro-batch"
    trainer.objective.train()
    sums = trainer.train_step(batches)
    assert math.isfinite(sums["label_loss"]) and sums["label_count"] == len(PAIRS)
    for name, tensor in trainer.objective.state_dict().items():
        if not name.startswith("encoder."):
            assert not torch.equal(tensor, before[name]), name
    assert all(p.grad is None or p.grad.isfinite().all() for p in trainer.objective.parameters())


@every_network
def test_examples_together_are_the_examples_one_by_one(network: str) -> None:
    model, examples = built(network, "bert"), made(network, "bert")
    alone = np.concatenate([logits_of(model, [example], budget_tokens=1) for example in examples])
    np.testing.assert_allclose(logits_of(model, examples), alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits_of(model, examples, budget_tokens=12), alone, rtol=0, atol=1e-5)
    with torch.no_grad():
        whole, parts = model(collate(examples)), [model(collate([example])) for example in examples]
    torch.testing.assert_close(whole.losses["label"], torch.stack([part.losses["label"] for part in parts]).sum())
    assert not np.allclose(alone[0], alone[1])


@every_system
@every_network
def test_a_folder_answers_as_the_model_did(network: str, system: str, tmp_path: Path) -> None:
    model = built(network, system)
    write_model(tmp_path, system, "classify", model, tokenizer_of(system), {})
    loaded = read_model(tmp_path)
    assert loaded.objective.config == model.config and type(loaded.objective) is type(model)
    assert isinstance(loaded.objective, TaskModel)
    examples = made(network, system)
    together = logits_of(model, examples)
    assert np.array_equal(logits_of(loaded.objective, examples), together)
    # Other tools would read only the encoder, so the folder uses our names.
    assert tensor_names(system, "classify", model.config) is None
    # In another order, and so in other batches.
    given = [(text.text, text.second) if text.second else text.text for text in records(network)]
    answers = Model(loaded, torch.device("cpu")).predict(given[:0:-1])[::-1]
    for answer, logits in zip(answers, together[1:], strict=True):
        shares = torch.tensor(logits).softmax(0)
        assert list(answer.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-5)
    assert [a.windows for a in answers] == [len(e.rows) if network == "hidden" else 1 for e in examples[1:]]


@every_network
def test_a_run_goes_on_bit_for_bit(network: str, tmp_path: Path) -> None:
    """Including running statistics."""
    whole = trainer_of(network, "bert", tmp_path / "whole", steps=3)
    assert whole.fit()
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    for step, folder in list_checkpoints(tmp_path / "again" / "checkpoints"):
        if step > 1:
            shutil.rmtree(folder)
    again = trainer_of(network, "bert", tmp_path / "again", steps=3)
    again.resume(lambda folder: read_model(folder).objective.state_dict())
    assert again.state.step == 1
    assert again.fit()
    expected = whole.objective.state_dict()
    assert any("running_var" in name for name in expected) is (network != "towers"), "statistics go on as well"
    for name, tensor in again.objective.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("hidden", {}),
    ("hidden", {"pool": "mean", "layers": (0, 2), "mix": "scalar"}),
    ("biattentive", {}),
    ("biattentive", {"layers": (0, 2), "mix": "concat"}),
    ("biattentive", {"layers": (0, 1, 2), "mix": "scalar"}),
]


@pytest.mark.parametrize(("network", "features"), WAYS)
def test_a_network_learns_the_same_from_stored_vectors(
    network: str, features: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Vectors are stored in other batches: only rows of one length share rectangles, so that rounding does not differ,
    # which batch norm over few texts would magnify.
    monkeypatch.setattr(packed, "SHORT_ROW", 0)
    monkeypatch.setattr(packed, "GROUP_MULTIPLE", 1)
    config = replace(CONFIGS[network], network=replace(CONFIGS[network].network, dropout=0.0, **features))
    found = []
    for is_stored in (False, True):
        model, examples = built(network, "bert", config), made(network, "bert", config)
        light = model
        if is_stored:
            stored, examples = store_features(model, examples, tmp_path, dtype=torch.float32, budget_tokens=20)
            light = TASKS["classify"].model(encoder_of("bert"), config)
            light._modules = {**model._modules, "encoder": stored}
        mine = [p for name, p in light.named_parameters() if not name.startswith("encoder.")]
        optimizer = torch.optim.SGD(mine, lr=0.05)
        for _ in range(2):
            light.train()
            light.encoder.eval()
            for part in light.head.modules():
                if isinstance(part, Dropout):
                    part.p = 0.0
            optimizer.zero_grad()
            light(collate(examples)).losses["label"].backward()
            optimizer.step()
        found.append({name: t for name, t in light.state_dict().items() if not name.startswith("encoder.")})
        found[-1]["logits"] = torch.from_numpy(logits_of(light.eval(), examples))
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@every_network
def test_products_may_be_in_16_bits(network: str) -> None:
    model, examples = built(network, "bert"), made(network, "bert")
    coarse, fine = (logits_of(model, examples, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    np.testing.assert_allclose(coarse, fine, rtol=0, atol=0.2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.train()(collate(examples)).losses["label"]
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.head.parameters())


def test_texts_of_a_pair_are_rows_by_themselves() -> None:
    config, tokenizer = CONFIGS["biattentive"], tokenizer_of("bert")
    maker = RowMaker(tokenizer, SYSTEMS["bert"].layout(tokenizer), config.windows, 16)
    pair, single, long, *_, empty = TASKS["classify"].examples(records("biattentive"), maker, config)
    assert [" ".join(tokenizer.pieces[i] for i in row.ids) for row in pair.rows] == ["[CLS] a b [SEP]", "[CLS] c [SEP]"]
    assert [row.segments.tolist() for row in pair.rows] == [[0] * 4, [1] * 3]
    assert [len(example.rows) for example in (single, empty)] == [1, 1]
    # Each text has a row to itself, so only the one that is too long is truncated.
    assert [len(row.ids) for row in long.rows] == [16, 6] and [row.cut for row in long.rows] == [True, False]
    assert maker.noted == {"cut": 1}


def test_the_encoder_reads_both_texts_as_it_reads_one() -> None:
    """BERT has an embedding for the second segment, which a row of one text never uses."""
    model = built("biattentive", "bert")
    single, twice = Text("a b c", "n", "f:1"), Text("a b c", "n", "f:2", "a b c")
    tokenizer = tokenizer_of("bert")
    maker = RowMaker(tokenizer, SYSTEMS["bert"].layout(tokenizer), model.config.windows, 16)
    one, other = TASKS["classify"].examples([single, twice], maker, model.config)
    np.testing.assert_allclose(logits_of(model, [one]), logits_of(model, [other]), rtol=0, atol=1e-6)


@every_network
def test_one_example_alone_can_be_learnt_from(network: str) -> None:
    model = built(network, "bert").train()
    before = {name: buffer.clone() for name, buffer in model.head.named_buffers()}
    model(collate(made(network, "bert")[1:2])).losses["label"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.head.parameters())
    assert (before or network == "towers") and all(
        torch.equal(buffer, before[name]) for name, buffer in model.head.named_buffers()
    )


@every_network
def test_norms_do_not_decay_and_have_the_full_rate(network: str) -> None:
    model = built(network, "bert")
    scales = rate_scales(model, 0.5)
    norms = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, BatchNorm)}
    for name, parameter in model.named_parameters():
        if name.startswith("head."):
            assert name not in scales
            assert decays(parameter) == (name not in norms and "bias" not in name), name


@every_network
def test_a_temperature_is_fitted_to_the_logits_of_examples(network: str) -> None:
    model, examples = built(network, "bert"), made(network, "bert")
    options, figures = calibrate(
        "classify", model.config, EncodedSplit(records(network), examples, {}), row_outputs(model, examples)
    )
    assert options.temperature == figures["temperature"] != 1


@pytest.mark.parametrize("network", ["biattentive", "hidden"])
def test_other_forms_are_refused_in_one_line(network: str) -> None:
    with pytest.raises(ConfigError, match=r"^a head (of|with) network\.\w+(='biattentive')? has no padded form: train"):
        make_padded(built(network, "bert"), ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": {"kind": "biattentive"}}, r"never in windows: set head\.windows\.long=cut with it"),
        (
            {"network": {"kind": "biattentive", "pool": "max"}},
            r"network\.pool is for network\.kind='linear' or 'bilstm' or 'towers', not 'biattentive'",
        ),
        ({"network": {"lstm_layers": 2}}, r"network\.lstm_layers is for network\.kind='bilstm', not 'linear'"),
        ({"network": {"kind": "pooled"}}, r"network\.kind = 'pooled': expected one of 'linear', 'bilstm', 'b"),
        ({"network": "biattentive"}, r"must be a table of keys with network\.kind, one of .* not 'biat"),
        (
            {"network": {"hidden_width": 5}, "both_orders": True, "windows": {"long": "cut"}},
            r"set head\.network\.kind=linear and hidden_width=0",
        ),
        ({"network": {"hidden_width": -1}}, "hidden_width=-1: expected 0 or more"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(ClassifyConfig, {"labels": list(LABELS), **options}, "test")


@every_network
def test_fresh_weights_are_a_function_of_the_seed(network: str) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        head: Callable[..., Any] = TASKS["classify"].model(encoder_of("lstm"), CONFIGS[network]).head.state_dict
        found: dict[str, torch.Tensor] = head()
        return found

    one, other, third = fresh(1), fresh(1), fresh(2)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], third[name]) for name in one)
