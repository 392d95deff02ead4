"""AWD-LSTM's language model by its equations: the loss, the two penalties, and their divisors."""

import torch
import torch.nn.functional as F

from firth.data.batch import Batch, Target
from firth.layers.dropout import Dropout
from firth.models.awd_lstm import AwdLstm
from firth.models.config import AwdLstmConfig
from firth.objectives.awd_lm import AwdLM
from firth.objectives.config import AwdLMConfig
from firth.packed import Rows, Tokens


def objective(rates: float = 0.0, **options: float) -> AwdLM:
    torch.manual_seed(0)
    config = AwdLstmConfig(vocab_size=19, width=6, hidden_width=8, n_layers=2)
    made = AwdLM(AwdLstm(config), AwdLMConfig(**options)).double()
    torch.nn.init.normal_(made.bias)
    for part in made.encoder.modules():
        if isinstance(part, Dropout):
            part.p = rates
    return made


def batch(columns: torch.Tensor) -> Batch:
    rows = Rows.from_lengths([columns.shape[1] - 1] * len(columns))
    tokens = Tokens(rows, columns[:, :-1].flatten())
    return Batch(tokens, {"lm": Target(torch.arange(rows.n_tokens), columns[:, 1:].flatten())})


COLUMNS = torch.randint(19, (3, 8), generator=torch.Generator().manual_seed(1))


def test_loss_by_its_equations() -> None:
    made, data = objective().eval(), batch(COLUMNS)
    logits = made.encoder(data.tokens).top @ made.encoder.embeddings.weight.T + made.bias
    expected = F.cross_entropy(logits, data.targets["lm"].label, reduction="sum")
    step = made(data)
    torch.testing.assert_close(step.losses["lm"], expected, rtol=0, atol=1e-10)
    assert set(step.losses) == {"lm"}, "held-out losses are log-likelihoods"
    assert step.correct["lm"] == (logits.argmax(1) == data.targets["lm"].label).sum()


def test_penalties_are_means_over_all_units_once_divided() -> None:
    """AR: α · mean(m ⊙ h)², after dropout; TAR: β · mean (h_t - h_{t-1})², before it (Merity et al. 2017, §4.3)."""
    made, data = objective(dropout=0.5).train(), batch(COLUMNS)
    assert made.weights == {"lm": 1.0, "activation": 2.0, "change": 1.0}
    torch.manual_seed(5)
    step = made(data)
    top = made.encoder(data.tokens).top
    torch.manual_seed(5)
    seen = made.dropout(top, data.tokens.rows)
    assert (seen == 0).any() and not (top == 0).any()
    steps = top.view(3, 7, 6)
    counts = made.counts(data)
    assert counts == {"lm": 21, "activation": 21, "change": 18}
    # Penalties are summed in float32.
    torch.testing.assert_close(
        step.losses["activation"].double() / counts["activation"], seen.square().mean(), rtol=1e-5, atol=0
    )
    torch.testing.assert_close(
        step.losses["change"].double() / counts["change"], steps.diff(dim=1).square().mean(), rtol=1e-5, atol=0
    )
    assert set(step.correct) == {"lm"}
    logits = seen @ made.encoder.embeddings.weight.T + made.bias
    expected = F.cross_entropy(logits, data.targets["lm"].label, reduction="sum")
    torch.testing.assert_close(step.losses["lm"], expected, rtol=0, atol=1e-10)


def test_a_row_of_one_token_changes_nothing() -> None:
    made = objective().train()
    data = batch(COLUMNS[:1, :2])
    assert made.counts(data)["change"] == 0 and float(made(data).losses["change"].detach()) == 0


def test_pieces_of_a_stream_add_up_to_the_whole() -> None:
    made = objective().eval()
    columns = torch.randint(19, (2, 13), generator=torch.Generator().manual_seed(1))
    whole = made(batch(columns)).losses["lm"]
    first = made(batch(columns[:, :6]))
    second = made(batch(columns[:, 5:]), first.carry)
    torch.testing.assert_close(first.losses["lm"] + second.losses["lm"], whole, rtol=0, atol=1e-10)
    assert not torch.allclose(made(batch(columns[:, 5:])).losses["lm"], second.losses["lm"])


def test_input_and_output_share_one_matrix() -> None:
    made = objective()
    assert [name for name, p in made.named_parameters() if p.shape == (19, 6)] == ["encoder.embeddings.weight"]
