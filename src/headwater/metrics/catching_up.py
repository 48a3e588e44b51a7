"""How fast those who are behind come on: whether they will ever catch up, and when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.metrics.sweeps import StoreSample

# Rates are those of the last one to two minutes, and of no less than ten seconds.
_SPAN_MS: Final = 60_000
_LEAST_MS: Final = 10_000


class _Mark(NamedTuple):
    """Where somebody was at some time, and where the stream ended then."""

    at_ms: int
    next: int
    end: int


class _Track(NamedTuple):
    """Two marks of somebody, a minute apart, and where it is now."""

    old: _Mark
    mid: _Mark
    now: _Mark


class CatchingUp:
    """Remembers where groups and readers that are behind were; three marks of each."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, ...], _Track] = {}

    def note(self, sample: StoreSample) -> None:
        """Take in a sample; who is not behind any more is forgotten."""
        tracks = {}
        for who, now in _behind(sample):
            before = self._tracks.get(who)
            if before is None or now.next < before.now.next:  # it was set back by a seek
                tracks[who] = _Track(now, now, now)
            elif now.at_ms - before.mid.at_ms >= _SPAN_MS:
                tracks[who] = _Track(before.mid, now, now)
            else:
                tracks[who] = before._replace(now=now)
        self._tracks = tracks

    def words(self, who: tuple[str, ...], lag: int) -> str:
        """Say when somebody is level at its rate; nothing if that is not known yet."""
        track = self._tracks.get(who)
        took_ms = 0 if track is None else track.now.at_ms - track.old.at_ms
        if track is None or took_ms < _LEAST_MS:
            return ""
        done = (track.now.next - track.old.next) * 1000 / took_ms
        new = (track.now.end - track.old.end) * 1000 / took_ms
        if not done:
            return f"no progress for {took_ms // 1000:,} s" if took_ms >= _SPAN_MS else ""
        if done <= new:
            return (
                f"it never catches up at this rate: {done:,.1f} a second of {new:,.1f} that arrive"
            )
        return f"level in about {_span(lag / (done - new))} at this rate"


def _behind(sample: StoreSample) -> Iterator[tuple[tuple[str, ...], _Mark]]:
    for stream, group in sample.groups:
        if group.lag:
            end = group.next + group.lag - 1
            yield ("group", stream, group.name), _Mark(sample.now_ms, group.next, end)
    for info in sample.streams:
        for reader, following in info.readers.items():
            if info.last >= following:
                yield ("reader", info.name, reader), _Mark(sample.now_ms, following, info.last)


def _span(seconds: float) -> str:
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"
