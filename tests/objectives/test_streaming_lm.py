"""Language modelling over a stream: one loss, whether the stream comes whole or in pieces."""

import torch
import torch.nn.functional as F

from firth.data.batch import Batch, Target
from firth.models.lstm import Lstm
from firth.models.lstm_config import LstmConfig
from firth.objectives.config import StreamingLMConfig
from firth.objectives.streaming_lm import StreamingLM
from firth.packed import Rows, Tokens


def objective() -> StreamingLM:
    torch.manual_seed(0)
    made = StreamingLM(Lstm(LstmConfig(vocab_size=19, width=6)), StreamingLMConfig()).double()
    torch.nn.init.normal_(made.bias)
    return made


def batch(columns: torch.Tensor) -> Batch:
    rows = Rows.from_lengths([columns.shape[1] - 1] * len(columns))
    tokens = Tokens(rows, columns[:, :-1].flatten())
    return Batch(tokens, {"lm": Target(torch.arange(rows.n_tokens), columns[:, 1:].flatten())})


def test_loss_by_its_equations() -> None:
    made, data = objective(), batch(torch.randint(19, (2, 7), generator=torch.Generator().manual_seed(1)))
    logits = made.encoder(data.tokens).top @ made.encoder.embeddings.weight.T + made.bias
    expected = F.cross_entropy(logits, data.targets["lm"].label, reduction="sum")
    torch.testing.assert_close(made(data).losses["lm"], expected, rtol=0, atol=1e-10)


def test_pieces_of_a_stream_add_up_to_the_whole() -> None:
    made = objective()
    columns = torch.randint(19, (2, 13), generator=torch.Generator().manual_seed(1))
    whole = made(batch(columns)).losses["lm"]
    first = made(batch(columns[:, :6]))
    second = made(batch(columns[:, 5:]), first.carry)
    torch.testing.assert_close(first.losses["lm"] + second.losses["lm"], whole, rtol=0, atol=1e-10)
    forgetful = made(batch(columns[:, 5:]))
    assert not torch.allclose(forgetful.losses["lm"], second.losses["lm"])
