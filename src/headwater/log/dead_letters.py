"""Dead letters: messages that a group gave up, in a stream of their own; list, redrive, discard."""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput, StaleSequence
from headwater.kernel.failures import (
    ALL_LETTERS,
    EXPIRED,
    Cause,
    Failure,
    LastFailure,
    LetterFilter,
    read_failure,
    spelled,
)
from headwater.kernel.headers import bytes_of, check_max_bytes, first_of
from headwater.kernel.inputs import OwnName
from headwater.log import node, reading, settling
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import (
    MAX_BATCH_MESSAGES,
    MAX_LETTERS,
    UNPACKED_BYTES,
    check_count,
    check_ms,
    check_offset,
)
from headwater.log.reading import fetch, fetch_part, newest_sequence, refuse_missing
from headwater.log.replies import (
    BuryReply,
    DeadRange,
    DeadReply,
    DiscardReply,
    ExpireReply,
    RedriveReply,
)
from headwater.log.settling import Letters, Offsets, Span, letters_and_ranges, ranges_of
from headwater.log.types import DeadLetter, Message, Redriven, TopicMessage
from headwater.log.writing import append
from headwater.store.call import Argument, Call, Operation, Pace
from headwater.store.faults import Refusal

BATCH = 1000
CAUSES_PER_CALL = 1000
LETTERS_PER_CALL = 128
RANGES_PER_PAGE = 1000
# How many letters a search with a filter looks at in one step.
LOOKED_AT = 1000


def give_up(group: GroupHandle) -> Operation[tuple[int, int]]:
    """Give up everything that has expired; returns how many messages were dropped and buried."""
    dropped = place = 0
    while place >= 0:
        args = (group.name, place)
        try:
            call = Call(
                "hw_group_expire", group.key, args, repeatable=True, messages=reading.count_expired
            )
            gone, place = ExpireReply(*(yield call))
        except Refusal:
            raise group.unknown() from None
        dropped += gone
    return dropped, (yield from bury_given_up(group))


def bury_given_up(group: GroupHandle) -> Operation[int]:
    """Move what was found to have expired to the dead letters; returns how many messages.

    Each batch is numbered in the group before it is written, and written under its number, so that
    a repeat after a crash writes nothing twice.
    """
    buried, done, at, above = 0, "", 0, tuple[int, ...]()
    while True:
        args: tuple[Argument, ...] = (group.name, done, at, BATCH, *above)
        try:
            call = Call(
                "hw_group_bury", group.key, args, repeatable=True, messages=reading.count_buried
            )
            batch = BuryReply.of((yield call))
        except Refusal:
            raise group.unknown() from None
        buried += batch.buried
        if not batch.claims:
            return buried
        ranges = [(claim.first, claim.last) for claim in batch.claims]
        runs = yield from fetch(group.stream, ranges, whole=False)
        found = {message.offset: message for run in runs for message in run.messages()}
        # A message that was evicted, compacted or lost meanwhile keeps its place, empty: places are
        # counted.
        letters = [
            found.get(offset) or Message(offset, "", b"", 0)
            for first, last in ranges
            for offset in range(first, last + 1)
        ]
        # Its name was accepted when the group was told it.
        target = StreamHandle(OwnName(batch.stream), group.stream.registered)
        # A message may have been evicted since the first try: then the content of that try is kept.
        letters_batch = node.batch_of(
            [letter.tag for letter in letters],
            [letter.value for letter in letters],
            headers=[letter.headers.encoded for letter in letters],
        )
        producer = _producer(group)
        try:
            offsets = yield from append(
                target, letters_batch, None, producer, batch.number, compare=False
            )
        except StaleSequence:
            # A removed group of this name had higher numbers, of a clock that was set back since.
            newest = yield from newest_sequence(target.key, producer)
            if newest is None or newest <= batch.number or above == (newest,):
                raise
            done, above = "", (newest,)
        else:
            done, at = str(batch.number), offsets.start


def _producer(group: GroupHandle) -> str:
    """Return the producer of a group's letters: short for any name, and no other group's."""
    names = f"{len(group.stream.name)} {group.stream.name} {group.name}"
    return f"dead:{hashlib.sha256(names.encode()).hexdigest()[:32]}"


