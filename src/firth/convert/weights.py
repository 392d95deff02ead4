"""Read named tensors from the files of other tools; nothing in them is executed.

model.safetensors               a table of names, types, shapes and offsets, then the numbers
pytorch_model.bin               a zip of raw storages and a pickle that names them; before torch 1.6 a stream of pickles
….index.json                    which of several such files holds which tensor

Source: specification of checkpoint formats §2. Tensors stay on disk until they are used: safetensors and zips
are memory-mapped. Their dtypes are those of the file; they are widened when copied into a model.
"""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from firth.config import read_json
from firth.errors import CheckpointError, InputError
from firth.manifest import first_bytes

INDEX = ".index.json"
# In order of preference: a folder may hold the same weights several times.
FILES = (
    "model.safetensors",
    "model.safetensors" + INDEX,
    "pytorch_model.bin",
    "pytorch_model.bin" + INDEX,
)
OTHERS = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax"}

_ZIP = b"PK\x03\x04"


def find_tensors(folder: Path) -> Path:
    """Find the file (or index of files) with the weights of a folder; else CheckpointError, naming what is there."""
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    other = [f"{name} ({tool})" for name, tool in OTHERS.items() if (folder / name).is_file()]
    found = f", only {', '.join(other)}: save it as safetensors with its own tool" if other else ""
    raise CheckpointError(f"{folder} has no weights: expected model.safetensors or pytorch_model.bin{found}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors in ``path``, a file or an index of files; CheckpointError if it is damaged."""
    if path.name.endswith(INDEX):
        return _read_index(path)
    if path.suffix not in _READERS:
        raise CheckpointError(f"{path}: expected a name that ends in {' or '.join(_READERS)}")
    tensors = _READERS[path.suffix](path)
    for name, tensor in tensors.items():
        _check(path, name, tensor)
    return {name: _usual(tensor) for name, tensor in tensors.items()}


def _usual(tensor: Tensor) -> Tensor:
    """Convert 8-bit floats to a dtype that can be compared and concatenated; other tensors stay where they are."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    first_bytes(path)
    # The library refuses headers above 100 MB, gaps, overlaps, sizes that do not match, and trailing bytes.
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} cannot be read: {_line(error)}") from None


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a file written by torch: a table of tensors and plain values by name; CheckpointError for anything else."""
    zipped = first_bytes(path).startswith(_ZIP)
    if zipped:
        _check_zip(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # the library raises many kinds of error for a damaged file
        # A file that is not a pickle at all fails with a LookupError at some byte.
        raise CheckpointError(_why_not(path, "" if isinstance(error, LookupError) else str(error))) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise CheckpointError(f"{path} holds {type(found).__name__}, expected tensors by name")
    return dict(found)


_READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {".safetensors": _read_safetensors, ".bin": read_pickle}


def _check_zip(path: Path) -> None:
    """Raise CheckpointError for an archive that unpacks to more than its size: torch stores numbers uncompressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    # zipfile raises NotImplementedError for an archive of a newer version or on several disks.
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise CheckpointError(f"{path} cannot be read: {_line(error)}") from None
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise CheckpointError(f"{path} unpacks to more than its own size: it was not written by torch")


def _why_not(path: Path, message: str) -> str:
    """Condense torch's long message to one sentence."""
    code = re.search(r"GLOBAL (\S+)", message)
    if code:
        return (
            f"{path} holds more than tensors ({code[1]}), which only running its code would make; nothing of it was "
            f"run: ask for the same weights as safetensors"
        )
    # If a byte is not a pickle operation, torch's first line advises running whatever is in the file.
    line = "" if "Unsupported operand" in message else _line(message)
    return f"{path} cannot be read: {line or 'it was not written by torch, or it is damaged'}"


def _line(error: object) -> str:
    """Return the first line of a message that is not blank."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


def _check(path: Path, name: str, tensor: Any) -> None:
    """Raise CheckpointError unless ``tensor`` is a plain tensor whose numbers are all in the file."""
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{path}: {name} is {type(tensor).__name__}, expected a tensor")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise CheckpointError(f"{path}: {name} is a tensor of a kind that no published BERT has")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"{path}: {name} has shape {tuple(tensor.shape)}, of which the file holds only a part")


def _read_index(path: Path) -> dict[str, Tensor]:
    """Read the tensors of several files, as listed in the index."""
    try:
        places = read_json(path).get("weight_map")
    except InputError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{path}: weight_map: expected the name of a file for each tensor")
    tensors: dict[str, Tensor] = {}
    for file in dict.fromkeys(places.values()):
        shard = read_tensors(_shard(path, file))
        differ = sorted(shard.keys() ^ {name for name, place in places.items() if place == file})
        if differ:
            raise CheckpointError(f"{path}: {file} and weight_map disagree about {', '.join(map(repr, differ[:5]))}")
        tensors |= shard
    return tensors


def _shard(index: Path, name: str) -> Path:
    """Return the path of a file in an index, which must be next to it: a foreign index must not reach other folders."""
    if name in ("", ".", "..") or len(name) > 255 or any(character in name for character in "/\\\0"):
        raise CheckpointError(f"{index}: weight_map names {name!r}, expected a file of the same folder")
    if Path(name).suffix not in _READERS:
        raise CheckpointError(f"{index}: weight_map names {name!r}, expected a name with {' or '.join(_READERS)}")
    path, folder = index.parent / name, index.parent.resolve()
    # In the hub's cache, a snapshot's files are links into a folder of the same repository.
    home = folder.parents[1] if folder.parent.name == "snapshots" else folder
    if not path.is_file():
        raise CheckpointError(f"{index}: weight_map names {name}, which is not there")
    if not path.resolve().is_relative_to(home):
        raise CheckpointError(f"{index}: {name} is a link that leaves the folder")
    return path
