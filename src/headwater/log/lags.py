"""Lags: how many messages a stream holds from a position on, and how long the oldest has waited.

This is for readers that keep their position elsewhere: SQL consumers, queries of Spark. The lag of
groups and registered readers is part of the info of their stream.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.log import reading
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.store.call import Call, Operation


class Lag(NamedTuple):
    """What waits at a position: ``lag`` messages, the oldest of which is ``lag_ms`` old."""

    lag: int
    lag_ms: int


def lag_at(stream: str, position: int) -> Operation[Lag]:
    """Return what a stream holds from a position on; opens one node at most."""
    call = Call("hw_stream_lag", stream_key(stream), (position,), read_only=True)
    begin, last, now_ms = yield call
    if begin > last:
        return Lag(0, 0)
    oldest = yield from reading.read_from(StreamHandle(stream, set()), begin, 1, None, whole=False)
    age_ms = max((now_ms - one.time_ms for one in oldest.messages), default=0)
    return Lag(last + 1 - begin, max(age_ms, 0))
