"""Detect the machine's hardware: device, dtype, threads."""

import ctypes
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from firth.errors import ConfigError

_Made = TypeVar("_Made", bound=nn.Module)

# Environment variables of ideep (PyTorch) and oneDNN. A kernel takes half a megabyte; 64 are enough for the four layers
# of a Transformer block at 16 different row counts, which suffice for short sentences
# (``firth.inference.fast.row_step``).
_KERNEL_CACHES = {"LRU_CACHE_CAPACITY": 64, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64}


@dataclass(frozen=True, slots=True)
class Machine:
    """Device and dtype of matrix products. ``path`` describes them."""

    device: torch.device
    dtype: torch.dtype
    path: str


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware (AMX or AVX-512 BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    if "AVX512" not in capability and "AMX" not in capability:
        return False
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check is not None and check() for check in checks)


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of matrix products of ``x``: autocast's if it is on, else its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def bound_kernel_caches() -> None:
    """Limit the process's cache of compiled matrix products, each compiled for one input shape.

    Batches of packed sequences keep having new shapes, and a product takes 100 to 250 kB: PyTorch's and oneDNN's
    defaults (1,024 each) let a process grow by hundreds of MB in its first hours. Doing without PyTorch's own cache
    costs nothing; a product that oneDNN has evicted costs a millisecond, so oneDNN keeps more than a batch of any model
    needs. Both limits are read at the first product; values that the user has set are kept.
    """
    for name, n_products in _KERNEL_CACHES.items():
        os.environ.setdefault(name, str(n_products))


def find_machine(precision: str, option: str = "train.precision", device: torch.device | None = None) -> Machine:
    """Choose the GPU if there is one, else the CPU, or ``device``; ``precision`` as in ``train.precision``.

    ConfigError, which names the ``option``, for a precision that this machine does not support.
    """
    bound_kernel_caches()
    if device is None:
        has_card = torch.cuda.is_available()
        device = torch.device("cuda", torch.cuda.current_device()) if has_card else torch.device("cpu")
    if device.type == "cuda":
        name, fast = torch.cuda.get_device_name(device), has_bfloat16_units(device)
    else:
        threads = torch.get_num_threads()
        name, fast = f"{threads} CPU thread{'s' if threads > 1 else ''}", has_fast_bfloat16()
    if precision == "bfloat16" and not fast:
        raise ConfigError(f"{option}='bfloat16': this machine ({name}) has no bfloat16 units; use 'auto' or 'float32'")
    dtype = torch.bfloat16 if fast and precision != "float32" else torch.float32
    return Machine(device, dtype, f"{name}, {str(dtype).removeprefix('torch.')}")


def has_bfloat16_units(card: torch.device) -> bool:
    """Whether a GPU multiplies in bfloat16: since Ampere.

    ``torch.cuda.is_bf16_supported`` counts emulation as well, and only asks about the current GPU.
    """
    return torch.version.hip is not None or torch.cuda.get_device_capability(card) >= (8, 0)


@contextmanager
def deterministic() -> Iterator[None]:
    """A context with deterministic CPU algorithms, without filling uninitialised memory."""
    options: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), options.fill_uninitialized_memory
    if not torch.cuda.is_available():
        _make_deterministic(2)
        options.fill_uninitialized_memory = False
    try:
        yield
    finally:
        _make_deterministic(before[0])
        options.fill_uninitialized_memory = before[1]


def _make_deterministic(mode: int) -> None:
    """Set the mode as ``torch.set_deterministic_debug_mode`` does: 0 is off, 1 warns, 2 raises."""
    # The first call also tells PyTorch's compiler, which takes seconds to import; ``compile_regions`` does that later.
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
    else:
        torch.set_deterministic_debug_mode(mode)


def reuse_memory() -> None:
    """Let this process keep freed memory for reuse.

    Every step or batch frees large tensors and allocates the same ones again. By default each goes back to the system
    and returns as pages that must be zeroed, which takes a tenth of a small model's step. Works only with glibc;
    elsewhere it does nothing.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4  # names and numbers of malloc.h
    mallopt(trim_threshold, -1)
    mallopt(mmap_max, 0)


def give_back() -> None:
    """Return freed memory to the system, also from gaps between what is in use: milliseconds, and page faults later.

    Works only on Linux with glibc; elsewhere it does nothing.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class _Growth:
    """Limits how far this process may grow before it returns freed memory; one limit for the whole process.

    Tensors of ever new sizes leave gaps in the memory that the C library keeps for reuse, so a process would grow for
    as long as new sizes come. Returning all of it after every batch would cost a small model a fifth of its speed.
    """

    MOST = 32 << 20  # bytes

    def __init__(self) -> None:
        self._limit: int | None = None

    def check(self) -> None:
        """Note the size after a batch; once it has grown by more than ``MOST``, return memory and start again."""
        resident = _resident()
        if resident is None:
            return
        if self._limit is None:
            self._limit = resident + self.MOST
        elif resident > self._limit:
            give_back()
            self._limit = None


