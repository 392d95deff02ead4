"""The memory that a run is estimated to need, and the runs that are refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

from firth import costs, machine, memory
from firth.errors import ConfigError
from firth.machine import Machine, free_memory
from firth.memory import Memory, check_memory, estimate_memory
from firth.models.config import BertConfig
from firth.pretraining.run import pretrain, resolve
from firth.systems import SYSTEMS

CPU = Machine(torch.device("cpu"), torch.float32, "1 CPU thread, float32")
SIZES = BertConfig(vocab_size=10, width=8, n_layers=3, n_heads=2, feed_forward_width=32, max_positions=16)


def need(dtype: torch.dtype = torch.float32, tokens: int = 100, *, recompute: bool = False) -> Memory:
    model = nn.Linear(1000, 1000, bias=False)
    return estimate_memory(model, SYSTEMS["bert"], SIZES, dtype, tokens, recompute=recompute)


def test_parameters_with_gradient_and_two_means() -> None:
    assert need().parameters == 16e6
    model = nn.Linear(1000, 1000, bias=False).requires_grad_(False)
    frozen = estimate_memory(model, SYSTEMS["bert"], SIZES, torch.float32, 1, recompute=False)
    assert frozen.parameters == 4e6


def test_what_a_token_keeps() -> None:
    """Per block in float32: 8 hidden sizes and 2 inner sizes of 4 bytes, and two hidden sizes of bytes for dropout."""
    passing = 4 * 8 * costs._PASSING
    kept = need(tokens=101).growing - need(tokens=100).growing
    assert kept == pytest.approx(3 * (4 * (8 * 8 + 2 * 32) + 2 * 8) + passing)
    # With recomputation: the input of each block, and all of one block.
    kept = need(tokens=101, recompute=True).growing - need(tokens=100, recompute=True).growing
    assert kept == pytest.approx(3 * 4 * 8 + 528 + passing)


def test_fewer_bits_want_the_weights_in_them_too() -> None:
    assert need(torch.bfloat16, tokens=0).fixed - need(tokens=0).fixed == pytest.approx(2e6)


def test_a_run_that_fits_is_told() -> None:
    said = check_memory(Memory(1e6, 1e6, 1e6), CPU, 4096, recompute=False)
    assert said.startswith("memory: about 0.0 GB (0.0 GB of it weights, gradients and optimizer)")


def test_a_run_that_does_not_fit_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda machine: 2.5e9)
    fit = r"4.0 GB .*2.5 GB free: of a micro-batch of 4,096 tokens about 1,638 fit: lower train.batch_tokens in that "
    with pytest.raises(ConfigError, match=f"{fit}proportion, or set train.recompute=true"):
        check_memory(Memory(1e9, 0.5e9, 2.5e9), CPU, 4096, recompute=True)
    with pytest.raises(ConfigError, match=f"{fit}proportion$"):
        check_memory(Memory(1e9, 0.5e9, 2.5e9), CPU, 4096, recompute=False)
    for parameters, fixed in ((3e9, 0.1e9), (2e9, 0.6e9)):
        with pytest.raises(ConfigError, match="choose a smaller one"):
            check_memory(Memory(parameters, fixed, 1e9), CPU, 4096, recompute=True)


def test_an_estimate_is_not_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda machine: 3e9)
    assert check_memory(Memory(1e9, 0.5e9, 2e9), CPU, 4096, recompute=False).endswith("3.0 GB free: it may not fit")


def test_it_is_refused_before_anything_is_written(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda machine: 1e6)
    recipe = resolve({"model": "bert-tiny"}, [f"data.corpus={tiny_corpus}", "data.length=32"], "test")
    with pytest.raises(ConfigError, match="too large for this machine"):
        pretrain(recipe, tmp_path / "run", lambda text: None)
    assert not (tmp_path / "run" / "log.jsonl").exists()
    assert not (tmp_path / "run" / "recipe.toml").exists()


def test_without_anybody_who_knows_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_available", "_left_to_group", "_left_to_process"):
        monkeypatch.setattr(machine, name, lambda: None)
    assert free_memory(CPU.device) is None
    assert "free" not in check_memory(Memory(1e15, 1e15, 1e15), CPU, 4096, recompute=False)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux says what is free")
def test_this_machine_has_memory() -> None:
    free = free_memory(CPU.device)
    assert free is not None and 1e7 < free < 1e15
