"""Program that checks compiled blocks against plain ones: it prints each passed check and stops at a failure."""

import copy
import sys

import torch

from firth.machine import deterministic
from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.packed import Rows, Tokens
from firth.training.compiled_blocks import compile_regions

CPU = torch.device("cpu")


def encoder(dropout: float) -> Bert:
    torch.manual_seed(0)
    return Bert(
        BertConfig(
            vocab_size=50,
            width=16,
            n_layers=3,
            n_heads=2,
            feed_forward_width=24,
            max_positions=64,
            dropout=dropout,
            attention_dropout=dropout,
        )
    ).train()


def top_and_gradients(model: Bert, lengths: list[int]) -> list[torch.Tensor]:
    rows = Rows.from_lengths(lengths)
    torch.manual_seed(len(lengths))
    model.zero_grad()
    top = model(Tokens(rows, torch.randint(50, (rows.n_tokens,)))).top
    (top**2).sum().backward()
    return [top.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def check_equal_numbers() -> None:
    plain = encoder(0.0)
    compiled = copy.deepcopy(plain)
    assert compile_regions(compiled, CPU, backend="aot_eager")
    for lengths in ([5, 20, 3], [7, 7], [30, 1, 2, 9]):
        pairs = list(zip(top_and_gradients(plain, lengths), top_and_gradients(compiled, lengths), strict=True))
        assert len(pairs) > 30
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def check_no_new_graph() -> None:
    """With dropout, in float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        model = encoder(0.1)
        compile_regions(model, CPU, backend="aot_eager")
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            for lengths in ([5, 20, 3], [8, 8]):  # sequences of different and of equal lengths
                top_and_gradients(model, lengths)
            graphs = counters["stats"]["unique_graphs"]
            assert 1 <= graphs <= 2, graphs
            for lengths in ([4, 9], [40, 2, 17, 33, 5], [12, 12, 12], [50], [1, 1], [63, 62, 1]):
                top_and_gradients(model, lengths)
        assert counters["stats"]["unique_graphs"] == graphs
        assert not counters["graph_break"]


def check_deterministic() -> None:
    """The context sets the compiler's option, even if the compiler is imported inside it, and restores it on exit."""
    assert "torch._inductor" not in sys.modules
    with deterministic():
        assert compile_regions(encoder(0.0), CPU, backend="aot_eager")
        from torch._inductor import config

        assert config.deterministic and torch.are_deterministic_algorithms_enabled()
    assert not config.deterministic and not torch.are_deterministic_algorithms_enabled()


check_deterministic()
print("deterministic")
check_equal_numbers()
print("equal numbers")
check_no_new_graph()
print("no new graph")
