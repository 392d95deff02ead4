"""A second writer of TensorFlow bundles, from the specification alone: any shards, blocks, types and false claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
CODES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
HEADER_VERSION = b"\x1a\x02\x08\x01"

Pairs = Sequence[tuple[bytes, bytes]]


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def checksum(data: bytes) -> bytes:
    """Masked CRC32C, computed byte by byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def varint(value: int) -> bytes:
    """Encode a number; negative numbers as 64-bit two's complement."""
    value %= 2**64
    groups = [value & 127]
    while value := value >> 7:
        groups.append(value & 127)
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def number(field: int, value: int) -> bytes:
    """A number field, written even if it is 0, which is valid."""
    return varint(field << 3) + varint(value)


def message(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def header(n_shards: int) -> bytes:
    return number(1, n_shards) + HEADER_VERSION


def entry(
    code: int, shape: Sequence[int], offset: int, size: int, crc: bytes, shard: int = 0, *, zeros: bool = False
) -> bytes:
    """``zeros``: also write fields that are 0."""
    parts = [number(1, code)]
    parts.append(message(2, b"".join(message(2, number(1, n) if n or zeros else b"") for n in shape)))
    parts += [number(field, value) for field, value in ((3, shard), (4, offset), (5, size)) if value or zeros]
    return b"".join(parts) + varint(6 << 3 | 5) + crc


def block(pairs: Pairs, restart_every: int = 16, n_restarts: int | None = None) -> bytes:
    body, restarts, previous = b"", [], b""
    for i, (key, value) in enumerate(pairs):
        shared = 0
        if i % restart_every == 0:
            restarts.append(len(body))
        else:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        body += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    count = len(restarts) if n_restarts is None else n_restarts
    return body + b"".join(r.to_bytes(4, "little") for r in restarts) + (count % 2**32).to_bytes(4, "little")


def sealed(data: bytes, kind: int = 0) -> bytes:
    """A block with its trailer."""
    typed = data + bytes([kind])
    return typed + checksum(typed)


def table(
    blocks: Sequence[bytes], separators: Sequence[bytes], kind: int = 0, handles: Sequence[bytes] | None = None
) -> bytes:
    """The file of these blocks (without trailers); ``handles`` may claim that they lie elsewhere."""
    data, places = b"", []
    for one in blocks:
        places.append(varint(len(data)) + varint(len(one)))
        data += sealed(one, kind)
    meta, index = block([]), block(list(zip(separators, handles or places, strict=True)), 1)
    footer = varint(len(data)) + varint(len(meta))
    data += sealed(meta)
    footer += varint(len(data)) + varint(len(index))
    return data + sealed(index) + footer.ljust(40, b"\0") + MAGIC


def index_of(pairs: Pairs, *, per_block: int = 10**9, restart_every: int = 16, kind: int = 0) -> bytes:
    cut = [pairs[i : i + per_block] for i in range(0, len(pairs), per_block)]
    return table([block(one, restart_every) for one in cut], [one[-1][0] for one in cut], kind)


def write(
    prefix: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    codes: Mapping[str, int] | None = None,
    n_shards: int = 1,
    per_block: int = 10**9,
    restart_every: int = 16,
    zeros: bool = False,
) -> None:
    """Write a bundle: the tensors go to the shards in turn, in reverse alphabetical order."""
    shards = [b""] * n_shards
    pairs = []
    for i, (name, tensor) in enumerate(sorted(tensors.items(), reverse=True)):
        raw, shard = tensor.tobytes(), i % n_shards
        code = (codes or {}).get(name) or CODES[tensor.dtype.name]
        line = entry(code, tensor.shape, len(shards[shard]), len(raw), checksum(raw), shard, zeros=zeros)
        pairs.append((name.encode(), line))
        shards[shard] += raw
    pairs = [(b"", header(n_shards)), *sorted(pairs)]
    index = index_of(pairs, per_block=per_block, restart_every=restart_every)
    prefix.with_name(prefix.name + ".index").write_bytes(index)
    for shard, data in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{n_shards:05d}").write_bytes(data)
