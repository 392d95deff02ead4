"""What this machine can do, found out in one place."""

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


def find_machine(precision: str) -> Machine:
    """The card if there is one, else the processor; ``precision`` as in ``train.precision``."""
    if torch.cuda.is_available():
        device, name = torch.device("cuda", torch.cuda.current_device()), torch.cuda.get_device_name()
        fast = torch.cuda.is_bf16_supported()
    else:
        threads = torch.get_num_threads()
        device, name = torch.device("cpu"), f"{threads} processor thread{'s' if threads > 1 else ''}"
        fast = has_fast_bfloat16()
    if precision == "bfloat16" and not fast:
        raise ConfigError(
            f"train.precision='bfloat16': {name} has no bfloat16 units; use 'auto' or 'float32'"
        )
    dtype = torch.bfloat16 if fast and precision != "float32" else torch.float32
    return Machine(device, dtype, f"{name}, {str(dtype).removeprefix('torch.')}")
