"""Dead letters of all groups and queues of a store together: redriven or discarded, one by one.

Without I/O: both clients run it. Groups come first, by stream and name, then queues. What becomes
a dead letter of a group or queue after its turn has begun is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel.failures import LetterFilter
from headwater.log import dead_letters, grouping, reading
from headwater.log.dead_letters import LetterAction
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import MAX_LETTERS, list_streams
from headwater.log.types import Redriven
from headwater.queue import dead_letters as queue_letters
from headwater.queue import inspecting
from headwater.queue.handles import QueueHandle, list_queues
from headwater.store.call import Operation, Pace
from headwater.store.many import sound

_NOBODY = "letters"


class LettersMoved(NamedTuple):
    """How many dead letters were redriven or discarded, of how many groups and queues.

    ``gone`` letters had to stay: their streams no longer hold the messages.
    """

    places: int
    moved: int
    gone: int


class LetterCount(NamedTuple):
    """How many dead letters a group or a queue has; ``group`` is None for a queue."""

    name: str
    group: str | None
    dead: int


def count_everywhere(names: Sequence[str] = ()) -> Operation[list[LetterCount]]:
    """Return the groups and queues that have dead letters, of streams and queues that match.

    ``*`` in a name stands for any text; without names, everything matches.
    """
    wanted = _matcher(names)
    streams = [name for name in (yield from list_streams()) if wanted.fullmatch(name)]
    infos = yield from sound(reading.info(StreamHandle(name, set())) for name in streams)
    groups = [_group(one.name, group) for one in infos if one for group in sorted(one.groups)]
    found = [
        LetterCount(group.stream.name, group.name, dead or 0)
        for group, dead in zip(groups, (yield from sound(map(_dead, groups))), strict=True)
    ]
    queues = [name for name in (yield from list_queues()) if wanted.fullmatch(name)]
    stats = yield from sound(inspecting.stats(_queue(name)) for name in queues)
    found += [LetterCount(one.name, None, one.dead) for one in stats if one]
    return [one for one in found if one.dead]


def move_everywhere(
    action: LetterAction, names: Sequence[str], matching: LetterFilter | None, pace: Pace
) -> Operation[LettersMoved]:
    """Redrive or discard all letters that fit, of streams and queues that match."""
    if not isinstance(matching, LetterFilter | None):
        raise InvalidInput(f"matching must be a LetterFilter, not {matching!r}")
    pace.check()
    places = moved = gone = 0
    for one in (yield from count_everywhere(names)):
        (done,) = yield from sound([_move(one, action, matching, pace)])
        if done is None:
            continue
        places, moved, gone = places + bool(done.returned), moved + done.returned, gone + done.gone
    return LettersMoved(places, moved, gone)


def _move(
    place: LetterCount, action: LetterAction, matching: LetterFilter | None, pace: Pace
) -> Operation[Redriven]:
    if place.group is None:
        move = queue_letters.redrive if action == "redrive" else queue_letters.discard
        count = yield from move(_queue(place.name), None, matching, MAX_LETTERS, pace)
        return Redriven(count, 0)
    try:
        group = _group(place.name, place.group)
        return (yield from dead_letters.move_all(group, action, matching, pace))
    except UnknownGroup:
        return Redriven(0, 0)  # it was removed meanwhile, and its letters with it


def _dead(group: GroupHandle) -> Operation[int]:
    try:
        return (yield from grouping.info(group)).dead
    except UnknownGroup:
        return 0


def _group(stream: str, name: str) -> GroupHandle:
    return GroupHandle(StreamHandle(stream, set()), name, _NOBODY)


def _queue(name: str) -> QueueHandle:
    return QueueHandle(name, set(), _NOBODY)


def _matcher(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(_spelled(names or ("*",))), re.DOTALL)


def _spelled(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{name!r} is no name; give those of streams and queues, or none")
        yield ".*".join(map(re.escape, name.split("*")))
