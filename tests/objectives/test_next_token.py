"""Left-to-right language modelling, by BERT with a head and by GPT, whose embedding is the output matrix."""

import torch
import torch.nn.functional as F
from torch import nn

from firth.data.batch import Batch, Target
from firth.models.bert import Bert
from firth.models.config import BertConfig, GptConfig
from firth.models.gpt import Gpt
from firth.objectives.config import CausalLMConfig, TiedLMConfig
from firth.objectives.next_token import CausalLM, TiedLM
from firth.packed import Rows, Tokens

BERT = BertConfig(vocab_size=19, width=8, n_layers=2, n_heads=2, feed_forward_width=16, max_positions=16, causal=True)
GPT = GptConfig(vocab_size=19, width=8, n_layers=2, n_heads=2, max_positions=16)


def causal() -> CausalLM:
    torch.manual_seed(0)
    made = CausalLM(Bert(BERT), CausalLMConfig()).double().eval()
    shake(made)
    return made


def tied() -> TiedLM:
    torch.manual_seed(0)
    made = TiedLM(Gpt(GPT), TiedLMConfig()).double().eval()
    shake(made)
    return made


def shake(made: nn.Module) -> None:
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)


def batch(ids: list[int], lengths: list[int]) -> Batch:
    rows = Rows.from_lengths(lengths)
    all_ids = torch.tensor(ids)
    index = torch.tensor([i for i in range(len(ids)) if i not in rows.last.tolist()])
    return Batch(Tokens(rows, all_ids), {"lm": Target(index, all_ids[index + 1])})


def test_the_loss_of_bert_is_the_sum_over_all_tokens_but_the_last() -> None:
    made, data = causal(), batch([3, 1, 4, 1, 5, 9, 2, 6], [5, 3])
    step = made(data)
    top = made.encoder(data.tokens).top[data.targets["lm"].index]
    logits = F.linear(made.lm.features(top), made.encoder.embeddings.pieces.weight, made.lm.bias)
    expected = F.cross_entropy(logits, torch.tensor([1, 4, 1, 5, 2, 6]), reduction="sum")
    torch.testing.assert_close(step.losses["lm"], expected, rtol=0, atol=1e-10)
    assert data.counts() == {"lm": 6}


def test_predictions_do_not_see_what_follows() -> None:
    made = causal()
    ids = [3, 1, 4, 1, 5, 9]
    top = made.encoder(batch(ids, [6]).tokens).top
    for place in range(1, 6):
        changed = ids.copy()
        changed[place] = (changed[place] + 7) % 19
        after = made.encoder(batch(changed, [6]).tokens).top
        assert torch.equal(after[:place], top[:place])
        assert not torch.allclose(after[place:], top[place:])


def test_the_loss_of_gpt_is_the_sum_over_all_tokens_but_the_last() -> None:
    made, data = tied(), batch([3, 1, 4, 1, 5, 9, 2, 6], [5, 3])
    step = made(data)
    top = made.encoder(data.tokens).top[data.targets["lm"].index]
    logits = top @ made.encoder.embeddings.pieces.weight.T
    labels = torch.tensor([1, 4, 1, 5, 2, 6])
    expected = F.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(step.losses["lm"], expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(made.logits(top), logits, rtol=0, atol=1e-12)
    assert int(step.correct["lm"]) == int((logits.argmax(1) == labels).sum())
    assert (made.weights, data.counts()) == ({"lm": 1.0}, {"lm": 6})


def test_all_parameters_are_the_encoder_s_and_all_learn() -> None:
    made = tied()
    assert all(name.startswith("encoder.") for name in made.state_dict())
    made(batch([3, 1, 4, 1, 5, 9, 2, 6], [5, 3])).losses["lm"].backward()
    idle = [name for name, p in made.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_the_embedding_learns_from_both_of_its_uses() -> None:
    made, data = tied(), batch([3, 1, 4], [3])
    made(data).losses["lm"].backward()
    found = made.encoder.piece_embedding.grad
    # Written out: embeddings of the input tokens, and every embedding as an output.
    again = tied()
    x = again.encoder(data.tokens).top[:2]
    F.cross_entropy(x @ again.encoder.piece_embedding.T, torch.tensor([1, 4]), reduction="sum").backward()
    torch.testing.assert_close(found, again.encoder.piece_embedding.grad, rtol=0, atol=1e-10)
