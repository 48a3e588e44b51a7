"""Dead letters of all groups and queues of a store together: redriven or discarded, one by one.

Without I/O: both clients run it. Groups come first, by stream and name, then queues. What becomes
a dead letter of a group or queue after its turn has begun is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel.failures import LetterFilter
from headwater.log import reading
from headwater.log.dead_letters import GroupLetters
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import MAX_LETTERS, list_streams
from headwater.queue.dead_letters import QueueLetters
from headwater.queue.handles import QueueHandle, list_queues
from headwater.store.call import Operation, Pace
from headwater.store.letters import LetterAction, LetterBox, Moved
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
    places: list[tuple[str, str | None]] = [
        (one.name, group) for one in infos if one for group in sorted(one.groups)
    ]
    places += [(name, None) for name in (yield from list_queues()) if wanted.fullmatch(name)]
    counts = yield from sound(count_letters(*place) for place in places)
    return [LetterCount(*place, dead) for place, dead in zip(places, counts, strict=True) if dead]


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
        places, moved, gone = places + bool(done.done), moved + done.done, gone + done.gone
    return LettersMoved(places, moved, gone)


def _move(
    place: LetterCount, action: LetterAction, matching: LetterFilter | None, pace: Pace
) -> Operation[Moved]:
    box = letter_box(place.name, place.group)
    try:
        # A walk in steps: a group may have more than one call redrives.
        return (yield from box.sweep(action, None, matching, MAX_LETTERS, pace))
    except UnknownGroup:
        return Moved(0, 0)  # it was removed meanwhile, and its letters with it


def count_letters(name: str, group: str | None) -> Operation[int]:
    """Return how many dead letters a group or a queue has; one that was removed has none."""
    try:
        return (yield from letter_box(name, group).count())
    except UnknownGroup:
        return 0


def letter_box(name: str, group: str | None) -> LetterBox[Any]:
    """Return the dead letters of a group of a stream, or of a queue."""
    if group:
        return GroupLetters(GroupHandle(StreamHandle(name, set()), group, _NOBODY))
    return QueueLetters(QueueHandle(name, set(), _NOBODY))


def _matcher(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(_spelled(names or ("*",))), re.DOTALL)


def _spelled(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{name!r} is no name; give those of streams and queues, or none")
        yield ".*".join(map(re.escape, name.split("*")))