class LettersPage(NamedTuple):
    """Some dead letters of a group; ``place`` is where the next page begins, -1 at the end."""

    letters: list[DeadLetter]
    place: int


def dead(
    group: GroupHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
) -> Operation[list[DeadLetter]]:
    """Return the oldest ``count`` dead letters that fit; they stay where they are.

    There are no more once they have ``max_bytes``.
    """
    return (yield from list_dead(group, count, matching, max_bytes)).letters


def list_dead(
    group: GroupHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
    place: int = 0,
) -> Operation[LettersPage]:
    """Do as dead does, from a place among the letters on."""
    check_count(count, most=MAX_BATCH_MESSAGES)
    room = check_max_bytes(max_bytes)
    letters: list[DeadLetter] = []
    while True:
        wanted = count - len(letters) if matching is None else LOOKED_AT
        left = None if room is None else room - bytes_of(letters)
        page = yield from dead_page(group, place, wanted, left if matching is None else room)
        letters += fitting(page.letters, matching)
        place = page.place
        if place < 0 or len(letters) >= count or (room and bytes_of(letters) >= room):
            break
    some = first_of(letters[:count], room)
    return LettersPage(some, some[-1].offset + 1 if some and len(some) < len(letters) else place)


def fitting(letters: list[DeadLetter], matching: LetterFilter | None) -> list[DeadLetter]:
    """Return the letters that fit."""
    wanted = matching or ALL_LETTERS
    return [one for one in letters if wanted.fits(one.tag, one.cause, one.attempts, one.buried_ms)]


def dead_page(
    group: GroupHandle,
    place: int,
    count: int,
    max_bytes: int | None = None,
    *,
    newest: bool = False,
) -> Operation[LettersPage]:
    """Return up to ``count`` dead letters from a place among them on, with their causes.

    With ``newest`` they are those before the place, or at the end if that is 0, the newest first. A
    letter that the retention of its stream has removed is not among them. The page ends at the
    first node with which the letters have ``max_bytes``, 64 MiB by default.
    """
    wanted = max(min(count, RANGES_PER_PAGE), 1)
    reply = yield from dead_ranges(group, wanted, place, newest=newest)
    source = StreamHandle(reply.stream or group.stream.name, group.stream.registered)
    parts, left = [], count
    for found in reply.ranges:
        parts += [found.newest(left) if newest else found.oldest(left)] if left > 0 else []
        left -= found.end - found.at
    room = UNPACKED_BYTES if max_bytes is None else max_bytes
    opened = _open_newest if newest else _open_oldest
    letters, place = yield from opened(source, _joined(sorted(parts)), room)
    if place < 0 and parts and (left < 0 or len(reply.ranges) >= wanted):
        place = parts[-1].at if newest else parts[-1].end
    return LettersPage((yield from _with_failures(group, letters)), place)


def _joined(ranges: list[DeadRange]) -> list[list[DeadRange]]:
    """Return ranges in lists; those of a list follow each other among the letters."""
    found: list[list[DeadRange]] = []
    for one in ranges:
        if found and found[-1][-1].end == one.at:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def _open_oldest(
    source: StreamHandle, runs: list[list[DeadRange]], room: int
) -> Operation[tuple[list[DeadLetter], int]]:
    """Read dead letters up to so many bytes; returns where the next one is, -1 after the last."""
    letters: list[DeadLetter] = []
    for run in runs:
        if room <= 0:
            return letters, run[0].at
        some, at = yield from _open_letters(source, run, run[0].at, run[-1].end, room)
        letters += some
        room -= bytes_of(some)
        if at < run[-1].end:
            return letters, at
    return letters, -1


def _open_newest(
    source: StreamHandle, runs: list[list[DeadRange]], room: int
) -> Operation[tuple[list[DeadLetter], int]]:
    """Read dead letters from the last to the first, up to about so many bytes.

    Returns the place before which the next one is, -1 after the first.
    """
    letters: list[DeadLetter] = []
    step = LETTERS_PER_CALL
    for run in reversed(runs):
        end = run[-1].end
        while end > run[0].at:
            if room <= 0:
                return letters, end
            first = max(end - step, run[0].at)
            some, at = yield from _open_letters(source, run, first, end, UNPACKED_BYTES)
            if at < end and step > 1:
                step //= 2  # they are large: the last of them are not among what was read
                continue
            letters += reversed(some)
            room -= bytes_of(some)
            end = first
    return letters, -1


