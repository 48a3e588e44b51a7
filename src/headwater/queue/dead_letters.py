"""Dead letters of a queue: messages that were given up are seen, redriven, discarded."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.failures import ALL_LETTERS, LetterFilter
from headwater.kernel.headers import bytes_of, check_max_bytes, first_of
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import PAGE_MESSAGES, Spot, chosen, page, places_by_id, read_stats
from headwater.queue.keys import MAX_LETTERS, check_count
from headwater.queue.replies import LettersReply, Reply
from headwater.queue.settling import BUNDLES_PER_CALL, by_bundle, with_causes
from headwater.queue.types import QueueItem
from headwater.queue.upkeep import keep
from headwater.store.call import Argument, Call, Operation, Pace

# A letter as dead() returned it, its place, or its id, which is looked up among all of them.
OneQueueLetter: TypeAlias = "QueueItem | str"
QueueLetterAction: TypeAlias = Literal["redrive", "discard"]
_CURE = "give several letters as dead() returned them, their places or their ids"
_FUNCTIONS: dict[QueueLetterAction, str] = {
    "redrive": "hw_queue_redrive",
    "discard": "hw_queue_discard",
}


class QueueLettersPage(NamedTuple):
    """Some dead letters of a queue; ``place`` is where the next page begins, empty at the end."""

    letters: list[QueueItem]
    place: bytes


def dead(
    queue: QueueHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
) -> Operation[list[QueueItem]]:
    """Return the messages that were given up and fit, the oldest first.

    There are no more once they have ``max_bytes``.
    """
    check_count(count)
    return (yield from list_dead(queue, count, matching, max_bytes)).letters


def list_dead(
    queue: QueueHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
    start: bytes = b"",
) -> Operation[QueueLettersPage]:
    """Do as dead does, from the place where a list before ended."""
    room = check_max_bytes(max_bytes)
    if start:
        _check_place(start)
    yield from keep(queue)
    found: list[QueueItem] = []
    place, more = _before(start), count > 0
    while more and len(found) < count and (room is None or room > bytes_of(found)):
        wanted = PAGE_MESSAGES if matching or start else count - len(found)
        letters, place = yield from dead_page(queue, place, wanted)
        found += fitting(_behind(letters, start), matching)
        more = bool(place)
    some = first_of(found[:count], room)
    if len(some) < len(found):
        place = _place_of(some[-1])
    return QueueLettersPage(some, place)


def _place_of(letter: QueueItem) -> bytes:
    """Return the place behind a letter: when it was given up, its bundle, and itself."""
    return f"{letter.buried_ms} {letter.place}".encode()


def _check_place(place: bytes) -> None:
    time_ms, _, name = place.partition(b" ")
    if not (time_ms.isdigit() and name):
        shown = place[:100].decode("utf-8", "replace")
        raise InvalidInput(f"{shown!r} is no place among letters; give next as it was returned")


def _before(place: bytes) -> bytes:
    """Return where the page begins that has the bundle of a place in it."""
    bundle, point, _ = place.rpartition(b".")
    return bundle[:-1] if point else place


def _behind(letters: list[QueueItem], place: bytes) -> list[QueueItem]:
    """Return the letters behind a place; the letter that it names may be gone."""
    bundle, point, number = place.rpartition(b".")
    if not point:
        return letters
    time_ms, name = bundle.decode().split(" ", 1)
    last = (int(time_ms), name, number.decode())
    places = [(one.buried_ms or 0, *one.place.rpartition(".")[::2]) for one in letters]
    if last in places:
        return letters[places.index(last) + 1 :]
    return [one for one, own in zip(letters, places, strict=True) if own > last]


def dead_page(
    queue: QueueHandle, place: bytes, count: int, *, newest: bool = False
) -> Operation[QueueLettersPage]:
    """Return about ``count`` dead letters from a place among them on, with their causes.

    With ``newest`` they are read from the newest on. Messages that were given up since the last pop
    or housekeeping are not among them.
    """
    spots = [Spot("dead", 0, place, newest=newest)]
    items, rest = yield from page(queue, spots, max(min(count, PAGE_MESSAGES), 1))
    letters = yield from with_causes(queue, items)
    return QueueLettersPage(letters, rest[0].after if rest else b"")


def fitting(letters: list[QueueItem], matching: LetterFilter | None) -> list[QueueItem]:
    """Return the letters that fit."""
    wanted = matching or ALL_LETTERS
    return [one for one in letters if wanted.fits("", one.cause, one.attempt, one.buried_ms or 0)]


class LettersEnd(NamedTuple):
    """Where the letters of a queue ended at some time.

    ``newest_ms`` is when the newest was given up. A message that is handed out later is in a bundle
    with a larger ``number``, also if it fails within that millisecond, or the clock was stepped
    back.
    """

    newest_ms: int
    number: int

    def includes(self, letter: QueueItem) -> bool:
        """Return whether a letter was there."""
        in_time = (letter.buried_ms or 0) <= self.newest_ms
        return in_time and int(letter.place.partition(":")[0]) <= self.number


class QueueWalkStep(NamedTuple):
    """What a step did: letters that were checked, that matched, that were moved.

    ``place`` is where the next step continues, None at the end.
    """

    looked: int
    fitted: int
    done: int
    place: bytes | None


def redrive(
    queue: QueueHandle,
    letters: Iterable[OneQueueLetter] | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[int]:
    """Redrive dead letters: those named, those that fit, or the oldest; return how many."""
    return (yield from _act(queue, "redrive", letters, matching, count, pace))


def discard(
    queue: QueueHandle,
    letters: Iterable[OneQueueLetter] | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[int]:
    """Forget dead letters, those named or that fit, or the oldest; return how many."""
    return (yield from _act(queue, "discard", letters, matching, count, pace))


def _act(
    queue: QueueHandle,
    action: QueueLetterAction,
    letters: Iterable[OneQueueLetter] | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[int]:
    check_count(count, most=MAX_LETTERS)
    if matching is None and pace.check().per_s is None:
        return (yield from _end_letters(queue, _FUNCTIONS[action], letters, count))
    if letters is not None and matching is not None:
        raise InvalidInput("give either letters or matching, not both")
    if not isinstance(matching, LetterFilter | None):
        raise InvalidInput(f"matching must be a LetterFilter, not {matching!r}")
    ids = None if letters is None else _ids_of(letters)
    total = 0
    place: bytes | None = b""
    end = yield from end_of_letters(queue)
    while place is not None and total < count:
        most = pace.step(count - total)
        step = yield from walk(queue, action, matching or ALL_LETTERS, place, end, most, ids)
        total, place = total + step.done, step.place
        yield from pace.rest(step.fitted)
    return total


def end_of_letters(queue: QueueHandle) -> Operation[LettersEnd]:
    """Make dead letters of the messages given up by now; return where the letters end.

    A walk ends there: a message that is redriven may fail again, and is then a new letter.
    """
    yield from keep(queue)
    found = yield from read_stats(queue)
    return LettersEnd(found["newest_dead"], found["last"])


def walk(
    queue: QueueHandle,
    action: QueueLetterAction,
    matching: LetterFilter,
    place: bytes,
    end: LettersEnd,
    most: int,
    ids: Container[str] | None = None,
) -> Operation[QueueWalkStep]:
    """Check some letters from a place on; redrive or discard those that fit, at most ``most``.

    With ``ids``, only letters of these messages fit.
    """
    letters, following = yield from dead_page(queue, place, PAGE_MESSAGES)
    found = [
        one
        for one in fitting(letters, matching)
        if end.includes(one) and (ids is None or one.id in ids)
    ]
    some = found[:most]
    done = 0
    if some:
        done = yield from _end_letters(queue, _FUNCTIONS[action], some, len(some))
    if done and len(found) > most:
        # Those that were moved are gone from here; the others are looked at again.
        return QueueWalkStep(done, len(some), done, place)
    # Letters are by time: the others were given up later.
    over = bool(letters) and (letters[-1].buried_ms or 0) > end.newest_ms
    return QueueWalkStep(len(letters), len(some), done, None if over else following or None)


def _end_letters(
    queue: QueueHandle, function: str, letters: Iterable[OneQueueLetter] | None, count: int
) -> Operation[int]:
    total = 0
    if letters is not None:
        words = by_bundle((yield from _places_of(queue, letters)))
        start = 0
        while start < len(words):
            part = words[start : start + 2 * BUNDLES_PER_CALL]
            args: tuple[Argument, ...] = (count - total, 0, 0, 0, *part)
            call = Call(function, queue.key, args, repeatable=True, messages=_messages_gone)
            reply = LettersReply(*(yield call))
            total, start = total + reply.messages, start + 2 * reply.bundles
        return total
    end = yield from end_of_letters(queue)
    over = 0
    while total < count:
        # A second call would affect other letters than the first.
        call = Call(
            function,
            queue.key,
            (count - total, *end, over),
            repeatable=count >= MAX_LETTERS,
            messages=_messages_gone,
        )
        reply = LettersReply(*(yield call))
        total, over = total + reply.messages, reply.over
        if not reply.more:
            break
    return total


def _messages_gone(_: Call, reply: Reply) -> int:
    messages: int = reply[0]
    return messages


def _ids_of(letters: Iterable[OneQueueLetter]) -> set[str]:
    """Return the ids of letters: bundles get other names while letters are taken out of them."""
    places, ids = chosen(letters, _CURE, "dead")
    return ids | {place.rpartition(".")[2] for place in places}


def _places_of(queue: QueueHandle, letters: Iterable[OneQueueLetter]) -> Operation[list[str]]:
    """Return where letters are; ids are looked up among all of them."""
    places, ids = chosen(letters, _CURE, "dead")
    if ids:
        yield from keep(queue)
        places += yield from places_by_id(queue, ids, [Spot("dead", 0)], "dead")
    return places
