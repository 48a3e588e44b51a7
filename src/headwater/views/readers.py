"""Views of readers outside the log: where they stand, and what commands on them answer."""

from __future__ import annotations

from headwater.log.types import StreamInfo
from headwater.views.record import View


class ReaderView(View, frozen=True, kw_only=True):
    """A reader outside the log: the offset that it needs next, and how many are from there on.

    ``lag_ms`` is the age of the oldest of them.
    """

    stream: str
    reader: str
    next: int
    lag: int
    lag_ms: int

    @classmethod
    def of(cls, stream: StreamInfo, reader: str) -> ReaderView:
        """Return the view of a registered reader of a stream."""
        position = stream.readers[reader]
        return cls(
            stream=stream.name,
            reader=reader,
            next=position,
            lag=lag_of(stream, position),
            lag_ms=stream.reader_lag_ms[reader],
        )


def lag_of(stream: StreamInfo, position: int) -> int:
    """Return how many messages a stream holds from a position on."""
    return max(stream.last + 1 - max(position, stream.first), 0)


class ReaderForgottenView(View, frozen=True, kw_only=True):
    """A reader that retention of some streams no longer waits for."""

    reader: str
    streams: list[str]
