"""The history of a store, kept in the store in fixed space: what is noted, and how it is read.

Each series has three rings: 5 minutes by the second, an hour by ten seconds, a day by the minute.
A point is in its ring by its time, and says which time that is, so that points of the last turn
are not taken for new ones, and a point that is written twice is there once. Rates are those of
the whole step, everything else is the worst of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.store.call import Call, Operation

KEY: Final = "hw:{history}"
# What a series is about: its kind, and the names of its object.
Series: TypeAlias = tuple[str, ...]
STORE: Final[Series] = ("store",)
OUTBOX: Final[Series] = ("outbox",)


class Point(NamedTuple):
    """What is noted of a series; of the store it is the sum of all, and the age of the oldest.

    ``lag`` counts messages, rows or members that nobody has taken yet, ``lag_s`` is the age of the
    oldest of them; ``pending`` was taken and is not done, ``oldest_s`` is the age of the oldest.
    """

    in_per_s: float = 0.0
    out_per_s: float = 0.0
    lag: float = 0.0
    lag_s: float = 0.0
    pending: float = 0.0
    oldest_s: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether anything moves or waits."""
        return any(self)


class Resolution(NamedTuple):
    """How far apart points are, and how many there are."""

    step_s: int
    points: int

    @property
    def span_s(self) -> int:
        """How much time a ring covers."""
        return self.step_s * self.points


RESOLUTIONS: Final = {1: Resolution(1, 300), 10: Resolution(10, 360), 60: Resolution(60, 1440)}
_POINT: Final = struct.Struct("<I6f")
SERIES_BYTES: Final = sum(one.points for one in RESOLUTIONS.values()) * _POINT.size
# How long a writer holds the right to write; a writer that dies leaves a gap of this length.
HOLD_MS: Final = 5000
# Between two points that are not further apart, the older one is drawn on: a large store is
# sampled less often than every second.
_BRIDGED_S: Final = 60


class SpacedPoints(NamedTuple):
    """Points of some series at the same times, in seconds; None where nothing is known."""

    times: list[int]
    series: dict[Series, list[Point | None]]


class KeptHistory(NamedTuple):
    """What is kept: who writes it, how many bytes it takes, and when each series was last busy."""

    now_ms: int
    writer: str
    bytes: int
    series: dict[Series, int]


class NewPoint(NamedTuple):
    """A point that is to be written: of which series, how far apart, at which step."""

    series: Series
    step_s: int
    slot: int
    point: Point


def spelled(series: Series) -> str:
    """Return a series as it stands in keys."""
    return msgspec.json.encode(series).decode()


def _series(text: bytes) -> Series:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _ring(series: Series, step_s: int) -> str:
    return f"{step_s}:{spelled(series)}"


def write_points(writer: str, points: Iterable[NewPoint], hold_ms: int) -> Operation[bool]:
    """Write points; returns False when somebody else writes the history at present."""
    words: list[str | bytes | int] = [writer, hold_ms]
    for one in points:
        place = one.slot % RESOLUTIONS[one.step_s].points * _POINT.size
        words += [_ring(one.series, one.step_s), place, _POINT.pack(one.slot, *one.point)]
    return bool((yield Call("hw_history_write", KEY, tuple(words), repeatable=True)))


def keep_series(busy: dict[Series, int], forgotten: Iterable[Series]) -> Operation[None]:
    """Note when series were last busy, new ones too, and forget others with all their points."""
    words: list[str | int] = [len(busy)]
    for series, busy_ms in busy.items():
        words += [spelled(series), busy_ms]
    words += map(spelled, forgotten)
    yield Call("hw_history_keep", KEY, tuple(words), repeatable=True)


def kept_history() -> Operation[KeptHistory]:
    """Return what is kept."""
    reply: list[Any] = yield Call("hw_history_series", KEY, read_only=True)
    now_ms, writer, until_ms, size, *found = reply
    series = {_series(one): int(ms) for one, ms in zip(found[::2], found[1::2], strict=True)}
    holder = writer.decode() if until_ms > now_ms else ""
    return KeptHistory(now_ms, holder, size, series)


def read_points(
    wanted: Sequence[Series], step_s: int, span_s: int | None = None
) -> Operation[SpacedPoints]:
    """Return the points of some series up to now, those of ``span_s`` seconds or of all."""
    resolution = RESOLUTIONS[step_s]
    series = [STORE, *(one for one in wanted if one != STORE)]
    rings = tuple(_ring(one, step_s) for one in series)
    now_ms, *found = yield Call("hw_history_read", KEY, rings, read_only=True)
    newest = now_ms // 1000 // step_s
    count = resolution.points if span_s is None else min(span_s // step_s, resolution.points)
    slots = range(newest - count + 1, newest + 1)
    store = _points_of(found[0], slots)
    bridge = max(_BRIDGED_S // step_s, 2)
    known = {
        one: _drawn(ring, slots, store, bridge) for one, ring in zip(series, found, strict=True)
    }
    return SpacedPoints([slot * step_s for slot in slots], {one: known[one] for one in wanted})


def _points_of(ring: bytes, slots: range) -> list[Point | None]:
    found = {slot: Point(*values) for slot, *values in _POINT.iter_unpack(_whole(ring))}
    return [found.get(slot) for slot in slots]


def _drawn(ring: bytes, slots: range, store: list[Point | None], bridge: int) -> list[Point | None]:
    points = _points_of(ring, slots)
    # A series that is not kept has no ring: nothing is known of it, which is not the same as 0.
    return _bridged(_quiet(points, store), bridge) if ring else points


def _whole(ring: bytes) -> bytes:
    return ring[: len(ring) // _POINT.size * _POINT.size]


def _quiet(points: list[Point | None], store: list[Point | None]) -> list[Point | None]:
    """Return points with zeros where the store was sampled and nothing of the series moved."""
    return [
        Point() if one is None and seen is not None else one
        for one, seen in zip(points, store, strict=True)
    ]


def _bridged(points: list[Point | None], most: int) -> list[Point | None]:
    filled, last = list(points), None
    for place, point in enumerate(points):
        if point is None:
            continue
        if last is not None and 1 < place - last <= most:
            filled[last + 1 : place] = [points[last]] * (place - last - 1)
        last = place
    return filled
