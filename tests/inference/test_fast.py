"""Reduced-precision encoders: as near float32 as rounding allows, float32 outside, refused where unsupported."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from firth.data.rows import pack_lists
from firth.errors import ConfigError
from firth.folder import PRETRAINING, read_model, write_model
from firth.inference.fast import (
    FastEncoder,
    HalfLinear,
    Int8Linear,
    PackedBlock,
    PackedLinear,
    make_fast,
    pack_linears,
    row_step,
    sequence_step,
)
from firth.inference.model import Model, load_model
from firth.inference.precision import ON_CPU, Precision
from firth.packed import Encoder, Hidden, Tokens
from firth.systems import SYSTEMS
from firth.tasks.classify import Classifier
from firth.tasks.config import ClassifyConfig
from firth.text.characters import character_rows
from firth.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
TEXTS = ["The old farmer walked to the river.", "", "늙은 농부는 강가에서 편지를 썼다.", "The queen painted. " * 3]
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"width": 16, "n_layers": 2, "n_heads": 2, "feed_forward_width": 24, "max_positions": 40},
    "bert-ltr": {"width": 16, "n_layers": 2, "n_heads": 2, "feed_forward_width": 24, "max_positions": 40},
    "gpt": {"width": 16, "n_layers": 2, "n_heads": 2, "max_positions": 40},
    "lstm": {"width": 12, "n_layers": 2},
    "awd-lstm": {"width": 12, "hidden_width": 16, "n_layers": 2},
    "vectors": {"width": 12},
    "elmo": {"width": 12, "cells": 16, "n_layers": 2, "character_width": 4, "filters": ((1, 8), (3, 16))},
    "cove": {"width": 12, "hidden_width": 16},
    "transformer": {"width": 16, "n_layers": 2, "n_heads": 2, "feed_forward_width": 24},
}
# Without linear layers, nothing would be computed in reduced precision.
NO_LINEARS = {"lstm": "Lstm", "awd-lstm": "AwdLstm", "cove": "MtLstm", "vectors": "Vectors"}


# FBGEMM requires x86: elsewhere only the refusal is tested.
needs_halves = pytest.mark.skipif(
    "AVX" not in torch.backends.cpu.get_cpu_capability(), reason="float16 weights need an x86 processor with AVX2"
)
PRECISIONS = [pytest.param(p, marks=needs_halves) if p == "float16" else p for p in get_args(Precision)]


@pytest.fixture(autouse=True)
def has_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tests on every CPU: without bfloat16 units, bfloat16 is slow but correct."""
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: True)


def made(system: str) -> Encoder:
    row = SYSTEMS[system]
    torch.manual_seed(0)
    encoder = row.encoder(row.config(vocab_size=50, **SIZES[system], **row.fixed)).eval()
    for name, parameter in encoder.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=0.2)
    return encoder


def batch() -> Tokens:
    """Sequences for any system, including those that read characters."""
    generator = np.random.default_rng(0)
    tokens = pack_lists([generator.integers(50, size=n).tolist() for n in (5, 1, 33, 17, 40)])
    spelled = character_rows([str(number) for number in range(50)]).astype(np.int32)
    return replace(tokens, chars=torch.from_numpy(spelled)[tokens.ids])


@torch.inference_mode()
def run(encoder: Encoder, tokens: Tokens | None = None, keep: tuple[int, ...] = (0, 1, -1)) -> Hidden:
    hidden: Hidden = encoder(batch() if tokens is None else tokens, keep=keep)
    return hidden


def far(a: Tensor, b: Tensor) -> float:
    """The norm of the difference, relative to the norm of the whole."""
    return float((a - b).norm() / b.norm())


# -- every system in every precision -------------------------------------------------------------------------