def newest_causes(group: GroupHandle, most: int) -> Operation[list[Cause | None]]:
    """Return why the newest messages were given up, at most so many; reads none of them."""
    reply = yield from dead_ranges(group, min(most, RANGES_PER_PAGE), 0, newest=True)
    origins = [origin for one in reply.ranges for origin in range(one.last, one.first - 1, -1)][
        :most
    ]
    known = yield from _failures_of(group, origins)
    return [known.get(origin, EXPIRED).cause for origin in origins]


def _failures_of(group: GroupHandle, origins: list[int]) -> Operation[dict[int, LastFailure]]:
    """Return what is known of failures of messages."""
    known: dict[int, LastFailure] = {}
    for start in range(0, len(origins), CAUSES_PER_CALL):
        some = origins[start : start + CAUSES_PER_CALL]
        flat = [edge for span in ranges_of(some) for edge in span]
        args: tuple[Argument, ...] = (group.name, *flat)
        for text in (yield Call("hw_group_causes", group.key, args, read_only=True)):
            offset, _, failure = text.partition(b":")
            known[int(offset)] = read_failure(failure)
    return known


def _with_failures(group: GroupHandle, letters: list[DeadLetter]) -> Operation[list[DeadLetter]]:
    """Return letters with their errors, as far as these are known."""
    known = yield from _failures_of(group, [letter.origin for letter in letters])
    return [letter._replace(**known.get(letter.origin, EXPIRED)._asdict()) for letter in letters]


def _open_letters(
    source: StreamHandle, run: list[DeadRange], at: int, end: int, room: int
) -> Operation[tuple[list[DeadLetter], int]]:
    """Read the letters at..end-1 of ranges that follow each other, up to so many bytes.

    Returns where the next one is.
    """
    letters: list[DeadLetter] = []
    starts = [one.at for one in run]
    while at < end and room > 0:
        part = yield from fetch_part(source, at, end - 1, room)
        yield from refuse_missing(source.key, part.created, part.missing(at, end - 1))
        some = []
        for fetched in part.runs:
            if fetched.base < end and fetched.last >= at:
                for m in fetched.cut(at, end - 1).messages():
                    one = run[bisect_right(starts, m.offset) - 1]
                    origin = one.first + m.offset - one.at
                    place = (m.offset, m.tag, m.value, m.time_ms, origin, one.attempts)
                    some.append(DeadLetter(*place, m.headers))
        letters += some
        room -= bytes_of(some)
        over = part.covered < at or part.covered >= part.last
        at = end if over else min(part.covered + 1, end)
    return letters, at


def redrive_now(
    group: GroupHandle, letters: Letters | None, count: int, end: int | None = None
) -> Operation[Redriven]:
    """Redrive dead letters, those named or the oldest: redelivered at once, as if never tried.

    Letters that are named by offsets of messages are before ``end``. The oldest are among those
    that there are when it begins: a message that fails again meanwhile has a new letter.
    """
    check_count(count)
    if letters is None:
        return (yield from _redrive_oldest(group, count))
    back = gone = 0
    for words in (yield from _words_of(group, letters, end)):
        done = yield from _redrive_some(group, count - back, 0, 0, words)
        back, gone = back + done.returned, gone + done.gone
    return Redriven(back, gone)


def _redrive_oldest(group: GroupHandle, count: int) -> Operation[Redriven]:
    end = yield from end_of_letters(group)
    back = gone = place = 0
    while place >= 0:
        done = yield from _redrive_some(group, count - back, place, end)
        back, gone, place = back + done.returned, gone + done.gone, done.place
    return Redriven(back, gone)


def _redrive_some(
    group: GroupHandle, most: int, place: int, end: int, words: tuple[int, ...] = ()
) -> Operation[RedriveReply]:
    args: tuple[Argument, ...] = (group.name, most, place, end, *words)
    # A second call would affect other letters than the first, unless they are named.
    call = Call(
        "hw_group_redrive", group.key, args, repeatable=bool(words), messages=reading.count_redriven
    )
    try:
        return RedriveReply(*(yield call))
    except Refusal:
        raise group.unknown() from None


