"""One copy of all timelines, spread over the instances of a pool: insert, delete, select, score.

Every change is one atomic call for each instance that has some of the keys (several when a batch is
large), and may be repeated. Instances are called in parallel; the failure of one affects only its
own keys.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.errors import FarmMoved, StoreError
from headwater.store.aio_pipe import PackedCommands
from headwater.store.call import Argument, Call
from headwater.store.faults import parse_info
from headwater.timeline.layout import LAYOUT_KEY, FarmLayout, read_layout
from headwater.timeline.pool import Instance, PackedCall, Pool
from headwater.timeline.records import (
    MAX_KEEP,
    NO_HORIZON,
    Columns,
    Cursor,
    InstanceStatus,
    Rank,
    Row,
    State,
    Written,
)

# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────
# The calls of server functions that a cluster makes, and how their replies are read.
#
# A batch goes in as few calls as its size allows: each is bounded, so that no server is blocked
# for long. The operations on one key stay together in one call, up to MOST_OPERATIONS and
# MOST_BYTES.


_read_numbers = msgspec.json.Decoder(list[float]).decode
MOST_OPERATIONS: Final = 1000
MOST_BYTES: Final = 1024 * 1024
MOST_KEYS: Final = 1000
MOST_ROWS: Final = 20_000
# A page by cursor is read by a function, which makes every row again.
MOST_CURSOR_ROWS: Final = 2000
# How many elements one call removes beside one for each operation; see hw_timeline_write.
MOST_REMOVED: Final = 1000
NO_LIMIT: Final = MAX_KEEP


class Change(NamedTuple):
    """Operations on one key, encoded as score, member, score, member, ..."""

    inserts: list[str | bytes]
    deletes: list[str | bytes]


_EPOCH: Final = b"*3\r\n$4\r\nHGET\r\n$%d\r\n%b\r\n$5\r\nepoch\r\n" % (len(LAYOUT_KEY), LAYOUT_KEY)
_MULTI: Final = b"*1\r\n$5\r\nMULTI\r\n"
_EXEC: Final = b"*1\r\n$4\r\nEXEC\r\n"
Changes: TypeAlias = "dict[bytes, Change]"


class Window(NamedTuple):
    """The part of a timeline that is asked for: after the start, before the stop.

    Of all that a timeline has, only the newest ``shown`` are in any window.
    """

    offset: int
    limit: int
    start: Cursor | None = None
    stop: Cursor | None = None
    shown: int = NO_LIMIT


class TimelinePage(NamedTuple):
    """What a cluster has of a key in a window, newest first, as member, score, member, score, ...

    ``whole`` says that the window holds no more than this.
    """

    raw: list[bytes]
    whole: bool

    @property
    def rows(self) -> list[Row]:
        """Members with their scores."""
        return list(zip(*columns_of(self.raw), strict=True))

    def plus(self, further: TimelinePage) -> TimelinePage:
        """Return this page and the one that follows it as one."""
        return TimelinePage(self.raw + further.raw, whole=further.whole)

    def above(self, horizon: float) -> TimelinePage:
        """Return the page without what is below the horizon, which is whole then."""
        if horizon == NO_HORIZON or not self.raw or float(self.raw[-1]) >= horizon:
            return self
        kept = sum(score >= horizon for score in columns_of(self.raw)[1])
        return TimelinePage(self.raw[: 2 * kept], whole=True)


def columns_of(raw: list[bytes]) -> Columns:
    """Read member, score, member, score, ...; returns the members, and their scores."""
    scores = raw[1::2]
    try:
        # Scores are formatted as JSON numbers, which this parses several times as fast as float().
        return raw[::2], _read_numbers(b"[%b]" % b",".join(scores))
    except msgspec.DecodeError:
        # An infinite score is no JSON. We write none, but other programs may.
        return raw[::2], list(map(float, scores))


class Found:
    """The pages that a cluster has of keys, as raw replies, and the errors of the other keys.

    Most answers are compared and counted as a whole, so a page is made when it is looked at.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.raw: dict[bytes, list[bytes]] = {}
        self.failed: dict[bytes, StoreError] = {}

    def __getitem__(self, key: bytes) -> TimelinePage | StoreError:
        raw = self.raw.get(key)
        return (
            self.failed[key] if raw is None else TimelinePage(raw, whole=len(raw) < 2 * self._limit)
        )

    def pages(self) -> Iterator[tuple[bytes, TimelinePage]]:
        """Return the pages, by key."""
        for key, raw in self.raw.items():
            yield key, TimelinePage(raw, whole=len(raw) < 2 * self._limit)