def test_every_system_is_tested() -> None:
    assert set(SIZES) == set(SYSTEMS)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_system_in_every_precision(system: str, precision: Precision) -> None:
    plain = made(system)
    if system in NO_LINEARS and precision in ("bfloat16", "float16", "int8"):
        message = rf"precision='{precision}': .*\({NO_LINEARS[system]}\) has no linear layers.*'float32'"
        with pytest.raises(ConfigError, match=message):
            make_fast(plain, precision, CPU)
        return
    fast, words = make_fast(copy.deepcopy(plain), precision, CPU)
    keep = tuple(range(len(plain.widths)))
    one, other = run(fast, keep=keep), run(plain, keep=keep)
    assert isinstance(one.summary, Tensor) and isinstance(other.summary, Tensor)
    pairs = [*((one.layers[n], other.layers[n]) for n in other.layers), (one.summary, other.summary)]
    assert len(pairs) == len(one.layers) + 1 == len(keep) + 1
    for a, b in pairs:
        assert a.dtype == torch.float32 and a.shape == b.shape
        assert far(a, b) < 0.05
    usual = "float32" if system in NO_LINEARS else "bfloat16"
    expected = {"auto": usual, "float16": "float16 weights"}.get(precision, precision)
    assert words.endswith(f", {expected}")
    assert torch.equal(one.top, other.top) == (expected == "float32")


@pytest.mark.parametrize("precision", [p for p in PRECISIONS if p not in ("float32", "auto")])
def test_a_fast_encoder_offers_what_the_plain_one_does(precision: Precision) -> None:
    plain = made("bert")
    fast, _ = make_fast(copy.deepcopy(plain), precision, CPU)
    assert isinstance(fast, FastEncoder)
    assert (fast.config, fast.widths) == (plain.config, plain.widths)
    assert fast.piece_embedding.dtype == torch.float32 and torch.equal(fast.piece_embedding, plain.piece_embedding)
    assert len(fast.regions()) == len(plain.regions()) == 2
    assert len(fast.layer_groups()) == len(plain.layer_groups()) == 4


def test_a_fast_encoder_hands_on_the_width_of_summaries() -> None:
    fast = FastEncoder(made("awd-lstm"), torch.float32)
    assert fast.summary_width == 36 == run(fast).summary.shape[1]  # type: ignore[union-attr]  # it has summaries


@pytest.mark.parametrize(("system", "precision"), [("elmo", "bfloat16"), ("elmo", "int8"), ("lstm", "float32")])
def test_a_fast_encoder_goes_on_from_a_carry(system: str, precision: Precision) -> None:
    plain = made(system)
    fast = make_fast(copy.deepcopy(plain), precision, CPU)[0]
    fast = fast if precision != "float32" else FastEncoder(fast, torch.float32)
    # Sequences of one length: ELMo's state belongs to sequences, whatever their order.
    tokens = pack_lists([[1, 2, 3], [4, 5, 6]])
    spelled = character_rows([str(number) for number in range(50)]).astype(np.int32)
    tokens = replace(tokens, chars=torch.from_numpy(spelled)[tokens.ids])
    with torch.inference_mode():
        state = plain(tokens).carry
        ours, theirs = fast(tokens, carry=state), plain(tokens, carry=state)
        assert far(ours.top, theirs.top) < 0.05 < far(plain(tokens).top, theirs.top)


# -- bfloat16 ------------------------------------------------------------------------------------------------


def bfloat16_spread(n_layers: int) -> float:
    """The largest relative difference allowed between bfloat16 and float32.

    Rounding changes a number by at most 2^-9 of itself. Each block rounds about ten times (weights, queries, attention,
    sums, LayerNorms …), and there is one rounding before the first block; such errors add up like random steps. Twice
    that is allowed.
    """
    return 2 * math.sqrt(10 * n_layers + 1) * 2**-9


@pytest.mark.parametrize("system", ["bert", "bert-ltr"])
def test_bfloat16_is_within_its_own_spread_of_float32(system: str) -> None:
    plain = made(system)
    fast, _ = make_fast(copy.deepcopy(plain), "bfloat16", CPU)
    assert all(m.weight.dtype == torch.bfloat16 for m in fast.modules() if isinstance(m, nn.Linear))
    one, other = run(fast), run(plain)
    for number, layer in other.layers.items():
        assert 0 < far(one.layers[number], layer) < bfloat16_spread(number)


