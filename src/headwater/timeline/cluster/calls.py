"""How a cluster's work is spelled as calls of server functions, and their replies are read.

A batch goes in as few calls as its size allows: each is bounded, so that no server stands still for
long. What concerns one key stays together in one call up to MOST_OPERATIONS and MOST_BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from headwater.store.call import Argument, Call
from headwater.timeline.law import NO_HORIZON, Place, State
from headwater.timeline.layout import LAYOUT_KEY, Layout
from headwater.timeline.records import Columns, Cursor, Row

MOST_OPERATIONS: Final = 2000
MOST_BYTES: Final = 1024 * 1024
MOST_KEYS: Final = 1000
MOST_ROWS: Final = 50_000


class Change(NamedTuple):
    """Operations on one key, spelled as score, member, score, member, ..."""

    inserts: list[str | bytes]
    deletes: list[str | bytes]


Changes: TypeAlias = "dict[bytes, Change]"


class Window(NamedTuple):
    """Which part of a timeline is asked for: behind the start, before the stop."""

    offset: int
    limit: int
    start: Cursor | None = None
    stop: Cursor | None = None


class Page:
    """What a cluster has of a key in a window, newest first; read when it is looked at."""

    def __init__(self, raw: list[bytes], *, whole: bool) -> None:
        self.raw = raw
        # The window holds no more than this.
        self.whole = whole

    @cached_property
    def columns(self) -> Columns:
        """Members, and their scores."""
        return self.raw[::2], list(map(float, self.raw[1::2]))

    @property
    def rows(self) -> list[Row]:
        """Members with their scores."""
        return list(zip(*self.columns, strict=True))

    def plus(self, further: Page) -> Page:
        """Add the page that follows this one."""
        return Page(self.raw + further.raw, whole=further.whole)

    def above(self, horizon: float) -> Page:
        """Leave out what is below the horizon; nothing that counts comes after it."""
        if horizon == NO_HORIZON or not self.raw or float(self.raw[-1]) >= horizon:
            return self
        kept = sum(score >= horizon for score in self.columns[1])
        return Page(self.raw[: 2 * kept], whole=True)


class Known(NamedTuple):
    """What a cluster knows of some members of a key, in their order.

    ``floor`` is where the oldest element stands that the key keeps, once it is full.
    """

    floor: Place | None
    states: list[State | None]


def sets_of(key: bytes) -> tuple[bytes, bytes]:
    """Name the two sorted sets of a timeline: inserted, deleted."""
    return key + b"+", key + b"-"


def write_calls(
    changes: Mapping[bytes, Change], max_size: int, horizon: float, epoch: int
) -> Iterator[Call]:
    """Spell operations; with none for a key, it is brought to its size and horizon only."""
    head: list[Argument] = [max_size, "" if horizon == NO_HORIZON else repr(horizon)]
    keys: list[bytes] = []
    args = list(head)
    count = size = 0
    for key, change in changes.items():
        for part, more, weight in _parts(change):
            if keys and (count + more > MOST_OPERATIONS or size + weight > MOST_BYTES):
                yield _call("hw_timeline_write", keys, args, epoch)
                keys, args, count, size = [], list(head), 0, 0
            keys += sets_of(key)
            args += (len(part.inserts) // 2, len(part.deletes) // 2)
            args += part.inserts
            args += part.deletes
            count, size = count + more, size + weight
    if keys:
        yield _call("hw_timeline_write", keys, args, epoch)


def _parts(change: Change) -> Iterator[tuple[Change, int, int]]:
    """Cut what is too large for one call, which most is not; tells operations and bytes of each."""
    inserts, deletes = change
    count = (len(inserts) + len(deletes)) // 2
    size = sum(map(len, inserts[1::2])) + sum(map(len, deletes[1::2]))
    if count <= MOST_OPERATIONS and size <= MOST_BYTES:
        yield change, count, size
        return
    part, count, size = Change([], []), 0, 0
    for kind, pairs in enumerate(change):
        for at in range(0, len(pairs), 2):
            weight = len(pairs[at + 1])
            if count and (count >= MOST_OPERATIONS or size + weight > MOST_BYTES):
                yield part, count, size
                part, count, size = Change([], []), 0, 0
            part[kind].extend(pairs[at : at + 2])
            count, size = count + 1, size + weight
    yield part, count, size


def select_calls(sets: Sequence[bytes], window: Window, epoch: int) -> Iterator[Call]:
    """Spell the request for a page of each of some sets."""
    args: list[Argument] = [window.offset, window.limit]
    for place in (window.start, window.stop):
        args += ("", b"") if place is None else (repr(place.score), place.member)
    step = max(1, min(MOST_KEYS, MOST_ROWS // window.limit))
    for at in range(0, len(sets), step):
        yield _call("hw_timeline_select", sets[at : at + step], args, epoch, read_only=True)


def score_calls(
    asked: Mapping[bytes, Sequence[bytes]], max_size: int, epoch: int
) -> Iterator[Call]:
    """Spell the question what is known of members; a key is never cut in two."""
    keys: list[bytes] = []
    args: list[Argument] = [max_size]
    for key, members in asked.items():
        if keys and len(args) + len(members) > MOST_OPERATIONS:
            yield _call("hw_timeline_score", keys, args, epoch, read_only=True)
            keys, args = [], [max_size]
        keys += sets_of(key)
        args += (len(members), *members)
    if keys:
        yield _call("hw_timeline_score", keys, args, epoch, read_only=True)


def read_known(found: list[bytes]) -> Known:
    """Read what the server said of the members of one key."""
    score, member, *scores = found
    states = [
        max(
            (State(float(text), kind == 1) for kind, text in enumerate(both) if text),
            default=None,
        )
        for both in zip(scores[::2], scores[1::2], strict=True)
    ]
    return Known((float(score), member) if score else None, states)


def layout_call(layout: Layout) -> Call:
    """Spell what tells an instance of a layout."""
    return Call("hw_timeline_layout", LAYOUT_KEY, tuple(layout), repeatable=True)


def _call(
    function: str,
    keys: Sequence[bytes],
    args: list[Argument],
    epoch: int,
    *,
    read_only: bool = False,
) -> Call:
    return Call(function, keys[0], (*args, epoch), read_only, True, (*keys[1:], LAYOUT_KEY))
