"""Groups over a topic without I/O: a group of the same name in each partition, seen as one.

An operation on several partitions is done in one after the other. When it fails half-way, the error
names the partition and what was done before; every operation may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, TypeAlias

from headwater.errors import InvalidInput
from headwater.failures import Failure, LetterFilter
from headwater.inputs import DEADLINE, Duration
from headwater.kernel.declaring import Param, Shape
from headwater.log import acks, dead_letters, failing, grouping, letter_walks, pausing
from headwater.log.ack_arguments import (
    InTopic,
    Letters,
    LettersInTopic,
    Span,
    letters_by_partition,
    ranges_by_partition,
)
from headwater.log.handles import GroupHandle, GroupOptions, Start, check_start
from headwater.log.limits import MAX_LETTERS, check_count, check_ms, check_name
from headwater.log.topics import TopicHandle, check_partition, in_each
from headwater.log.types import (
    GroupInfo,
    Redriven,
    TopicMessage,
)
from headwater.store.call import Operation
from headwater.store.many import together
from headwater.store.pacing import Pace

# One position for all partitions, or positions by partition.
TopicStart: TypeAlias = "Start | Mapping[int, Start]"
TopicPosition: TypeAlias = Annotated[
    TopicStart,
    Param(
        "An offset, first or last, in all partitions or by partition.",
        Shape.POSITION_BY_PARTITION,
        called="to",
    ),
]


@dataclass(slots=True)
class TopicGroupHandle:
    """A group over all partitions of a topic, as its operations see it."""

    topic: TopicHandle
    name: str
    member: str
    options: GroupOptions
    one_server: bool
    starts: Mapping[int, Start] = field(default_factory=dict)
    turn: int = field(default=-1, init=False)
    begun: bool = field(default=False, init=False)
    owned: Callable[[], list[tuple[int, int]]] | None = field(default=None, init=False)
    _members: list[GroupHandle] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_name(self.name, "group")
        check_name(self.member, "member")

    def open(self) -> Operation[list[GroupHandle]]:
        """Return the group's part in each partition."""
        if not self._members:
            streams = yield from self.topic.open()
            for place in self.starts:
                check_partition(place, len(streams))
            self._members = [
                GroupHandle(
                    *(stream, self.name, self.member, self._options_in(place), self.topic.name)
                )
                for place, stream in enumerate(streams)
            ]
            if self.options.ordered:
                self.keep_order(self.owned)
        return self._members

    def keep_order(self, owned: Callable[[], list[tuple[int, int]]] | None) -> None:
        """Have the group keep the order of each tag, with the next read."""
        self.options = replace(self.options, ordered=True)
        self.owned = owned
        for place, member in enumerate(self._members):
            member.keep_order(self._owned_in(place))

    def _owned_in(self, place: int) -> Callable[[], list[int]] | None:
        owned = self.owned
        if owned is None:
            return None
        return lambda: [offset for partition, offset in owned() if partition == place]

    def _options_in(self, place: int) -> GroupOptions:
        start = self.starts.get(place)
        return self.options if start is None else replace(self.options, start=start)


def open_group(
    topic: TopicHandle,
    name: str,
    member: str,
    start: TopicStart,
    max_pending: int | None,
    dead_letters: bool | str | None,
    *,
    ordered: bool,
    one_server: bool,
) -> TopicGroupHandle:
    """Return the handle of a group; ``start`` may be one position, or one for each partition."""
    starts = start if isinstance(start, Mapping) else {}
    options = GroupOptions(
        "first" if isinstance(start, Mapping) else start, max_pending, dead_letters, ordered
    )
    for position in starts.values():
        check_start(position)
    return TopicGroupHandle(topic, name, member, options, one_server, starts)


def _in_partitions(
    group: TopicGroupHandle,
    messages: Iterable[InTopic],
    act: Callable[[GroupHandle, list[Span]], Operation[int]],
) -> Operation[int]:
    """Do something to the messages of each partition; returns the sum of what that returns."""
    places = ranges_by_partition(messages)
    members = yield from group.open()
    for place in places:
        check_partition(place, len(members))
    parts = [(place, (members[place], ranges)) for place, ranges in sorted(places.items())]
    done = yield from in_each(parts, lambda part: act(*part))
    return sum(done.values())


def ack(group: TopicGroupHandle, messages: Iterable[InTopic]) -> Operation[int]:
    """Acknowledge messages; returns how many were pending until now."""
    return (yield from _in_partitions(group, messages, acks.ack))


def nack(
    group: TopicGroupHandle, messages: Iterable[InTopic], delay_ms: Duration
) -> Operation[int]:
    """Reject messages: they are redelivered after ``delay_ms``. Returns how many were pending."""
    delay_ms = check_ms(delay_ms, "delay_ms")
    return (yield from _in_partitions(group, messages, partial(acks.nack, delay_ms=delay_ms)))


