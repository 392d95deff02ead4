"""Counter-based random numbers: vectorised hashing of integers.

A random number is a pure function of a seed and of keys that say what it is for (an epoch, a document, a
position), so nothing depends on the order of calls, the number of workers, or earlier calls.
Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators" (the mixer).
"""

import hashlib

import numpy as np

Uint64 = np.ndarray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def seed_of(*keys: object) -> int:
    """Derive a 64-bit seed from the text of any keys; the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, keys)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def draw(seed: int, *keys: np.ndarray | int) -> Uint64:
    """64 random bits for each element of the broadcast keys (non-negative integers)."""
    state = np.full(1, seed & _MASK, np.uint64)
    for key in keys:
        key_bits = np.atleast_1d(np.asarray(key)).astype(np.uint64)
        state = _mix(state ^ (key_bits * _GOLDEN + _FIRST))
    return state


def _mix(x: Uint64) -> Uint64:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def uniform(bits: Uint64) -> np.ndarray:
    """Convert random bits to float64 numbers in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def below(bits: Uint64, limit: np.ndarray | int) -> np.ndarray:
    """Convert random bits to int64 numbers in [0, limit); limit < 2^31, bias below 2^-32."""
    return (((bits >> np.uint64(32)) * np.asarray(limit).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def permutation(seed: int, n: int) -> np.ndarray:
    """A random order of 0 … n-1."""
    return np.argsort(draw(seed, np.arange(n)), kind="stable")
