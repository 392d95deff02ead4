"""Initial weights of a model: each option does what it says, and only that."""

from pathlib import Path

import pytest
import torch

from firth.data.batch import Objective
from firth.data.shards import Corpus
from firth.errors import ConfigError
from firth.packed import Rows, Tokens
from firth.pretraining.assembly import make_objective
from firth.pretraining.config import InitConfig
from firth.pretraining.cooccurrence import token_counts
from firth.pretraining.initialization import (
    _OUTPUT_BIASES,
    _first_of,
    _table,
    extrapolate_positions,
    initialize,
)
from firth.pretraining.recipe import Pretrain, read_recipe

SIZES = {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 32, "max_positions": 128}


def recipe(corpus: Corpus, model: str = "bert-tiny", sizes: dict[str, int] = SIZES, **data: str) -> Pretrain:
    sizes = {key: value for key, value in sizes.items() if model.startswith("bert") or key != "feed_forward_width"}
    plain = {"model": model, "encoder": sizes, "data": {"corpus": str(corpus.folder), **data}}
    return read_recipe(plain, [], "test", vocab_size=corpus.tokenizer.size)


def started(corpus: Corpus, config: InitConfig, model: str = "bert-tiny", sizes: dict[str, int] = SIZES) -> Objective:
    objective = make_objective(recipe(corpus, model, sizes))
    initialize(objective, corpus, config, lambda text: None)
    return objective.eval()


@pytest.fixture(scope="module")
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus(str(tiny_corpus))


def test_the_default_changes_nothing(corpus: Corpus) -> None:
    before = make_objective(recipe(corpus)).state_dict()
    after = started(corpus, InitConfig()).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_bias_starts_as_the_log_frequencies(corpus: Corpus) -> None:
    objective = started(corpus, InitConfig(output_bias="frequencies"))
    bias = objective.state_dict()["mlm.bias"]
    assert bias.exp().sum() == pytest.approx(1)
    ids = torch.cat([torch.from_numpy(corpus.open(i).ids.astype("int64")) for i in corpus.shards("train")])
    assert int(bias.argmax()) == int(ids.bincount().argmax())


def test_a_layer_as_wide_as_the_vocabulary_is_not_taken_for_it(corpus: Corpus) -> None:
    sizes = SIZES | {"feed_forward_width": corpus.tokenizer.size, "max_positions": corpus.tokenizer.size}
    before = make_objective(recipe(corpus, sizes=sizes)).state_dict()
    config = InitConfig(embeddings="cooccurrence", output_bias="frequencies")
    after = started(corpus, config, sizes=sizes).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"encoder.embeddings.pieces.weight", "mlm.bias"}


@pytest.mark.parametrize(
    "size", ["bert-tiny", "bert-ltr-tiny", "gpt-tiny", "lstm-small", "awd-lstm-tiny", "elmo-mini", "vectors-small"]
)
def test_each_system_has_the_parameters_that_are_named(size: str) -> None:
    made = make_objective(read_recipe({"model": size, "data": {"corpus": "-"}}, [], "test", vocab_size=777))
    assert len(_table(made)) == 777
    shapes = {shape for p in made.parameters() if (shape := tuple(p.shape)) == (777,)}
    bias = _first_of(made, _OUTPUT_BIASES)
    assert (None if bias is None else tuple(bias.shape)) == next(iter(shapes), None)


def test_positions_and_tokens_share_no_dimension(corpus: Corpus) -> None:
    objective = started(corpus, InitConfig(embeddings="cooccurrence", positions="sinusoids", embedding_deviation=0.1))
    embeddings = objective.encoder.embeddings
    tokens, positions = embeddings.pieces.weight.detach(), embeddings.positions.weight.detach()
    assert tokens[:, :16].abs().max() == 0 == positions[:, 16:].abs().max()
    assert positions[:, :16].pow(2).mean() == pytest.approx(0.01, rel=1e-4)
    seen = torch.from_numpy(token_counts(corpus) > 0)
    assert tokens[seen, 16:].pow(2).mean(1).sqrt().numpy() == pytest.approx(0.1, rel=1e-4)
    # [MASK] never occurs in text but still gets a vector.
    assert 0.05 < tokens[corpus.tokenizer.mask_id, 16:].pow(2).mean().sqrt() < 0.2


