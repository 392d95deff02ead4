"""Run encoders in bfloat16, with float16 weights, or in int8, for inference only.

Only the encoder uses the lower precision, and it returns float32, so heads, pooling and decoding are the same code
and results differ only by the encoder's rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.inference.precision import ON_CPU, Precision
from firth.layers.activations import ACTIVATIONS
from firth.layers.attention import attend
from firth.layers.blocks import PostNormBlock
from firth.layers.dropout import draw_seed
from firth.machine import find_machine
from firth.packed import Carry, Encoder, Hidden, Rows, Tokens

_WEIGHT_LEVELS, _INPUT_LEVELS = 127, 63
# oneDNN's names for the activations that it fuses into a matrix product.
_FUSED = {ACTIVATIONS["gelu"]: ("gelu", "none"), ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh")}
# Activations and their in-place versions.
_IN_PLACE: Mapping[Any, Any] = {
    ACTIVATIONS["gelu"]: torch.ops.aten.gelu_,
    ACTIVATIONS["gelu_tanh"]: partial(torch.ops.aten.gelu_, approximate="tanh"),
}
# The unsigned number that represents an input of 0.
_ZERO = 64
# Products of at most ``_FEW_ROWS`` rows are not padded; larger ones are padded to a multiple of at least
# ``_LEAST_STEP``. With BERT-base on one thread an extra row costs a sentence 1 to 2 ms, recompiling a kernel 0.6 ms:
# with multiples of 4 and the cache of ``firth.machine`` one sentence of SST-2 in 33 needs new kernels, and a sentence
# has on average 1.5 extra rows (3.5 with multiples of 8).
_FEW_ROWS, _LEAST_STEP = 8, 4
# Least scale: rows of zeros are divided by it.
_SMALLEST = 1e-12


class FastEncoder(Encoder):
    """An encoder whose matrix products run in ``dtype``, or in int8 if its layers were replaced."""

    def __init__(self, encoder: Encoder, dtype: torch.dtype):
        super().__init__()
        self.encoder, self.config, self.dtype = encoder, encoder.config, dtype

    @property
    def widths(self) -> tuple[int, ...]:
        return self.encoder.widths

    @property
    def summary_width(self) -> int:
        return self.encoder.summary_width

    @property
    def causal(self) -> bool:
        return self.encoder.causal

    @property
    def piece_embedding(self) -> Float[Tensor, "V H"]:
        return self.encoder.piece_embedding

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return self.encoder.layer_groups()

    def regions(self) -> list[nn.Module]:
        return self.encoder.regions()

    def forward(self, tokens: Tokens, keep: Sequence[int] = (-1,), carry: Carry | None = None) -> Hidden:
        """Run the encoder; ``carry`` only for encoders with recurrent state."""
        device = tokens.ids.device.type
        # Other encoders do not take ``carry``.
        state = {} if carry is None else {"carry": carry}
        with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
            hidden: Hidden = self.encoder(tokens, keep=keep, **state)
        layers = {number: layer.float() for number, layer in hidden.layers.items()}
        summary = None if hidden.summary is None else hidden.summary.float()
        return Hidden(layers, hidden.rows, summary, hidden.carry)

    def step(self, tokens: Tokens, past: Any) -> tuple[Float[Tensor, "T H"], Any]:
        with torch.autocast(tokens.ids.device.type, self.dtype, enabled=self.dtype != torch.float32):
            top, past = self.encoder.step(tokens, past)
        return top.float(), past


def row_step(n: int) -> int:
    """The multiple that ``n`` rows are padded to: a 32nd to a 16th of ``n``, at least 4; 1 up to 8 rows."""
    return 1 if n <= _FEW_ROWS else max(_LEAST_STEP, 1 << max(n.bit_length() - 5, 0))


def sequence_step(n: int) -> int:
    """The same for layers with one row per sequence, as the pooler: up to 8 rows as they are, else the next power of 2.

    Every batch has a different number of sequences, and a pooler's row is a small part of the cost of its sequence.
    """
    return 1 if n <= _FEW_ROWS else 1 << (n - 1).bit_length()


class Int8Linear(nn.Module):
    """A linear layer in integers: 8-bit weights scaled per output, 7-bit inputs scaled per token; float32 in and out.

    Both are symmetric: a row's largest magnitude becomes 127 or 63. Sums are exact; only the rounding of weights and
    inputs causes error, and no token depends on the others in its batch. 8-bit inputs would overflow on CPUs without
    VNNI; with 7 bits all CPUs give the same scores.
    """

    def __init__(self, linear: nn.Linear, step: Callable[[int], int] = row_step):
        """``step``: as in ``PackedLinear``."""
        super().__init__()
        self.step = step
        weight = linear.weight.detach().float()
        largest = weight.abs().amax(1).clamp(min=_SMALLEST)
        rounded = (weight / largest[:, None] * _WEIGHT_LEVELS).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self.scales = largest / (_WEIGHT_LEVELS * _INPUT_LEVELS)
        self.zeros = torch.zeros(len(weight), dtype=torch.int32)
        self.bias = torch.zeros(len(weight)) if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Float[Tensor, "T width_in"]) -> Float[Tensor, "T width_out"]:
        # Without abs(), whose result would be as large as the input.
        largest = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True)).clamp_(min=_SMALLEST)
        n = x.shape[0]
        # Pad as PackedLinear does; compiled code must accept any number of rows.
        missing = 0 if torch.compiler.is_compiling() else -n % self.step(n)
        rounded = torch.empty(n + missing, x.shape[1], dtype=torch.int8)
        rounded[:n] = (x * (_INPUT_LEVELS / largest)).round_()
        rounded[n:] = 0
        # oneDNN multiplies unsigned inputs by signed weights: -63 to 63 become 1 to 127.
        rounded = rounded.add_(_ZERO).view(torch.uint8)
        sums = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, _ZERO, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        # In place, here and in the activation: for a long batch, allocating memory costs more than the arithmetic.
        return torch.addcmul(self.bias, sums[:n], largest, out=sums[:n])


class HalfLinear(nn.Module):
    """A linear layer whose weights are float16 and whose arithmetic is float32, as FBGEMM computes it on x86.

    For CPUs without bfloat16 units. Products of few rows are limited by reading the weights, which take half the space;
    nor is a kernel compiled for each number of rows. Only the weights are rounded, to 11 bits.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        bias = None if linear.bias is None else linear.bias.detach()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach(), bias)

    def forward(self, x: Float[Tensor, "T width_in"]) -> Float[Tensor, "T width_out"]:
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return product


