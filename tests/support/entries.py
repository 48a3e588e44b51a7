"""Messages to write, each different and known by its number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater import Message


def entries(count: int, first: int = 1, tags: int = 7) -> list[tuple[str, bytes]]:
    """Make the entries with the numbers first..first + count - 1."""
    return [(f"tag-{i % tags}", b"value-%d" % i) for i in range(first, first + count)]


def pairs(messages: Iterable[Message | None]) -> list[tuple[str, bytes] | None]:
    """Return what was written; None for what is gone."""
    return [None if m is None else (m.tag, m.value) for m in messages]


def offsets(messages: Iterable[Message | None]) -> list[int]:
    """Name the offsets of messages that are there."""
    return [m.offset for m in messages if m is not None]


def flips(text: bytes) -> Iterator[bytes]:
    """Yield a text with each of its bits flipped in turn."""
    for place in range(8 * len(text)):
        changed = bytearray(text)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)
