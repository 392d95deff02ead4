"""BERT's objective: its two losses by their equations, as sums, and the tied embedding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from firth.data.batch import Batch, Target
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import MaskedLMConfig
from firth.objectives.masked_lm import MaskedLM
from firth.packed import Rows, Tokens

SIZES = BertConfig(
    vocab_size=29,
    width=8,
    n_layers=2,
    n_heads=2,
    feed_forward_width=16,
    max_positions=16,
    activation="gelu_tanh",
)
LENGTHS = [6, 3, 9]
INDEX = [1, 4, 7, 10, 17]


def objective(*, next_sentence: bool = True) -> MaskedLM:
    torch.manual_seed(0)
    made = MaskedLM(Bert(SIZES), MaskedLMConfig(next_sentence=next_sentence)).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def batch(index: list[int] | None = None) -> Batch:
    torch.manual_seed(1)
    rows = Rows.from_lengths(LENGTHS)
    tokens = Tokens(rows, torch.randint(29, (rows.n_tokens,)), torch.randint(2, (rows.n_tokens,)))
    chosen = torch.tensor(INDEX if index is None else index, dtype=torch.int64)
    targets = {
        "mlm": Target(chosen, torch.randint(29, (len(chosen),))),
        "nsp": Target(torch.arange(3), torch.tensor([0, 1, 1])),
    }
    return Batch(tokens, targets)


def logits_of(made: MaskedLM, data: Batch) -> tuple[Tensor, Tensor]:
    """Vocabulary logits at the chosen positions and next-sentence logits, written out."""
    hidden = made.encoder(data.tokens)
    x = hidden.layers[2][data.targets["mlm"].index]
    x = F.gelu(F.linear(x, made.mlm.transform.weight, made.mlm.transform.bias), approximate="tanh")
    x = F.layer_norm(x, (8,), made.mlm.norm.weight, made.mlm.norm.bias, 1e-12)
    assert made.nsp is not None
    return x @ made.encoder.embeddings.pieces.weight.T + made.mlm.bias, F.linear(
        hidden.summary, made.nsp.weight, made.nsp.bias
    )


def test_losses_are_sums_by_the_equations() -> None:
    made, data = objective(), batch()
    step = made(data)
    for term, logits in zip(("mlm", "nsp"), logits_of(made, data), strict=True):
        label = data.targets[term].label
        expected = -logits.log_softmax(1)[torch.arange(len(label)), label].sum()
        torch.testing.assert_close(step.losses[term].double(), expected, rtol=0, atol=1e-5)
        assert int(step.correct[term]) == int((logits.argmax(1) == label).sum())
    assert data.counts() == {"mlm": 5, "nsp": 3}
    assert made.weights == {"mlm": 1.0, "nsp": 1.0}


def test_scores_are_those_of_the_loss() -> None:
    made, data = objective(), batch()
    hidden = made.encoder(data.tokens)
    vocabulary, follows = logits_of(made, data)
    torch.testing.assert_close(made.logits(hidden.top[INDEX]), vocabulary, rtol=0, atol=1e-10)
    torch.testing.assert_close(made.next_sentence_logits(hidden.summary), follows, rtol=0, atol=1e-10)


def test_without_next_sentence_prediction() -> None:
    made = objective(next_sentence=False)
    step = made(batch())
    assert set(step.losses) == set(step.correct) == set(made.weights) == {"mlm"}
    assert not [name for name, _ in made.named_parameters() if name.startswith("nsp")]


def test_no_predictions_cost_nothing_and_move_nothing() -> None:
    made = objective(next_sentence=False)
    step = made(batch([]))
    assert float(step.losses["mlm"].detach()) == 0.0
    step.losses["mlm"].backward()
    for name, p in made.named_parameters():
        assert p.grad is None or bool((p.grad == 0).all()), name


def test_the_output_matrix_is_the_embedding() -> None:
    made, data = objective(), batch()
    before = made.logits(made.encoder(data.tokens).top[INDEX])
    with torch.no_grad():
        made.encoder.embeddings.pieces.weight[28] += 1.0
    # Token 28 is in no sequence here, so only its own output column can change.
    assert 28 not in data.tokens.ids
    after = made.logits(made.encoder(data.tokens).top[INDEX])
    torch.testing.assert_close(after[:, :28], before[:, :28], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 28], before[:, 28])
    assert not [name for name in made.state_dict() if "decoder" in name]


def test_the_embedding_learns_from_both_ends() -> None:
    made, data = objective(next_sentence=False), batch()
    made(data).losses["mlm"].backward()
    grad = made.encoder.embeddings.pieces.weight.grad
    # The softmax covers every token, even those in no sequence.
    assert bool((grad.abs().sum(1) > 0).all())


def test_every_parameter_learns_from_the_two_terms() -> None:
    made = objective()
    step = made(batch())
    (step.losses["mlm"] + step.losses["nsp"]).backward()
    assert [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_pooler_learns_from_next_sentences_alone() -> None:
    made = objective()
    made(batch()).losses["mlm"].backward()
    assert made.encoder.pooler.weight.grad is None or not made.encoder.pooler.weight.grad.any()


def test_heads_start_as_the_encoder_does() -> None:
    torch.manual_seed(0)
    sizes = BertConfig(vocab_size=100, width=128, n_layers=1, n_heads=2, feed_forward_width=8, max_positions=8)
    made = MaskedLM(Bert(sizes), MaskedLMConfig())
    assert made.nsp is not None
    weight = made.mlm.transform.weight.detach()
    assert abs(float(weight.std()) - 0.88 * 0.02) < 0.0005
    assert float(weight.abs().max()) <= 0.04
    assert 0 < float(made.nsp.weight.detach().abs().max()) <= 0.04
    for bias in (made.mlm.bias, made.mlm.transform.bias, made.mlm.norm.bias, made.nsp.bias):
        assert bool((bias == 0).all())


@pytest.mark.parametrize(("vocab", "mlm", "nsp"), [(30522, 622_650, 1_538)])
def test_published_parameter_counts_of_the_heads(vocab: int, mlm: int, nsp: int) -> None:
    with torch.device("meta"):
        made = MaskedLM(Bert(BertConfig(vocab_size=vocab, n_layers=1)), MaskedLMConfig())
    assert made.nsp is not None
    assert sum(p.numel() for p in made.mlm.parameters()) == mlm
    assert sum(p.numel() for p in made.nsp.parameters()) == nsp
