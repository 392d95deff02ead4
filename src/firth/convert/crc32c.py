"""Compute CRC32C checksums with NumPy.

A checksum is the remainder of the message, read as a polynomial over GF(2), divided by a fixed polynomial. Anything
congruent to 0 may be added to the message, so a multiple of that polynomial with few terms folds the front of a
message onto the rest with a few XORs of whole arrays, without a table or a loop over bytes.
Source: Castagnoli, Bräuer and Herrmann 1993 (the polynomial); Russell 2024, "Chorba: a novel CRC32
implementation" (sparse multiples).
"""

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # lowest power in the highest bit, as everywhere here
# x^5685 + x^1362 + x^426 + 1 is a multiple of it; by repeated squaring, so is the same with every exponent times 2^k.
# A byte may therefore be removed by adding it to the bytes at these distances (times 2^k) after it.
_DISTANCES = (4323, 5259, 5685)
# Long steps for long messages, then short ones.
_SCALES = (8, 1)
_BLOCK = 2**20
# These four bytes before a message have the effect of a register that starts with all ones.
_START = np.frombuffer(bytes.fromhex("54641f64"), np.uint8)


def crc32c(data: np.ndarray) -> int:
    """Compute the checksum of a one-dimensional array of bytes."""
    rest = _START
    for start in range(0, len(data), _BLOCK):
        rest = _fold(np.concatenate((rest, data[start : start + _BLOCK])))
    bits = np.unpackbits(rest, bitorder="little").view(np.bool_)
    remainders = _remainders()[-len(bits) :]
    return int(np.bitwise_xor.reduce(remainders[bits])) ^ 0xFFFFFFFF


def masked_crc32c(data: np.ndarray) -> int:
    """Compute the checksum as TensorFlow stores it: rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _fold(message: np.ndarray) -> np.ndarray:
    """Fold a message to at most ``_DISTANCES[-1]`` bytes with the same remainder; overwrites ``message``."""
    for scale in _SCALES:
        distances = [scale * distance for distance in _DISTANCES]
        stop = max(0, len(message) - distances[-1])
        for start in range(0, stop, distances[0]):
            end = min(start + distances[0], stop)
            for distance in distances:
                message[start + distance : end + distance] ^= message[start:end]
        message = message[stop:]
    return message


@functools.cache
def _remainders() -> np.ndarray:
    """Remainders of x^(k + 32) for the bits of the longest folded message, that of the last bit (k = 0) last."""
    remainders = np.empty(8 * _DISTANCES[-1], np.uint32)
    power = _POLYNOMIAL
    for k in range(len(remainders)):
        remainders[-1 - k] = power
        power = power >> 1 ^ (_POLYNOMIAL if power & 1 else 0)
    return remainders
