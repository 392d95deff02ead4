"""What this machine can do, found out in one place."""

import ctypes
from dataclasses import dataclass

import torch

from firth.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and in what type the matrix products run. ``path`` says it in words."""

    device: torch.device
    dtype: torch.dtype
    path: str


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware (AMX or AVX-512 BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    if "AVX512" not in capability and "AMX" not in capability:
        return False
    checks = (
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    )
    return any(check is not None and check() for check in checks)


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """The type in which matrix products of ``x`` run: autocast's where that is on, else its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def find_machine(
    precision: str, option: str = "train.precision", device: torch.device | None = None
) -> Machine:
    """The card if there is one, else the processor, or ``device``; ``precision`` as in ``train.precision``.

    ConfigError, which names the ``option``, for a precision that this machine does not compute in.
    """
    if device is None:
        has_card = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if has_card else torch.device("cpu")
    if device.type == "cuda":
        name, fast = torch.cuda.get_device_name(device), torch.cuda.is_bf16_supported()
    else:
        threads = torch.get_num_threads()
        name, fast = f"{threads} processor thread{'s' if threads > 1 else ''}", has_fast_bfloat16()
    if precision == "bfloat16" and not fast:
        raise ConfigError(
            f"{option}='bfloat16': {name} has no bfloat16 units; use 'auto' or 'float32'"
        )
    dtype = torch.bfloat16 if fast and precision != "float32" else torch.float32
    return Machine(device, dtype, f"{name}, {str(dtype).removeprefix('torch.')}")


def reuse_memory() -> None:
    """Let this process keep the memory it frees, for what it needs next.

    A step frees and asks for the same large tensors again and again. By default each goes back to the system and
    comes again as pages to be filled with zeros, which takes a tenth of a step of a small model. Only where the C
    library is glibc; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4  # names and numbers of malloc.h
    mallopt(trim_threshold, -1)
    mallopt(mmap_max, 0)
