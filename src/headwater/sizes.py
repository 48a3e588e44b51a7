"""Sizes of messages: a list of them ends early where it has as many bytes as it may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from headwater.headers import Headers
from headwater.inputs import MAX_EXACT, check_int

# A server returns no more messages once they have as many bytes.
LIST_BYTES = 4 * 1024 * 1024


class Sized(Protocol):
    """What has a value, and headers beside it; some have a tag and a cause, too."""

    @property
    def value(self) -> bytes:
        """What was written."""

    @property
    def headers(self) -> Headers:
        """What was written beside the value."""


SizedItem = TypeVar("SizedItem", bound=Sized)


def bytes_of(items: Iterable[Sized]) -> int:
    """Return how many bytes messages have: their values, headers, tags and causes."""
    return sum(map(_size_of, items))


def first_of(items: list[SizedItem], max_bytes: int | None) -> list[SizedItem]:
    """Return the first of some items, up to the one with which they have ``max_bytes``."""
    if max_bytes is None:
        return items
    for place, item in enumerate(items, 1):
        max_bytes -= _size_of(item)
        if max_bytes <= 0:
            return items[:place]
    return items


def check_max_bytes(max_bytes: int | None) -> int | None:
    """Accept how many bytes a list ends at; None is no limit."""
    return None if max_bytes is None else check_int(max_bytes, "max_bytes", 1, MAX_EXACT)


def _size_of(item: Sized) -> int:
    size = len(item.value) + len(item.headers.encoded) + len(getattr(item, "tag", ""))
    cause = getattr(item, "cause", None)
    return size if cause is None else size + len(cause.text)