_growth = _Growth()


def bound_growth() -> None:
    """Return freed memory to the system (``give_back``) if this process has grown; call it between batches."""
    _growth.check()


def _resident() -> int | None:
    """Bytes of memory that this process holds; None if unknown."""
    try:
        # Called after every batch: opening a text file would take a twentieth of a short text's time.
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


class _WithoutValues(TorchFunctionMode):
    """Skips operations that fill tensors on the meta device: they do nothing, but make PyTorch import for a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
            filled = args[0] if args else next(iter((kwargs or {}).values()))
            if isinstance(filled, torch.Tensor) and filled.is_meta:
                return filled
        return func(*args, **(kwargs or {}))


class _Registration(threading.local):
    """Whether parameters that this thread registers get no memory."""

    deferred = False


_registration = _Registration()


def _defer(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    """Inside ``unfilled``, replace a parameter by one of the same shape on the meta device."""
    if not _registration.deferred or parameter is None or parameter.is_meta:
        return None  # unchanged
    # Not empty_like: on the meta device it imports PyTorch's compiler, which takes 0.4 s.
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


def unfilled(make: Callable[[], _Made]) -> _Made:
    """Build a module whose parameters have memory but no values yet, because they will be read from a file.

    Sampling random weights that a file then replaces took half of the time to read a small model. Buffers have their
    values: some are tables that no file contains.
    """
    hook = register_module_parameter_registration_hook(_defer)  # type: ignore[arg-type]  # its result is used
    _registration.deferred = True
    try:
        with _WithoutValues():
            module = make()
    finally:
        _registration.deferred = False
        hook.remove()
    made: dict[nn.Parameter, nn.Parameter] = {}  # a parameter with two names stays one
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if parameter not in made:
                values = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                made[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            setattr(part, name, made[parameter])
    return module


@contextmanager
def sizes_only() -> Iterator[None]:
    """A context that builds modules without parameter memory, to count their parameters."""
    with torch.device("meta"), _WithoutValues():
        yield


def free_memory(device: torch.device) -> float | None:
    """Bytes that this process can still allocate on a device; None if unknown.

    On the CPU: the minimum of what the system has available and what the limits of the control group and the process
    leave. On a GPU: with what PyTorch keeps for reuse.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    found = [value for value in (_available(), _left_to_group(), _left_to_process()) if value is not None]
    return min(found, default=None)


def _available() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return float(kilobytes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in kilobytes else None


def _left_to_group(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Bytes left under a container's limit: the minimum over the process's group and its parents."""
    found = []
    for limit, used in _group_files(root, own):
        try:
            text = limit.read_text().strip()
            if text != "max":
                found.append(float(text) - float(used.read_text()) + _file_cache(used.with_name("memory.stat")))
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def _file_cache(stat: Path) -> float:
    """Bytes of a group's usage that are cached files, which the kernel gives up as soon as memory is needed."""
    try:
        found = dict(line.split(maxsplit=1) for line in stat.read_text().splitlines())
        # Version 1 counts groups below this one only in those beginning with "total".
        return sum(float(found.get(f"total_{name}", found.get(name, 0))) for name in ("active_file", "inactive_file"))
    except (OSError, ValueError):
        return 0.0


def _group_files(root: Path, own: Path) -> Iterator[tuple[Path, Path]]:
    """The files with the limit and the usage of each group, for control groups versions 2 and 1."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    groups = {(controllers, PurePosixPath(path)) for _, controllers, path in (line.split(":", 2) for line in lines)}
    for controllers, path in [*groups, ("", PurePosixPath("/")), ("memory", PurePosixPath("/"))]:
        if controllers not in ("", "memory"):
            continue
        base, names = root, ("memory.max", "memory.current")
        if controllers:
            base, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        for place in (path, *path.parents):
            folder = base / place.relative_to("/")
            yield folder / names[0], folder / names[1]


def _left_to_process() -> float | None:
    """Bytes left under ``ulimit -v``, which limits address space and so runs out first."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(limit - pages * resource.getpagesize(), 0.0)
