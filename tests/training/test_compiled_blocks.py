"""Compiled and recomputed blocks give the results of plain ones, with no new graph after the first batches."""

import copy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from firth.models.bert import Bert
from firth.models.config import BertConfig
from firth.packed import Encoder, Rows, Tokens
from firth.training import compiled_blocks
from firth.training.compiled_blocks import compile_regions, recompute_regions

CPU = torch.device("cpu")
SIZES = BertConfig(
    vocab_size=50,
    width=16,
    n_layers=3,
    n_heads=2,
    feed_forward_width=24,
    max_positions=64,
    dropout=0.2,
    attention_dropout=0.1,
)


@pytest.fixture
def encoder() -> Bert:
    torch.manual_seed(0)
    return Bert(SIZES)


def batch(lengths: list[int]) -> Tokens:
    rows = Rows.from_lengths(lengths)
    torch.manual_seed(len(lengths))
    return Tokens(rows, torch.randint(50, (rows.n_tokens,)))


def run(encoder: Encoder, tokens: Tokens) -> list[torch.Tensor]:
    """Return the top layer's output in training mode and the gradients of all parameters."""
    encoder.train().zero_grad()
    torch.manual_seed(3)
    top = encoder(tokens).top
    (top**2).sum().backward()
    return [top.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]


def check_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other) > 30
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_recomputed_blocks_give_the_same_gradients(encoder: Bert) -> None:
    """With dropout: the second forward pass samples the same masks as the first."""
    plain, tokens = copy.deepcopy(encoder), batch([5, 20, 3])
    names = list(encoder.state_dict())
    recompute_regions(encoder)
    check_equal(run(encoder, tokens), run(plain, tokens))
    assert list(encoder.state_dict()) == names


def test_recomputed_blocks_keep_less(encoder: Bert) -> None:
    kept: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.numel())
        return x

    sizes = []
    for change in (lambda encoder: None, recompute_regions):
        change(encoder)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            encoder.train()(batch([30, 20]))
        sizes.append(sum(kept))
    assert sizes[1] < sizes[0] / 3


def test_compiled_blocks_in_a_process_of_their_own() -> None:
    """Equal numbers and no new graphs; in its own process because shape checks cannot be traced."""
    program = Path(__file__).with_name("compiled_blocks.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["deterministic", "equal numbers", "no new graph"]


def test_without_a_compiler_nothing_is_compiled(encoder: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not compile_regions(encoder, CPU)
    assert all(block._compiled_call_impl is None for block in encoder.regions())


def test_the_compiler_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "my-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-compiler" else None)
    assert compiled_blocks.has_compiler(CPU)
