"""Places of dead letters as pages name them, and what is looked at of each."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import Cause, LetterFilter
from headwater.kernel.headers import LIST_BYTES, bytes_of
from headwater.log import dead_letters
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.queue import dead_letters as queue_letters
from headwater.queue.handles import QueueHandle
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link, queue_link
from headwater.serve.console.ruler import moment_of
from headwater.serve.console.values import cut
from headwater.serve.jobs.letter_sweep import LetterHolder, LetterSweep, SweepPlace


class Place(NamedTuple):
    """A group or a queue with dead letters; ``group`` is empty for a queue."""

    name: str
    group: str
    dead: int = 0

    @property
    def words(self) -> str:
        """The place as it is read."""
        return f"{self.name} / {self.group}" if self.group else self.name

    @property
    def key(self) -> str:
        """The place as forms and addresses spell it."""
        if self.group:
            return f"g:{quote(self.name, safe='')}/{quote(self.group, safe='')}"
        return f"q:{quote(self.name, safe='')}"

    @property
    def link(self) -> str:
        """The page of the group or the queue."""
        return group_link(self.name, self.group) if self.group else queue_link(self.name)


class Letter(NamedTuple):
    """A message that a group or a queue gave up, and where it lies.

    ``id`` is its offset in the stream, or its id in the queue.
    """

    place: Place
    buried_ms: int
    tag: str
    id: str
    attempts: int
    cause: Cause | None
    value: bytes


class LettersSeen(NamedTuple):
    """Letters that fit, out of some places, and how much was looked at for that.

    ``holders`` of ``of`` streams and queues lie behind. ``go`` is where to go on, if anything is
    left.
    """

    letters: list[Letter]
    places: list[Place]
    looked: int
    holders: int
    of: int
    go: str


def place_of_key(key: str) -> Place:
    """Return the place that a form names; raises InvalidInput."""
    kind, _, rest = key.partition(":")
    parts = [unquote(one) for one in rest.split("/")]
    if all(parts) and (kind, len(parts)) == ("g", 2):
        return Place(parts[0], parts[1])
    if all(parts) and (kind, len(parts)) == ("q", 1):
        return Place(parts[0], "")
    raise InvalidInput(f"{key!r} names no place of dead letters; use a button of the console")


def filter_of(call: PageCall) -> LetterFilter:
    """Return the filter that a form asks for; raises InvalidInput."""
    return LetterFilter(
        call.query.get("tag") or None,
        call.query.get("error") or None,
        call.number("min_attempts"),
        _ms(call, "after"),
        _ms(call, "before"),
    )


def _ms(call: PageCall, name: str) -> int | None:
    """Return a time of a form: ISO 8601, UTC without a zone, or a span before now like 2h."""
    text = call.query.get(name, "").strip()
    if not text:
        return None
    moment = moment_of(text)
    if moment is None:
        raise InvalidInput(
            f"{name} is a time like 2026-11-17T14:00, or a span before now like 2h, not {text!r}"
        )
    return int(moment.timestamp() * 1000)


_PAGE: Final = 1000
# A page looks at many letters and shows few: of a larger value it keeps the beginning.
_KEPT_BYTES: Final = 16 * 1024
_LOOKED_BYTES: Final = 64 << 20


async def look_for(
    call: PageCall, matching: LetterFilter, budget: int, seconds: float, go: str = ""
) -> LettersSeen:
    """Return letters that fit, of all places or of the chosen one, from where ``go`` says on.

    Places come one after the other, and of each its newest letters first. It ends when it has
    looked at ``budget`` letters, or after so many seconds, and says where to go on.
    """
    after, at = _read_cursor(go)
    started = [] if not at else [Place(after.name, after.group)]
    if chosen := call.query.get("place", ""):
        place = place_of_key(chosen)
        call.check(place.name)
        place = place._replace(dead=await _dead(call, place))
        seen = await _look_at_one(call, place, matching, budget, at)
        go = _cursor(LetterHolder(*place).place, seen.at)
        return LettersSeen(seen.letters, [place], seen.looked, 1, 1, go if seen.at else "")
    sweep = LetterSweep(call.hw, lambda name: call.grant.allows(Scope.READ, name), after)
    until = time.monotonic() + seconds
    letters: list[Letter] = []
    places: list[Place] = []
    looked, go = 0, ""
    waiting = [place._replace(dead=await _dead(call, place)) for place in started]
    while not go and (waiting or not sweep.over):
        for place in waiting:
            found = await _look_at_one(call, place, matching, budget - looked, at)
            at = ""
            letters, looked = letters + found.letters, looked + found.looked
            places.append(place)
            if found.at or looked >= budget or time.monotonic() > until:
                go = _cursor(LetterHolder(*place).place, found.at)
                break
        else:
            waiting = [Place(*one) for one in await sweep.more()] if not sweep.over else []
            if not waiting and time.monotonic() > until and not sweep.over:
                go = _cursor(sweep.reached, "")
    return LettersSeen(letters, places, looked, sweep.looked, sweep.total, go)


async def _dead(call: PageCall, place: Place) -> int:
    """Return how many letters lie in a place; one that is removed meanwhile has none."""
    if place.group:
        with suppress(UnknownGroup):
            return (await call.hw.stream(place.name).group(place.group).info()).dead
        return 0
    return (await call.hw.queue(place.name).stats()).dead


def _cursor(place: SweepPlace, at: str) -> str:
    """Return where to go on as addresses spell it: in a place from ``at`` on, or behind it."""
    return "/".join((*(quote(word, safe="") for word in place), quote(at, "", "latin-1")))


def _read_cursor(text: str) -> tuple[SweepPlace, str]:
    """Return where to go on; raises InvalidInput."""
    if not text:
        return SweepPlace(), ""
    *words, at = text.split("/")
    place = [unquote(word) for word in words]
    if len(place) != 3 or place[0] not in ("s", "q") or not place[1]:
        raise InvalidInput(f"{text!r} is no place to go on from; use a link of the console")
    return SweepPlace(*place), unquote(at, "latin-1")


class _SeenInPlace(NamedTuple):
    """Letters of one place that fit; ``at`` is where to go on in it, empty at its end."""

    letters: list[Letter]
    looked: int
    at: str


async def _look_at_one(
    call: PageCall, place: Place, matching: LetterFilter, budget: int, begin: str
) -> _SeenInPlace:
    """Look at letters of a place, the newest first, up to so many of them, or 64 MiB."""
    letters: list[Letter] = []
    if place.group and begin and not begin.isdecimal():
        raise InvalidInput(f"{begin!r} is no place to go on from; use a link of the console")
    looked, at, after = 0, int(begin or 0) if place.group else 0, begin.encode("latin-1", "replace")
    run = call.hw.store.run
    group = GroupHandle(StreamHandle(place.name, set()), place.group or "-", "console")
    queue = QueueHandle(place.name, set(), "console")
    room = _LOOKED_BYTES
    while looked < budget and room > 0:
        count = min(budget - looked, _PAGE)
        if place.group:
            try:
                page = await run(dead_letters.dead_page(group, at, count, LIST_BYTES, newest=True))
            except UnknownGroup:
                return _SeenInPlace(letters, looked, "")
            looked, at = looked + len(page.letters), page.place
            room -= bytes_of(page.letters)
            letters += [
                Letter(
                    place,
                    one.buried_ms,
                    one.tag,
                    str(one.origin),
                    one.attempts,
                    one.cause,
                    cut(one.value, _KEPT_BYTES),
                )
                for one in dead_letters.fitting(page.letters, matching)
            ]
            if at < 0:
                return _SeenInPlace(letters, looked, "")
        else:
            found = await run(queue_letters.dead_page(queue, after, count, newest=True))
            looked, after = looked + len(found.letters), found.place
            room -= bytes_of(found.letters)
            letters += [
                Letter(
                    *(place, one.buried_ms or 0, "", one.id, one.attempt, one.cause),
                    cut(one.value, _KEPT_BYTES),
                )
                for one in queue_letters.fitting(found.letters, matching)
            ]
            if not after:
                return _SeenInPlace(letters, looked, "")
    return _SeenInPlace(letters, looked, str(at) if place.group else after.decode("latin-1"))