class PackedLinear(nn.Module):
    """A linear layer whose weights are packed in oneDNN's layout once, instead of at each call.

    Twice as fast for a single text, 10 % faster for large batches. Sums differ only in their order. Numbers of rows
    are rounded up (``row_step``): oneDNN compiles a kernel of half a megabyte for each number.
    """

    def __init__(
        self, linear: nn.Linear, activation: str = "none", form: str = "", step: Callable[[int], int] = row_step
    ):
        """``activation`` and its ``form``: what oneDNN applies to the outputs, under its own names.

        ``step``: gives the multiple that a number of rows is rounded up to.
        """
        super().__init__()
        self.step = step
        self.dtype, self.bias, self.activation, self.form = linear.weight.dtype, linear.bias, activation, form
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Float[Tensor, "T width_in"]) -> Float[Tensor, "T width_out"]:
        x, n = x.to(self.dtype), x.shape[0]
        if missing := -n % self.step(n):
            x = F.pad(x, (0, 0, 0, missing))
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.activation, [], self.form)[:n]

    def plus(self, x: Float[Tensor, "T width_in"], other: Float[Tensor, "T width_out"]) -> Float[Tensor, "T width_out"]:
        """Outputs without the activation, plus ``other``, fused into the product; the rows must be padded already."""
        return torch.ops.mkldnn._linear_pointwise.binary(x.to(self.dtype), other, self.packed, self.bias, "add")


class PackedBlock(PostNormBlock):
    """A block of packed layers, for inference: rows are padded once, and residual sums are fused into the products.

    For a single sentence everything but the products takes half the time. In bfloat16 the sums are rounded once
    instead of twice.
    """

    def __init__(self, block: PostNormBlock):
        nn.Module.__init__(self)
        for name, part in block.named_children():
            self.add_module(name, part)
        self.activate = block.activate

    def forward(self, x: Float[Tensor, "T H"], rows: Rows) -> Float[Tensor, "T H"]:
        attention, mixing, output = self.attention, self.attention.output, self.feed_forward_output
        assert isinstance(mixing, PackedLinear) and isinstance(output, PackedLinear)
        # The hooks that read attention and silence heads see only calls of modules.
        if attention._forward_hooks or mixing._forward_pre_hooks:
            return super().forward(x, rows)
        n = x.shape[0]
        if missing := -n % row_step(n):
            x = F.pad(x, (0, 0, 0, missing))
        q, k, v = (part[:n] for part in attention.project(x))
        context = attend(q, k, v, rows, rows, causal=attention.causal, dropout=0.0, seed=draw_seed(0.0)).flatten(1)
        if missing:
            context = F.pad(context, (0, 0, 0, missing))
        x = self.attention_norm(mixing.plus(context, x))
        found: Tensor = self.feed_forward_norm(output.plus(self.activate(self.feed_forward(x)), x))
        return found[:n]


# Steps of layers by name; all others have a row per token.
_STEPS = {"pooler": sequence_step}


