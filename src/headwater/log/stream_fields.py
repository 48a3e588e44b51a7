"""The fields of a stream as numbers, for those who check how they agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.log.retention import MEMBER_MS, PRODUCER_MS
from headwater.store.call import Call
from headwater.store.scrubbing import Command, number

COUNTERS: Final = ("bytes", "holes")
NUMBERS: Final = ("first", "last", "sealed", "cold", "time", "created", "freed", *COUNTERS)
FIELDS: Final = (*NUMBERS, "replacing")


class StreamHead(NamedTuple):
    """The fields of a stream as numbers; ``raw`` as they are stored."""

    first: int
    last: int
    sealed: int
    cold: int
    time: int
    created: int
    freed: int
    bytes: int
    holes: int
    raw: Sequence[object]

    @property
    def replacing(self) -> bool:
        """Whether nodes are being replaced: the index may lack some until that is finished."""
        return self.raw[-1] is not None


def tidy_call(key: str, place: int) -> Call:
    """Return the call by which a stream, and groups from a place on, complete what was left."""
    args = (PRODUCER_MS, MEMBER_MS, place)
    return Call("hw_stream_tidy", key, args, repeatable=True)


def head_command(key: str) -> Command:
    """Return the command that reads the fields of a stream."""
    return ("HMGET", key, *FIELDS)


def stream_head(values: list[bytes | None] | Exception) -> StreamHead | None:
    """Return the fields of a stream as numbers; None when one is none, or the reply an error."""
    if isinstance(values, Exception):
        return None
    defaults = {"first": 1}
    numbers = [
        number(value, defaults.get(name, 0)) for name, value in zip(NUMBERS, values, strict=False)
    ]
    if None in numbers:
        return None
    return StreamHead._make((*numbers, values))
