"""The container of TensorFlow checkpoints (a "V2 bundle"), read and written without TensorFlow.

bert_model.ckpt.index                 a sorted table: name -> type, shape, shard, offset, checksum
bert_model.ckpt.data-00000-of-00001   the numbers, in one shard or several
bert_model.ckpt.meta                  the graph: not needed, and not written

Source: specification of checkpoint formats §1.1 and §1.2. The index is a LevelDB table whose values are protocol
buffers. A file is trusted only after its checksums match, and no size in it determines an allocation before it is
compared with the size of the file. Any defect raises a CheckpointError that names the file.
"""

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from firth.convert.crc32c import masked_crc32c
from firth.errors import CheckpointError
from firth.files import write_file

_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER = 48
_TRAILER = 5
_UNCOMPRESSED, _SNAPPY = 0, 1

# Types by their number. NumPy has no bfloat16: it is read as the upper halves of float32.
_BFLOAT16 = 14
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", _BFLOAT16: "<u2", 19: "<f2"}

# Fields of the messages as (number, wire type). Wire types: 0 varint, 1 eight bytes, 2 length-prefixed, 5 four bytes.
_N_SHARDS, _ENDIANNESS = (1, 0), (2, 0)
_TYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CHECKSUM, _SLICES = (1, 0), (2, 2), (3, 0), (4, 0), (5, 0), (6, 5), (7, 2)
_DIM, _DIM_SIZE, _UNKNOWN_RANK = (2, 2), (1, 0), (3, 0)
_HEADER = b"\x08\x01\x1a\x02\x08\x01"  # one shard, little-endian, producer version 1

# As in the original writer: bytes after which a block ends, and names after which one is written in full.
_BLOCK_BYTES = 2**18
_RESTART_EVERY = 16
# Far above any real index (a tensor takes about 60 bytes), and low enough that a malicious one does no harm: names
# with shared prefixes take more space in memory than in the file.
_MOST_BYTES = 2**22
_LONGEST = 2**12  # bytes of a name, or of its value
_MOST_AXES = 32
_MOST_ELEMENTS = 2**60


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor's location, type and shape."""

    type: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def bundle_prefix(path: Path) -> Path | None:
    """Return the prefix (``…/bert_model.ckpt``) of the bundle at a path, or None if there is none.

    A path may be the prefix, the bundle's ``.index``, ``.meta`` or ``.data-…``, or a folder with one ``.index``.
    """
    if path.is_dir() and len(found := list(path.glob("?*.index"))) == 1:
        (path,) = found
    name = _PART.sub("", path.name)
    return path.with_name(name) if name and _index_path(path.with_name(name)).is_file() else None


def read_bundle(prefix: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, np.ndarray]:
    """Read the tensors whose names are ``wanted``, as read-only memory-mapped arrays; each is checked by its checksum.

    The others are not read from disk. bfloat16 is converted to float32, in memory.
    """
    index_path = _index_path(prefix)
    with _naming(index_path):
        n_shards, entries = _read_index(index_path, wanted)
    tensors: dict[str, np.ndarray] = {}
    shards: dict[int, np.ndarray] = {}
    ends: dict[int, int] = {}
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].shard, item[1].offset, item[1].size)):
        path = _shard_path(prefix, entry.shard, n_shards)
        with _naming(path):
            if entry.shard not in shards:
                shards[entry.shard] = _map(path)
            # Each byte may belong to only one tensor, or a small file could keep us busy for years.
            if entry.offset < ends.get(entry.shard, 0):
                raise ValueError(f"{name!r} overlaps another tensor")
            ends[entry.shard] = entry.offset + entry.size
            tensors[name] = _tensor(name, entry, shards[entry.shard])
    return tensors


