"""A head's own word and character vectors, and where the encoder's layers join them (TagLM, ELMo)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from network_options import network_of
from torch import Tensor, nn

from firth.convert.padded import make_padded
from firth.data.batch import Batch
from firth.errors import ConfigError
from firth.finetuning.base import freeze
from firth.finetuning.recipe import AdaptConfig
from firth.models.bert import Bert
from firth.models.bilm import Bilm
from firth.models.config import BertConfig, BilmConfig
from firth.packed import Encoder, Hidden, Tokens
from firth.tasks.answer import Answerer
from firth.tasks.classify import Classifier
from firth.tasks.config import AnswerConfig, ClassifyConfig, TagConfig
from firth.tasks.features import OwnWords
from firth.tasks.model import TaskModel
from firth.tasks.rows import Example, RowWords, collate, make_row, target
from firth.tasks.tag import Tagger
from firth.text.characters import character_rows

WORDS = ["the", "farmer", "of", "Alton", "a", "to", "walked", "river", "zyzzyva", "."]
N_WORDS, WIDTH = 9, 3  # the last two words share one id: unknown
BILM = BilmConfig(
    vocab_size=N_WORDS, width=2, cells=3, character_width=2, filters=((1, 2), (2, 3)), n_highways=0, n_layers=2
)
LM = 4  # hidden size of its layers
TAGGER = {"own_words": 5, "lstm_layers": 2, "lstm_width": WIDTH, "dropout": 0.0}


def tagger(encoder: Encoder | None = None, **features: Any) -> Tagger:
    torch.manual_seed(0)
    options = TagConfig(labels=("O", "S-X", "B-X"), network=network_of(**{**TAGGER, **features}))
    made = Tagger(Bilm(BILM) if encoder is None else encoder, options)
    torch.manual_seed(1)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made.double().eval()


def batch(pieces: int = 1) -> Batch:
    """Two rows of words with characters, each word of so many tokens; all but the first of a row are asked."""
    draw, found = np.random.default_rng(0), []
    for n_words in (3, 5):
        chosen = draw.integers(0, len(WORDS), n_words * pieces)
        bounds = np.arange(n_words)[:, None] * pieces + np.array([0, pieces - 1])
        asked, ids = np.arange(1, n_words), np.minimum(chosen, N_WORDS - 1)
        chars = character_rows([WORDS[i] for i in chosen])
        row = make_row(ids, words=RowWords(bounds, asked), chars=chars)
        found.append(Example((row,), (1,), {"tag": target(range(len(asked)), asked % 3)}))
    return collate(found)


def parts_of(made: TaskModel, given: Batch) -> tuple[Tensor, Tensor, Any]:
    """The head's own vectors and the encoder's top layer for all words, and the rows of words."""
    assert made.features.own is not None and given.tokens.words is not None
    own, words = made.features.own(given.tokens), given.tokens.words
    top = made.encoder(given.tokens).top
    return own.index_select(0, words.first), top.index_select(0, words.first), words


@pytest.mark.parametrize(
    ("join", "lower", "upper", "width"),
    [("input", 5 + LM, None, 6), ("first", 5, 6 + LM, 6), ("last", 5, None, 6 + LM), ("none", 5, None, 6)],
)
def test_each_place_has_its_widths(join: Any, lower: int, upper: int | None, width: int) -> None:
    features = tagger(join=join).features
    assert features.lstm is not None and features.lstm.layers[0].input_size == lower
    assert (None if features.upper is None else features.upper.layers[0].input_size) == upper
    assert features.width == width


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("join", ["input", "first", "last", "none"])
def test_the_encoder_enters_where_it_is_said(join: Any, cell: Any) -> None:
    made, given = tagger(join=join, cell=cell), batch()
    own, top, words = parts_of(made, given)
    lower, upper = made.features.lstm, made.features.upper
    if join == "input":
        expected = lower(torch.cat([own, top], 1), words.rows)
    elif join == "first":
        expected = upper(torch.cat([lower(own, words.rows), top], 1), words.rows)
    elif join == "last":
        expected = torch.cat([lower(own, words.rows), top], 1)
    else:
        expected = lower(own, words.rows)
    found = made.features(made.read(given.tokens), given.tokens)
    torch.testing.assert_close(found, expected.index_select(0, words.asked), rtol=0, atol=1e-12)


def test_the_second_mix_stands_beside_what_taglm_makes() -> None:
    options = {"layers": (0, 1, 2), "mix": "scalar", "join": "first", "second_mix": True}
    made, given = tagger(**options), batch()
    without = tagger(**{**options, "second_mix": False})
    without.load_state_dict(
        {n: t for n, t in made.state_dict().items() if ".second." not in n and "head." not in n}
        | {n: t for n, t in without.state_dict().items() if "head." in n}
    )
    hidden = made.read(given.tokens)
    found, (_, _, words) = made.features(hidden, given.tokens), parts_of(made, given)
    torch.testing.assert_close(found[:, :6], without.features(hidden, given.tokens), rtol=0, atol=0)
    layers = {n: x.index_select(0, words.first.index_select(0, words.asked)) for n, x in hidden.layers.items()}
    torch.testing.assert_close(found[:, 6:], made.features.second(layers), rtol=0, atol=1e-12)


def test_the_baseline_is_the_same_model_with_nothing_of_the_encoder() -> None:
    """TagLM with a zero weight on the language model equals the tagger without one."""
    with_lm, without, given = tagger(join="first"), tagger(join="none"), batch()
    state = {n.replace("upper.layers.0", "lstm.layers.1"): t.clone() for n, t in with_lm.state_dict().items()}
    for name in ("weight_ih_l0", "weight_ih_l0_reverse"):
        upper = getattr(with_lm.features.upper.layers[0], name).data
        upper[:, 6:] = 0
        state[f"features.lstm.layers.1.{name}"] = upper[:, :6]
    without.load_state_dict(state)
    torch.testing.assert_close(with_lm(given).losses, without(given).losses, rtol=0, atol=1e-12)


class Silent(Encoder):
    """An encoder that must not run."""

    def __init__(self) -> None:
        super().__init__()
        self.config = BILM
        self.weight = nn.Parameter(torch.ones(1))

    @property
    def widths(self) -> tuple[int, ...]:
        return (LM, LM)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [[self.weight]]

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,)) -> Hidden:
        raise AssertionError("nobody reads it")


def test_without_a_language_model_the_encoder_does_not_run() -> None:
    assert set(tagger(Silent(), join="none")(batch()).losses) == {"tag"}


@pytest.mark.parametrize("join", ["input", "first", "last", "none"])
def test_the_frozen_language_model_has_no_gradient(join: Any) -> None:
    made = tagger(join=join, own_characters="cnn").train()
    assert freeze(made, AdaptConfig(frozen_groups=-1))
    made(batch()).losses["tag"].backward()
    for name, parameter in made.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) != name.startswith("encoder."), name


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_a_word_of_pieces_is_known_by_those_that_stand_for_it(how: Any) -> None:
    made, given = tagger(words=how, lstm_layers=0, own_characters="cnn"), batch(pieces=3)
    own = made.features.own(given.tokens).unflatten(0, (-1, 3))
    expected = {"first": own[:, 0], "last": own[:, 2], "mean": own.mean(1)}[how]
    found = made.features(made.read(given.tokens), given.tokens)[:, : own.shape[2]]
    torch.testing.assert_close(found, expected.index_select(0, given.tokens.words.asked), rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_characters_stand_before_the_word(training: bool) -> None:
    torch.manual_seed(0)
    own = OwnWords(N_WORDS, network_of(own_words=5, own_characters="cnn", dropout=0.0)).double().train(training)
    assert own.width == 30 + 5
    tokens = batch().tokens
    found = own(tokens)
    torch.testing.assert_close(found[:, 30:], own.words.weight.index_select(0, tokens.ids), rtol=0, atol=0)
    # 30 filters of width three over 30 numbers per character, tanh, the maximum over positions.
    convolution = own.characters.convolutions[0]
    assert convolution.weight.shape == (30, 30, 3)
    for word, row in enumerate(tokens.chars):
        x = F.embedding(row, own.characters.embedding.weight)
        windows = [torch.einsum("kcw,wc->k", convolution.weight, x[at : at + 3]) for at in range(48)]
        expected = (torch.stack(windows) + convolution.bias).tanh().amax(0)
        torch.testing.assert_close(found[word, :30], expected, rtol=0, atol=1e-10)


def test_sizes_of_the_gru_are_those_of_taglm() -> None:
    own = OwnWords(N_WORDS, network_of(own_characters="gru"))
    assert own.width == 160 and own.words is None
    assert own.characters.gru.weight_ih_l0.shape == (3 * 80, 25)


def test_dropout_of_characters_is_fresh_for_each_word() -> None:
    own = OwnWords(N_WORDS, network_of(own_characters="gru", dropout=0.5)).train()
    row = make_row([1, 1], chars=character_rows(["farmer", "farmer"]))
    tokens = collate([Example((row,), (1,), {})]).tokens
    one, other = own(tokens)
    assert not torch.equal(one, other)
    torch.testing.assert_close(*own.eval()(tokens), rtol=0, atol=0)


def test_dropout_may_leave_the_output_whole() -> None:
    for kept in (True, False):
        made = tagger(join="first", dropout=0.25, output_dropout=kept)
        assert (made.features.dropout.p, made.features.lstm.dropout.p) == (0.25 if kept else 0.0, 0.25)
        assert made.features.upper.dropout.p == 0.25


@pytest.mark.parametrize("unit", ["row", "token"])
def test_texts_and_contexts_have_words_of_their_own_too(unit: str) -> None:
    made: TaskModel
    features = network_of(**{**TAGGER, "pool": "max" if unit == "row" else "mean", "join": "first"})
    if unit == "row":
        made = Classifier(Bilm(BILM), ClassifyConfig(labels=("a", "b"), network=features)).double().eval()
    else:
        made = Answerer(Bilm(BILM), AnswerConfig(network=features)).double().eval()
    tokens = batch().tokens
    own, top = made.features.own(tokens), made.encoder(tokens).top
    x = made.features.upper(torch.cat([made.features.lstm(own, tokens.rows), top], 1), tokens.rows)
    expected = torch.stack([part.amax(0) for part in x.split(tokens.rows.lengths.tolist())]) if unit == "row" else x
    torch.testing.assert_close(made.features(made.read(tokens), tokens), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"own_words": -1}, "own_words=-1: expected 0 or more"),
        ({"join": "first", "lstm_layers": 2}, "requires own_words or own_characters"),
        ({"join": "none", "lstm_layers": 2}, "requires own_words or own_characters"),
        ({"join": "first", "own_words": 5, "lstm_layers": 1}, "lstm_layers of at least 2, not 1"),
        ({"join": "last", "own_words": 5}, "lstm_layers of at least 1, not 0"),
        ({"lstm_layers": 0}, "lstm_layers=0 requires own_words or own_characters"),
        ({"join": "last", "own_words": 5, "lstm_layers": 1, "second_mix": True}, "requires join='input' or 'first'"),
        ({"join": "none", "own_words": 5, "layers": (0,)}, "reads no layer of the encoder: leave out layers"),
        ({"join": "none", "own_words": 5, "mix": "scalar"}, "reads no layer of the encoder"),
        ({"output_dropout": False, "own_words": 5}, "second_mix=false and output_dropout=true"),
    ],
)
def test_combinations_without_a_meaning_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        network_of(**options)


def test_other_tools_do_not_know_such_heads() -> None:
    sizes = {"width": 8, "n_layers": 1, "n_heads": 2, "feed_forward_width": 8, "max_positions": 8}
    made = tagger(Bert(BertConfig(vocab_size=9, **sizes)), lstm_layers=0)
    with pytest.raises(ConfigError, match="network.kind='bilstm' has no padded form"):
        make_padded(made, ())


def test_tokens_without_characters_are_a_mistake_of_ours() -> None:
    tokens = collate([Example((make_row([1, 2]),), (1,), {})]).tokens
    with pytest.raises(ValueError, match=r"tokens\.chars is missing"):
        OwnWords(N_WORDS, network_of(own_characters="cnn"))(tokens)
