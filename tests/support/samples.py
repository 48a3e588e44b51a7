"""Streams and groups as a sample of a store shows them, without a store."""

from __future__ import annotations

from headwater.log.types import GroupInfo, Retention, StreamInfo


def stream(last: int, **readers: int) -> StreamInfo:
    """Return a stream named "s" with a group "g"; ``readers`` need these offsets."""
    return StreamInfo(
        *("s", 1, last, last, 0, 0, 0, 1, 0, Retention(), False, readers, ("g",)),
        *(None, None, None, 0, 0, dict.fromkeys(readers, 0), {}),
    )


def group(next_: int, pending: int, lag: int, new: int | None, held: int | None) -> GroupInfo:
    """Return a group named "g"; messages wait since ``new`` and are pending since ``held``."""
    return GroupInfo(
        *("g", next_, 1, pending, lag, 0, (), 0, 0, None, None, 0, {}, 1, 1, False),
        *(new, held, 1, 0, 0),
    )
