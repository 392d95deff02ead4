"""Language modelling over a stream: the same loss whole or in parts, and learning to copy a text."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from firth.data.batch import Batch, Target
from firth.data.instances import plan_copies
from firth.data.rows import CopyBatches, cut_batches, row_lengths
from firth.data.shards import Shard
from firth.models.config import LstmConfig
from firth.models.lstm import Lstm
from firth.objectives.config import StreamingLMConfig
from firth.objectives.next_token import StreamingLM
from firth.packed import Rows, Tokens
from firth.text.layouts import Layout


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


def test_a_tiny_model_learns_to_write_what_it_read() -> None:
    """Texts of two random tokens of ten: without memory the loss is ln 10 for each, and 0 for the end token."""
    ends = np.arange(0, 9001, 2)
    shard = Shard("random", np.random.default_rng(0).integers(1, 11, 9000), ends, np.arange(len(ends)))
    plan, layout = plan_copies(ends, room=4, seed=1, epoch=0), Layout((), (0,), (0,), has_segments=False)
    batches = CopyBatches(shard, plan, cut_batches(row_lengths(plan, layout), 300, seed=1), layout)
    torch.manual_seed(0)
    made = StreamingLM(Lstm(LstmConfig(vocab_size=11, width=32)), StreamingLMConfig())
    optimizer = torch.optim.Adam(made.parameters(), 0.03)
    losses = []
    for number in range(80):
        data = batches[number]
        loss = made(data).losses["lm"] / data.counts()["lm"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.5 * (2 * math.log(10) / 3) < 0.5 * losses[0]
