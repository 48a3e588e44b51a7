"""Roshi's hashes of 32 bits, so that Roshi and Headwater find a key on the same instance.

The instance is the hash modulo the number of instances; their number and order decide where keys
are. HASHES has them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from headwater.errors import InvalidInput

Hash: TypeAlias = Callable[[bytes], int]

_MASK: Final = 0xFFFFFFFF
_FNV_OFFSET: Final = 2166136261
_FNV_PRIME: Final = 16777619


def murmur3(key: bytes) -> int:
    """MurmurHash3 x86_32 with seed 0."""
    h = 0
    whole = len(key) & ~3
    for place in range(0, whole, 4):
        h ^= _scramble(int.from_bytes(key[place : place + 4], "little"))
        h = ((h << 13) | (h >> 19)) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    if whole < len(key):
        h ^= _scramble(int.from_bytes(key[whole:], "little"))
    h ^= len(key)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def _scramble(k: int) -> int:
    k = (k * 0xCC9E2D51) & _MASK
    k = ((k << 15) | (k >> 17)) & _MASK
    return (k * 0x1B873593) & _MASK


def fnv(key: bytes) -> int:
    """FNV-1 of 32 bits: multiply, then xor; hash/fnv New32 of Go."""
    h = _FNV_OFFSET
    for byte in key:
        h = (h * _FNV_PRIME & _MASK) ^ byte
    return h


def fnva(key: bytes) -> int:
    """FNV-1a of 32 bits: xor, then multiply; hash/fnv New32a of Go."""
    h = _FNV_OFFSET
    for byte in key:
        h = (h ^ byte) * _FNV_PRIME & _MASK
    return h


HASHES: Final[dict[str, Hash]] = {"murmur3": murmur3, "fnv": fnv, "fnva": fnva}


def find_hash(name: str) -> Hash:
    """Return a hash by its name, in any case; raises InvalidInput."""
    if not isinstance(name, str) or name.lower() not in HASHES:
        raise InvalidInput(f"hash must be one of {', '.join(HASHES)}, not {name!r}")
    return HASHES[name.lower()]
