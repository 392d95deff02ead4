"""How much memory this process can still use, and what it keeps in memory."""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from firth.errors import ConfigError
from firth.machine import _left_to_group, bound_kernel_caches, find_machine, free_memory, sizes_only
from firth.models.bert import Bert
from firth.models.config import BertConfig


def test_the_limit_of_the_process_counts() -> None:
    program = (
        "import resource, torch\n"
        "from pathlib import Path\n"
        "from firth.machine import free_memory\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, resource.RLIM_INFINITY))\n"
        "print(free_memory(torch.device('cpu')))\n"
    )
    if resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY or not Path("/proc/self/statm").exists():
        pytest.skip("the limit cannot be set, or read, here")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) <= 50_000_000


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "900", "a/memory.current": "200"}, 700.0),
        ("0::/a/b\n", {"a/b/memory.max": "50", "a/b/memory.current": "20", "memory.max": "max"}, 30.0),
        ("0::/\n", {"memory.max": "100", "memory.current": "40"}, 60.0),
        ("3:memory:/x\n", {"memory/x/memory.limit_in_bytes": "80", "memory/x/memory.usage_in_bytes": "5"}, 75.0),
        # Cached files are given up when memory is needed.
        (
            "0::/\n",
            {
                "memory.max": "100",
                "memory.current": "95",
                "memory.stat": "anon 5\nfile 90\ninactive_file 60\nactive_file 20",
            },
            85.0,
        ),
        (
            "3:memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": "80",
                "memory/x/memory.usage_in_bytes": "50",
                "memory/x/memory.stat": "inactive_file 1\nactive_file 2\ntotal_inactive_file 10\ntotal_active_file 20",
            },
            60.0,
        ),
        ("0::/gone\n", {"memory.max": "max"}, None),
        ("", {}, None),
    ],
)
def test_the_least_limit_of_the_groups_counts(
    tmp_path: Path, own: str, files: dict[str, str], left: float | None
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert _left_to_group(tmp_path / "groups", tmp_path / "own") == left


def test_sizes_are_known_without_values_or_further_imports() -> None:
    config = BertConfig(vocab_size=50, width=8, n_layers=2, n_heads=2, feed_forward_width=16, max_positions=16)
    before = len(sys.modules)
    with sizes_only():
        sizes = Bert(config)
        sizes.pooler.requires_grad_(False)
    assert len(sys.modules) - before < 5
    made = Bert(config)
    assert [(name, p.shape) for name, p in sizes.named_parameters()] == [
        (name, p.shape) for name, p in made.named_parameters()
    ]
    assert all(p.device.type == "meta" for p in sizes.parameters())
    assert not any(p.requires_grad for p in sizes.pooler.parameters())


_EVER_NEW_SHAPES = """
import ctypes, torch
from firth.inference.fast import PackedLinear
from firth.machine import find_machine

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

libc = ctypes.CDLL("libc.so.6")
libc.mallinfo2.restype = Mallinfo
find_machine("float32")
torch.set_num_threads(1)
layer, used = PackedLinear(torch.nn.Linear(16, 16)), []
with torch.inference_mode():
    for _ in range(3):
        for n in range(1, 901):
            layer(torch.zeros(n, 16))
        used.append(libc.mallinfo2().h)
print(*used)
"""


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no packed layers")
def test_ever_new_shapes_do_not_make_a_process_grow() -> None:
    """A matrix product is compiled for each shape; there are few shapes, and few are kept."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("this C library does not count its memory")
    free = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    ran = subprocess.run([sys.executable, "-c", _EVER_NEW_SHAPES], env=free, capture_output=True, text=True, check=True)
    first, second, third = map(int, ran.stdout.split())
    assert third - second < 1_000_000 and second - first < 1_000_000


def test_what_the_user_says_of_the_caches_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    bound_kernel_caches()
    assert (os.environ["LRU_CACHE_CAPACITY"], os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"]) == ("7", "64")


@pytest.mark.parametrize(("fast", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_gpu_is_taken_where_there_is_one(fast: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)  # emulated before Ampere
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if fast else (7, 5))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 << 30)
    found = find_machine("auto")
    assert (found.device, found.dtype) == (torch.device("cuda", 1), dtype)
    assert found.path == f"card 1, {str(dtype).removeprefix('torch.')}"
    assert free_memory(found.device) == 5 << 30
    if not fast:
        with pytest.raises(
            ConfigError, match=r"this machine \(card 1\) has no bfloat16 units; use 'auto' or 'float32'"
        ):
            find_machine("bfloat16")