def test_bfloat16_of_trained_weights(tiny_run: Path) -> None:
    plain, fast = (load_model(tiny_run, device="cpu", precision=p) for p in ("float32", "bfloat16"))
    one, other = fast.embed(TEXTS), plain.embed(TEXTS)
    assert one.dtype == np.float32
    assert 0 < far(torch.from_numpy(one), torch.from_numpy(other)) < bfloat16_spread(2)


# -- int8 ----------------------------------------------------------------------------------------------------


def int8_by_hand(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """The documented computation of ``Int8Linear``, in whole numbers until the last line."""
    of_weight, of_x = (np.maximum(np.abs(rows).max(1, keepdims=True), 1e-12) for rows in (weight, x))
    whole_weight = np.rint(weight / of_weight * 127).astype(np.int64)
    whole_x = np.rint(x * (np.float32(63) / of_x)).astype(np.int64)
    return (whole_x @ whole_weight.T) * (of_x / 63) * (of_weight.T / 127) + (0 if bias is None else bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shift", [0.0, 3.0, -40.0])
def test_int8_is_its_own_definition(bias: bool, shift: float) -> None:
    torch.manual_seed(1)
    linear, x = nn.Linear(33, 21, bias=bias), torch.randn(50, 33) * 3 + shift
    linear.weight.data[4] *= 100
    linear.weight.data[5] = 0
    x[7] *= 1000
    with torch.inference_mode():
        found = Int8Linear(linear)(x)
    expected = int8_by_hand(x.numpy(), linear.weight.detach().numpy(), linear.bias.detach().numpy() if bias else None)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-4)


def test_int8_does_not_look_at_the_other_tokens() -> None:
    torch.manual_seed(3)
    linear, x = nn.Linear(64, 48), torch.randn(20, 64)
    x[5] *= 1e4
    with torch.inference_mode():
        layer = Int8Linear(linear)
        assert all(torch.equal(layer(x[i : i + 1])[0], row) for i, row in enumerate(layer(x)))


def test_the_error_of_int8_is_that_of_its_two_roundings() -> None:
    """Half a step of a token's input times the weights, plus half a step of a weight times the inputs."""
    torch.manual_seed(2)
    linear, x = nn.Linear(64, 48), torch.randn(100, 64)
    with torch.inference_mode():
        error = (Int8Linear(linear)(x) - linear(x)).abs()
        step_x, step_weight = x.abs().amax(1, keepdim=True) / 63, linear.weight.abs().amax(1) / 127
        allowed = step_x / 2 * linear.weight.abs().sum(1) + x.abs().sum(1, keepdim=True) * step_weight / 2
        assert bool((error <= allowed + step_x * step_weight * 64 / 4 + 1e-5).all())
        assert float(error.max()) > 0


def test_int8_of_nothing_but_zeros_is_the_bias() -> None:
    linear = nn.Linear(8, 4)
    with torch.inference_mode():
        assert torch.equal(Int8Linear(linear)(torch.zeros(3, 8)), linear.bias.expand(3, 4))


def test_int8_changes_the_linear_layers_and_nothing_else() -> None:
    plain = made("bert")
    fast, _ = make_fast(copy.deepcopy(plain), "int8", CPU)
    n_linear = sum(isinstance(m, nn.Linear) for m in plain.modules())
    assert n_linear == 9 == sum(isinstance(m, Int8Linear) for m in fast.modules())
    assert not any(isinstance(m, nn.Linear) for m in fast.modules())
    kept = {name: p for name, p in plain.named_parameters() if "norm" in name or "embeddings" in name}
    found = {name.removeprefix("encoder."): p for name, p in fast.named_parameters()}
    assert found.keys() == kept.keys() and all(torch.equal(found[name], p) for name, p in kept.items())


def test_int8_states_of_trained_weights_point_the_same_way(tiny_run: Path) -> None:
    loaded = read_model(tiny_run)
    plain = loaded.objective.encoder
    fast, _ = make_fast(copy.deepcopy(plain), "int8", CPU)
    layout = loaded.system.layout(loaded.tokenizer)
    tokens = pack_lists([layout.single(ids) for ids in loaded.tokenizer.ids_many(TEXTS)])
    one, other = run(fast, tokens), run(plain, tokens)
    for number, least in ((0, 1.0), (1, 0.999), (2, 0.998)):
        cosine = nn.functional.cosine_similarity(one.layers[number], other.layers[number], dim=1)
        assert float(cosine.min()) >= least - 1e-6
    assert far(one.top, other.top) > 0


# -- loaded models -------------------------------------------------------------------------------------------


def test_blanks_and_vectors_in_every_precision(tiny_run: Path) -> None:
    text = "The [MASK] farmer walked to the [MASK]."
    plain = load_model(tiny_run, device="cpu")
    precise = plain.fill_mask(text)
    for precision in ("bfloat16", "auto"):
        fast = load_model(tiny_run, device="cpu", precision=precision)
        assert fast.path.endswith("bfloat16")
        for one, other in zip(fast.fill_mask(text), precise, strict=True):
            assert one.start == other.start
            assert one.candidates[0].probability == pytest.approx(other.candidates[0].probability, rel=0.05)
        for layer in (0, 1, -1):
            one_vector, other_vector = fast.embed(text, layer), plain.embed(text, layer)
            assert one_vector.dtype == np.float32
            np.testing.assert_allclose(one_vector, other_vector, atol=0.05)
        assert fast.embed(TEXTS, pool="summary").dtype == np.float32


def classifier(tiny_run: Path, folder: Path) -> Path:
    base = read_model(tiny_run)
    model = Classifier(base.objective.encoder, ClassifyConfig(labels=("a", "b", "c")))
    torch.manual_seed(0)
    nn.init.normal_(model.head.weight, std=0.5)
    write_model(folder, "bert", "classify", model, base.tokenizer, {})
    return folder


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_answers_in_every_precision(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    monkeypatch.setattr("firth.inference.model.check_gate", lambda path: None)
    folder = classifier(tiny_run, tmp_path)
    plain, fast = load_model(folder, device="cpu"), load_model(folder, device="cpu", precision=precision)
    assert isinstance(fast.loaded.objective.encoder, FastEncoder) and fast.path.endswith(precision)
    found = list(zip(fast.predict(TEXTS), plain.predict(TEXTS), strict=True))
    assert any(one != other for one, other in found)
    for one, other in found:
        assert one.probabilities == pytest.approx(other.probabilities, abs=0.05)
    assert fast.predict(TEXTS[0]).probabilities == pytest.approx(found[0][1].probabilities, abs=0.05)


@pytest.fixture
def no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: False)


@needs_halves
def test_auto_without_bfloat16_keeps_weights_in_float16(tiny_run: Path, no_bfloat16: None) -> None:
    plain = load_model(tiny_run, device="cpu")
    for precision in ("auto", "float16"):
        fast = load_model(tiny_run, device="cpu", precision=precision)
        assert fast.path.endswith(", float16 weights")
        kinds = {type(part) for part in fast.loaded.objective.encoder.modules()}
        assert HalfLinear in kinds and not kinds & {nn.Linear, PackedLinear}
        found, expected = fast.embed(TEXTS), plain.embed(TEXTS)
        assert not np.array_equal(found, expected)
        np.testing.assert_allclose(found, expected, atol=1e-3)


@needs_halves
@pytest.mark.parametrize("bias", [True, False])
def test_only_the_weights_are_rounded_to_float16(bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 40, bias=bias)
    linear.weight.data[0] = torch.finfo(torch.float16).max
    rounded = copy.deepcopy(linear)
    rounded.weight.data = linear.weight.data.half().float()
    half = HalfLinear(linear)
    for n in (0, 1, 5, 200):
        x = torch.randn(n, 48)
        torch.testing.assert_close(half(x), rounded(x), rtol=1e-5, atol=1e-5)


@needs_halves
@pytest.mark.parametrize("value", [65536.0, -65536.0, math.inf, math.nan])
def test_weights_that_float16_cannot_hold(value: float, no_bfloat16: None) -> None:
    plain = made("bert")
    next(part for part in plain.modules() if isinstance(part, nn.Linear)).weight.data[3, 4] = value
    message = r"^precision='float16': some weights are outside its range, -65504 to 65504; use 'float32'$"
    with pytest.raises(ConfigError, match=message):
        make_fast(copy.deepcopy(plain), "float16", CPU)
    fast, words = make_fast(plain, "auto", CPU)
    assert fast is plain and words.endswith(", float32")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("torch.backends.cpu.get_cpu_capability", lambda: "DEFAULT", "this processor is no x86 with AVX2"),
        ("torch.backends.quantized.engine", "qnnpack", "this PyTorch has no layers with float16 weights"),
    ],
)
def test_a_machine_without_float16_layers(
    name: str, value: Any, reason: str, no_bfloat16: None, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name, value)
    with pytest.raises(ConfigError, match=f"^precision='float16': {reason}; use 'float32'$"):
        make_fast(made("bert"), "float16", CPU)
    found = load_model(tiny_run, device="cpu", precision="auto")
    assert found.path.endswith(", float32")
    np.testing.assert_array_equal(found.embed(TEXTS), load_model(tiny_run, device="cpu").embed(TEXTS))


