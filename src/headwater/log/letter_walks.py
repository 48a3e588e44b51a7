"""Dead letters of a group by a filter: redriven or discarded page by page."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.failures import ALL_LETTERS, LetterFilter
from headwater.log import dead_letters
from headwater.log.ack_arguments import Letters, letters_and_ranges
from headwater.log.handles import GroupHandle
from headwater.log.limits import MAX_LETTERS, check_count
from headwater.log.types import DeadLetter, Redriven
from headwater.store.call import Operation
from headwater.store.pacing import Pace

LetterAction: TypeAlias = Literal["redrive", "discard"]


class WalkStep(NamedTuple):
    """What a step did: letters that were checked, that matched, that were moved, that had to stay.

    ``place`` is where the next step continues, -1 at the end.
    """

    looked: int
    fitted: int
    done: int
    gone: int
    place: int


def walk(
    group: GroupHandle,
    action: LetterAction,
    matching: LetterFilter,
    place: int,
    end: int,
    most: int,
) -> Operation[WalkStep]:
    """Look at some letters from a place on; redrive or discard those that fit, ``most`` of them."""
    page = yield from dead_letters.dead_page(group, place, dead_letters.LOOKED_AT)
    place = page.place if page.place < end else -1
    found = [one for one in dead_letters.fitting(page.letters, matching) if one.offset < end]
    looked = len(page.letters)
    if len(found) > most:
        found, place = found[:most], found[most].offset
        looked = sum(one.offset < place for one in page.letters)
    done = yield from _move(group, action, found)
    return WalkStep(looked, len(found), *done, place)


def move_named(
    group: GroupHandle, action: LetterAction, origins: list[int], end: int
) -> Operation[Redriven]:
    """Redrive or discard the letters of some messages that are before ``end``.

    A repeat is harmless: a message that has failed again since has a letter after the end.
    """
    if action == "redrive":
        return (yield from dead_letters.redrive(group, origins, len(origins), end))
    return Redriven((yield from dead_letters.discard(group, origins, len(origins), end)), 0)


def redrive(
    group: GroupHandle,
    letters: Letters | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[Redriven]:
    """Redrive letters: those named, those that fit, or the oldest, at most ``count``."""
    if matching is None and pace.check().per_s is None:
        return (yield from dead_letters.redrive(group, letters, count))
    return (yield from _walk_all(group, "redrive", letters, matching, check_count(count), pace))


def discard(
    group: GroupHandle,
    letters: Letters | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[int]:
    """Discard letters: those named, those that fit, or the oldest, at most ``count``."""
    if matching is None and pace.check().per_s is None:
        return (yield from dead_letters.discard(group, letters, count))
    most = check_count(count, most=MAX_LETTERS)
    return (yield from _walk_all(group, "discard", letters, matching, most, pace)).returned


def move_all(
    group: GroupHandle, action: LetterAction, matching: LetterFilter | None, pace: Pace
) -> Operation[Redriven]:
    """Redrive or discard all letters that there are now and that fit."""
    return (yield from _walk_all(group, action, None, matching, MAX_LETTERS, pace))


def _walk_all(
    group: GroupHandle,
    action: LetterAction,
    letters: Letters | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[Redriven]:
    """Redrive or discard letters step by step."""
    if matching is not None:
        check_one_choice(letters, matching)
    done = gone = place = 0
    if letters is not None:
        found = yield from dead_letters.places_of(group, *letters_and_ranges(letters))
        named = [DeadLetter(at, "", b"", 0, origin, 0) for at, origin in found[:count]]
        size = pace.step(dead_letters.LOOKED_AT)
        for start in range(0, len(named), size):
            some = named[start : start + size]
            moved = yield from _move(group, action, some)
            done, gone = done + moved.returned, gone + moved.gone
            yield from pace.rest(len(some))
        return Redriven(done, gone)
    end = yield from dead_letters.end_of_letters(group)
    while place >= 0 and done < count:
        most = pace.step(count - done)
        step = yield from walk(group, action, matching or ALL_LETTERS, place, end, most)
        done, gone, place = done + step.done, gone + step.gone, step.place
        yield from pace.rest(step.fitted)
    return Redriven(done, gone)


def _move(
    group: GroupHandle, action: LetterAction, letters: list[DeadLetter]
) -> Operation[Redriven]:
    if not letters:
        return Redriven(0, 0)
    if action == "redrive":
        return (yield from dead_letters.redrive(group, letters, len(letters)))
    return Redriven((yield from dead_letters.discard(group, letters, len(letters))), 0)


def check_one_choice(letters: object | None, matching: LetterFilter) -> None:
    """Accept a filter; raises InvalidInput when letters are named as well."""
    if letters is not None:
        raise InvalidInput("give either letters or matching, not both")
    if not isinstance(matching, LetterFilter):
        raise InvalidInput(f"matching must be a LetterFilter, not {matching!r}")