class Known(NamedTuple):
    """What a cluster knows of some members of a key, in their order.

    ``floor`` is the oldest element that a full key keeps. ``torn`` are the places of members that a
    write which failed half-way has left in both sets.
    """

    floor: Rank | None
    states: list[State | None]
    torn: tuple[int, ...] = ()

    def plus(self, further: Known) -> Known:
        """Return this and what is known of further members, asked for later, as one."""
        torn = (*self.torn, *(len(self.states) + place for place in further.torn))
        return Known(further.floor, self.states + further.states, torn)


def sets_of(key: bytes) -> tuple[bytes, bytes]:
    """Return the names of the two sorted sets of a timeline: inserted, deleted."""
    return key + b"+", key + b"-"


class WriteBatch:
    """Operations to write, packed once for all clusters that spread their keys alike."""

    def __init__(self, changes: Changes, horizon: float) -> None:
        self.changes = changes
        self._horizon = horizon
        self._spelled: dict[tuple[int, int, tuple[bytes, ...]], list[PackedCall]] = {}

    def calls(self, keys: Sequence[bytes], keep: int, epoch: int) -> list[PackedCall]:
        """Return the calls that write some keys; one without operations is only trimmed."""
        share = (keep, epoch, tuple(keys))
        if share not in self._spelled:
            calls = self._spell(keys, keep, epoch)
            self._spelled[share] = [PackedCall.of(call) for call in calls]
        return self._spelled[share]

    def _spell(self, share: Sequence[bytes], keep: int, epoch: int) -> Iterator[Call]:
        head: list[Argument] = [
            keep,
            "" if self._horizon == NO_HORIZON else repr(self._horizon),
        ]
        keys: list[bytes] = []
        args = list(head)
        count = size = 0
        for key in share:
            for part, more, weight in _parts(self.changes[key]):
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
    """Cut what is too large for one call; returns parts with their operations and bytes."""
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


class ReadBatch:
    """Keys to read in a window, packed once for all clusters that spread them alike.

    Tombstones are read when ``deleted``.
    """

    def __init__(self, keys: Sequence[bytes], window: Window, *, deleted: bool = False) -> None:
        self.keys = keys
        self.window = window
        self._deleted = deleted
        self._spelled: dict[tuple[int, tuple[bytes, ...]], list[PackedCall]] = {}

    def calls(self, keys: Sequence[bytes], epoch: int) -> list[PackedCall]:
        """Return the calls that read a page of each of some keys."""
        share = (epoch, tuple(keys))
        if share not in self._spelled:
            sets = [sets_of(key)[self._deleted] for key in keys]
            self._spelled[share] = list(_select_calls(sets, self.window, epoch))
        return self._spelled[share]