def write_bundle(prefix: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write ``tensors`` as a bundle of one shard, replacing an older one with that prefix.

    Both files appear complete, the index last; nothing is replaced before everything is on disk.
    """
    final = (_shard_path(prefix, 0, 1), _index_path(prefix))
    try:
        # The file of the outer context is renamed last.
        with write_file(final[1]) as index, write_file(final[0]) as data:
            entries = _write_tensors(data, tensors)
            index.write(_table([(b"", _HEADER), *entries]))
    except OSError as error:
        raise CheckpointError(f"{prefix} could not be written: {error.strerror or error}") from None


def _index_path(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _shard_path(prefix: Path, shard: int, n_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{n_shards:05d}")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Convert errors to a CheckpointError that names the file; functions below raise ValueError for its contents."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: a TensorFlow checkpoint is one .index file and all its .data files, side by side"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


# Tensors


def _map(path: Path) -> np.ndarray:
    """Map the bytes of a shard. An empty file cannot be mapped."""
    return np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)


def _tensor(name: str, entry: _Entry, shard: np.ndarray) -> np.ndarray:
    end = entry.offset + entry.size
    if end > len(shard):
        raise ValueError(f"{name!r} ends at byte {end:,}, but the file has {len(shard):,}: copy it again")
    raw = shard[entry.offset : end]
    if masked_crc32c(raw) != entry.checksum:
        raise ValueError(f"{name!r} does not match its checksum: the file is damaged, copy it again")
    array = raw.view(_TYPES[entry.type])
    if entry.type == _BFLOAT16:
        array = (array.astype("<u4") << 16).view("<f4")
    array = array.reshape(entry.shape)
    array.flags.writeable = False
    return array


def _write_tensors(file: BinaryIO, tensors: Mapping[str, np.ndarray]) -> list[tuple[bytes, bytes]]:
    """Write the tensors one after another, sorted by name; returns the entries of the index."""
    types = {np.dtype(code): number for number, code in _TYPES.items() if number != _BFLOAT16}
    entries, offset = [], 0
    # Python's order of strings equals that of their UTF-8 bytes.
    for name, given in sorted(tensors.items()):
        dtype = given.dtype.newbyteorder("<")
        if dtype not in types or not name:
            raise CheckpointError(f"{name!r} of type {given.dtype}: a TensorFlow checkpoint cannot hold it here")
        raw = np.asarray(given, dtype, order="C").reshape(-1).view(np.uint8)
        file.write(raw.data)
        dims = b"".join(_bytes_field(_DIM, _int_field(_DIM_SIZE, n)) for n in given.shape)
        value = (
            _int_field(_TYPE, types[dtype])
            + _bytes_field(_SHAPE, dims)
            + _int_field(_OFFSET, offset)
            + _int_field(_SIZE, raw.size)
            + _key(_CHECKSUM)
            + masked_crc32c(raw).to_bytes(4, "little")
        )
        entries.append((name.encode(), value))
        offset += raw.size
    return entries


# The index


def _read_index(path: Path, wanted: Callable[[str], bool]) -> tuple[int, dict[str, _Entry]]:
    """Read the number of shards, and the entries of the wanted tensors."""
    if (n_bytes := path.stat().st_size) > _MOST_BYTES:
        raise ValueError(f"it has {n_bytes:,} bytes, more than the index of any checkpoint: it is another file")
    n_shards, entries = 0, {}
    previous, names_bytes = None, 0
    for key, value in _read_table(path.read_bytes()):
        if previous is not None and key <= previous:
            raise ValueError(f"{_text(key)!r} is there twice, or its names are not in order")
        previous = key
        if not key:
            n_shards = _read_header(value)
            continue
        name = _text(key)
        names_bytes += len(key)
        if not n_shards or names_bytes > _MOST_BYTES:
            raise ValueError("its names are beyond measure" if n_shards else "it has no header")
        if wanted(name):
            entries[name] = _read_entry(name, value, n_shards)
    if not n_shards:
        raise ValueError("it has no header")
    return n_shards, entries


def _text(key: bytes) -> str:
    """Decode the name of a tensor; ValueError for kinds of checkpoint that are not supported here."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        name = "\0"
    if "\0" in name:
        raise ValueError("it holds slices of partitioned variables, which are not put together here: save it whole")
    if name.endswith("/.ATTRIBUTES/VARIABLE_VALUE") or name == "_CHECKPOINTABLE_OBJECT_GRAPH":
        raise ValueError(
            "it is an object checkpoint of TensorFlow 2, which names tensors by the objects of a program: save the "
            "model as safetensors (transformers: save_pretrained), or under the names of google-research/bert"
        )
    return name


def _read_header(value: bytes) -> int:
    header = dict(_fields(value))
    if header.get(_ENDIANNESS, 0):
        raise ValueError("it is big-endian: save it again on a usual machine")
    if not (n_shards := header.get(_N_SHARDS, 0)):
        raise ValueError("its header says that there are no data files")
    return int(n_shards)


def _read_entry(name: str, value: bytes, n_shards: int) -> _Entry:
    fields = dict(_fields(value))
    if _SLICES in fields:
        raise ValueError(f"{name!r} is cut into slices, which are not put together here: save it whole")
    entry = _Entry(
        type=fields.get(_TYPE, 0),
        shape=_read_shape(name, fields.get(_SHAPE, b"")),
        shard=fields.get(_SHARD, 0),
        offset=fields.get(_OFFSET, 0),
        size=fields.get(_SIZE, 0),
        checksum=fields.get(_CHECKSUM, 0),
    )
    if entry.type not in _TYPES:
        raise ValueError(
            f"{name!r} has type {entry.type}: expected float32 (1), float64 (2), float16 (19), bfloat16 (14), int32 (3)"
            f" or int64 (9)"
        )
    expected = math.prod(entry.shape) * np.dtype(_TYPES[entry.type]).itemsize
    if entry.size != expected:
        raise ValueError(f"{name!r} has {entry.size:,} bytes, but shape {entry.shape} takes {expected:,}")
    if entry.shard >= n_shards:
        raise ValueError(f"{name!r} lies in data file {entry.shard} of {n_shards}, counted from 0")
    return entry


def _read_shape(name: str, message: bytes) -> tuple[int, ...]:
    fields = list(_fields(message))
    dims = [dict(_fields(value)).get(_DIM_SIZE, 0) for key, value in fields if key == _DIM]
    # Negative numbers are stored as unsigned 64-bit ones. An array without elements may still be too large for NumPy.
    too_large = math.prod(filter(None, dims)) >= _MOST_ELEMENTS
    if len(dims) > _MOST_AXES or too_large or dict(fields).get(_UNKNOWN_RANK, 0):
        raise ValueError(f"{name!r} has an impossible shape")
    return tuple(dims)


# Tables: blocks of entries, in which keys omit the prefix that they share with the previous key


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    body, footer = data[:-_FOOTER], data[-_FOOTER:]
    if len(data) < _FOOTER or not footer.endswith(_MAGIC):
        raise ValueError("it does not end as the index of a checkpoint does: it is another file, or truncated")
    *metaindex, at = _read_handle(footer, 0)
    _read_block(body, *metaindex)
    *index, _ = _read_handle(footer, at)
    end = 0
    for _, handle in _read_entries(_read_block(body, *index)):
        offset, size, _ = _read_handle(handle, 0)
        if offset < end:
            raise ValueError("its blocks overlap: it is damaged")
        end = offset + size
        yield from _read_entries(_read_block(body, offset, size))


def _read_handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Read the offset and size of a block, and the position of the next handle."""
    offset, at = _read_varint(data, at)
    size, at = _read_varint(data, at)
    return offset, size, at


def _read_block(body: bytes, offset: int, size: int) -> bytes:
    if offset + size + _TRAILER > len(body):
        raise ValueError("a block lies outside of it: it is damaged, copy it again")
    block = body[offset : offset + size + 1]
    stored = body[offset + size + 1 : offset + size + _TRAILER]
    if masked_crc32c(np.frombuffer(block, np.uint8)) != int.from_bytes(stored, "little"):
        raise ValueError("a block does not match its checksum: the file is damaged, copy it again")
    if block[-1] != _UNCOMPRESSED:
        kind = "snappy" if block[-1] == _SNAPPY else f"method {block[-1]}"
        raise ValueError(f"a block is compressed ({kind}), which TensorFlow does not do: save it uncompressed")
    return block[:-1]


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    n_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (n_restarts + 1)
    if not n_restarts or end < 0:
        raise ValueError("a block has an impossible number of restarts: it is damaged")
    key, at = b"", 0
    while at < end:
        shared, at = _read_varint(block, at)
        n_key, at = _read_varint(block, at)
        n_value, at = _read_varint(block, at)
        if shared > len(key) or at + n_key + n_value > end or max(shared + n_key, n_value) > _LONGEST:
            raise ValueError("an entry does not fit into its block: it is damaged")
        key = key[:shared] + block[at : at + n_key]
        at += n_key + n_value
        yield key, block[at - n_value : at]


def _table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Build a table of entries, which are sorted by key."""
    table = bytearray()
    handles = []
    for block in _cut(entries):
        # A separator may be any key from a block's last up to, but not including, the next block's first.
        handles.append((block[-1][0], _append_block(table, block, _RESTART_EVERY)))
    metaindex = _append_block(table, (), 1)
    index = _append_block(table, handles, 1)
    return bytes(table) + (metaindex + index).ljust(_FOOTER - len(_MAGIC), b"\0") + _MAGIC


def _cut(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    block, n_bytes = [], 0
    for key, value in entries:
        block.append((key, value))
        n_bytes += len(key) + len(value)
        if n_bytes >= _BLOCK_BYTES:
            yield block
            block, n_bytes = [], 0
    if block:
        yield block


def _append_block(table: bytearray, entries: Sequence[tuple[bytes, bytes]], restart_every: int) -> bytes:
    """Append a block to the table; returns its handle."""
    block, restarts, previous = bytearray(), [0], b""
    for number, (key, value) in enumerate(entries):
        shared = len(os.path.commonprefix((previous, key)))
        if number % restart_every == 0:
            shared = 0
            restarts[number // restart_every :] = [len(block)]
        block += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        previous = key
    for number in (*restarts, len(restarts)):
        block += number.to_bytes(4, "little")
    handle = _varint(len(table)) + _varint(len(block))
    block.append(_UNCOMPRESSED)
    table += block + masked_crc32c(np.frombuffer(block, np.uint8)).to_bytes(4, "little")
    return handle


# Protocol buffers


def _fields(message: bytes) -> Iterator[tuple[tuple[int, int], Any]]:
    """Yield the number and wire type, and the value, of each field."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _read_varint(message, at)
            yield (number, wire), value
            continue
        if wire == 2:
            n_bytes, at = _read_varint(message, at)
        elif wire in (1, 5):
            n_bytes = 8 if wire == 1 else 4
        else:
            raise ValueError("an entry has a field of unknown kind: it is damaged")
        if at + n_bytes > len(message):
            raise ValueError("an entry ends within a field: it is damaged")
        raw, at = message[at : at + n_bytes], at + n_bytes
        yield (number, wire), raw if wire == 2 else int.from_bytes(raw, "little")


def _key(field: tuple[int, int]) -> bytes:
    number, wire = field
    return _varint(number << 3 | wire)


def _int_field(field: tuple[int, int], value: int) -> bytes:
    """Encode an integer field; zero is omitted."""
    return _key(field) + _varint(value) if value else b""


def _bytes_field(field: tuple[int, int], value: bytes) -> bytes:
    return _key(field) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*result, value))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number, and the position where it ends."""
    value = 0
    for shift, byte in zip(range(0, 64, 7), data[at : at + 10], strict=False):
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80 and value < 2**64:
            return value, at
    raise ValueError("a number does not end: it is damaged")
