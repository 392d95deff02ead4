"""A training step of AWD-LSTM's language model on a CPU: forward and backward over a batch of a stream.

.venv/bin/python benchmarks/awd_lstm.py

Compared with fastai's module, which keeps all logits, where fastai is installed; and with PyTorch's ``nn.LSTM`` without
any dropout or penalty, under the same softmax. In float32, and in bfloat16 where this CPU has units for it, because
``firth pretrain`` then trains in it.
"""

import importlib.util
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measure
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firth.bench.measure import in_turn
from firth.data.batch import Batch, Target
from firth.layers.dropout import Dropout
from firth.machine import has_fast_bfloat16
from firth.models.awd_lstm import AwdLstm
from firth.models.config import AwdLstmConfig
from firth.objectives.awd_lm import AwdLM
from firth.objectives.config import AwdLMConfig
from firth.packed import Rows, Tokens

ROWS, LENGTH, WORDS = 32, 70, 30_000
SIZES = {"tiny": (32, 48, 2), "small": (256, 512, 3), "published": (400, 1150, 3)}
COLUMNS: measure.Columns = (
    ("name", "size", "{}"),
    ("form", "", "{}"),
    ("dtype", "type", "{}"),
    ("tokens_per_s", "tokens/s, forward and backward", "{:,.0f}"),
    ("times", "Firth is", "{:.2f}×"),
)
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}


def firth_step(objective: AwdLM, ids: Tensor) -> Callable[[], Tensor]:
    rows = Rows.from_lengths([ids.shape[1] - 1] * len(ids))
    target = Target(torch.arange(rows.n_tokens), ids[:, 1:].flatten())
    batch = Batch(Tokens(rows, ids[:, :-1].flatten()), {"lm": target})
    counts = objective.counts(batch)

    def run() -> Tensor:
        objective.zero_grad()
        losses = objective(batch).losses
        loss = sum((objective.weights[t] * losses[t] / counts[t] for t in losses), torch.zeros(()))
        loss.backward()
        return loss.detach()

    return run


def fastai_step(objective: AwdLM, ids: Tensor) -> Callable[[], Tensor]:
    """Their module with our weights and penalties by hand: its learner applies none unless they are added."""
    from fastai.text.models.awdlstm import AWD_LSTM
    from fastai.text.models.core import get_language_model

    config = objective.encoder.config
    sizes = {
        "emb_sz": config.width, "n_hid": config.hidden_width, "n_layers": config.n_layers, "pad_token": 1,
        "bidir": False, "output_p": 0.4, "hidden_p": 0.3, "input_p": 0.4, "embed_p": 0.05, "weight_p": 0.5,
        "tie_weights": True, "out_bias": True,
    }  # fmt: skip
    model: Any = get_language_model(AWD_LSTM, config.vocab_size, config=sizes).train(objective.training)
    state = {"0.encoder.weight": objective.encoder.piece_embedding, "1.decoder.bias": objective.bias}
    for i, layer in enumerate(objective.encoder.layers):
        state |= {f"0.rnns.{i}.module.{name}": value for name, value in layer.state_dict().items()}
        state[f"0.rnns.{i}.weight_hh_l0_raw"] = layer.weight_hh_l0
    model.load_state_dict(state, strict=False)

    def run() -> Tensor:
        model.zero_grad()
        model.reset()
        logits, raw, seen = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if model.training:
            loss = loss + 2 * seen.square().mean() + raw.diff(dim=1).square().mean()
            loss.backward()
        return loss.detach()

    return run


