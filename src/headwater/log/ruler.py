"""The ruler of a stream: the state of its offsets in each group, as ranges.

Offsets are dense and what is pending is kept as ranges, so that a part of any length costs as much
as a short one: at most as many ranges as the picture has cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headwater.inputs import check_int
from headwater.log.handles import GroupHandle
from headwater.log.replies import rows
from headwater.store.call import Call, Operation
from headwater.store.faults import Refusal

MAX_CELLS: Final = 512


class PendingRange(NamedTuple):
    """Offsets that were delivered together and are not acknowledged.

    They are looked at again at ``due_ms``, 0 for now. With ``ranges`` above 1 it is the hull of
    that many, which are too close for the picture; attempt and deadline are those of the first.
    """

    first: int
    last: int
    attempt: int
    due_ms: int
    ranges: int


class DeadOffsets(NamedTuple):
    """Offsets that a group gave up together, and their number of attempts.

    With ``ranges`` above 1 it is the hull of that many, which are too close for the picture.
    """

    first: int
    last: int
    attempt: int
    ranges: int = 1


class NotKnown(NamedTuple):
    """Offsets before this one may not be done, and why that is not known."""

    before: int
    why: str


@dataclass(frozen=True, slots=True)
class GroupRuler:
    """What happened to a part of a stream in one group.

    Offsets from ``next`` on are new; from ``start`` on and before ``next`` they are done, unless
    they are in one of the lists. ``start`` is where the group began, or the lowest offset that it
    was set to since; 0 when that is not known. ``gaps`` are the newest 16 ranges that the group
    missed, ``missed`` counts the messages of all, ``jumps`` are what a seek passed over.
    ``dead_unknown`` ranges of dead letters are somewhere before ``next`` and in no list.
    """

    name: str
    next: int
    ack_offset: int
    pending: list[PendingRange]
    dead: list[DeadOffsets]
    gaps: list[tuple[int, int]]
    start: int = 0
    jumps: list[tuple[int, int]] = field(default_factory=list)
    missed: int = 0
    dead_unknown: int = 0

    @property
    def not_known(self) -> NotKnown | None:
        """Return what lies before ``next``, is in no list, and may not be done; None: it is."""
        if self.dead_unknown:
            return NotKnown(
                self.next,
                f"done, or a dead letter: {self.dead_unknown:,} ranges of dead letters are noted "
                "without the offsets of their messages; redrive or discard them",
            )
        if not self.start:
            return NotKnown(self.next, "done, or before the group's start, which is not known")
        if self.missed > sum(high - low + 1 for low, high in self.gaps):
            # A gap is dropped for a newer one, which ends where the stream begins by then.
            end = max(high for _, high in self.gaps) + 1
            why = "done, or missed: of what the group missed, the newest 16 ranges are kept"
            return NotKnown(end, why)
        return None


def group_ruler(
    group: GroupHandle, first: int, last: int, cells: int = 256
) -> Operation[GroupRuler | None]:
    """Return what happened to first..last in a group, None when it is gone; changes nothing."""
    check_int(cells, "cells", 1, MAX_CELLS)
    args = (group.name, first, last, cells)
    try:
        reply = yield Call("hw_group_ruler", group.key, args, read_only=True)
    except Refusal:
        return None
    found: dict[str, Any] = {key.decode(): value for key, value in rows(reply, 2)}
    return GroupRuler(
        name=group.name,
        next=found["next"],
        ack_offset=found["ack_offset"],
        pending=[PendingRange(*row) for row in rows(found["pending"], 5)],
        dead=[DeadOffsets(*row) for row in rows(found["dead"], 4)],
        gaps=[(low, high) for low, high in rows(found["gaps"], 2)],
        start=found["start"],
        jumps=[(low, high) for low, high in rows(found["jumps"], 2)],
        missed=found["missed"],
        dead_unknown=found["dead_unknown"],
    )
