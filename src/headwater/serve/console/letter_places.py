"""Places of dead letters as pages name them, and what is looked at of each."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from headwater.errors import InvalidInput
from headwater.failures import Cause, LetterFilter
from headwater.log import dead_letters
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.types import DeadLetter
from headwater.queue import dead_letters as queue_letters
from headwater.queue.handles import QueueHandle
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link, queue_link
from headwater.views import overview

# As many streams and queues are looked at.
MOST: Final = 500


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


class Looked(NamedTuple):
    """Letters that fit, how many were looked at, and whether there are more."""

    letters: list[Letter]
    looked: int
    more: bool


def place_of_key(key: str) -> Place:
    """Return the place that a form names; raises InvalidInput."""
    kind, _, rest = key.partition(":")
    parts = [unquote(one) for one in rest.split("/")]
    if all(parts) and (kind, len(parts)) == ("g", 2):
        return Place(parts[0], parts[1])
    if all(parts) and (kind, len(parts)) == ("q", 1):
        return Place(parts[0], "")
    raise InvalidInput(f"{key!r} names no place of dead letters; use a button of the console")


async def find_places(call: PageCall) -> list[Place]:
    """Return the groups and queues that have dead letters and may be seen, the most first."""
    hw = call.hw
    names = call.visible(await hw.streams())[:MOST]
    streams = await hw.store.run(overview.some_streams(names))
    places = [
        Place(row.stream, row.group.name, row.group.dead)
        for row in await hw.store.run(overview.groups_of(streams))
        if row.group.dead
    ]
    queues = call.visible(await hw.queues())[:MOST]
    found = await hw.store.run(overview.some_queues(queues))
    places += [Place(one.name, "", one.dead) for one in found if one.dead]
    return sorted(places, key=lambda place: -place.dead)


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
    spans = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text[:-1].isdecimal() and text[-1] in spans:
        return int((time.time() - int(text[:-1]) * spans[text[-1]]) * 1000)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name} is a time like 2026-11-17T14:00, or a span before now like 2h, not {text!r}"
        ) from None
    return int(moment.replace(tzinfo=moment.tzinfo or dt.UTC).timestamp() * 1000)


_PAGE: Final = 1000


async def look_at(
    call: PageCall, places: Iterable[Place], matching: LetterFilter, budget: int
) -> Looked:
    """Return the letters that fit, of as many as the budget allows, from the oldest of each on."""
    letters: list[Letter] = []
    looked, more = 0, False
    for place in places:
        room = budget - looked
        if room <= 0:
            return Looked(letters, looked, True)
        found = await _look_at_one(call, place, matching, room)
        letters += found.letters
        looked += found.looked
        more = more or found.more
    return Looked(letters, looked, more)


def _why(letter: DeadLetter) -> tuple[int, Cause | None]:
    return letter.attempts, letter.cause


async def _look_at_one(call: PageCall, place: Place, matching: LetterFilter, budget: int) -> Looked:
    letters: list[Letter] = []
    looked, at, after = 0, 0, b""
    run = call.hw.store.run
    group = GroupHandle(StreamHandle(place.name, set()), place.group or "-", "console")
    queue = QueueHandle(place.name, set(), "console")
    while looked < budget:
        count = min(budget - looked, _PAGE)
        if place.group:
            page = await run(dead_letters.dead_page(group, at, count))
            looked, at = looked + len(page.letters), page.place
            letters += [
                Letter(
                    place,
                    one.buried_ms,
                    one.tag,
                    str(one.origin),
                    one.attempts,
                    one.cause,
                    one.value,
                )
                for one in dead_letters.fitting(page.letters, matching)
            ]
            if at < 0:
                return Looked(letters, looked, False)
        else:
            found = await run(queue_letters.dead_page(queue, after, count))
            looked, after = looked + len(found.letters), found.place
            letters += [
                Letter(place, one.buried_ms or 0, "", one.id, one.attempt, one.cause, one.value)
                for one in queue_letters.fitting(found.letters, matching)
            ]
            if not after:
                return Looked(letters, looked, False)
    return Looked(letters, looked, True)
