"""ELMo's options for layers: a norm before the scalar mix, a second mix at the output, a penalty on the weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from network_options import network_of
from torch import Tensor, nn

from firth.convert.padded import make_padded
from firth.data.batch import Batch
from firth.errors import ConfigError
from firth.finetuning.features import store_features
from firth.inference.outputs import row_outputs
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.packed import Encoder, Hidden, Tokens
from firth.tasks.answer import Answerer
from firth.tasks.classify import Classifier
from firth.tasks.config import AnswerConfig, ClassifyConfig, Network, TagConfig
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowWords, collate, make_row, target
from firth.tasks.tag import Tagger

LAYERS = (0, 1, 2)


class Draws(Encoder):
    """An encoder whose layers are rows of fixed tables, whatever the context of a token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = None
        self.tables = nn.ParameterList(nn.Parameter(torch.randn(20, 4) * (n + 1) + n) for n in LAYERS)

    @property
    def widths(self) -> tuple[int, ...]:
        return (4, 4, 4)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [[table] for table in self.tables]

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        return Hidden({n: self.tables[n][tokens.ids] for n in keep}, tokens.rows, carry=None)


def weighted(**options: Any) -> Network:
    return network_of(**{"layers": LAYERS, "mix": "scalar", "dropout": 0.0, **options})


def model(unit: str, features: Network) -> TaskModel:
    torch.manual_seed(1)
    made: TaskModel
    if unit == "row":
        made = Classifier(Draws(), ClassifyConfig(labels=("a", "b", "c"), network=features))
    elif unit == "word":
        made = Tagger(Draws(), TagConfig(labels=("O", "B-X", "I-X"), network=features))
    else:
        made = Answerer(Draws(), AnswerConfig(network=features))
    for name, parameter in made.named_parameters():
        if not name.startswith("encoder."):
            nn.init.normal_(parameter, std=0.3)
    return made.eval()


def examples(unit: str) -> list[Example]:
    draw, found = np.random.default_rng(0), []
    for n in (5, 9, 1, 7):
        bounds = np.array([(a, min(a + 1, n - 1)) for a in range(0, n, 2)])
        asked = np.arange(len(bounds))[1:-1] if len(bounds) > 2 else np.arange(len(bounds))
        row = make_row(draw.integers(0, 20, n), words=RowWords(bounds, asked) if unit == "word" else None)
        terms = {"row": {"label": [1]}, "word": {"tag": [0] * len(asked)}, "token": {"start": [0], "end": [0]}}[unit]
        found.append(Example((row,), (1,), {t: target(range(len(x)), x) for t, x in terms.items()}))
    return found


def batch(unit: str) -> Batch:
    return collate(examples(unit))


def test_the_second_mix_stands_beside_the_lstm() -> None:
    made = model("word", weighted(lstm_layers=1, lstm_width=3, second_mix=True))
    features, tokens = made.features, batch("word").tokens
    hidden = made.read(tokens)
    found = features(hidden, tokens)
    assert features.width == 6 + 4 == found.shape[1] == made.head.in_features
    words = tokens.words
    layers = {n: hidden.layers[n].index_select(0, words.first) for n in LAYERS}
    expected = torch.cat([features.lstm(features.mix(layers), words.rows), features.second(layers)], 1)
    torch.testing.assert_close(found, expected.index_select(0, words.asked))
    # Each mix has weights of its own.
    assert len(features.mix_weights()) == 2
    assert features.mix_weights()[0].data_ptr() != features.mix_weights()[1].data_ptr()
    only = model("token", weighted(lstm_layers=1, lstm_width=3, second_mix=True))
    assert only.features(only.read(tokens), tokens).shape == (tokens.rows.n_tokens, 10)


