"""Left-to-right language modelling: no prediction may see its target."""

import torch
import torch.nn.functional as F

from firth.data.batch import Batch, Target
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.objectives.config import CausalLMConfig
from firth.objectives.next_token import CausalLM
from firth.packed import Rows, Tokens

SIZES = BertConfig(vocab_size=19, width=8, n_layers=2, n_heads=2, feed_forward_width=16, max_positions=16, causal=True)


def objective() -> CausalLM:
    torch.manual_seed(0)
    made = CausalLM(Bert(SIZES), CausalLMConfig()).double().eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


def batch(ids: list[int], lengths: list[int]) -> Batch:
    rows = Rows.from_lengths(lengths)
    all_ids = torch.tensor(ids)
    index = torch.tensor([i for i in range(len(ids)) if i not in rows.last.tolist()])
    return Batch(Tokens(rows, all_ids), {"lm": Target(index, all_ids[index + 1])})


def test_loss_is_the_sum_over_all_tokens_but_the_last() -> None:
    made, data = objective(), batch([3, 1, 4, 1, 5, 9, 2, 6], [5, 3])
    step = made(data)
    top = made.encoder(data.tokens).top[data.targets["lm"].index]
    logits = F.linear(made.lm.features(top), made.encoder.embeddings.pieces.weight, made.lm.bias)
    expected = F.cross_entropy(logits, torch.tensor([1, 4, 1, 5, 2, 6]), reduction="sum")
    torch.testing.assert_close(step.losses["lm"], expected, rtol=0, atol=1e-10)
    assert data.counts() == {"lm": 6}


def test_predictions_do_not_see_what_follows() -> None:
    made = objective()
    ids = [3, 1, 4, 1, 5, 9]
    top = made.encoder(batch(ids, [6]).tokens).top
    for place in range(1, 6):
        changed = ids.copy()
        changed[place] = (changed[place] + 7) % 19
        after = made.encoder(batch(changed, [6]).tokens).top
        assert torch.equal(after[:place], top[:place])
        assert not torch.allclose(after[place:], top[place:])
