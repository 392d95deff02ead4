"""Stored vectors replace the frozen encoder: the same outputs, and a head that learns the same."""

import copy
import shutil
from collections import namedtuple
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_options import network_of
from torch import Tensor

from firth.errors import CheckpointError
from firth.finetuning.features import StoredEncoder, store_features
from firth.inference.outputs import row_outputs
from firth.models.awd_lstm import AwdLstm
from firth.models.bert import Bert
from firth.models.bilm import Bilm
from firth.models.config import AwdLstmConfig, BertConfig, BilmConfig, LstmConfig
from firth.models.lstm import Lstm
from firth.packed import Encoder
from firth.tasks.answer import Answerer
from firth.tasks.classify import Classifier
from firth.tasks.config import AnswerConfig, ClassifyConfig, Network, TagConfig, TowersConfig, WindowConfig
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowWords, collate, make_row, target
from firth.tasks.tag import Tagger
from firth.text.characters import character_rows

BERT = BertConfig(vocab_size=20, width=8, n_layers=2, n_heads=2, feed_forward_width=12, max_positions=24)
LENGTHS = [(5, 9), (1,), (24, 3), (7,)]
CHARACTERS = character_rows([chr(ord("a") + i) * (i % 5) for i in range(20)])
MIXES = [((-1,), "one"), ((0,), "one"), ((1, 2), "sum"), ((-1, -2, 0), "scalar"), ((0, 2), "concat")]


def encoder(kind: str = "bert") -> Encoder:
    torch.manual_seed(0)
    if kind == "bert":
        return Bert(BERT)
    if kind == "elmo":
        return Bilm(BilmConfig(vocab_size=20, width=8, cells=10, filters=((1, 4), (2, 4)), character_width=3))
    return Lstm(LstmConfig(vocab_size=20, width=8, n_layers=2))


