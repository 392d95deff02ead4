"""How heads read an encoder: the vectors of a row, a word or a token, and the merged outputs of windows."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from network_options import network_of
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.packed import Encoder, Hidden, Rows, Tokens, Words
from firth.tasks.answer import Answerer
from firth.tasks.classify import Classifier
from firth.tasks.config import AnswerConfig, ClassifyConfig
from firth.tasks.features import Unit, make_features
from firth.tasks.model import HEAD_INIT_RANGE, merge_rows


class Numbers(Encoder):
    """Layer n of the token with id i is [i · 10ⁿ, -i]: everything can be computed by hand."""

    def __init__(self, n_layers: int = 2):
        super().__init__()
        self.config, self.n_layers = None, n_layers
        self.asked: list[tuple[int, ...]] = []

    @property
    def widths(self) -> tuple[int, ...]:
        return (2,) * (self.n_layers + 1)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return []

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        self.asked.append(tuple(keep))
        x = tokens.ids.float()
        layers = {n: torch.stack((x * 10**n, -x), 1) for n in keep}
        summary = torch.stack((x, x + 0.5), 1).index_select(0, tokens.rows.first)
        return Hidden(layers=layers, rows=tokens.rows, summary=summary)


def tokens(*rows: list[int], words: Words | None = None) -> Tokens:
    return Tokens(Rows.from_lengths([len(row) for row in rows]), torch.tensor(sum(rows, [])), words=words)


def read(unit: Unit, given: Tokens, **options: Any) -> list[list[float]]:
    features = make_features(Numbers(), network_of(dropout=0.0, **options), unit)
    found = features(Numbers()(given, features.keep), given)
    assert found.shape[1] == features.width
    return found.tolist()


ROWS = ([1, 2, 6], [4])


def test_a_row_is_its_summary_and_no_layer_is_asked_for() -> None:
    encoder = Numbers()
    features = make_features(encoder, network_of(dropout=0.0), "row")
    assert features(encoder(tokens(*ROWS), features.keep), tokens(*ROWS)).tolist() == [[1, 1.5], [4, 4.5]]
    assert encoder.asked == [()]
    assert features.width == 2 and features.mix is None


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("first", [[100, -1], [400, -4]]),
        ("last", [[600, -6], [400, -4]]),
        ("mean", [[300, -3], [400, -4]]),
        ("max", [[600, -1], [400, -4]]),
    ],
)
def test_a_row_is_pooled_from_its_tokens(pool: str, expected: list[list[float]]) -> None:
    assert read("row", tokens(*ROWS), pool=pool) == expected


@pytest.mark.parametrize(
    ("layers", "mix", "expected"),
    [
        ((-1,), "one", [[100, -1], [400, -4]]),
        ((0,), "one", [[1, -1], [4, -4]]),
        ((-2,), "one", [[10, -1], [40, -4]]),
        ((0, 1), "sum", [[11, -2], [44, -8]]),
        ((0, 2), "scalar", [[50.5, -1], [202, -4]]),  # at the start the mean
        ((-1, 1), "concat", [[10, -1, 100, -1], [40, -4, 400, -4]]),  # from the lowest layer up
    ],
)
def test_tokens_are_read_from_the_layers_that_are_asked_for(
    layers: tuple[int, ...], mix: str, expected: list[list[float]]
) -> None:
    assert read("token", tokens([1, 4]), layers=layers, mix=mix) == expected


@pytest.mark.parametrize(("how", "expected"), [("first", [2, 4]), ("last", [3, 5]), ("mean", [2.5, 4.5])])
def test_asked_words_are_pooled_from_their_pieces(how: str, expected: list[float]) -> None:
    words = Words(
        first=torch.tensor([0, 1, 3]),
        last=torch.tensor([0, 2, 4]),
        rows=Rows.from_lengths([2, 1]),
        asked=torch.tensor([1, 2]),
        asked_rows=Rows.from_lengths([1, 1]),
    )
    found = read("word", tokens([1, 2, 3], [4, 5], words=words), words=how)
    assert [-second for _, second in found] == expected


def test_the_lstm_reads_all_words_of_a_row_and_no_other_row() -> None:
    """Context words change the output for an asked word; words of other rows do not."""
    torch.manual_seed(0)
    features = make_features(Numbers(), network_of(layers=(0,), dropout=0.0, lstm_layers=1, lstm_width=3), "word")
    assert features.width == 6

    def asked(row: list[int], other: list[int]) -> Tensor:
        n = len(row)
        every = torch.arange(n + len(other))
        # Every word has two tokens.
        words = Words(
            first=2 * every,
            last=2 * every + 1,
            rows=Rows.from_lengths([n, len(other)]),
            asked=torch.tensor([1, n]),
            asked_rows=Rows.from_lengths([1, 1]),
        )
        pieces = [[i for word in ids for i in (word, 9)] for ids in (row, other)]
        with torch.no_grad():
            read = tokens(*pieces, words=words)
            return features(Numbers()(read, features.keep), read)[0]

    assert not torch.equal(asked([1, 2, 3], [4]), asked([1, 2, 5], [4]))
    torch.testing.assert_close(asked([1, 2, 3], [4]), asked([1, 2, 3], [9, 9, 9, 9]))


def test_dropout_falls_on_what_the_head_reads() -> None:
    torch.manual_seed(0)
    model = Answerer(Numbers(), AnswerConfig(network=network_of(dropout=0.25))).train()
    # The head is the identity.
    model.head.weight.data, model.head.bias.data = torch.eye(2), torch.zeros(2)
    given = tokens([7] * 4000)
    kept = model.logits(model.read(given), given)
    ratio = kept / model.eval().logits(model.read(given), given)
    share = (ratio == 0).float().mean().item()
    assert share == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(ratio[ratio != 0], torch.full_like(ratio[ratio != 0], 1 / 0.75))


@pytest.mark.parametrize(
    ("unit", "options", "message"),
    [
        ("token", {"layers": (3,)}, "network.layers: layer 3 of an encoder with layers 0 .* to 2"),
        ("token", {"layers": (-4,)}, "network.layers: layer -4"),
    ],
)
def test_features_that_cannot_be_read_are_refused(unit: Unit, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_features(Numbers(), network_of(**options), unit)


@pytest.mark.parametrize("options", [{"layers": (-2,)}, {"layers": (1, 2), "mix": "concat"}])
def test_layers_of_a_text_that_is_read_as_one_vector_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"layers and mix need pooled tokens: set head\.network\.pool"):
        ClassifyConfig(labels=("a", "b"), network=network_of(**options))


@pytest.mark.parametrize(
    "options", [{"layers": ()}, {"layers": (1, 2)}, {"lstm_layers": -1}, {"lstm_width": 0}, {"dropout": 1.0}]
)
def test_impossible_features_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="network"):
        network_of(**options)


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, True),
        ({"dropout": 0.3}, True),
        ({"pool": "mean"}, False),
        ({"words": "last"}, False),
        ({"layers": (-2,)}, False),
        ({"layers": (-1,), "mix": "scalar"}, False),  # has weights of its own
    ],
)
def test_which_features_other_tools_know(options: dict[str, Any], plain: bool) -> None:
    assert network_of(**options).plain is plain


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from(["mean", "max"]))
def test_merging_is_that_of_each_text_alone(counts: list[int], how: str) -> None:
    x = torch.randn(sum(counts), 3, generator=torch.Generator().manual_seed(2))
    expected = torch.stack([part.mean(0) if how == "mean" else part.amax(0) for part in x.split(counts)])
    torch.testing.assert_close(merge_rows(x, torch.tensor(counts), how), expected, rtol=0, atol=1e-6)


def test_gradients_pass_through_merging() -> None:
    x = torch.tensor([[1.0], [5.0], [2.0]], requires_grad=True)
    merge_rows(x, torch.tensor([2, 1]), "mean").sum().backward()
    assert x.grad is not None and x.grad.ravel().tolist() == [0.5, 0.5, 1]


def test_a_fresh_head_is_drawn_as_published() -> None:
    torch.manual_seed(0)
    sizes = BertConfig(vocab_size=9, width=64, n_layers=1, n_heads=1, feed_forward_width=4, max_positions=4)
    labels = tuple(map(str, range(100)))
    head = Classifier(Bert(sizes), ClassifyConfig(labels=labels)).head
    assert not head.bias.any()
    assert float(head.weight.detach().abs().max()) <= 2 * HEAD_INIT_RANGE
    # A normal distribution truncated at two standard deviations keeps 0.88 of its standard deviation.
    assert float(head.weight.detach().std()) == pytest.approx(0.88 * HEAD_INIT_RANGE, rel=0.03)
