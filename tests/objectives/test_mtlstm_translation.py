"""CoVe's translation objective: its loss by hand, untied matrices, generation word by word."""

import dataclasses
from itertools import product
from typing import Any

import pytest
import torch

from firth.data.batch import Batch, Target
from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.inference.decoding import beam_search
from firth.models.config import MtLstmConfig
from firth.models.mtlstm import MtLstm
from firth.objectives.config import MtLstmTranslationConfig
from firth.objectives.mtlstm_translation import MtLstmTranslation

SIZES = MtLstmConfig(vocab_size=9, width=5, hidden_width=4, dropout=0.0, init_range=0.6)
START, END = 1, 3
SOURCES = [[5, 6, 7], [8], [4, 5, 6, 7, 8]]
TARGETS = [[4, 5], [6, 7, 8, 2], [4]]


def made(dropout: float = 0.0, **changes: Any) -> MtLstmTranslation:
    torch.manual_seed(0)
    return MtLstmTranslation(MtLstm(dataclasses.replace(SIZES, **changes)), MtLstmTranslationConfig(dropout=dropout))


def batch_of(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    labels = torch.tensor([piece for row in targets for piece in [*row, END]])
    second = pack_lists([[START, *row] for row in targets])
    return Batch(pack_lists(sources), {"translation": Target(torch.arange(len(labels)), labels)}, second=second)


def log_probs(objective: MtLstmTranslation, sources: list[list[int]], targets: list[list[int]]) -> torch.Tensor:
    batch = batch_of(sources, targets)
    assert objective.decoder is not None and batch.second is not None
    return objective.decoder.output(objective.written(batch.tokens, batch.second)).log_softmax(1)


def test_loss_is_the_likelihood_in_training_too() -> None:
    objective, batch = made(), batch_of(SOURCES, TARGETS)
    label, likelihoods = batch.targets["translation"].label, log_probs(objective, SOURCES, TARGETS)
    for training in (True, False):
        step = objective.train(training)(batch)
        torch.testing.assert_close(step.losses["translation"], -likelihoods.gather(1, label[:, None]).sum())
        assert int(step.correct["translation"]) == int((likelihoods.argmax(1) == label).sum())


def test_source_target_and_output_have_matrices_of_their_own() -> None:
    objective = made()
    by_word = {name for name, tensor in objective.state_dict().items() if tensor.shape[0] == SIZES.vocab_size}
    assert by_word == {"encoder.words", "decoder.embedding.weight", "decoder.output.weight", "decoder.output.bias"}
    objective(batch_of(SOURCES, TARGETS)).losses["translation"].backward()
    assert "encoder.words" not in dict(objective.named_parameters())
    for name, parameter in objective.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), name


def test_written_word_by_word_as_at_once() -> None:
    objective = made().eval()
    targets = [[4, 5, 2], [6, 7, 8], [4, 4, 6]]
    with torch.no_grad():
        whole = log_probs(objective, SOURCES, targets).unflatten(0, (3, 4))
        state = objective.begin(pack_lists(SOURCES))
        for place in range(4):
            ids = torch.tensor([[START, *row][place] for row in targets])
            found, state = objective.advance(ids, state)
            torch.testing.assert_close(found, whole[:, place], rtol=0, atol=1e-5)


def test_a_wide_beam_finds_the_best_of_all_translations() -> None:
    """Brute force over every translation of at most two words."""
    objective = made(vocab_size=6).eval()
    sources = [[4, 5], [5], [5, 4, 4]]
    words = [word for word in range(6) if word != END]
    every = [list(some) for n in range(3) for some in product(words, repeat=n)]
    with torch.no_grad():
        found = beam_search(
            objective.advance,
            objective.begin(pack_lists(sources)),
            torch.full((3,), START),
            end_id=END,
            beam=40,
            length_penalty=0.0,
            most=[3] * 3,
        )
        for source, hypotheses in zip(sources, found, strict=True):
            scores = []
            for target in every:
                rows = log_probs(objective, [source], [target])
                scores.append(float(rows.gather(1, torch.tensor([*target, END])[:, None]).sum()))
            ended = [one for one in hypotheses if one.ended and len(one.ids) <= 2]
            best = max(range(len(every)), key=scores.__getitem__)
            assert ended[0].ids == every[best]
            assert ended[0].log_prob == pytest.approx(scores[best], abs=1e-4)


def test_dropout_acts_in_training_alone() -> None:
    objective, batch = made(dropout=0.3), batch_of(SOURCES, TARGETS)
    a, b = (objective(batch).losses["translation"].item() for _ in range(2))
    assert a != b
    objective.eval()
    a, b = (objective(batch).losses["translation"].item() for _ in range(2))
    assert a == b


def test_an_encoder_alone_has_no_decoder() -> None:
    objective = MtLstmTranslation(MtLstm(SIZES), MtLstmTranslationConfig(decoder=False))
    assert objective.decoder is None and all(name.startswith("encoder.") for name in objective.state_dict())


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_that_is_no_share(dropout: float) -> None:
    with pytest.raises(ConfigError, match="objective.dropout"):
        MtLstmTranslationConfig(dropout=dropout)
