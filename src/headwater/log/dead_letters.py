"""Dead letters: messages that a group gave up, in a stream of their own; list, redrive, discard."""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from headwater.errors import HeadwaterError, InvalidInput, StaleSequence
from headwater.kernel.failures import (
    EXPIRED,
    Cause,
    Failure,
    LastFailure,
    LetterFilter,
    read_failure,
    spelled,
)
from headwater.kernel.headers import bytes_of
from headwater.kernel.inputs import OwnName
from headwater.log import node, reading, settling
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import (
    MAX_BATCH_MESSAGES,
    MAX_LETTERS,
    MAX_OFFSET,
    MAX_READ,
    UNPACKED_BYTES,
    check_count,
    check_ms,
    check_offset,
)
from headwater.log.reading import fetch, fetch_part, newest_sequence, refuse_missing
from headwater.log.replies import BuryReply, DeadRange, DeadReply, record
from headwater.log.settling import Letters, Offsets, Span, letters_and_ranges, ranges_of
from headwater.log.types import DeadLetter, GroupInfo, Message, TopicMessage
from headwater.log.writing import append
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal
from headwater.store.letters import (
    LetterAction,
    LetterBox,
    LetterFacts,
    LetterPage,
    Moved,
    WalkStep,
    no_place,
)

BATCH = 1000
CAUSES_PER_CALL = 1000
LETTERS_PER_CALL = 128
RANGES_PER_PAGE = 1000


def give_up(group: GroupHandle) -> Operation[tuple[int, int]]:
    """Give up everything that has expired; returns how many messages were dropped and buried."""
    dropped = place = 0
    while place >= 0:
        args = (group.name, place)
        try:
            call = Call(
                "hw_group_expire", group.key, args, repeatable=True, messages=reading.count_first
            )
            gone, place = yield call
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
                "hw_group_bury", group.key, args, repeatable=True, messages=reading.count_first
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


# ── The letter box ───────────────────────────────────────────────────────────────────────────────


class GroupLetters(LetterBox[DeadLetter]):
    """The dead letters of a group; a place among them is an offset in their stream."""

    most = MappingProxyType({"redrive": MAX_READ, "discard": MAX_LETTERS})

    def __init__(self, group: GroupHandle) -> None:
        self._group = group

    def count(self) -> Operation[int]:
        """Return how many there are; raises UnknownGroup."""
        group = self._group
        try:
            reply = yield Call("hw_group_info", group.key, (group.name,), read_only=True)
        except Refusal:
            raise group.unknown() from None
        return record(GroupInfo, reply, name=group.name).dead

    def page(
        self, place: str, count: int, max_bytes: int | None = None, *, newest: bool = False
    ) -> Operation[LetterPage[DeadLetter]]:
        """Return up to ``count`` dead letters from a place on, with their causes.

        With ``newest`` they are those before the place, or at the end without one, the newest
        first. A letter that the retention of its stream has removed is not among them. The page
        ends at the first node with which the letters have ``max_bytes``, 64 MiB by default.
        """
        group, wanted = self._group, max(min(count, RANGES_PER_PAGE), 1)
        reply = yield from dead_ranges(group, wanted, offset_of(place), newest=newest)
        source = StreamHandle(reply.stream or group.stream.name, group.stream.registered)
        parts, left = [], count
        for found in reply.ranges:
            parts += [found.newest(left) if newest else found.oldest(left)] if left > 0 else []
            left -= found.end - found.at
        room = UNPACKED_BYTES if max_bytes is None else max_bytes
        opened = _open_newest if newest else _open_oldest
        letters, at = yield from opened(source, _joined(sorted(parts)), room)
        if at < 0 and parts and (left < 0 or len(reply.ranges) >= wanted):
            at = parts[-1].at if newest else parts[-1].end
        known = yield from _with_failures(group, letters)
        return LetterPage(known, None if at < 0 else str(at))

    def end(self) -> Operation[str]:
        """Return the place behind the newest dead letter there is now."""
        return str((yield from dead_ranges(self._group, 1, 0)).end)

    def move(
        self, action: LetterAction, letters: Letters | None, count: int, end: str = ""
    ) -> Operation[Moved]:
        """Redrive or discard letters, those named, before ``end``, or the oldest, at once.

        What is redriven is redelivered as if never tried.
        """
        if letters is None:
            return (yield from _move_oldest(self._group, action, count))
        found = yield from _places_of(self._group, *letters_and_ranges(letters))
        places = [place for place in found if not end or place[0] < int(end)]
        done = gone = 0
        for start in range(0, len(places), LETTERS_PER_CALL):
            some = places[start : start + LETTERS_PER_CALL]
            words = tuple(word for place in some for word in place)
            moved = yield from _move_some(self._group, action, count - done, words=words)
            done, gone = done + moved.done, gone + moved.gone
        return Moved(done, gone)

    def named(self, letters: Letters) -> Operation[list[DeadLetter | int]]:
        """Return the letters that are named, by their places; offsets are looked up."""
        found = yield from _places_of(self._group, *letters_and_ranges(letters))
        return [DeadLetter(at, "", b"", 0, origin, 0) for at, origin in found]

    def walk(
        self,
        action: LetterAction,
        matching: LetterFilter | None,
        place: str,
        end: str,
        most: int,
        named: Collection[DeadLetter | int] | None = None,
    ) -> Operation[WalkStep]:
        """Redrive or discard some letters from a place on, or of those named; see LetterBox.

        Those named are not read: the place is then how many of them are behind.
        """
        if named is None:
            return (yield from super().walk(action, matching, place, end, most))
        at = offset_of(place)
        some = list(islice(named, at, at + most))
        if not some:
            return WalkStep(0, 0, 0, 0, None)
        moved = yield from self.move(action, some, len(some), end)
        return WalkStep(len(some), len(some), *moved, str(at + len(some)))

    def facts(self, letter: DeadLetter) -> LetterFacts:
        """Return what is known of a letter."""
        return LetterFacts(
            str(letter.origin), letter.tag, letter.attempts, letter.cause, letter.buried_ms
        )

    def place_after(self, letter: DeadLetter) -> str:
        """Return the place behind a letter."""
        return str(letter.offset + 1)

    def is_before(self, letter: DeadLetter, end: str) -> bool:
        """Return whether a letter was there when the letters ended at ``end``."""
        return letter.offset < int(end)

    def is_over(self, page: LetterPage[DeadLetter], end: str) -> bool:
        """Return whether all that follows a page is behind an end."""
        return page.place is None or int(page.place) >= int(end)

    def rest_of(
        self,
        page: LetterPage[DeadLetter],
        begin: str,  # noqa: ARG002
        rest: DeadLetter,
        moved: Moved,  # noqa: ARG002
    ) -> tuple[int, str | None]:
        """Return how many letters are behind, and the place of the letter that is next."""
        return sum(letter.offset < rest.offset for letter in page.letters), str(rest.offset)