def _select_calls(sets: Sequence[bytes], window: Window, epoch: int) -> Iterator[PackedCall]:
    """Return the calls that read a page of each of some sets, each call at one moment."""
    args: list[Argument] = [window.offset, window.limit]
    for place in (window.start, window.stop):
        args += ("", b"") if place is None else (repr(place.score), place.member)
    args.append(window.shown)
    rows = MOST_CURSOR_ROWS if window.start or window.stop else MOST_ROWS
    step = max(1, min(MOST_KEYS, rows // window.limit))
    for at in range(0, len(sets), step):
        part = sets[at : at + step]
        call = _call("hw_timeline_select", part, args, epoch, read_only=True)
        if window.start or window.stop:
            yield PackedCall.of(call)
        else:
            yield _plain_call(call, part, window, epoch)


def _plain_call(call: Call, sets: Sequence[bytes], window: Window, epoch: int) -> PackedCall:
    """Return a call that reads a page of each set by plain commands, which cost the server less.

    They read the epoch after the pages: epochs only rise, so if the caller knows that epoch, the
    pages were read by it or by an older one.
    """

    def read(replies: list[Any]) -> list[list[bytes]] | None:
        *pages, layout = replies if len(sets) == 1 else replies[-1]
        if layout is not None and int(layout) > epoch:
            return None
        # One failed command among several says little; the call reports the reason.
        return pages if all(type(page) is list for page in pages) else None

    commands = [*_pages(sets, window), _EPOCH]
    if len(sets) > 1:
        commands = [_MULTI, *commands, _EXEC]
    packed = PackedCommands(b"".join(commands), len(commands), call.function)
    return PackedCall(call, packed, read)


def _pages(sets: Sequence[bytes], window: Window) -> Iterator[bytes]:
    first, last = b"%d" % window.offset, b"%d" % (window.offset + window.limit - 1)
    tail = b"$%d\r\n%b\r\n$%d\r\n%b\r\n$3\r\nREV\r\n$10\r\nWITHSCORES\r\n" % (
        len(first),
        first,
        len(last),
        last,
    )
    for name in sets:
        yield b"*6\r\n$6\r\nZRANGE\r\n$%d\r\n%b\r\n%b" % (len(name), name, tail)


def score_calls(
    asked: Mapping[bytes, Sequence[bytes]], keep: int, epoch: int
) -> Iterator[PackedCall]:
    """Return the calls that ask what is known of members, in the order of member_parts."""
    keys: list[bytes] = []
    args: list[Argument] = [keep]
    for key, members in member_parts(asked):
        if keys and len(args) + len(members) > MOST_OPERATIONS:
            yield PackedCall.of(_call("hw_timeline_score", keys, args, epoch, read_only=True))
            keys, args = [], [keep]
        keys += sets_of(key)
        args += (len(members), *members)
    if keys:
        yield PackedCall.of(_call("hw_timeline_score", keys, args, epoch, read_only=True))


def member_parts(
    asked: Mapping[bytes, Sequence[bytes]],
) -> Iterator[tuple[bytes, Sequence[bytes]]]:
    """Return members by key, as many at a time as one call asks for."""
    for key, members in asked.items():
        for at in range(0, max(1, len(members)), MOST_OPERATIONS):
            yield key, members[at : at + MOST_OPERATIONS]


def read_known(found: list[bytes]) -> Known:
    """Read the reply for the members of one key."""
    score, member, *scores = found
    pairs = list(zip(scores[::2], scores[1::2], strict=True))
    states = [
        max(
            (State(float(text), kind == 1) for kind, text in enumerate(both) if text),
            default=None,
        )
        for both in pairs
    ]
    torn = tuple(place for place, both in enumerate(pairs) if all(both))
    return Known((float(score), member) if score else None, states, torn)


def layout_call(layout: FarmLayout) -> PackedCall:
    """Return the call that announces a layout to an instance."""
    return PackedCall.of(Call("hw_timeline_layout", LAYOUT_KEY, tuple(layout), repeatable=True))


def _call(
    function: str,
    keys: Sequence[bytes],
    args: list[Argument],
    epoch: int,
    *,
    read_only: bool = False,
) -> Call:
    return Call(function, keys[0], (*args, epoch), read_only, True, (*keys[1:], LAYOUT_KEY))


# ── Cluster ───────────────────────────────────────────────────────────────────────────────────────


_FIELDS: Final = ("epoch", "phase", "old", "new")


class WriteOutcome(NamedTuple):
    """What happened to a write: the counts of what was done, and the keys for which it failed."""

    written: Written
    failed: dict[bytes, StoreError]


class Cluster:
    """One copy of all timelines; each key keeps its newest ``keep`` elements, deletes counted."""

    def __init__(self, pool: Pool, keep: int, epoch: int = 0) -> None:
        self.pool = pool
        self._keep = keep
        self._epoch = epoch
        # Whether an instance has refused a call because there is a newer layout.
        self.outdated = False

    @classmethod
    def open(
        cls, urls: Sequence[str], hash_name: str, timeout_ms: int, keep: int, epoch: int = 0
    ) -> Cluster:
        """Make a cluster of instances; nothing is sent yet."""
        return cls(Pool(urls, hash_name, timeout_ms), keep, epoch)

    async def write(self, batch: WriteBatch) -> WriteOutcome:
        """Merge operations into their keys; below the horizon nothing is kept or accepted."""
        written, failed = Written(), {}
        for keys, replies in await self._spread(
            batch.changes, lambda share: batch.calls(share, self._keep, self._epoch)
        ):
            if isinstance(replies, StoreError):
                failed.update(dict.fromkeys(keys, replies))
            else:
                for reply in replies:
                    written = written.plus(reply)
        return WriteOutcome(written, failed)

    async def select(self, reading: ReadBatch) -> Found:
        """Return a page of each key, or the error of its instance."""
        found = Found(reading.window.limit)
        for keys, replies in await self._spread(
            reading.keys, lambda share: reading.calls(share, self._epoch)
        ):
            if isinstance(replies, StoreError):
                found.failed.update(dict.fromkeys(keys, replies))
            else:
                found.raw.update(zip(keys, chain.from_iterable(replies), strict=True))
        return found

    async def score(
        self, asked: Mapping[bytes, Sequence[bytes]]
    ) -> dict[bytes, Known | StoreError]:
        """Return what is known of members, by key, or the error of its instance."""

        def spell(keys: list[bytes]) -> Iterable[PackedCall]:
            return score_calls({key: asked[key] for key in keys}, self._keep, self._epoch)

        found: dict[bytes, Known | StoreError] = {}
        for keys, replies in await self._spread(asked, spell):
            if isinstance(replies, StoreError):
                found.update(dict.fromkeys(keys, replies))
            else:
                parts = member_parts({key: asked[key] for key in keys})
                for (key, _), reply in zip(parts, chain.from_iterable(replies), strict=True):
                    known, before = read_known(reply), found.get(key)
                    found[key] = before.plus(known) if isinstance(before, Known) else known
        return found

    async def _spread(
        self, keys: Iterable[bytes], spell: Callable[[list[bytes]], Iterable[PackedCall]]
    ) -> list[tuple[list[bytes], list[Any] | StoreError]]:
        """Call each instance for its share; returns the keys of each with its replies or error."""

        async def attempt(instance: Instance, share: list[bytes]) -> list[Any] | StoreError:
            try:
                return [await instance.call(call) for call in spell(share)]
            except FarmMoved as error:
                self.outdated = True
                return error
            except StoreError as error:
                return error

        shares = self.pool.split(keys)
        if len(shares) == 1:
            return [(shares[0][1], await attempt(*shares[0]))]
        results = await asyncio.gather(*(attempt(*share) for share in shares))
        return [(share, result) for (_, share), result in zip(shares, results, strict=True)]

    async def scan(
        self, place: int, cursor: int, count: int, kind: str = "zset"
    ) -> tuple[int, list[bytes]]:
        """Take a step through the sets of one instance, in the server's own order.

        Returns the next cursor, 0 at the end, and the names of sets, or of keys of another type
        that are named like them. A set that exists during the whole scan is returned at least
        once. Raises StoreError.
        """
        words = ("SCAN", cursor, "COUNT", count, "TYPE", kind)
        found, names = await self.pool.instances[place].command(*words)
        return int(found), [name for name in names if name[-1:] in (b"+", b"-")]

    async def random_keys(self, place: int, count: int, chance: random.Random) -> list[bytes]:
        """Return up to ``count`` keys of one instance, from a random place of it on.

        A scan that began near the end continues at the start. Raises StoreError.
        """
        found: dict[bytes, None] = {}
        cursor = chance.getrandbits(32)
        for _ in range(4):
            cursor, sets = await self.scan(place, cursor, count)
            found.update(dict.fromkeys(name[:-1] for name in sets))
            if len(found) >= count:
                break
        return list(found)[:count]

    async def generation(self, place: int) -> str:
        """Return the id of an instance's process: cursors of scans are valid for it alone.

        Raises StoreError.
        """
        info = await self.pool.instances[place].command("INFO", "server")
        return parse_info(info)["run_id"]

    async def layouts(self) -> list[FarmLayout | StoreError | None]:
        """Return the layout that each instance knows, None for none, or its error."""

        async def ask(instance: Instance) -> FarmLayout | StoreError | None:
            try:
                return read_layout(await instance.command("HMGET", LAYOUT_KEY, *_FIELDS))
            except StoreError as error:
                return error

        return list(await asyncio.gather(*map(ask, self.pool.instances)))

    async def announce(self, layout: FarmLayout) -> list[FarmLayout]:
        """Announce a layout to every instance; returns what each knows then. Raises StoreError."""
        call = layout_call(layout)
        replies = [await instance.call(call) for instance in self.pool.instances]
        return [found for reply in replies if (found := read_layout(reply)) is not None]

    async def drop(self, place: int, keys: Sequence[bytes]) -> None:
        """Remove timelines from an instance that is not theirs; raises StoreError."""
        names = [name for key in keys for name in sets_of(key)]
        await self.pool.instances[place].command("UNLINK", *names)

    async def look(self) -> list[InstanceStatus]:
        """Return the status of each instance; one that is not available is not an error."""
        return list(await asyncio.gather(*map(_look, self.pool.instances)))

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()


async def _look(instance: Instance) -> InstanceStatus:
    try:
        keys, memory = await asyncio.gather(
            instance.command("DBSIZE"), instance.command("INFO", "memory")
        )
    except StoreError as error:
        return InstanceStatus(instance.where, up=False, fault=str(error))
    return InstanceStatus(instance.where, True, keys, int(parse_info(memory)["used_memory"]))
