"""CBOW: contexts by hand, the loss by definition, windows sampled in training."""

import pytest
import torch
import torch.nn.functional as F

from firth.data.batch import Batch, Target
from firth.errors import ConfigError
from firth.models.config import VectorsConfig
from firth.models.vectors import Vectors
from firth.objectives.cbow import Cbow
from firth.objectives.config import CbowConfig
from firth.packed import Rows, Tokens


def make(window: int) -> Cbow:
    torch.manual_seed(0)
    return Cbow(Vectors(VectorsConfig(vocab_size=9, width=4)), CbowConfig(window=window))


def batch() -> Batch:
    """Two sequences, of four and two words; every word but the first of each is a target."""
    ids = torch.tensor([4, 5, 6, 7, 8, 4])
    index = torch.tensor([0, 1, 2, 4])
    return Batch(Tokens(Rows.from_lengths([4, 2]), ids), {"lm": Target(index, ids[index + 1])})


def neighbours(window: int) -> list[list[int]]:
    """For each target word, the ids around it in its sequence, without itself."""
    rows, found = [[4, 5, 6, 7], [8, 4]], []
    for row in rows:
        for place in range(1, len(row)):
            around = range(max(0, place - window), min(len(row), place + window + 1))
            found.append([row[i] for i in around if i != place])
    return found


@pytest.mark.parametrize("window", [1, 2, 5])
def test_the_loss_is_that_of_the_mean_of_the_neighbours(window: int) -> None:
    objective = make(window).eval().double()
    with torch.no_grad():
        objective.bias.copy_(torch.arange(9.0) / 9)
    table, data = objective.encoder.piece_embedding, batch()
    context = torch.stack([table[some].mean(0) for some in neighbours(window)])
    logits = context @ table.T + objective.bias
    expected = F.cross_entropy(logits, data.targets["lm"].label, reduction="sum")
    step = objective(data)
    torch.testing.assert_close(step.losses["lm"], expected)
    assert step.correct["lm"] == (logits.argmax(1) == data.targets["lm"].label).sum()
    parameters = list(objective.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(step.losses["lm"], parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_windows_are_drawn_evenly_in_training() -> None:
    """Each centre sees 1 to ``window`` words on either side; the mean of one-hot words shows how many."""
    n, window = 4001, 3
    objective = make(window).train()
    rows = Rows.from_lengths([n])
    centre = torch.arange(window, n - window)
    marks = torch.zeros(n, 1)
    marks[:: 2 * window + 1] = 1.0  # at most one in any window
    torch.manual_seed(1)
    counts = torch.tensor([1.0 / (2 * reach) for reach in range(1, window + 1)])
    seen = [objective.context(marks, rows, centre)[:, 0] for _ in range(30)]
    values = torch.cat(seen)
    values = values[values > 0]
    shares = torch.stack([(values == value).float().mean() for value in counts])
    assert float(shares.sum()) == pytest.approx(1.0)
    # All windows are equally likely; a wider one contains the mark more often, 1 : 2 : 3.
    torch.testing.assert_close(shares, torch.tensor([1.0, 2.0, 3.0]) / 6, atol=0.02, rtol=0)
    assert not torch.equal(seen[0], seen[1])


def test_it_learns_which_words_stand_together() -> None:
    torch.manual_seed(0)
    objective = make(2).train()
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    first = float(objective.eval()(batch()).losses["lm"].detach())
    for _ in range(150):
        optimizer.zero_grad()
        objective.train()(batch()).losses["lm"].backward()
        optimizer.step()
    assert float(objective.eval()(batch()).losses["lm"].detach()) < 0.5 * first


def test_a_window_must_hold_a_word() -> None:
    with pytest.raises(ConfigError, match=r"objective\.window=0"):
        CbowConfig(window=0)