def discard_now(
    group: GroupHandle, letters: Letters | None, count: int, end: int | None = None
) -> Operation[int]:
    """Forget dead letters, those named, before ``end``, or the oldest; returns how many.

    The oldest are among those that there are when it begins.
    """
    check_count(count, most=MAX_LETTERS)
    if letters is None:
        return (yield from _discard_oldest(group, count))
    total = 0
    for words in (yield from _words_of(group, letters, end)):
        total += (yield from _discard_some(group, count - total, 0, words, True)).messages
    return total


def _words_of(
    group: GroupHandle, letters: Letters, end: int | None
) -> Operation[list[tuple[int, ...]]]:
    """Return places of letters and offsets of their messages, as the functions take them."""
    found = yield from places_of(group, *letters_and_ranges(letters))
    places = [place for place in found if end is None or place[0] < end]
    return [
        tuple(word for place in places[start : start + LETTERS_PER_CALL] for word in place)
        for start in range(0, len(places), LETTERS_PER_CALL)
    ]


def _discard_oldest(group: GroupHandle, count: int) -> Operation[int]:
    end = yield from end_of_letters(group)
    total, more = 0, 1
    while total < count and more:
        # A second call would affect other letters than the first, unless all are meant.
        done, more = yield from _discard_some(group, count - total, end, (), count == MAX_LETTERS)
        total += done
    return total


def _discard_some(
    group: GroupHandle, most: int, end: int, words: Iterable[int], repeatable: bool
) -> Operation[DiscardReply]:
    args: tuple[Argument, ...] = (group.name, most, end, *words)
    call = Call(
        "hw_group_discard", group.key, args, repeatable=repeatable, messages=reading.count_discarded
    )
    try:
        return DiscardReply(*(yield call))
    except Refusal:
        raise group.unknown() from None


def places_of(
    group: GroupHandle, letters: list[DeadLetter], spans: list[Span]
) -> Operation[list[tuple[int, int]]]:
    """Return the places of letters and the offsets of their messages, in order.

    Offsets of messages are looked up among all dead letters that there are when it begins.
    """
    places = {(letter.offset, letter.origin) for letter in letters}
    at = end = 0
    while spans:
        reply = yield from dead_ranges(group, RANGES_PER_PAGE, at)
        for found in reply.ranges:
            places.update(
                (found.at + origin - found.first, origin)
                for start, end in spans
                for origin in range(max(start, found.first), min(end, found.last) + 1)
            )
            at = found.at + found.last - found.first + 1
        end = end or reply.end
        if len(reply.ranges) < RANGES_PER_PAGE or at >= end:
            break
    return sorted(places)


def end_of_letters(group: GroupHandle) -> Operation[int]:
    """Return the place behind the newest dead letter there is now.

    A walk ends there: a message that is redriven may fail again, and is then a new letter.
    """
    return (yield from dead_ranges(group, 1, 0)).end


def dead_ranges(
    group: GroupHandle, most: int, at: int, *, newest: bool = False
) -> Operation[DeadReply]:
    """Return where dead letters are, from a place among them on; or those before it, backwards."""
    args: tuple[Argument, ...] = (group.name, most, at, "newest" if newest else "")
    try:
        return DeadReply.of((yield Call("hw_group_dead", group.key, args, read_only=True)))
    except Refusal:
        raise group.unknown() from None


# ── Failing ───────────────────────────────────────────────────────────────────────────────────────
# Failed attempts at messages of a group: retry later, give up, or return untried.


# Each may be in a range of its own, and the server splits only this many ranges in one call.
REPORTS_PER_CALL = 64
# In the place of a delay: the message is not redelivered.
GIVE_UP = -1