def test_the_penalty_is_the_sum_of_squares_once_a_micro_batch() -> None:
    made, given = model("row", weighted(pool="mean", mix_l2=0.1)), batch("row")
    assert made.weights["mix"] == 0.1 and made.counts(given)["mix"] == 1 and "mix" in made.penalties
    assert set(made(given).losses) == {"label"}
    step = made.train()(given)
    assert set(step.correct) == {"label"}
    torch.testing.assert_close(step.losses["mix"], made.features.mix.scalars.square().sum())
    (gradient,) = torch.autograd.grad(step.losses["mix"], made.features.mix.scalars)
    torch.testing.assert_close(gradient, 2 * made.features.mix.scalars.detach())
    two = model("word", weighted(lstm_layers=1, second_mix=True, mix_l2=1.0)).train()
    expected = sum(weights.square().sum() for weights in two.features.mix_weights())
    torch.testing.assert_close(two(batch("word")).losses["mix"], expected)


def test_without_the_option_there_is_no_such_term() -> None:
    made = model("row", weighted(pool="mean"))
    assert "mix" not in made.weights and set(made.train()(batch("row")).losses) == {"label"}
    assert model("row", network_of(layers=(1,), pool="mean")).features.mix_weights() == []


def test_a_norm_is_over_all_words_that_are_read() -> None:
    made = model("word", weighted(layer_norm=True))
    tokens = batch("word").tokens
    hidden, words = made.read(tokens), tokens.words
    parts: list[Tensor] = []
    for number, weight in zip(LAYERS, made.features.mix.scalars.softmax(0), strict=True):
        layer = hidden.layers[number].index_select(0, words.first.index_select(0, words.asked))
        parts.append(weight * (layer - layer.mean()) / (layer.var(correction=0) + 1e-12).sqrt())
    expected = made.features.mix.gamma * sum(parts)
    torch.testing.assert_close(made.features(hidden, tokens), expected)


@pytest.mark.parametrize("unit", ["row", "word", "token"])
@pytest.mark.parametrize("options", [{"layer_norm": True}, {"lstm_layers": 1, "second_mix": True, "layer_norm": True}])
def test_stored_features_give_the_same_outputs(unit: str, options: dict[str, Any], tmp_path: Path) -> None:
    options = {**options, **({"pool": "mean"} if unit == "row" else {})}
    made, given = model(unit, weighted(**options)), examples(unit)
    # One batch: the norm is computed over everything in it.
    expected = row_outputs(made, given, budget_tokens=10_000)
    stored, referring = store_features(made, given, tmp_path / "f", dtype=torch.float32)
    made.encoder = stored
    found = row_outputs(made, referring, budget_tokens=10_000)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.keys() == b.keys()
            for name in a:
                np.testing.assert_allclose(a[name], b[name], atol=1e-5)


def test_one_layer_may_be_forced() -> None:
    """Weights of (-9e10, 1, -9e10) before the softmax select the middle layer (bilm-tf, elmo.py)."""
    made = model("row", weighted(pool="mean"))
    with torch.no_grad():
        made.features.mix.scalars.copy_(torch.tensor([-9e10, 1, -9e10]))
        made.features.mix.gamma.fill_(1)
    layers = made.read(batch("row").tokens).layers
    assert torch.equal(made.features.mix(layers), layers[1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mix": "sum", "layer_norm": True}, "are for mix='scalar', not 'sum'"),
        ({"mix": "concat", "mix_l2": 0.1}, "are for mix='scalar', not 'concat'"),
        ({"mix_l2": -1.0}, "mix_l2=-1.0: expected 0 or more"),
        ({"second_mix": True, "own_words": 5}, "second_mix=false"),
    ],
)
def test_options_without_what_they_are_of_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        weighted(**options)


def test_a_norm_over_a_batch_has_no_padded_form() -> None:
    sizes = {"width": 8, "n_layers": 2, "n_heads": 2, "feed_forward_width": 8, "max_positions": 8}
    features = weighted(pool="mean", layer_norm=True)
    made = Classifier(Bert(BertConfig(vocab_size=9, **sizes)), ClassifyConfig(labels=("a", "b"), network=features))
    with pytest.raises(ConfigError, match="layer_norm has no padded form"):
        make_padded(made, ())
