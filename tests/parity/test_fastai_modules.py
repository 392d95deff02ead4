"""AWD-LSTM against fastai's own modules on copied weights: eval and train, losses, gradients, the classifier's pooling.

scripts/test_fastai installs fastai in a separate folder.
"""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from firth.data.batch import Batch, Target
from firth.layers.dropout import Dropout
from firth.models.awd_lstm import AwdLstm
from firth.models.config import AwdLstmConfig
from firth.objectives.awd_lm import AwdLM
from firth.objectives.config import AwdLMConfig
from firth.packed import Rows, Tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("fastai") is None, reason="fastai is elsewhere: scripts/test_fastai runs this"),
]
N_WORDS, ROWS, LENGTH = 23, 3, 9
OFF = dict.fromkeys(("embedding_dropout", "input_dropout", "weight_dropout", "hidden_dropout"), 0.0)
CONFIG = AwdLstmConfig(vocab_size=N_WORDS, width=6, hidden_width=10, n_layers=3, **OFF)
_RATES = {"embed_p": 0.0, "input_p": 0.0, "weight_p": 0.0, "hidden_p": 0.0, "output_p": 0.0}


def theirs(**rates: float) -> Any:
    from fastai.text.models.awdlstm import AWD_LSTM
    from fastai.text.models.core import get_language_model

    torch.manual_seed(0)
    sizes = {
        "emb_sz": 6,
        "n_hid": 10,
        "n_layers": 3,
        "pad_token": 1,
        "bidir": False,
        "tie_weights": True,
        "out_bias": True,
    }
    model = get_language_model(AWD_LSTM, N_WORDS, config={**sizes, **_RATES, **rates}).double()
    torch.nn.init.normal_(model[1].decoder.bias)
    return model


def ours(model: Any) -> AwdLM:
    """Our model with the same weights."""
    made = AwdLM(AwdLstm(CONFIG), AwdLMConfig(dropout=0.0)).double()
    found = model.state_dict()
    state = {"bias": found["1.decoder.bias"], "encoder.embeddings.weight": found["0.encoder.weight"]}
    for i in range(3):
        state[f"encoder.layers.{i}.weight_hh_l0"] = found[f"0.rnns.{i}.weight_hh_l0_raw"]
        for name in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0"):
            state[f"encoder.layers.{i}.{name}"] = found[f"0.rnns.{i}.module.{name}"]
    made.load_state_dict(state)
    return made


COLUMNS = torch.randint(2, N_WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(2))


def batch(columns: Tensor) -> Batch:
    rows = Rows.from_lengths([columns.shape[1] - 1] * len(columns))
    tokens = Tokens(rows, columns[:, :-1].flatten())
    return Batch(tokens, {"lm": Target(torch.arange(rows.n_tokens), columns[:, 1:].flatten())})


@pytest.mark.parametrize("train", [False, True])
def test_states_loss_and_gradients(train: bool) -> None:
    model = theirs().train(train)
    made = ours(model).train(train)
    model.reset()
    logits, raw, _ = model(COLUMNS[:, :-1])
    found = made.encoder(batch(COLUMNS).tokens, keep=(0, 1, 2, 3))
    torch.testing.assert_close(found.top, raw.flatten(0, 1), rtol=0, atol=1e-10)
    loss = F.cross_entropy(logits.flatten(0, 1), COLUMNS[:, 1:].flatten(), reduction="sum")
    step = made(batch(COLUMNS))
    torch.testing.assert_close(step.losses["lm"], loss, rtol=1e-6, atol=0)
    step.losses["lm"].backward()
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    pairs = {"bias": "1.decoder.bias", "encoder.embeddings.weight": "0.encoder.weight"}
    pairs |= {f"encoder.layers.{i}.weight_hh_l0": f"0.rnns.{i}.weight_hh_l0_raw" for i in range(3)}
    pairs |= {f"encoder.layers.{i}.weight_ih_l0": f"0.rnns.{i}.module.weight_ih_l0" for i in range(3)}
    for mine, other in pairs.items():
        if grads[other] is None:
            assert not train, other  # fastai's eval mode copies the recurrent matrix, which cuts its gradient
            continue
        torch.testing.assert_close(made.get_parameter(mine).grad, grads[other], rtol=1e-5, atol=1e-8, msg=mine)