def offset_of(place: str) -> int:
    """Return a place among letters as a number; raises InvalidInput."""
    if not place:
        return 0
    if not (place.isascii() and place.isdecimal() and len(place) <= len(str(MAX_OFFSET))):
        raise no_place(place)
    return int(place)


def dead(
    group: GroupHandle,
    count: int,
    matching: LetterFilter | None = None,
    max_bytes: int | None = None,
) -> Operation[list[DeadLetter]]:
    """Return the oldest ``count`` dead letters that fit; see LetterBox.listed."""
    check_count(count, most=MAX_BATCH_MESSAGES)
    return (yield from GroupLetters(group).listed(count, matching, max_bytes)).letters


class _Step(NamedTuple):
    """What a call did: letters that were moved, that had to stay; ``place`` is -1 at the end."""

    done: int
    gone: int
    place: int


def _move_oldest(group: GroupHandle, action: LetterAction, count: int) -> Operation[Moved]:
    end = (yield from dead_ranges(group, 1, 0)).end
    done = gone = place = 0
    # If all are meant, a discard may be repeated.
    every = action == "discard" and count == MAX_LETTERS
    while place >= 0 and done < count:
        moved = yield from _move_some(group, action, count - done, place, end, every=every)
        done, gone, place = done + moved.done, gone + moved.gone, moved.place
    return Moved(done, gone)


def _move_some(
    group: GroupHandle,
    action: LetterAction,
    most: int,
    place: int = 0,
    end: int = 0,
    *,
    words: tuple[int, ...] = (),
    every: bool = False,
) -> Operation[_Step]:
    """Move letters by one call: those of ``words``, or the oldest from a place to an end."""
    # A second call would affect other letters than the first, unless they are named.
    sure = every or bool(words)
    key = group.key
    try:
        if action == "redrive":
            args: tuple[Argument, ...] = (group.name, most, place, end, *words)
            count = reading.count_first
            call = Call("hw_group_redrive", key, args, repeatable=sure, messages=count)
            return _Step(*(yield call))
        args = (group.name, most, end, *words)
        count = reading.count_first
        call = Call("hw_group_discard", key, args, repeatable=sure, messages=count)
        done, more = yield call
        return _Step(done, 0, 0 if more else -1)
    except Refusal:
        raise group.unknown() from None


def _places_of(
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


def dead_ranges(
    group: GroupHandle, most: int, at: int, *, newest: bool = False
) -> Operation[DeadReply]:
    """Return where dead letters are, from a place among them on; or those before it, backwards."""
    args: tuple[Argument, ...] = (group.name, most, at, "newest" if newest else "")
    try:
        return DeadReply.of((yield Call("hw_group_dead", group.key, args, read_only=True)))
    except Refusal:
        raise group.unknown() from None


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