def fail(group: GroupHandle, failures: Iterable[Failure]) -> Operation[int]:
    """Report failed attempts; returns how many of the messages were still pending in them.

    Each is redelivered after its delay. A message without a delay is given up, in one step, and
    then buried: by this call, or, if it does not get that far, by the next read or the housekeeper.
    """
    reports = sorted(map(_report, failures), key=lambda report: report[0])
    total = 0
    for start in range(0, len(reports), REPORTS_PER_CALL):
        part = reports[start : start + REPORTS_PER_CALL]
        words = [word for report in part for word in report]
        args: tuple[Argument, ...] = (group.name, *words)
        call = Call(
            "hw_group_fail", group.key, args, repeatable=True, messages=reading.count_failed
        )
        try:
            total += yield call
        except Refusal as refusal:
            if refusal.code == "NO_LETTERS":
                raise no_letters(group.stream.name, group.name) from None
            raise group.unknown() from None
        if any(report[2] < 0 for report in part):
            with contextlib.suppress(HeadwaterError):
                yield from bury_given_up(group)
    return total


def _report(failure: Failure) -> tuple[int, int | str, int, int | str, str]:
    item, delay_ms = failure.item, failure.delay_ms
    known = isinstance(item, Message | TopicMessage)
    return (
        check_offset(item.offset if known else item),
        (item.attempt or "") if known else "",
        GIVE_UP if delay_ms is None else check_ms(delay_ms, "delay_ms"),
        "" if failure.held_ms is None else check_ms(failure.held_ms, "held_ms"),
        spelled(failure.error),
    )


def no_letters(stream: str, group: str) -> InvalidInput:
    """Return the error for a group without dead letters."""
    return InvalidInput(
        f"group {group!r} of {stream!r} keeps no dead letters, so nothing can be buried; open it "
        "with dead_letters=True"
    )


def bury(
    group: GroupHandle, offsets: Collection[Offsets], error: BaseException | str | None
) -> Operation[int]:
    """Give messages up; without any, those that have expired. Returns how many."""
    if not offsets:
        _, buried = yield from give_up(group)
        return buried
    ranges = ranges_of(offsets)
    messages = sum(last - first + 1 for first, last in ranges)
    check_count(messages, "number of messages to bury", MAX_BATCH_MESSAGES)
    each = (offset for first, last in ranges for offset in range(first, last + 1))
    return (yield from fail(group, [Failure(offset, error) for offset in each]))


def release(group: GroupHandle, offsets: Iterable[Offsets]) -> Operation[int]:
    """Return messages untried: the attempt does not count; returns how many were pending."""
    return (yield from settling.on_ranges(group, "hw_group_release", (), offsets))


# ── Letter walks ──────────────────────────────────────────────────────────────────────────────────
# Dead letters of a group by a filter: redriven or discarded page by page.


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
    page = yield from dead_page(group, place, LOOKED_AT)
    place = page.place if page.place < end else -1
    found = [one for one in fitting(page.letters, matching) if one.offset < end]
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
        return (yield from redrive_now(group, origins, len(origins), end))
    return Redriven((yield from discard_now(group, origins, len(origins), end)), 0)


def redrive(
    group: GroupHandle,
    letters: Letters | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[Redriven]:
    """Redrive letters: those named, those that fit, or the oldest, at most ``count``."""
    if matching is None and pace.check().per_s is None:
        return (yield from redrive_now(group, letters, count))
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
        return (yield from discard_now(group, letters, count))
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
        found = yield from places_of(group, *letters_and_ranges(letters))
        named = [DeadLetter(at, "", b"", 0, origin, 0) for at, origin in found[:count]]
        size = pace.step(LOOKED_AT)
        for start in range(0, len(named), size):
            some = named[start : start + size]
            moved = yield from _move(group, action, some)
            done, gone = done + moved.returned, gone + moved.gone
            yield from pace.rest(len(some))
        return Redriven(done, gone)
    end = yield from end_of_letters(group)
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
        return (yield from redrive_now(group, letters, len(letters)))
    return Redriven((yield from discard_now(group, letters, len(letters))), 0)


def check_one_choice(letters: object | None, matching: LetterFilter) -> None:
    """Accept a filter; raises InvalidInput when letters are named as well."""
    if letters is not None:
        raise InvalidInput("give either letters or matching, not both")
    if not isinstance(matching, LetterFilter):
        raise InvalidInput(f"matching must be a LetterFilter, not {matching!r}")