def test_bfloat16_without_bfloat16_is_refused(tiny_run: Path, no_bfloat16: None) -> None:
    with pytest.raises(ConfigError, match="^precision='bfloat16': .* no bfloat16 units; use 'auto' or 'float32'"):
        load_model(tiny_run, device="cpu", precision="bfloat16")


def test_the_device_that_is_asked_for_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU in the machine does not change what the CPU can do."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("firth.machine.has_fast_bfloat16", lambda: False)
    _, words = make_fast(made("bert"), "auto", CPU)
    assert "CPU thread" in words and "bfloat16" not in words


@pytest.mark.parametrize("device", ["cuda", "meta"])
@pytest.mark.parametrize("precision", ON_CPU)
def test_what_is_for_processors(precision: Precision, device: str) -> None:
    with pytest.raises(ConfigError, match=f"precision='{precision}': runs on the CPU, not on {device}; use 'bfloat16'"):
        make_fast(made("bert"), precision, torch.device(device))


def test_a_pytorch_without_8_bit_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_engine(*arguments: Any) -> Tensor:
        raise NotImplementedError("no engine\nand a long trace")

    for operators, reason in (
        (SimpleNamespace(), "qlinear_prepack"),
        (SimpleNamespace(qlinear_prepack=without_engine), "no engine"),
    ):
        monkeypatch.setattr(torch.ops, "onednn", operators, raising=False)
        with pytest.raises(
            ConfigError, match=rf"precision='int8': this PyTorch has no 8-bit layers \(.*{reason}.*\); use"
        ):
            make_fast(made("bert"), "int8", CPU)


