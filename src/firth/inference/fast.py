"""Encoders in bfloat16 or int8, for inference only.

The encoder alone does: what it hands out is float32 again, so that heads, pooling and answers are the same code and
differ only by the encoder's own rounding.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from firth.errors import ConfigError
from firth.machine import find_machine
from firth.packed import Carry, Encoder, Hidden, Tokens

Precision = Literal["float32", "bfloat16", "int8", "auto"]


class FastEncoder(Encoder):
    """An encoder whose matrix products run in ``dtype``, or in 8-bit integers where its layers were replaced so."""

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
        """``carry`` is for encoders with recurrent state."""
        device = tokens.ids.device.type
        # Other encoders have no such parameter.
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


class Int8Linear(nn.Module):
    """A linear layer in integers: weights of 8 bits, scaled by output; inputs of 7, by batch; float32 in and out.

    Source: FBGEMM's dynamic quantisation, symmetric weights, inputs from 0 to 127 between the batch's lowest and
    highest. The sums are exact; the rounding of weights and inputs is the whole error. Inputs of 8 bits would
    overflow on processors without VNNI: with 7 a model's scores are the same on all.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scales = weight.abs().amax(1).clamp(min=1e-12) / 127
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            # The type of such tensors is to go from PyTorch; the operator has no other way in yet.
            warnings.filterwarnings("ignore", "torch.quantize_per")
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Float[Tensor, "T width_in"]) -> Float[Tensor, "T width_out"]:
        return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)


class PackedLinear(nn.Module):
    """A linear layer whose weights lie as oneDNN's matrix products read them, instead of being laid out at each call.

    Twice as fast for a single text, a tenth for large batches. The sums are the same up to their order.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.dtype, self.bias = linear.weight.dtype, linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Float[Tensor, "T width_in"]) -> Float[Tensor, "T width_out"]:
        return torch.ops.mkldnn._linear_pointwise(x.to(self.dtype), self.packed, self.bias, "none", [], "")


def pack_linears(encoder: Encoder, device: torch.device) -> None:
    """Replace the linear layers by packed ones, on processors where PyTorch has them; for predictions only."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise") or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return
    for owner, name, linear in list(_linears(encoder)):
        if linear.weight.dtype in (torch.float32, torch.bfloat16):
            setattr(owner, name, PackedLinear(linear))


def make_fast(encoder: Encoder, precision: Precision, device: torch.device) -> tuple[Encoder, str]:
    """The encoder, made to compute in ``precision`` on ``device``, and that in words: 2 CPU threads, bfloat16.

    ``auto``: bfloat16 where the processor or card multiplies in it, else float32. ``encoder`` itself is changed: its
    weights are kept in fewer bits. ConfigError if this machine cannot, or the encoder has nothing that would.
    """
    if precision == "int8" and device.type != "cpu":
        raise ConfigError(f"precision='int8': runs on a processor, not on {device.type}; use 'bfloat16' there")
    linears = list(_linears(encoder))
    if not linears:
        if precision in ("bfloat16", "int8"):
            raise ConfigError(
                f"precision={precision!r}: this encoder ({type(encoder).__name__}) has no linear layers, which are "
                "what computes in fewer bits; use 'float32'"
            )
        precision = "float32"
    machine = find_machine("float32" if precision == "int8" else precision, "precision", device)
    if precision == "int8":
        _replace(linears)
        return FastEncoder(encoder, torch.float32), machine.path.replace("float32", "int8")
    if machine.dtype == torch.float32:
        return encoder, machine.path
    for _, _, linear in linears:
        # Embeddings and norms stay: they are added up in float32.
        linear.to(machine.dtype)
    return FastEncoder(encoder, machine.dtype), machine.path


def _linears(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Each linear layer, with the module that has it and its name there."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            yield module, name, child
        else:
            yield from _linears(child)


def _replace(linears: list[tuple[nn.Module, str, nn.Linear]]) -> None:
    try:
        for owner, name, linear in linears:
            setattr(owner, name, Int8Linear(linear))
    except (AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"precision='int8': this PyTorch has no 8-bit layers ({reason}); use 'bfloat16'") from None