def plain_step(objective: AwdLM, ids: Tensor) -> Callable[[], Tensor]:
    """The same layers by unmodified ``nn.LSTM``."""
    encoder = objective.encoder
    layers = [nn.LSTM(layer.input_size, layer.hidden_size, batch_first=True) for layer in encoder.layers]
    for ours, theirs in zip(encoder.layers, layers, strict=True):
        theirs.load_state_dict(ours.state_dict())
    weight, bias = nn.Parameter(encoder.piece_embedding.detach().clone()), nn.Parameter(objective.bias.detach().clone())

    def run() -> Tensor:
        for p in (weight, bias, *(p for layer in layers for p in layer.parameters())):
            p.grad = None
        x = F.embedding(ids[:, :-1], weight)
        for layer in layers:
            x = layer(x)[0]
        loss = F.cross_entropy(F.linear(x.flatten(0, 1), weight, bias), ids[:, 1:].flatten())
        loss.backward()
        return loss.detach()

    return run


def compared(size: str, options: Namespace, notes: list[str]) -> tuple[list[Any], list[dict[str, Any]]]:
    """The rows of the table for one size, and a check that all compute the same without dropout."""
    width, hidden_width, n_layers = SIZES[size]
    n_words = 100 if options.quick else WORDS
    torch.manual_seed(0)
    config = AwdLstmConfig(vocab_size=n_words, width=width, hidden_width=hidden_width, n_layers=n_layers)
    objective = AwdLM(AwdLstm(config), AwdLMConfig())
    ids = torch.randint(2, n_words, (ROWS, LENGTH + 1))
    makers = {"Firth": firth_step, "fastai": fastai_step, "nn.LSTM, no dropout": plain_step}
    if importlib.util.find_spec("fastai") is None:
        del makers["fastai"]
        notes.append("fastai is not installed")
    dtypes = [torch.float32, *([torch.bfloat16] if has_fast_bfloat16() else [])]

    def steps() -> dict[tuple[str, torch.dtype], Callable[[], Tensor]]:
        return {
            (name, dtype): partial(computed_in, dtype, make(objective, ids))
            for dtype in dtypes for name, make in makers.items()
        }  # fmt: skip

    checks = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        objective.eval()
        still = {key: run() for key, run in steps().items()}
        for (name, dtype), loss in still.items():
            difference = float((loss - still["Firth", torch.float32]).abs())
            checks.append(measure.check(f"{size}, {name}, {word(dtype)}: loss in eval", difference, TOLERANCES[dtype]))
        objective.train()
        assert any(part.p for part in objective.modules() if isinstance(part, Dropout))
        spreads = in_turn({f"{name}, {word(dtype)}": run for (name, dtype), run in steps().items()}, options.repeats)
    rows = []
    for name, dtype in still:
        seconds = spreads[f"{name}, {word(dtype)}"].median
        times = seconds / spreads[f"Firth, {word(dtype)}"].median
        rows.append({
            "name": size, "form": name, "dtype": word(dtype), "tokens_per_s": ROWS * LENGTH / seconds,
            "times": None if name == "Firth" else times,
        })  # fmt: skip
    return rows, checks


def computed_in(dtype: torch.dtype, run: Callable[[], Tensor]) -> Tensor:
    """A step whose matrix products are in ``dtype``."""
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        return run()


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main(arguments: Sequence[str] | None = None) -> Path:
    options = measure.parsed(measure.arguments(str(__doc__).splitlines()[0]), arguments)
    rows, checks, notes = list[Any](), list[dict[str, Any]](), list[str]()
    for size in ("tiny",) if options.quick else ("small", "published"):
        found, same = compared(size, options, notes)
        rows += found
        checks += same
    return measure.write(
        "awd_lstm",
        title="A training step of AWD-LSTM on a CPU",
        target="at least 1.5 times fastai's module",
        about=f"{ROWS} sequences of {LENGTH} words, {WORDS:,} words in the softmax, published dropout and "
        "penalties; forward and backward, no optimiser.",
        arguments=options,
        settings={"rows": ROWS, "length": LENGTH, "words": WORDS},
        checks=checks,
        tables=[measure.table("Language model", COLUMNS, rows)],
        notes=sorted(set(notes)),
    )


if __name__ == "__main__":
    main()
