"""The checksum against published values and against its definition, bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.convert import crc32c as module
from firth.convert.crc32c import crc32c, masked_crc32c


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def by_definition(data: bytes, register: int = 0xFFFFFFFF) -> int:
    """Update the register bit by bit."""
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),
        # RFC 3720, B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_published_values(data: bytes, expected: int) -> None:
    assert crc32c(array(data)) == expected == by_definition(data)


@given(st.binary(max_size=300))
@settings(max_examples=50)
def test_short_messages(data: bytes) -> None:
    assert crc32c(array(data)) == by_definition(data)


# Around the lengths at which folding starts, in short and in long steps, and lengths that need several of each.
LENGTHS = [5680, 5681, 5682, 10004, 10005, 45475, 45476, 45477, 51000, 90000]


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_at_which_the_steps_change(length: int) -> None:
    data = np.random.default_rng(length).integers(256, size=length, dtype=np.uint8)
    assert crc32c(data) == by_definition(data.tobytes())


@pytest.mark.parametrize("block", [1, 7, 5000, 45476, 10**6])
def test_blocks_of_any_length(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(block).integers(256, size=50_000 if block > 7 else 7000, dtype=np.uint8)
    expected = by_definition(data.tobytes())
    monkeypatch.setattr(module, "_BLOCK", block)
    assert crc32c(data) == expected


def test_several_real_blocks_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(256, size=5 * 2**19 + 3, dtype=np.uint8)
    several = crc32c(data)
    monkeypatch.setattr(module, "_BLOCK", len(data))
    assert crc32c(data) == several


def test_the_message_stays_as_it_was() -> None:
    data = np.random.default_rng(0).integers(256, size=100_000, dtype=np.uint8)
    before = data.copy()
    crc32c(data)
    assert np.array_equal(data, before)


def test_every_bit_counts() -> None:
    data = np.random.default_rng(1).integers(256, size=60_000, dtype=np.uint8)
    seen = {crc32c(data)}
    for place in range(0, len(data), 997):
        data[place] ^= 1 << place % 8
        seen.add(crc32c(data))
    assert len(seen) == 1 + len(range(0, len(data), 997))


def test_mask() -> None:
    crc = by_definition(b"firth")
    turned = int(f"{crc:032b}"[-15:] + f"{crc:032b}"[:-15], 2)
    assert masked_crc32c(array(b"firth")) == (turned + 0xA282EAD8) % 2**32
