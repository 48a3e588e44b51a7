"""Dead letters of a group by a filter: redriven or discarded page by page."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.failures import LetterFilter
from headwater.log import dead_letters
from headwater.log.ack_arguments import Letters
from headwater.log.extents import extent
from headwater.log.handles import GroupHandle
from headwater.log.limits import MAX_LETTERS, check_count
from headwater.log.types import Redriven
from headwater.store.call import Operation

LetterAction: TypeAlias = Literal["redrive", "discard"]


class WalkStep(NamedTuple):
    """What a step did: letters that were looked at, that fitted, that were moved, that had to stay.

    ``place`` is where the next step goes on, -1 at the end.
    """

    looked: int
    fitted: int
    done: int
    gone: int
    place: int


def end_of_letters(group: GroupHandle) -> Operation[int]:
    """Return the place behind the newest dead letter there is now.

    A walk ends there: a message that is redriven may fail again, and is then a new letter.
    """
    stream = (yield from dead_letters.dead_ranges(group, 1, 0)).stream
    if not stream:
        return 0
    return (yield from extent(stream)).last + 1


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
    done = Redriven(0, 0)
    if found and action == "redrive":
        done = yield from dead_letters.redrive(group, found, len(found))
    elif found:
        done = Redriven((yield from dead_letters.discard(group, found, len(found))), 0)
    return WalkStep(looked, len(found), *done, place)


def move_named(
    group: GroupHandle, action: LetterAction, origins: list[int], end: int
) -> Operation[Redriven]:
    """Redrive or discard the letters of some messages that lie before ``end``.

    To repeat it does no harm: a message that has failed again since has a letter behind the end.
    """
    if action == "redrive":
        return (yield from dead_letters.redrive(group, origins, len(origins), end))
    return Redriven((yield from dead_letters.discard(group, origins, len(origins), end)), 0)


def redrive(
    group: GroupHandle, letters: Letters | None, matching: LetterFilter | None, count: int
) -> Operation[Redriven]:
    """Have letters redelivered that are named or fit, or the oldest, ``count`` at most."""
    if matching is None:
        return (yield from dead_letters.redrive(group, letters, count))
    check_one_choice(letters, matching)
    return (yield from _walk_all(group, "redrive", matching, check_count(count)))


def discard(
    group: GroupHandle, letters: Letters | None, matching: LetterFilter | None, count: int
) -> Operation[int]:
    """Forget letters that are named or fit, or the oldest, ``count`` at most; returns how many."""
    if matching is None:
        return (yield from dead_letters.discard(group, letters, count))
    check_one_choice(letters, matching)
    most = check_count(count, most=MAX_LETTERS)
    return (yield from _walk_all(group, "discard", matching, most)).returned


def _walk_all(
    group: GroupHandle, action: LetterAction, matching: LetterFilter, count: int
) -> Operation[Redriven]:
    done = gone = place = 0
    end = yield from end_of_letters(group)
    while place >= 0 and done < count:
        step = yield from walk(group, action, matching, place, end, count - done)
        done, gone, place = done + step.done, gone + step.gone, step.place
    return Redriven(done, gone)


def check_one_choice(letters: object | None, matching: LetterFilter) -> None:
    """Accept a filter; raises InvalidInput when letters are named as well."""
    if letters is not None:
        raise InvalidInput("give either letters or matching, not both")
    if not isinstance(matching, LetterFilter):
        raise InvalidInput(f"matching must be a LetterFilter, not {matching!r}")