def model(unit: str, features: Network | TowersConfig, kind: str = "bert") -> Any:
    torch.manual_seed(1)
    if unit == "row":
        windows = WindowConfig(long="cut" if features.kind == "towers" else "windows")
        head = ClassifyConfig(labels=("a", "b", "c"), network=features, windows=windows)
        made: TaskModel = Classifier(encoder(kind), head)
    elif unit == "word":
        made = Tagger(encoder(kind), TagConfig(labels=("O", "B-X", "I-X"), crf=True, network=features))
    else:
        made = Answerer(encoder(kind), AnswerConfig(network=features))
    for name, parameter in made.named_parameters():
        if not name.startswith("encoder."):
            torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def examples(unit: str) -> list[Example]:
    """Texts of one and two windows; words of one and two tokens, some of them context."""
    draw, found = np.random.default_rng(0), []
    for lengths in LENGTHS:
        rows, targets = [], dict[str, Any]()
        for n in lengths:
            bounds = np.array([(a, min(a + 1, n - 1)) for a in range(0, n, 2)])
            asked = np.arange(len(bounds))[1:-1] if len(bounds) > 2 else np.arange(len(bounds))
            segments = [0] * (n // 2) + [1] * (n - n // 2)
            words = RowWords(bounds, asked) if unit == "word" else None
            ids = draw.integers(0, 20, n)
            rows.append(make_row(ids, segments, words, chars=CHARACTERS[ids]))
        if unit == "row":
            targets["label"] = target([0], [draw.integers(3)])
        elif unit == "word":
            n = sum(len(row.words.asked) for row in rows if row.words is not None)
            targets["tag"] = target(range(n), [0] * n)
        else:
            places = [int(draw.integers(len(row.ids))) for row in rows]
            targets = {term: target(range(len(rows)), places) for term in ("start", "end")}
        found.append(Example(tuple(rows), (len(rows),), targets))
    return found


def light_of(full: TaskModel, stored: StoredEncoder) -> TaskModel:
    """The model with stored vectors in place of its encoder, its other parts shared."""
    light = copy.copy(full)
    light._modules = {**full._modules, "encoder": stored}
    return light


def ways() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every supported way to read an encoder."""
    yield "row", {}
    for (layers, mix), n_lstm in [*product(MIXES, (0,)), *product(MIXES[3:], (1,))]:
        rest = {"layers": layers, "mix": mix, **({"lstm_layers": n_lstm, "lstm_width": 4} if n_lstm else {})}
        for pool in ("mean", "max", "first", "last"):
            yield "row", {"pool": pool, **rest}
        for words in ("first", "mean", "last"):
            yield "word", {"words": words, **rest}
        yield "token", rest
    # Word and character embeddings of the head need the original tokens.
    for join, n_lstm in (("input", 0), ("input", 2), ("first", 2), ("last", 1), ("none", 0), ("none", 1)):
        own = {"join": join, "own_words": 3, "lstm_layers": n_lstm, "lstm_width": 4}
        own["own_characters"] = "gru" if join == "first" else "cnn"
        yield "row", {"pool": "max", **own}
        for words in ("first", "mean", "last"):
            yield "word", {"words": words, **own}
        yield "token", own
    mixed = {"layers": (0, 1), "mix": "scalar", "second_mix": True, "cell": "gru", "lstm_layers": 2, "lstm_width": 4}
    yield "word", {"join": "first", "own_words": 3, **mixed}


def close(ours: Any, theirs: Any, at_most: float = 1e-6) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            assert set(a) == set(b)
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=0, atol=at_most)


def test_outputs_are_those_of_the_encoder_however_it_is_read(tmp_path: Path) -> None:
    n_ways = 0
    for unit, options in ways():
        made, given = model(unit, network_of(dropout=0.0, **options)), examples(unit)
        stored, referring = store_features(made, given, tmp_path, dtype=torch.float32, budget_tokens=40)
        light = light_of(made, stored)
        close(row_outputs(light, referring, budget_tokens=12), row_outputs(made, given))
        assert (light.encoder.config, light.encoder.widths) == (made.encoder.config, made.encoder.widths)
        n_ways += 1
    assert n_ways == 1 + 7 * (4 + 3 + 1) + 6 * (1 + 3 + 1) + 1


def test_towers_know_the_second_text_from_stored_vectors(tmp_path: Path) -> None:
    made, draw = model("row", TowersConfig(dropout=0.0)), np.random.default_rng(0)
    texts = [(draw.integers(0, 20, n), draw.integers(0, 20, m)) for n, m in ((4, 7), (2, 2), (9, 3))]
    pairs = [
        Example((make_row(a), make_row(b, [1] * len(b))), (2,), {"label": target([0], [number])})
        for number, (a, b) in enumerate(texts)
    ]
    stored, referring = store_features(made, pairs, tmp_path, dtype=torch.float32, budget_tokens=40)
    close(row_outputs(light_of(made, stored), referring), row_outputs(made, pairs))


@pytest.mark.parametrize("unit", ["row", "word", "token"])
def test_without_the_encoder_nothing_is_stored(unit: str, tmp_path: Path) -> None:
    options = {"own_words": 3, "join": "none", "dropout": 0.0, "pool": "mean"}
    made, given = model(unit, network_of(**options)), examples(unit)
    stored, referring = store_features(made, given, tmp_path, dtype=torch.float32)
    assert not stored.vectors and not list(tmp_path.rglob("*.npy"))
    close(row_outputs(light_of(made, stored), referring), row_outputs(made, given))


@pytest.mark.parametrize("kind", ["lstm", "elmo"])
@pytest.mark.parametrize("unit", ["row", "word", "token"])
def test_recurrent_systems_carry_nothing_from_row_to_row(unit: str, kind: str, tmp_path: Path) -> None:
    """Their vectors do not depend on what was read before, in this batch or an earlier one."""
    options: dict[str, Any] = {"layers": (0, 1, 2), "mix": "scalar"} if kind == "elmo" else {}
    if unit == "row" and options:
        options["pool"] = "mean"
    made, given = model(unit, network_of(dropout=0.0, **options), kind), examples(unit)
    stored, referring = store_features(made, given, tmp_path, dtype=torch.float32)
    close(row_outputs(light_of(made, stored), referring), row_outputs(made, given))


@pytest.mark.parametrize("hidden_width", [0, 6])
def test_summaries_that_are_wider_than_the_layers(hidden_width: int, tmp_path: Path) -> None:
    """ULMFiT's: the last state, the maximum and the mean."""
    torch.manual_seed(0)
    read = AwdLstm(AwdLstmConfig(vocab_size=20, width=8, hidden_width=10, n_layers=2))
    config = ClassifyConfig(labels=("a", "b", "c"), network=network_of(dropout=0.0, hidden_width=hidden_width))
    made, given = Classifier(read, config).eval(), examples("row")
    stored, referring = store_features(made, given, tmp_path, dtype=torch.float32)
    assert stored.vectors["summary"].shape == (6, 24) and stored.summary_width == read.summary_width == 24
    close(row_outputs(light_of(made, stored), referring), row_outputs(made, given))


@pytest.mark.parametrize(
    ("unit", "options", "n_vectors"),
    [
        ("row", {}, 6),
        ("row", {"pool": "mean", "layers": (1, 2), "mix": "scalar"}, 6),
        ("row", {"pool": "max"}, 6),
        # The maximum can only be taken when layers are mixed.
        ("row", {"pool": "max", "layers": (1, 2), "mix": "scalar"}, 49),
        # Scores of tokens are learnt.
        ("row", {"pool": "attention"}, 49),
        ("row", {"pool": "mean", "lstm_layers": 1}, 49),
        ("token", {}, 49),
        # The target words, and with an LSTM those around them.
        ("word", {}, 1 + 3 + 1 + 10 + 2 + 2),
        ("word", {"lstm_layers": 1}, 3 + 5 + 1 + 12 + 2 + 4),
        ("word", {"own_words": 3}, 1 + 3 + 1 + 10 + 2 + 2),
        ("word", {"own_words": 3, "words": "mean", "lstm_layers": 1}, 3 + 5 + 1 + 12 + 2 + 4),
        # Every token of a text is kept: what the head itself adds to them is not known in advance.
        ("row", {"pool": "mean", "own_words": 3}, 49),
    ],
)
def test_only_what_the_head_can_tell_apart_is_kept(
    unit: str, options: dict[str, Any], n_vectors: int, tmp_path: Path
) -> None:
    features = network_of(dropout=0.0, **options)
    stored, _ = store_features(model(unit, features), examples(unit), tmp_path, dtype=torch.float32)
    assert {len(vectors) for vectors in stored.vectors.values()} == {n_vectors}
    files = {path.name for path in tmp_path.rglob("*.npy")}
    numbers = ["summary"] if unit == "row" and not options else [n % 3 for n in features.layers]
    assert files == {f"layer-{number}.npy" for number in numbers}


def learnt(made: TaskModel, given: list[Example]) -> dict[str, Tensor]:
    """All parts but the encoder, after a few training steps."""
    made.train()
    mine = {n: p for n, p in made.named_parameters() if not n.startswith("encoder.")}
    optimizer = torch.optim.SGD(mine.values(), lr=0.1)
    for _ in range(3):
        # The encoder is frozen here and runs in evaluation mode.
        made.encoder.eval()
        optimizer.zero_grad()
        sum(made(collate(given)).losses.values()).backward()  # type: ignore[union-attr]  # there is a loss
        optimizer.step()
    return {name: p.detach().clone() for name, p in mine.items()}


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("row", {}),
        ("row", {"pool": "max", "layers": (0, 1, 2), "mix": "scalar"}),
        ("word", {"lstm_layers": 2, "lstm_width": 4, "layers": (1, 2), "mix": "concat"}),
        ("token", {"layers": (1, 2), "mix": "sum"}),
        ("word", {"own_words": 3, "own_characters": "gru", "words": "mean", "join": "first", "lstm_layers": 2}),
        ("word", {"own_words": 3, "words": "last", "join": "none", "lstm_layers": 1, "lstm_width": 4, "cell": "gru"}),
        ("row", {"own_words": 3, "own_characters": "cnn", "pool": "max", "join": "last", "lstm_layers": 1}),
    ],
)
def test_a_head_learns_the_same_from_stored_vectors(unit: str, options: dict[str, Any], tmp_path: Path) -> None:
    features = network_of(dropout=0.0, **options)
    first, second, given = model(unit, features), model(unit, features), examples(unit)
    before = {name: p.detach().clone() for name, p in first.named_parameters()}
    stored, referring = store_features(first, given, tmp_path, dtype=torch.float32)
    with_stored = learnt(light_of(first, stored), referring)
    for name, expected in learnt(second, given).items():
        torch.testing.assert_close(with_stored[name], expected, rtol=0, atol=1e-6)
        # Adding a constant to all scores of a row changes no pointer.
        assert not torch.equal(expected, before[name]) or (unit, name) == ("token", "head.bias"), name
    # The parts are shared with the full model, which is what is saved.
    close(row_outputs(first, given), row_outputs(second, given))


