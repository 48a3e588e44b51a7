"""Housekeeping: everything that a stream needs from time to time, done by any client.

It finishes abandoned publishes, seals full nodes and makes hot ones cold, gives up what has
expired, forgets producers and members that are gone, applies the retention policy and, where the
stream asks for it, compacts. Each step is atomic and does nothing when there is nothing to do, so
that any number of housekeepers may work at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from headwater.errors import UnknownGroup, fault_of_one
from headwater.inputs import Duration
from headwater.log import compaction, dead_letters, retention, staging
from headwater.log.cooling import cool
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.limits import HOT_KEPT, check_ms
from headwater.log.reading import complete, info
from headwater.log.replies import CompactDueReply
from headwater.log.types import Retained, Retention
from headwater.log.writing import seal
from headwater.store.call import Argument, Call, Operation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """What housekeeping did to a stream, in messages, publishes, producers and members.

    ``published`` counts publishes that were begun and left, and are finished now. Of the messages,
    ``cooled`` were packed again, smaller; ``expired`` were dropped for good, ``buried`` went to
    dead letters. ``held`` stay beyond the retention policy because ``held_by`` still needs them;
    it is the ``idle_holder``, too, when nobody has seen it for a day.
    ``fault`` says what could not be done, and why.
    """

    stream: str
    published: int = 0
    sealed: int = 0
    cooled: int = 0
    expired: int = 0
    buried: int = 0
    producers: int = 0
    members: int = 0
    evicted: int = 0
    held: int = 0
    held_by: str | None = None
    idle_holder: str | None = None
    compacted: int = 0
    fault: str | None = None

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return any(
            (
                self.published,
                self.sealed,
                self.cooled,
                self.expired,
                self.buried,
                self.producers,
                self.members,
                self.evicted,
                self.compacted,
            )
        )


def keep(stream: StreamHandle, *, left_ms: int = staging.LEFT_MS) -> Operation[Kept]:
    """Do all upkeep of a stream; what cannot be done is reported in ``fault``, not raised.

    A step that fails keeps none of the others from being done. A publish without a step for
    ``left_ms`` was abandoned by its client, and is finished.
    """
    faults: dict[str, None] = {}

    def tried(step: Operation[T], without: T) -> Operation[T]:
        try:
            return (yield from step)
        except Exception as error:  # noqa: BLE001  whatever it is, the other steps can be done
            faults[fault_of_one(error)] = None
            return without

    expired = buried = 0
    retained, idle_holder = Retained(0, 0, None), None
    yield from tried(retention.free(stream), None)
    published = yield from tried(staging.finish_left(stream, left_ms), 0)
    facts = yield from tried(info(stream), None)
    sealed = yield from tried(seal(stream.key, everything=False), 0)
    cooled = yield from tried(cool(stream, HOT_KEPT), 0)
    for name in facts.groups if facts else ():
        group = GroupHandle(stream, name, "housekeeper")
        dropped, dead = yield from tried(_give_up(group), (0, 0))
        expired, buried = expired + dropped, buried + dead
    producers, members = yield from tried(retention.tidy(stream.key), (0, 0))
    if facts and facts.retention != Retention():
        retained = yield from tried(retention.apply_retention(stream.key), retained)
        if retained.held and retained.held_by == facts.idle_holder:
            idle_holder = retained.held_by
    compacted = yield from tried(_compact_if_due(stream), 0)
    return Kept(
        stream.name,
        published=published,
        sealed=sealed,
        cooled=cooled,
        expired=expired,
        buried=buried,
        producers=producers,
        members=members,
        evicted=retained.evicted,
        held=retained.held,
        held_by=retained.held_by,
        idle_holder=idle_holder,
        compacted=compacted,
        fault="; ".join(faults) or None,
    )


def seal_all(stream: StreamHandle) -> Operation[int]:
    """Seal everything written, and pack all nodes as small as possible; returns how many sealed."""
    yield complete(stream.key)
    sealed = yield from seal(stream.key, everything=True)
    yield from cool(stream, 0)
    return sealed


def _give_up(group: GroupHandle) -> Operation[tuple[int, int]]:
    """Drop or bury what has expired; a group that was removed meanwhile has nothing."""
    try:
        return (yield from dead_letters.give_up(group))
    except UnknownGroup:
        return 0, 0


def auto_compact(key: str, on: bool, marker_ms: Duration) -> Operation[None]:
    """Ask housekeepers to compact a stream, or no longer."""
    wish: Argument = check_ms(marker_ms, "marker_ms") if on else ""
    yield Call("hw_stream_auto_compact", key, (wish,), repeatable=True)


def _compact_if_due(stream: StreamHandle) -> Operation[int]:
    due = yield Call("hw_stream_compact_due", stream.key, read_only=True)
    if not due:
        return 0
    reply = CompactDueReply(*due)
    removed = yield from compaction.compact(stream, reply.marker_ms)
    yield from compaction.note_compacted(stream, reply.created, reply.last)
    return removed
