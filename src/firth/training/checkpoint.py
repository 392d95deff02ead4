"""Checkpoints: folders that are written atomically and verified on reading.

checkpoints/step-1000/
├── …                     a model folder (written by the ``save_model`` that the caller passes in)
├── train/
│   ├── state.json            step, position in the data, log offset, best score, evaluation history
│   ├── optimizer.safetensors
│   │                         (with --sharding full: shares.json, and shares-RANK.safetensors from each process)
│   └── carry.safetensors     recurrent state of each micro-batch of a step
└── manifest.json         size and SHA-256 of every file
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from firth.config import read_json
from firth.errors import CheckpointError, ConfigError, FirthError
from firth.files import clear_litter, recover, remove_folder, staged_folder
from firth.manifest import check_folder

_SHARES = "shares.json"
# The system's error number in a safetensors error message.
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def save_checkpoint(
    checkpoints: Path,
    step: int,
    *,
    save_model: Callable[[Path], None],
    state: dict[str, Any],
    optimizer: dict[str, Tensor],
    carry: dict[str, Tensor],
    keep: int,
) -> Path:
    """Write ``step-N`` atomically, then delete the oldest checkpoints beyond ``keep``; see ``staged_checkpoint``.

    ``carry``: recurrent state by ``<micro-batch of a step>/<name>``.
    """
    with staged_checkpoint(checkpoints, step, keep) as folder:
        fill_checkpoint(folder, save_model=save_model, state=state, carry=carry)
        save_tensors(folder / "train" / "optimizer.safetensors", optimizer)
    return checkpoints / f"step-{step}"


@contextmanager
def staged_checkpoint(checkpoints: Path, step: int, keep: int) -> Iterator[Path]:
    """Yield a folder for the files of ``step-N``, then move it into place and delete the oldest beyond ``keep``.

    Checkpoints of later steps are deleted too: they were damaged, so the run resumed from an earlier one.
    """
    if checkpoints.is_symlink():
        raise ConfigError(
            f"{checkpoints} is a link, and Firth writes nothing through links: put the folder itself there"
        )
    clear_litter(checkpoints)
    with staged_folder(checkpoints / f"step-{step}") as folder:
        (folder / "train").mkdir()
        yield folder
    kept = [old for number, old in list_checkpoints(checkpoints) if number <= step][-keep:]
    for _, old in list_checkpoints(checkpoints):
        if old not in kept:
            remove_folder(old)


def fill_checkpoint(
    folder: Path, *, save_model: Callable[[Path], None], state: dict[str, Any], carry: dict[str, Tensor]
) -> None:
    """Write everything but the optimizer's state to a checkpoint's folder."""
    save_model(folder)
    (folder / "train" / "state.json").write_text(json.dumps(state, indent=2) + "\n", "utf-8")
    save_tensors(folder / "train" / "carry.safetensors", carry)


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors to a safetensors file, with the permissions of any new file. OSError if the disk fails."""
    # The library creates a temporary file that only its owner may read.
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:
        # The library reports a failing disk as its own error, with the system's error number in the text.
        if number := _SYSTEM_ERROR.search(str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise OSError(str(error)) from None
    path.chmod(mode)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors from a safetensors file; CheckpointError if it is not one."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def save_share(train: Path, state: dict[str, Tensor], rank: int, size: int) -> None:
    """Write the optimizer's state of one process's shares; the leading process also writes their number."""
    save_tensors(train / f"shares-{rank}.safetensors", state)
    if rank == 0:
        (train / _SHARES).write_text(json.dumps({"processes": size}) + "\n", "utf-8")


def load_optimizer(train: Path) -> Mapping[str, Tensor]:
    """Load the optimizer's state by name, whole or joined from shares on access; CheckpointError if damaged."""
    if not (train / _SHARES).exists():
        return load_tensors(train / "optimizer.safetensors")
    size = read_json(train / _SHARES).get("processes")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise CheckpointError(f"{train / _SHARES}: processes={str(size)[:60]}: expected a number of processes")
    return Shares([train / f"shares-{rank}.safetensors" for rank in range(size)])


class Shares(Mapping[str, Tensor]):
    """Tensors whose shares, slices along the first dimension in process order, are stored in several files.

    A tensor is read when it is accessed, so that no process holds all of them in memory.
    """

    def __init__(self, paths: list[Path]):
        self._files = []
        for path in paths:
            try:
                self._files.append(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from None
        self._keys = [set(file.keys()) for file in self._files]
        self._names = sorted(set().union(*self._keys))

    def __getitem__(self, name: str) -> Tensor:
        parts = [f.get_tensor(name) for f, keys in zip(self._files, self._keys, strict=True) if name in keys]
        if not parts:
            raise KeyError(name)
        return torch.cat(parts) if parts[0].dim() else parts[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def list_checkpoints(checkpoints: Path) -> list[tuple[int, Path]]:
    """List complete checkpoints, oldest first. Unfinished ones and folders with other names are ignored."""
    found = []
    if checkpoints.is_dir():
        for path in checkpoints.iterdir():
            number = path.name.removeprefix("step-")
            if path.is_dir() and path.name.startswith("step-") and number.isdecimal():
                found.append((int(number), path))
    return sorted(found)


def has_begun(run: Path) -> bool:
    """Whether a run has a checkpoint, however damaged, or a model: something to resume from, or to lose."""
    models = (run / "model", run / ".model.old")
    replaced = (run / "checkpoints").glob(".step-*.old")
    return bool(list_checkpoints(run / "checkpoints")) or any(replaced) or any(model.exists() for model in models)


def recover_checkpoints(checkpoints: Path) -> None:
    """Restore a checkpoint that a kill during its replacement left under another name.

    Also deletes what a kill left half written or half deleted: a finished run makes no further save that would do so.
    """
    clear_litter(checkpoints)
    for old in checkpoints.glob(".step-*.old"):
        recover(checkpoints / old.name.removeprefix(".").removesuffix(".old"))


def newest_checkpoint(checkpoints: Path, tell: Callable[[str], None]) -> Path | None:
    """Find the newest undamaged checkpoint; reports each damaged one to ``tell``."""
    for _, path in reversed(list_checkpoints(checkpoints)):
        try:
            check_folder(path)
            return path
        except FirthError as error:
            tell(f"{error}; trying an older checkpoint")
    return None