def test_state_is_carried_from_batch_to_batch() -> None:
    model = theirs().eval()
    made = ours(model).eval()
    model.reset()
    first, second = model(COLUMNS[:, :4])[1], model(COLUMNS[:, 4:9])[1]
    begun = made.encoder(batch(COLUMNS[:, :5]).tokens)
    gone_on = made.encoder(batch(COLUMNS[:, 4:]).tokens, carry=begun.carry)
    torch.testing.assert_close(begun.top, first.flatten(0, 1), rtol=0, atol=1e-10)
    torch.testing.assert_close(gone_on.top, second.flatten(0, 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("rate", "part", "ours_part"),
    [
        ("embed_p", lambda m: m[0].encoder_dp, lambda e: e.word_dropout),
        ("input_p", lambda m: m[0].input_dp, lambda e: e.input_dropout),
        ("hidden_p", lambda m: m[0].hidden_dps[0], lambda e: e.hidden_dropout),
    ],
)
def test_dropout_drops_as_often_and_scales_alike(rate: str, part: Any, ours_part: Any) -> None:
    """First and second moments of the output for the same input in training, over many samples."""
    model = theirs(**{rate: 0.3}).train()
    made = ours(model).train().encoder
    torch.manual_seed(7)
    rows = Rows.from_lengths([LENGTH] * ROWS)
    x, ids = torch.rand(ROWS, LENGTH, 6, dtype=torch.float64) + 0.5, COLUMNS[:, :-1]
    for dropout in made.modules():
        if isinstance(dropout, Dropout):
            dropout.p = 0.3
    theirs_all, ours_all = [], []
    for _ in range(1500):
        if rate == "embed_p":
            theirs_all.append(part(model)(ids).detach())
            ours_all.append(ours_part(made)(ids.flatten(), made.piece_embedding).detach().view(ROWS, LENGTH, 6))
        else:
            theirs_all.append(part(model)(x))
            ours_all.append(ours_part(made)(x.flatten(0, 1), rows).view(ROWS, LENGTH, 6))
    a, b = torch.stack(theirs_all), torch.stack(ours_all)
    torch.testing.assert_close((a == 0).double().mean(), (b == 0).double().mean(), rtol=0, atol=0.02)
    scale = a.abs().mean()
    assert float((a.mean(0) - b.mean(0)).abs().max() / scale) < 0.15
    assert float((a.std(0) - b.std(0)).abs().max() / scale) < 0.15
    # Which places are dropped together: shares of pairs of steps, and of units, that are both zero.
    for first, second in ((a[:, 0, 0, 0], a[:, 0, 4, 0]), (a[:, 0, 0, 0], a[:, 0, 0, 3])):
        place = (0, 4, 0) if second.data_ptr() == a[:, 0, 4, 0].data_ptr() else (0, 0, 3)
        together = ((first == 0) & (second == 0)).double().mean()
        mine = ((b[:, 0, 0, 0] == 0) & (b[(slice(None), *place)] == 0)).double().mean()
        assert float((together - mine).abs()) < 0.05


def test_weight_drop_is_on_the_same_matrix_with_the_same_moments() -> None:
    model = theirs(weight_p=0.4).train()
    made = ours(model).train().encoder
    for layer in made.layers:
        layer.weight_dropout.p = 0.4
    raw = made.layers[1].weight_hh_l0.detach()
    drop = model[0].rnns[1]
    found = []
    for _ in range(300):
        drop._setweights()
        found.append(drop.module.weight_hh_l0.detach().clone())
    mine = [made.layers[1].weight_dropout(made.layers[1].weight_hh_l0).detach() for _ in range(300)]
    a, b = torch.stack(found), torch.stack(mine)
    assert float(((a == 0).double().mean() - (b == 0).double().mean()).abs()) < 0.01
    kept_a, kept_b = a[a != 0].abs().sum() / (a != 0).sum(), b[b != 0].abs().sum() / (b != 0).sum()
    assert float(kept_a / kept_b) == pytest.approx(1, rel=0.02)
    torch.testing.assert_close(b.mean(0), raw, rtol=0, atol=0.15)
    assert torch.equal(drop.weight_hh_l0_raw.detach(), raw)


def test_concat_pooling_of_texts_of_several_lengths() -> None:
    """Their classifier pads in front and masks the padding; ours has none."""
    from fastai.text.models.core import masked_concat_pool

    model = theirs().eval()
    made = ours(model).eval()
    lengths = [9, 4, 6]
    texts = [COLUMNS[i, :n] for i, n in enumerate(lengths)]
    hidden = made.encoder(Tokens(Rows.from_lengths(lengths), torch.cat(texts)))
    for number, text in enumerate(texts):
        model.reset()
        out = model[0](text[None])
        pooled = masked_concat_pool(out, torch.zeros(1, len(text), dtype=torch.bool), 3)
        torch.testing.assert_close(hidden.summary[number], pooled[0], rtol=0, atol=1e-10)
