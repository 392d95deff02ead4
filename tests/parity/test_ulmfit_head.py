"""ULMFiT's head against the documented one in plain PyTorch modules with the same weights: eval and train.

BatchNorm, dropout, linear, ReLU, BatchNorm, dropout, linear (Howard & Ruder 2018; specification of ULMFiT, §3), as
fastai combines them, over concat pooling of an AWD-LSTM.
"""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firth.layers.dropout import Dropout
from firth.models.awd_lstm import AwdLstm
from firth.models.config import AwdLstmConfig
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig, LinearConfig
from firth.tasks.rows import Example, collate, make_row, target

LENGTHS, WIDTH, K = (4, 9, 1, 6), 5, 3
OFF = dict.fromkeys(("embedding_dropout", "input_dropout", "weight_dropout", "hidden_dropout"), 0.0)
NAMES = {"norm": "0", "hidden": "2", "hidden_norm": "4", "output": "6"}


def ours() -> Classifier:
    torch.manual_seed(0)
    encoder = AwdLstm(AwdLstmConfig(vocab_size=20, width=WIDTH, hidden_width=7, n_layers=2, **OFF))
    config = ClassifyConfig(labels=("a", "b", "c"), network=LinearConfig(hidden_width=6, dropout=0.0))
    made = Classifier(encoder, config).double()
    for part in made.head.modules():
        if isinstance(part, Dropout):
            part.p = 0.0
    for tensor in (*made.head.parameters(), *made.head.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.3, 1.7) if tensor.dim() == 1 else tensor.data.normal_(std=0.5)
    return made


def theirs(made: Classifier) -> nn.Sequential:
    head = nn.Sequential(
        nn.BatchNorm1d(3 * WIDTH),
        nn.Dropout(0.0),
        nn.Linear(3 * WIDTH, 6),
        nn.ReLU(),
        nn.BatchNorm1d(6),
        nn.Dropout(0.0),
        nn.Linear(6, K),
    ).double()
    state = {f"{NAMES[name.split('.')[0]]}.{name.split('.')[1]}": t for name, t in made.head.state_dict().items()}
    state = {name.replace("n_batches", "num_batches_tracked"): t.clone() for name, t in state.items()}
    head.load_state_dict(state)
    return head


def examples() -> list[Example]:
    rng = torch.Generator().manual_seed(3)
    rows = [make_row(torch.randint(20, (n,), generator=rng).tolist()) for n in LENGTHS]
    return [Example((row,), (1,), {"label": target([0], [i % K])}) for i, row in enumerate(rows)]


def pooled(top: Sequence[Tensor]) -> Tensor:
    """The last state, the maximum and the mean, text by text."""
    return torch.stack([torch.cat([x[-1], x.amax(0), x.mean(0)]) for x in top])


def _of_the_first_batches(head: nn.Sequential, number: int) -> None:
    """Over the first ten batches our running statistics are the plain mean; PyTorch's default momentum is 0.1."""
    for part in head:
        if isinstance(part, nn.BatchNorm1d):
            part.momentum = 1 / number


@pytest.mark.parametrize("train", [False, True])
def test_logits_loss_gradients_and_statistics(train: bool) -> None:
    made = ours().train(train)
    head, batch = theirs(made).train(train), collate(examples())
    for number in (1, 3):  # two updates each
        hidden = made.encoder(batch.tokens)
        x = pooled(hidden.top.split(LENGTHS))
        _of_the_first_batches(head, number)
        loss = F.cross_entropy(head(x), batch.targets["label"].label, reduction="sum")
        step = made(batch)
        torch.testing.assert_close(step.losses["label"], loss.float(), rtol=1e-6, atol=1e-6)
        _of_the_first_batches(head, number + 1)
        torch.testing.assert_close(made.logits(hidden, batch.tokens), head(x).float(), rtol=1e-6, atol=1e-6)
        mine = torch.autograd.grad(step.losses["label"], list(made.parameters()))
        other = torch.autograd.grad(loss, [*made.encoder.parameters(), *head.parameters()])
        for (name, _), a, b in zip(made.named_parameters(), mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)
    state = head.state_dict()
    for name, buffer in made.head.named_buffers():
        part, kind = name.split(".")
        if kind == "n_batches":
            assert buffer == 4 * train
            continue
        torch.testing.assert_close(buffer, state[f"{NAMES[part]}.{kind}"], rtol=0, atol=1e-10)


def test_dropout_falls_after_the_norm() -> None:
    """Half of the normalised features are zero, the others doubled."""
    made = ours().train()
    made.head.dropout.p = 0.5
    seen: list[Tensor] = []
    made.head.hidden.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    x = torch.randn(400, 3 * WIDTH, dtype=torch.float64)
    made.head(x)
    dropped = (seen[0] == 0).double().mean()
    assert 0.45 < dropped < 0.55
    with torch.no_grad():
        made.head.dropout.p = 0.0
        made.head(x)
    kept = seen[0] != 0
    torch.testing.assert_close(seen[0][kept], 2 * seen[1][kept])