def pack_linears(encoder: Encoder, device: torch.device) -> None:
    """Replace the linear layers by packed ones, on CPUs where PyTorch supports them; for inference only.

    The activation of a Transformer's feed-forward network is fused into its first layer.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return
    for block in encoder.modules():
        if isinstance(block, PostNormBlock) and block.activate in _FUSED and _is_packable(block.feed_forward):
            block.feed_forward = PackedLinear(block.feed_forward, *_FUSED[block.activate])  # type: ignore[assignment]
            block.activate = ACTIVATIONS["linear"]
    for owner, name, linear in list(_linears(encoder)):
        if _is_packable(linear):
            setattr(owner, name, PackedLinear(linear, step=_STEPS.get(name, row_step)))
    for owner in list(encoder.modules()):
        for name, block in list(owner.named_children()):
            if isinstance(block, PostNormBlock) and all(isinstance(linear, PackedLinear) for linear in _layers(block)):
                setattr(owner, name, PackedBlock(block))


def _layers(block: PostNormBlock) -> tuple[nn.Module, ...]:
    attention = block.attention
    return attention.query_key_value, attention.output, block.feed_forward, block.feed_forward_output


def _is_packable(linear: nn.Module) -> bool:
    if not isinstance(linear, nn.Linear):
        return False
    if linear.weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return linear.weight.dtype == torch.float32


def make_fast(encoder: Encoder, precision: Precision, device: torch.device) -> tuple[Encoder, str]:
    """Convert an encoder to compute in ``precision`` on ``device``; also describe how it runs: 2 CPU threads, bfloat16.

    ``auto``: bfloat16 if the CPU or GPU supports it, else float16 weights, else float32. Changes ``encoder`` in place:
    its weights are stored in fewer bits. ConfigError if this machine or the encoder does not support the precision.
    """
    if precision in ON_CPU and device.type != "cpu":
        raise ConfigError(f"precision={precision!r}: runs on the CPU, not on {device.type}; use 'bfloat16' there")
    linears = list(_linears(encoder))
    if not linears:
        if precision in ("bfloat16", *ON_CPU):
            raise ConfigError(
                f"precision={precision!r}: this encoder ({type(encoder).__name__}) has no linear layers to run in "
                "lower precision; use 'float32'"
            )
        precision = "float32"
    machine = find_machine("float32" if precision in ON_CPU else precision, "precision", device)
    if precision == "auto" and machine.dtype == torch.float32 and device.type == "cpu" and not _against_halves(linears):
        precision = "float16"
    if precision == "float16":
        if reason := _against_halves(linears):
            raise ConfigError(f"precision='float16': {reason}; use 'float32'")
        _replace(encoder, linears, lambda name, linear: HalfLinear(linear))
        return FastEncoder(encoder, torch.float32), machine.path.replace("float32", "float16 weights")
    if precision == "int8":
        try:
            _replace(encoder, linears, lambda name, linear: Int8Linear(linear, _STEPS.get(name, row_step)))
        except (AttributeError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"precision='int8': this PyTorch has no 8-bit layers ({reason}); use 'bfloat16'"
            ) from None
        return FastEncoder(encoder, torch.float32), machine.path.replace("float32", "int8")
    if machine.dtype == torch.float32:
        return encoder, machine.path
    for _, _, linear in linears:
        # Embeddings and norms stay in float32.
        linear.to(machine.dtype)
    return FastEncoder(encoder, machine.dtype), machine.path


def _linears(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Yield each linear layer with its parent module and name."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            yield module, name, child
        else:
            yield from _linears(child)


def _replace(
    encoder: Encoder, linears: Sequence[tuple[nn.Module, str, nn.Linear]], make: Callable[[str, nn.Linear], nn.Module]
) -> None:
    """Replace each layer by ``make(name, layer)``, and the activations by in-place ones."""
    for owner, name, linear in linears:
        setattr(owner, name, make(name, linear))
    for block in encoder.modules():
        if isinstance(block, PostNormBlock):
            block.activate = _IN_PLACE.get(block.activate, block.activate)


def _against_halves(linears: Sequence[tuple[nn.Module, str, nn.Linear]]) -> str | None:
    """Return why these layers cannot have float16 weights; None if they can."""
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        return "this processor is no x86 with AVX2"
    if torch.backends.quantized.engine not in ("x86", "fbgemm") or not hasattr(
        torch.ops.quantized, "linear_prepack_fp16"
    ):
        return "this PyTorch has no layers with float16 weights"
    most = torch.finfo(torch.float16).max
    # NaN fails this check too; FBGEMM would turn it into a number.
    if not all(-most <= low and high <= most for _, _, linear in linears for low, high in [linear.weight.aminmax()]):
        return f"some weights are outside its range, -{most:.0f} to {most:.0f}"
    return None