@pytest.mark.parametrize("offset", [-2, -1, 1, 3])
def test_a_head_starts_by_attending_to_its_neighbour(corpus: Corpus, offset: int) -> None:
    config = InitConfig(positions="sinusoids", neighbour_heads=(offset,), neighbour_gain=2.0)
    wide = SIZES | {"width": 128, "n_heads": 2}
    encoder = started(corpus, config, sizes=wide).encoder
    rows = Rows.from_lengths([20])
    x = encoder(Tokens(rows=rows, ids=torch.zeros(20, dtype=torch.int64)), keep=(0,)).layers[0]
    attention = encoder.blocks[0].attention
    query, key, _ = attention.query_key_value(x).unflatten(-1, (3, 2, -1)).unbind(1)
    scores = query[:, 0] @ key[:, 0].T
    for place in range(max(0, -offset), min(20, 20 - offset)):
        assert int(scores[place].argmax()) == place + offset


def test_a_layer_takes_as_many_neighbours_as_it_has_heads(corpus: Corpus) -> None:
    four = started(corpus, InitConfig(positions="sinusoids", neighbour_heads=(-1, 1, -2, 2)))
    two = started(corpus, InitConfig(positions="sinusoids", neighbour_heads=(-1, 1)))
    weights = (made.encoder.blocks[0].attention.query_key_value.weight for made in (four, two))
    assert torch.equal(*weights)


def test_other_systems_take_what_they_have(corpus: Corpus, tiny_word_corpus: Path) -> None:
    places = InitConfig(embeddings="cooccurrence", positions="sinusoids", neighbour_heads=(-1,))
    gpt = started(corpus, places, "gpt-tiny")
    assert gpt.encoder.piece_embedding[:, :16].abs().max() == 0
    words = Corpus(str(tiny_word_corpus))
    both = InitConfig(embeddings="cooccurrence", output_bias="frequencies")
    for model in ("lstm-small", "awd-lstm-small"):
        objective = started(words, both, model, {})
        assert objective.state_dict()["bias"].exp().sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("model", "config", "message"),
    [
        ("lstm-small", InitConfig(positions="sinusoids"), "require learned positions (BERT, GPT)"),
        ("gpt-tiny", InitConfig(output_bias="frequencies"), "init.output_bias: the model's softmax has no bias"),
        ("bert-tiny", InitConfig(neighbour_heads=(1,)), "requires init.positions='sinusoids'"),
    ],
)
def test_what_a_model_does_not_have_is_refused(corpus: Corpus, model: str, config: InitConfig, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        started(corpus, config, model, SIZES if "lstm" not in model else {})
    assert message in str(caught.value)


def test_later_positions_continue_the_trained_ones(corpus: Corpus) -> None:
    encoder = started(corpus, InitConfig(positions="sinusoids"), sizes=SIZES | {"width": 128}).encoder
    table = encoder.embeddings.positions.weight.detach()
    waves = table.clone()
    table[96:].normal_(0, 0.02)
    extrapolate_positions(encoder, 96)
    assert torch.equal(table[:96], waves[:96])
    distances = torch.cdist(table[96:], waves)
    # The first extrapolated positions are nearest to their original vectors; distant ones fade.
    assert distances[:16].argmin(1).tolist() == list(range(96, 112))


@pytest.mark.parametrize("n", [1, 128, 1000])
def test_a_number_of_trained_positions_leaves_some_to_continue(corpus: Corpus, n: int) -> None:
    with pytest.raises(ConfigError, match="expected 2 to 127; the model has 128"):
        extrapolate_positions(started(corpus, InitConfig()).encoder, n)


def test_trained_positions_are_of_a_model(corpus: Corpus) -> None:
    plain = {"model": "bert-tiny", "data": {"corpus": str(corpus.folder)}, "init": {"trained_positions": 20}}
    with pytest.raises(ConfigError, match="needs a trained model, but bert-tiny is a size"):
        read_recipe(plain, [], "test", vocab_size=corpus.tokenizer.size)