def test_compiling_needs_a_compiler(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firth.training.compiled_blocks.has_compiler", lambda device: False)
    with pytest.raises(ConfigError, match="compile: this machine has no compiler for it"):
        load_model(tiny_run, device="cpu", compile=True)


def test_what_is_compiled_is_the_fast_encoder(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Encoder] = []
    monkeypatch.setattr("firth.inference.model.compile_regions", lambda encoder, device: not compiled.append(encoder))
    model = load_model(tiny_run, device="cpu", precision="bfloat16", compile=True)
    assert isinstance(model, Model) and compiled == [model.loaded.objective.encoder]
    assert isinstance(compiled[0], FastEncoder) and model.path.endswith(", bfloat16, compiled")


def test_an_lstm_has_nothing_to_compile(tiny_vocab: Path, tmp_path: Path) -> None:
    tokenizer, row = Tokenizer.load(tiny_vocab), SYSTEMS["lstm"]
    encoder = row.encoder(row.config(vocab_size=tokenizer.size, **SIZES["lstm"]))
    write_model(tmp_path, "lstm", PRETRAINING, row.objective(encoder, row.objective_config()), tokenizer, {})
    with pytest.raises(ConfigError, match="compile: lstm models have no blocks"):
        load_model(tmp_path, device="cpu", compile=True)
    assert load_model(tmp_path, device="cpu", precision="auto").path.endswith("float32")


needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN packs nothing in bfloat16 for this processor"
)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
def test_packed_layers_are_the_same_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 70).to(dtype)
    packed = PackedLinear(linear)
    for n in (1, 3, 200):
        x = torch.randn(n, 48, dtype=dtype)
        with torch.inference_mode():
            one, other = packed(x), linear(x)
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, rtol=0 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_a_loaded_model_is_packed(tiny_run: Path) -> None:
    model = load_model(tiny_run, device="cpu")
    kinds = [type(m) for m in model.loaded.objective.encoder.modules()]
    assert nn.Linear not in kinds and PackedLinear in kinds
    plain = read_model(tiny_run).objective.encoder.eval()
    layout = model.loaded.system.layout(model.loaded.tokenizer)
    tokens = pack_lists([layout.single(ids) for ids in model.loaded.tokenizer.ids_many(TEXTS)])
    one, other = run(model.loaded.objective.encoder, tokens), run(plain, tokens)
    torch.testing.assert_close(one.top, other.top, rtol=0, atol=1e-5)


