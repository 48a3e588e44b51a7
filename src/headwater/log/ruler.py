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
    """Offsets that a group gave up together, and their number of attempts."""

    first: int
    last: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GroupRuler:
    """What happened to a part of a stream in one group.

    Offsets from ``next`` on are new; from ``start`` on and before ``next`` they are done, unless
    they are in one of the lists. ``start`` is where the group began, or the lowest offset that it
    was set to since; 0 when that is not known. ``dead`` has the newest 256 ranges, ``gaps`` the
    newest 16 ranges that the group missed, ``jumps`` what a seek passed over.
    """

    name: str
    next: int
    ack_offset: int
    pending: list[PendingRange]
    dead: list[DeadOffsets]
    gaps: list[tuple[int, int]]
    start: int = 0
    jumps: list[tuple[int, int]] = field(default_factory=list)


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
        dead=[DeadOffsets(*row) for row in rows(found["dead"], 3)],
        gaps=[(low, high) for low, high in rows(found["gaps"], 2)],
        start=found["start"],
        jumps=[(low, high) for low, high in rows(found["jumps"], 2)],
    )
