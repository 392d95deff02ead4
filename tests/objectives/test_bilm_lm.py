"""The bidirectional language-model objective."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from firth.data.batch import Batch
from firth.data.both_ways import BothWaysBatches
from firth.data.shards import Shard
from firth.errors import ConfigError
from firth.models.bilm import Bilm
from firth.models.config import BilmConfig
from firth.objectives.bilm import BilmLM
from firth.objectives.config import BilmLMConfig
from firth.packed import Carry
from firth.text.layouts import Layout
from firth.text.open_words import vocabulary_characters
from firth.text.tokenizer import Tokenizer
from firth.text.tokenizer_kinds import WORDS

TOKENIZER = Tokenizer.from_words([*WORDS.specials, *"abcdefgh"], lowercase=False)
LAYOUT = Layout((1,), (3, 1), (3,), has_segments=False)


def objective(negatives: int = 0, dropout: float = 0.0) -> BilmLM:
    torch.manual_seed(0)
    config = BilmConfig(
        vocab_size=TOKENIZER.size,
        width=6,
        cells=8,
        character_width=3,
        filters=((1, 4), (2, 5)),
        n_highways=1,
        dropout=dropout,
    )
    made = BilmLM(Bilm(config), BilmLMConfig(negatives=negatives)).double()
    torch.nn.init.normal_(made.softmax.bias)
    return made.eval()


def batches(length: int = 8, budget: int = 32) -> BothWaysBatches:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 7, 20)
    ids = random.integers(4, TOKENIZER.size, lengths.sum()).astype(np.uint16)
    shard = Shard("s", ids, np.cumsum([0, *lengths]), np.array([0, 20]))
    chars = vocabulary_characters(TOKENIZER)
    return BothWaysBatches.cut(shard, LAYOUT, length=length, budget_tokens=budget, slots=1, chars=chars, seed=None)


def test_both_terms_are_cross_entropies_of_their_own_stream() -> None:
    made, batch = objective(), batches()[0]
    step = made(batch)
    for term, half, tokens in (("forward", 0, batch.tokens), ("backward", 1, batch.second)):
        ids = tokens.ids.unflatten(0, (tokens.rows.n_rows, -1))
        # The backward stream is already reversed; the encoder alone would reverse it again.
        if half:
            flat = tokens.chars.unflatten(0, ids.shape).flip(1).flatten(0, 1)
            top = made.encoder(type(tokens)(tokens.rows, tokens.ids, chars=flat)).top.chunk(2, 1)[1]
            top = top.unflatten(0, ids.shape).flip(1).flatten(0, 1)
        else:
            top = made.encoder(tokens).top.chunk(2, 1)[0]
        expected = F.cross_entropy(made.softmax(top), batch.targets[term].label, reduction="sum")
        torch.testing.assert_close(step.losses[term].double(), expected, rtol=1e-6, atol=0)
        right = (made.softmax(top).argmax(1) == batch.targets[term].label).sum()
        assert int(step.correct[term]) == int(right)
    assert made.weights == {"forward": 0.5, "backward": 0.5}


def test_pieces_of_a_stream_add_up_to_the_whole() -> None:
    made = objective()

    def total(length: int, budget: int) -> tuple[Tensor, Carry | None]:
        cut, carry, sums = batches(length, budget), None, torch.zeros(2)
        for number in range(len(cut)):
            step = made(cut[number], carry)
            carry = step.carry
            sums += torch.stack([step.losses["forward"], step.losses["backward"]]).float()
        return sums, carry

    (short, carry), (long, other) = total(8, 16), total(1000, 2000)
    torch.testing.assert_close(short, long, rtol=1e-5, atol=0)
    assert carry is not None and other is not None
    for name, state in carry.items():
        torch.testing.assert_close(state, other[name], rtol=0, atol=1e-10)


def test_the_sample_is_for_training_alone() -> None:
    made, whole, batch = objective(negatives=4), objective(), batches()[0]

    def loss(model: BilmLM, seed: int = 0) -> float:
        torch.manual_seed(seed)
        with torch.no_grad():
            return float(sum(model(batch).losses.values()))

    assert loss(made) == loss(whole)
    made.train(), whole.train()
    assert loss(made) == loss(made) != loss(made, seed=1)
    assert loss(made) != loss(whole) == loss(whole, seed=1)
    # All words but one, or more, as negatives: the full softmax.
    for negatives in (TOKENIZER.size - 1, TOKENIZER.size, TOKENIZER.size + 9):
        assert loss(objective(negatives=negatives).train()) == loss(whole)
    assert loss(objective(negatives=TOKENIZER.size - 2).train()) != loss(whole)


def test_dropout_falls_on_what_words_are_predicted_from() -> None:
    made, batch = objective(dropout=0.5), batches()[0]
    seen: list[Tensor] = []
    made.dropout.register_forward_hook(lambda _, given, out: seen.append(out / given[0]))
    torch.manual_seed(0)
    made.train()(batch)
    ratio = torch.cat(seen)
    assert len(seen) == 2 and float((ratio == 0).float().mean()) == pytest.approx(0.5, abs=0.1)
    torch.testing.assert_close(ratio[ratio != 0], torch.full_like(ratio[ratio != 0], 2.0), rtol=1e-4, atol=0)


def test_it_learns_an_order_of_words_from_both_sides() -> None:
    """Words repeat in a fixed order: each one determines the next and the previous."""
    made = objective().float().train()
    ids = np.tile(np.arange(4, 12), 40).astype(np.uint16)
    shard = Shard("s", ids, np.arange(0, len(ids) + 1, 8), np.array([0, 40]))
    cut = BothWaysBatches.cut(
        shard, LAYOUT, length=16, budget_tokens=256, slots=1, chars=vocabulary_characters(TOKENIZER), seed=1
    )
    optimizer, carry = torch.optim.Adam(made.parameters(), lr=0.03), None
    for step_number in range(60):
        batch: Batch = cut[step_number % len(cut)]
        step = made(batch, None if batch.starts_stream else carry)
        carry = {name: state.detach() for name, state in step.carry.items()}
        optimizer.zero_grad()
        sum(step.losses.values()).backward()
        optimizer.step()
    for term, count in batch.counts().items():
        assert step.correct[term] > 0.95 * count, term


def test_a_negative_number_of_negatives_is_refused() -> None:
    with pytest.raises(ConfigError, match="negatives=-1: expected 0 or more"):
        BilmLMConfig(negatives=-1)