def extend(
    group: TopicGroupHandle, messages: Iterable[InTopic], retry_ms: Duration
) -> Operation[int]:
    """Delay the redelivery of pending messages to ``retry_ms`` from now; returns how many."""
    retry_ms = check_ms(retry_ms, DEADLINE, 1)
    return (yield from _in_partitions(group, messages, partial(acks.extend, retry_ms=retry_ms)))


def seek(group: TopicGroupHandle, position: TopicStart) -> Operation[dict[int, int]]:
    """Set the position of the group, in all partitions or in those named; returns it."""
    members = yield from group.open()
    if isinstance(position, Mapping):
        positions = dict(position)
    else:
        positions = dict.fromkeys(range(len(members)), position)
    for place, start in positions.items():
        check_partition(place, len(members))
        check_start(start)
    parts = [(place, (members[place], start)) for place, start in sorted(positions.items())]
    return (yield from in_each(parts, lambda part: grouping.seek(*part)))


def pause(group: TopicGroupHandle, on: bool) -> Operation[bool]:
    """Pause the group or resume it in every partition; returns whether that changed anything."""
    parts = enumerate((yield from group.open()))
    return any((yield from in_each(parts, partial(pausing.pause, on=on))).values())


def group_info(group: TopicGroupHandle) -> Operation[list[GroupInfo]]:
    """Return the state of the group in each partition."""
    return (yield from together(map(grouping.info, (yield from group.open()))))


def redrive(
    group: TopicGroupHandle,
    letters: LettersInTopic | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[dict[int, Redriven]]:
    """Have up to ``count`` dead letters redelivered, partition by partition."""
    left = check_count(count)

    def redrive_rest(part: tuple[GroupHandle, Letters | None]) -> Operation[Redriven]:
        nonlocal left
        done = yield from letter_walks.redrive(*part, matching, left, pace)
        left -= done.returned
        return done

    return (yield from in_each((yield from _letters_in_parts(group, letters)), redrive_rest))


def discard(
    group: TopicGroupHandle,
    letters: LettersInTopic | None,
    matching: LetterFilter | None,
    count: int,
    pace: Pace,
) -> Operation[int]:
    """Forget up to ``count`` dead letters, partition by partition; returns how many."""
    left = check_count(count, most=MAX_LETTERS)

    def discard_rest(part: tuple[GroupHandle, Letters | None]) -> Operation[int]:
        nonlocal left
        done = yield from letter_walks.discard(*part, matching, left, pace)
        # If all letters are meant, the call may be repeated.
        left = left if left == MAX_LETTERS else left - done
        return done

    done = yield from in_each((yield from _letters_in_parts(group, letters)), discard_rest)
    return sum(done.values())


def _letters_in_parts(
    group: TopicGroupHandle, letters: LettersInTopic | None
) -> Operation[list[tuple[int, tuple[GroupHandle, Letters | None]]]]:
    """Return the partitions that letters are in, with those that are meant; None means all."""
    wanted = None if letters is None else letters_by_partition(letters)
    members = yield from group.open()
    for place in wanted or ():
        check_partition(place, len(members))
    if wanted is None:
        return [(place, (member, None)) for place, member in enumerate(members)]
    return [(place, (members[place], some)) for place, some in wanted.items()]


def fail(group: TopicGroupHandle, failures: Iterable[Failure]) -> Operation[int]:
    """Report failed attempts; returns how many of the messages were still pending in them."""
    members = yield from group.open()
    places: dict[int, list[Failure]] = {}
    for failure in failures:
        if not isinstance(failure.item, TopicMessage):
            raise InvalidInput(
                f"a failure names a message as the group read it, not {failure.item!r}"
            )
        check_partition(failure.item.partition, len(members))
        places.setdefault(failure.item.partition, []).append(failure)
    parts = [(place, (members[place], some)) for place, some in sorted(places.items())]
    done = yield from in_each(parts, lambda part: failing.fail(*part))
    return sum(done.values())


def release(group: TopicGroupHandle, messages: Iterable[InTopic]) -> Operation[int]:
    """Return messages untried: the attempt does not count; returns how many were pending."""
    return (yield from _in_partitions(group, messages, failing.release))


def bury(
    group: TopicGroupHandle, messages: Collection[InTopic], error: BaseException | str | None
) -> Operation[int]:
    """Give messages up; without any, those that have expired. Returns how many."""
    if messages:
        return (yield from _in_partitions(group, messages, partial(failing.bury, error=error)))
    done = yield from in_each(enumerate((yield from group.open())), dead_letters.give_up)
    return sum(buried for _, buried in done.values())


def remove(group: TopicGroupHandle) -> Operation[bool]:
    """Remove the group from every partition; returns whether it existed in one."""
    existed = yield from in_each(enumerate((yield from group.open())), grouping.remove)
    group.begun = False
    return any(existed.values())
