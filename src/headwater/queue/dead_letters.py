"""Dead letters of a queue: messages that were given up are seen, redriven, discarded."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.failures import ALL_LETTERS, LetterFilter
from headwater.queue.acks import BUNDLES_PER_CALL, by_bundle
from headwater.queue.failing import with_causes
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import PAGE_MESSAGES, Spot, chosen, page, places_by_id, read_stats
from headwater.queue.limits import MAX_LETTERS, check_count
from headwater.queue.replies import LettersReply, Reply
from headwater.queue.types import QueueItem
from headwater.queue.upkeep import keep
from headwater.store.call import Argument, Call, Operation
from headwater.store.pacing import Pace

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
    queue: QueueHandle, count: int, matching: LetterFilter | None = None
) -> Operation[list[QueueItem]]:
    """Return the messages that were given up and fit, the oldest first."""
    check_count(count)
    yield from keep(queue)
    found: list[QueueItem] = []
    place, more = b"", count > 0
    while more and len(found) < count:
        wanted = count - len(found) if matching is None else PAGE_MESSAGES
        letters, place = yield from dead_page(queue, place, wanted)
        found += fitting(letters, matching)
        more = bool(place)
    return found[:count]


def dead_page(queue: QueueHandle, place: bytes, count: int) -> Operation[QueueLettersPage]:
    """Return about ``count`` dead letters from a place among them on, with their causes.

    What was given up just now, and nobody has looked at since, is not among them.
    """
    spots = [Spot("dead", 0, place)]
    items, rest = yield from page(queue, spots, max(min(count, PAGE_MESSAGES), 1))
    letters = yield from with_causes(queue, items)
    return QueueLettersPage(letters, rest[0].after if rest else b"")


def fitting(letters: list[QueueItem], matching: LetterFilter | None) -> list[QueueItem]:
    """Return the letters that fit."""
    wanted = matching or ALL_LETTERS
    return [one for one in letters if wanted.fits("", one.cause, one.attempt, one.buried_ms or 0)]


class QueueWalkStep(NamedTuple):
    """What a step did: letters that were looked at, that fitted, that were moved.

    ``place`` is where the next step goes on, None at the end.
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
    """Bring dead letters back, those named or that fit, or the oldest; return how many."""
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
    end_ms = yield from end_of_letters(queue)
    while place is not None and total < count:
        most = pace.step(count - total)
        step = yield from walk(queue, action, matching or ALL_LETTERS, place, end_ms, most, ids)
        total, place = total + step.done, step.place
        yield from pace.rest(step.fitted)
    return total


def end_of_letters(queue: QueueHandle) -> Operation[int]:
    """Make letters of what was given up just now; return a time after which others come.

    A walk ends there: a message that is redriven may fail again, and is then a new letter.
    """
    yield from keep(queue)
    now_ms: int = (yield from read_stats(queue))["now"]
    return now_ms + 1


def walk(
    queue: QueueHandle,
    action: QueueLetterAction,
    matching: LetterFilter,
    place: bytes,
    end_ms: int,
    most: int,
    ids: Container[str] | None = None,
) -> Operation[QueueWalkStep]:
    """Look at some letters from a place on; redrive or discard those that fit, ``most`` of them.

    With ``ids``, only letters of these messages fit.
    """
    letters, following = yield from dead_page(queue, place, PAGE_MESSAGES)
    found = [
        one
        for one in fitting(letters, matching)
        if (one.buried_ms or 0) < end_ms and (ids is None or one.id in ids)
    ]
    some = found[:most]
    done = 0
    if some:
        done = yield from _end_letters(queue, _FUNCTIONS[action], some, len(some))
    if done and len(found) > most:
        # Those that were moved are gone from here; the others are looked at again.
        return QueueWalkStep(done, len(some), done, place)
    return QueueWalkStep(len(letters), len(some), done, following or None)


def _end_letters(
    queue: QueueHandle, function: str, letters: Iterable[OneQueueLetter] | None, count: int
) -> Operation[int]:
    total = 0
    if letters is not None:
        words = by_bundle((yield from _places_of(queue, letters)))
        start = 0
        while start < len(words):
            part = words[start : start + 2 * BUNDLES_PER_CALL]
            args: tuple[Argument, ...] = (count - total, *part)
            call = Call(function, queue.key, args, repeatable=True, messages=_messages_gone)
            reply = LettersReply(*(yield call))
            total, start = total + reply.messages, start + 2 * reply.bundles
        return total
    yield from keep(queue)
    while total < count:
        # To do it twice would concern other letters than the first time.
        call = Call(
            function,
            queue.key,
            (count - total,),
            repeatable=count >= MAX_LETTERS,
            messages=_messages_gone,
        )
        reply = LettersReply(*(yield call))
        total += reply.messages
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
    """Return where letters lie; ids are looked up among all of them."""
    places, ids = chosen(letters, _CURE, "dead")
    if ids:
        yield from keep(queue)
        places += yield from places_by_id(queue, ids, [Spot("dead", 0)], "dead")
    return places
