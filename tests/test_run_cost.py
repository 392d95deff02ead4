"""The cost of a run on many devices: counts, division, limits, and the figures the constants were fitted to."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firth import run_cost
from firth.data.batch import Batch, Target
from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.run_cost import DEVICES, NVIDIA_2020, OURS, Software, find_device, model_shape, run_costs, step_cost
from firth.systems import SYSTEMS

A100 = DEVICES["a100-40gb"]
RECORD = Path(__file__).parents[1] / "benchmarks/results/cost-model.json"


@pytest.mark.parametrize("model", ["bert-mini", "bert-ltr-mini", "gpt-base"])
def test_a_token_is_counted_as_a_batch_is(model: str) -> None:
    length = 100
    shape = model_shape(model, length, 500)
    term, n = ("mlm", 15) if model == "bert-mini" else ("lm", length)
    target = Target(torch.arange(n), torch.zeros(n, dtype=torch.long))
    batch = Batch(pack_lists([[0] * length]), {term: target})
    counted = SYSTEMS[shape.recipe.system].flops(shape.recipe.encoder, batch) / length
    assert shape.flops == pytest.approx(counted)


def test_bert_large_has_its_published_size() -> None:
    # Devlin et al. 2018, §3: 340 M parameters.
    assert model_shape("bert-large", 128).parameters == pytest.approx(340e6, rel=0.02)


def test_a_published_rate_of_another_device_is_foreseen() -> None:
    """NVIDIA 2020: 36 sequences of 512 tokens per second on a V100; the constants were fitted to an A100."""
    step = step_cost(model_shape("bert-large", 512), DEVICES["v100-32gb"], NVIDIA_2020, 1, 4 * 512, 8192)
    assert 4 * 8192 / step.seconds == pytest.approx(36, rel=0.35)


def test_more_devices_take_less_time_and_more_in_all() -> None:
    one, eight, many = run_costs("bert-base", A100, (1, 8, 256), tokens=1e9, price=2.0)
    assert one.hours > eight.hours > many.hours
    assert one.money is not None and one.money == pytest.approx(2 * one.hours)
    assert many.money is not None and many.money > one.money
    assert one.step.exchanged == 0 and 0 < eight.step.exchanged < many.step.exchanged
    assert many.share < one.share < 1


def test_exchange_is_hidden_by_the_backward_pass_unless_the_network_is_slow() -> None:
    shape, slow = model_shape("bert-base", 128), replace(A100, network=1e8)
    hidden, shown = (step_cost(shape, device, OURS, 16, 32_768, 1) for device in (A100, slow))
    assert hidden.exchange_s < 0.05 * hidden.compute_s < shown.exchange_s
    assert shown.compute_s == hidden.compute_s and shown.exchanged == hidden.exchanged


def test_weights_are_divided_and_blocks_recomputed_only_where_memory_asks_for_it() -> None:
    small = replace(A100, memory=7e9)
    whole, divided = (
        run_costs("bert-large", A100, (8,), tokens=1e9)[0],
        run_costs("bert-large", small, (8,), tokens=1e9)[0],
    )
    assert (whole.sharding, whole.recompute) == ("none", False) and divided.sharding == "full"
    assert divided.memory < 7e9 < whole.memory
    assert divided.batch_tokens * divided.micro_batches >= 32_768 / 8
    tight = run_costs("bert-large", replace(A100, memory=1.8e9), (64,), tokens=1e9, length=512)[0]
    assert (tight.sharding, tight.recompute) == ("full", True)
    with pytest.raises(ConfigError, match="a sequence of 128 tokens does not fit into 1 GB a device"):
        run_costs("bert-large", replace(A100, memory=1e9), (2,), tokens=1e9)


def test_what_cannot_be_is_refused() -> None:
    refused = [
        ("--devices=0: expected 1 to 1,024", {"counts": (0,)}),
        ("--devices=2000", {"counts": (2000,)}),
        ("has 256 sequences of 128, .* give --step-tokens 65536 or more", {"counts": (512,)}),
        ("--tokens=-1", {"tokens": -1.0}),
        ("--tokens=nan", {"tokens": float("nan")}),
        (r"--tokens=1e\+300: expected more than 0 and at most 1e\+18", {"tokens": 1e300}),
        ("--price-per-hour=-2", {"price": -2.0}),
        ("--sequence-length=7: expected at least 8", {"length": 7}),
        ("--step-tokens=64: expected at least a sequence of --sequence-length=128", {"step_tokens": 64}),
        ("bert-lrage.*did you mean bert-large", {"model": "bert-lrage"}),
        ("--model=elmo-small: costs are counted for sizes of BERT and GPT", {"model": "elmo-small"}),
    ]
    for message, given in refused:
        options = {"model": "bert-base", "counts": (8,), "tokens": 1e9} | given
        with pytest.raises(ConfigError, match=message):
            run_costs(options.pop("model"), A100, options.pop("counts"), **options)


def test_cores_of_a_node_share_its_memory() -> None:
    cores = replace(A100, memory=25e9, per_node=16, shares_memory=True)
    one, all_cores = run_costs("bert-base", cores, (1, 16), tokens=1e9)
    assert {one.sharding, all_cores.sharding} == {"none"}
    assert one.memory < all_cores.memory < 25e9, "16 copies of weights and optimizer alone would need 28 GB"
    with pytest.raises(ConfigError, match="into 1 GB a node, even with recomputation: give fewer devices"):
        run_costs("bert-base", replace(cores, memory=1e9), (16,), tokens=1e9)


def test_sequences_and_vocabularies_of_other_sizes() -> None:
    (long,) = run_costs("gpt-base", A100, (8,), tokens=1e9, length=2048)
    assert long.batch_tokens % 2048 == 0
    small, whole = (run_costs("bert-tiny", A100, (1,), tokens=1e9, vocab_size=n)[0] for n in (4_000, 30_522))
    assert small.checkpoint < whole.checkpoint / 3 and small.hours < whole.hours


def test_devices_have_names() -> None:
    assert find_device("h100", str) is DEVICES["h100"]
    with pytest.raises(ConfigError, match="--device=a100: did you mean a100-40gb or a100-80gb"):
        find_device("a100", str)
    with pytest.raises(ConfigError, match="give here, v100-16gb"):
        find_device("abacus", str)


def test_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        median = 0.5

    monkeypatch.setattr(run_cost, "in_turn", lambda works, repeats, device: dict.fromkeys(works, Fixed()))
    monkeypatch.setattr(run_cost.torch, "get_num_threads", lambda: 4)
    device = find_device("here", lambda text: None)
    assert (device.name, device.per_node) == ("here: one of 4 cores", 4)
    assert device.bandwidth == 3 * 4 * (1 << 25) / 0.5 / 4 and device.flops > 0


def test_constants_are_those_of_the_record() -> None:
    settings = json.loads(RECORD.read_text("utf-8"))["settings"]
    for name, software in (("ours", OURS), ("nvidia_2020", NVIDIA_2020), ("nvidia_2021", run_cost.NVIDIA_2021)):
        assert isinstance(software, Software)
        for key, value in settings[name].items():
            assert getattr(software, key) == pytest.approx(value, rel=0.01, abs=0.06), (name, key)