def test_vectors_are_used_again_by_who_asks_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, given = model("token", network_of(dropout=0.0)), examples("token")

    def files() -> set[tuple[str, int]]:
        return {(str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.npy")}

    first, _ = store_features(plain, given, tmp_path, dtype=torch.float32)
    before, kept = files(), np.array(first.vectors[2])
    again, _ = store_features(plain, given, tmp_path, dtype=torch.float32)
    assert files() == before and np.array_equal(again.vectors[2], kept)
    # Other weights, rows or layers never reuse earlier vectors.
    moved = [*given[1:], given[0]]
    other = model("token", network_of(dropout=0.0))
    torch.nn.init.ones_(other.encoder.embeddings.positions.weight)
    low = model("token", network_of(layers=(0,), dropout=0.0))
    for changed, rows in ((plain, moved), (other, given), (low, given)):
        stored, referring = store_features(changed, rows, tmp_path, dtype=torch.float32)
        close(row_outputs(light_of(changed, stored), referring), row_outputs(changed, rows))
    assert not files() & before


def test_where_rows_end_counts(tmp_path: Path) -> None:
    """The same tokens in the same order, split elsewhere, have other vectors."""
    made = model("row", network_of(dropout=0.0))
    for cuts in ((2, 3), (3, 2)):
        rows = [make_row(part) for part in np.split(np.arange(5), [cuts[0]])]
        given = [Example((row,), (1,), {}) for row in rows]
        stored, referring = store_features(made, given, tmp_path, dtype=torch.float32)
        close(row_outputs(light_of(made, stored), referring), row_outputs(made, given))


def test_targets_and_windows_of_examples_stay(tmp_path: Path) -> None:
    given = examples("row")
    _, referring = store_features(model("row", network_of()), given, tmp_path, dtype=torch.float32)
    assert [e.candidates for e in referring] == [(2,), (1,), (2,), (1,)]
    assert all(a.targets is b.targets for a, b in zip(given, referring, strict=True))
    first = [row.segments[:1].tolist() for example in given for row in example.rows]
    assert [row.segments.tolist() for example in referring for row in example.rows] == first


def test_a_full_disk_is_said_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    made = model("token", network_of(layers=(0, 1, 2), mix="sum"))
    needed = 49 * 3 * 8 * 4
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, needed - 1))
    with pytest.raises(CheckpointError, match="the features take 0.0 GB, 0.0 GB are free: read fewer layers"):
        store_features(made, examples("token"), tmp_path / "f", dtype=torch.float32)
    assert not list(tmp_path.rglob("*.npy"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6, needed))
    store_features(made, examples("token"), tmp_path / "f", dtype=torch.float32)


def test_dropout_of_the_encoder_is_off(tmp_path: Path) -> None:
    made = model("row", network_of(dropout=0.0)).train()
    assert made.encoder.config.dropout > 0
    given = examples("row")
    first, _ = store_features(made, given, tmp_path / "a", dtype=torch.float32)
    second, _ = store_features(made, given, tmp_path / "b", dtype=torch.float32)
    assert np.array_equal(first.vectors["summary"], second.vectors["summary"])


def test_windows_are_merged_as_before(tmp_path: Path) -> None:
    torch.manual_seed(1)
    features, windows = network_of(dropout=0.0), WindowConfig(merge="max")
    config = ClassifyConfig(labels=("a", "b", "c"), windows=windows, network=features)
    made, given = Classifier(encoder(), config).eval(), examples("row")
    stored, referring = store_features(made, given, tmp_path, dtype=torch.float32)
    ours, theirs = light_of(made, stored)(collate(referring)), made(collate(given))
    torch.testing.assert_close(ours.losses["label"], theirs.losses["label"], rtol=0, atol=1e-6)
