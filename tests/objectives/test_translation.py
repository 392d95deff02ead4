"""The translation objective: its loss by hand, one matrix for three uses, and generation token by token."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from firth.data.batch import Batch, Target
from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.models.config import TransformerConfig
from firth.models.transformer import TransformerEncoder
from firth.objectives.config import TranslationConfig
from firth.objectives.translation import Translation

SIZES = TransformerConfig(vocab_size=19, width=8, n_layers=2, n_heads=2, feed_forward_width=16, dropout=0.0)
START, END = 1, 2
SOURCES = [[5, 6, 7, END], [8, END], [9, 10, 11, 12, 13, END]]
TARGETS = [[14, 15], [16, 17, 18, 3], [4]]
both_forms = pytest.mark.parametrize("norm", ["post", "pre"])


def made(norm: Any = "post", **changes: Any) -> Translation:
    torch.manual_seed(0)
    objective = Translation(TransformerEncoder(replace(SIZES, norm=norm)), TranslationConfig(**changes))
    for parameter in objective.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return objective


def batch_of(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    labels = torch.tensor([piece for row in targets for piece in [*row, END]])
    second = pack_lists([[START, *row] for row in targets])
    return Batch(pack_lists(sources), {"translation": Target(torch.arange(len(labels)), labels)}, second=second)


def log_probs(objective: Translation, batch: Batch) -> torch.Tensor:
    source = objective.encoder(batch.tokens)
    written = objective.decoder(batch.second, objective.encoder.piece_embedding, source.top, source.rows)
    return F.linear(written, objective.encoder.piece_embedding).log_softmax(1)


def test_loss_is_smoothed_in_training_and_the_likelihood_outside_of_it() -> None:
    objective, batch = made(label_smoothing=0.2), batch_of(SOURCES, TARGETS)
    label = batch.targets["translation"].label
    likelihoods = log_probs(objective, batch)
    plain = -likelihoods.gather(1, label[:, None]).sum()
    objective.eval()
    step = objective(batch)
    torch.testing.assert_close(step.losses["translation"], plain)
    assert int(step.correct["translation"]) == int((likelihoods.argmax(1) == label).sum())
    objective.train()
    answer = torch.full_like(likelihoods, 0.2 / 18).scatter(1, label[:, None], 0.8)
    expected = (answer * (answer.log() - likelihoods)).sum()
    torch.testing.assert_close(objective(batch).losses["translation"], expected)


def test_source_target_and_output_share_one_matrix() -> None:
    objective = made()
    names = [name for name, tensor in objective.state_dict().items() if tensor.shape[0] == SIZES.vocab_size]
    assert names == ["encoder.pieces.weight"]
    matrix = objective.encoder.piece_embedding
    assert matrix is objective.encoder.pieces.weight
    batch = batch_of(SOURCES, TARGETS)
    before = objective(batch).losses["translation"].item()
    # A token only in the source, one only in the decoder input, one only in the labels.
    for piece in (9, START, END):
        with torch.no_grad():
            matrix[piece] += 0.1
        after = objective(batch).losses["translation"].item()
        assert after != before
        before = after
    objective(batch).losses["translation"].backward()
    assert bool((matrix.grad.abs().sum(1) > 0).all()), "every piece is in the softmax"


def test_no_output_bias() -> None:
    assert not [name for name, tensor in made().state_dict().items() if tensor.shape == (SIZES.vocab_size,)]


@both_forms
def test_written_piece_by_piece_as_at_once(norm: Any) -> None:
    """With the cache of earlier tokens, log-probabilities equal those of reading all tokens again."""
    objective = made(norm).eval()
    targets = [[14, 15, 3], [16, 17, 18], [4, 4, 9]]
    with torch.no_grad():
        whole = log_probs(objective, batch_of(SOURCES, targets)).unflatten(0, (3, 4))
        state = objective.begin(pack_lists(SOURCES))
        for place in range(4):
            ids = torch.tensor([[START, *row][place] for row in targets])
            found, state = objective.advance(ids, state)
            torch.testing.assert_close(found, whole[:, place], rtol=0, atol=1e-5)


@both_forms
def test_rows_may_be_taken_several_times_left_out_and_reordered(norm: Any) -> None:
    objective = made(norm).eval()
    with torch.no_grad():
        _, state = objective.advance(torch.tensor([START] * 3), objective.begin(pack_lists(SOURCES)))
        chosen = torch.tensor([2, 0, 0, 2])
        _, state = objective.advance(torch.tensor([4, 14, 15, 6]), state.select(chosen))
        assert state.queries.lengths.tolist() == [1, 2, 1]
        state = state.select(torch.tensor([1, 2, 3]))
        assert state.queries.lengths.tolist() == [2, 1] and state.source.rows.n_rows == 2
        same = state.select(torch.tensor([1, 0, 2]))
        assert same.source is state.source, "the source is not copied while none of it is done"
        found, _ = objective.advance(torch.tensor([7, 8, 9]), same)
        sources = [SOURCES[0], SOURCES[0], SOURCES[2]]
        whole = log_probs(objective, batch_of(sources, [[15, 7], [14, 8], [6, 9]])).unflatten(0, (3, 3))
        torch.testing.assert_close(found, whole[:, 2], rtol=0, atol=1e-5)


@both_forms
def test_a_target_sees_nothing_ahead_of_it(norm: Any) -> None:
    objective = made(norm).eval()
    one = log_probs(objective, batch_of(SOURCES[:1], [[14, 15, 16, 17]]))
    other = log_probs(objective, batch_of(SOURCES[:1], [[14, 15, 9, 3]]))
    torch.testing.assert_close(one[:3], other[:3], rtol=0, atol=1e-6)
    assert not torch.allclose(one[3], other[3])


def test_every_source_piece_is_seen() -> None:
    objective = made().eval()
    first = log_probs(objective, batch_of([[5, 6, 7, END]], [[14]]))
    for place in range(3):
        row = [5, 6, 7, END]
        row[place] = 18
        assert not torch.allclose(first[0], log_probs(objective, batch_of([row], [[14]]))[0])


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_that_is_no_share(smoothing: float) -> None:
    with pytest.raises(ConfigError, match="objective.label_smoothing"):
        TranslationConfig(label_smoothing=smoothing)