def test_without_the_operators_nothing_is_packed(monkeypatch: pytest.MonkeyPatch, tiny_run: Path) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    kinds = [type(m) for m in load_model(tiny_run, device="cpu").loaded.objective.encoder.modules()]
    assert nn.Linear in kinds and PackedLinear not in kinds


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_packed_layers_compute_what_the_block_does_whatever_the_number_of_tokens(activation: str) -> None:
    """The number of rows is rounded up internally; a GELU is fused into the product before it."""
    torch.manual_seed(0)
    sizes = {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 48, "max_positions": 300}
    row = SYSTEMS["bert"]
    encoder = row.encoder(row.config(vocab_size=50, activation=activation, **sizes)).eval()
    packed = copy.deepcopy(encoder)
    pack_linears(packed, torch.device("cpu"))
    assert isinstance(packed.blocks[0].feed_forward, PackedLinear) and isinstance(packed.blocks[1], PackedBlock)
    for length in (1, 7, 8, 9, 31, 100, 300):
        tokens = pack_lists([[7] * length])
        torch.testing.assert_close(run(packed, tokens).top, run(encoder, tokens).top, rtol=0, atol=1e-5)


@needs_bfloat16
@pytest.mark.parametrize("lengths", [[5], [9, 9], [3, 17, 4], [1, 1, 1]])
def test_packed_blocks_in_bfloat16_are_as_near_as_their_layers(lengths: list[int]) -> None:
    torch.manual_seed(0)
    sizes = {"width": 32, "n_layers": 2, "n_heads": 2, "feed_forward_width": 48, "max_positions": 30}
    row = SYSTEMS["bert"]
    plain = row.encoder(row.config(vocab_size=50, **sizes)).eval()
    fast, _ = make_fast(copy.deepcopy(plain), "bfloat16", CPU)
    packed = copy.deepcopy(fast)
    pack_linears(packed, CPU)
    assert any(isinstance(part, PackedBlock) for part in packed.modules())
    tokens = pack_lists([[7 + i for i in range(length)] for length in lengths])
    exact = run(plain, tokens).top
    errors = [(run(encoder, tokens).top - exact).abs().max().item() for encoder in (packed, fast)]
    assert 0 < errors[0] < 2 * errors[1]


def test_numbers_of_rows_are_rounded_up_to_few_and_by_little() -> None:
    rounded = {n: n + -n % row_step(n) for n in range(1, 5000)}
    assert [rounded[n] for n in (1, 7, 8, 9, 300)] == [1, 7, 8, 12, 304] and len(set(rounded.values())) < 125
    assert all(n <= up <= max(1.07 * n, n + 3) for n, up in rounded.items())


def test_numbers_of_sequences_are_rounded_up_to_fewer(tiny_run: Path) -> None:
    """This avoids one kernel per number of sequences in a batch, and changes no answer."""
    rounded = {n: n + -n % sequence_step(n) for n in range(1, 1025)}
    assert [rounded[n] for n in (1, 7, 8, 9, 300, 512)] == [1, 7, 8, 16, 512, 512] and len(set(rounded.values())) == 15
    pooler = load_model(tiny_run, device="cpu").loaded.objective.encoder.pooler
    if isinstance(pooler, PackedLinear):
        assert pooler.step is sequence_step
        x = torch.randn(19, len(pooler.bias))
        with torch.inference_mode():
            rows = pooler(x)
            pooler.step = row_step
            assert torch.equal(rows, pooler(x))
