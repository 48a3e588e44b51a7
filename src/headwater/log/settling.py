"""Settling messages of a group: ack, nack, extend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.declaring import Param, Spelling
from headwater.kernel.failures import Failure
from headwater.kernel.inputs import one_by_one
from headwater.log import reading
from headwater.log.handles import GroupHandle
from headwater.log.keys import MAX_PARTITIONS, check_count, check_offset
from headwater.log.types import DeadLetter, Message, Placed, TopicDeadLetter, TopicMessage
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

# Arguments of ``ack``, ``nack``, ``extend`` and ``discard`` of groups, as ranges of offsets.
#
# Messages, offsets and ranges, alone or in iterables, in any mixture. Everything is checked before
# anything is sent.


# A message or its offset; a range of offsets as Python has it, or a pair with both ends included.
OneOffset: TypeAlias = int | Message[Any] | range | tuple[int, int]
Offsets: TypeAlias = OneOffset | Iterable[OneOffset]
# A message of a topic, or a partition and what is in it.
OneInTopic: TypeAlias = "TopicMessage[Any] | tuple[int, Offsets]"
InTopic: TypeAlias = "OneInTopic | Mapping[int, Offsets] | Iterable[OneInTopic]"
# A dead letter as dead() returned it, or what its message was: an offset, a range.
OneLetter: TypeAlias = DeadLetter | OneOffset
Letters: TypeAlias = OneLetter | Iterable[OneLetter]
OneLetterInTopic: TypeAlias = TopicDeadLetter | tuple[int, Letters]
LettersInTopic: TypeAlias = OneLetterInTopic | Mapping[int, Letters] | Iterable[OneLetterInTopic]

# The same as parameters of operations.
GivenOffsets: TypeAlias = Annotated[
    Offsets, Param("Offsets, as 5, and ranges, as 5-9.", Spelling.OFFSETS, called="offsets")
]
GivenInTopic: TypeAlias = Annotated[
    InTopic,
    Param(
        "Partitions and offsets, as 3:5, and ranges, as 3:5-9.",
        Spelling.OFFSETS_BY_PARTITION,
        called="offsets",
    ),
]

GivenLetters: TypeAlias = Annotated[
    Letters | None,
    Param(
        "Offsets of the messages (origin), as 5, and ranges, as 5-9; without any, all.",
        Spelling.OFFSETS,
        called="offsets",
    ),
]
GivenLettersInTopic: TypeAlias = Annotated[
    LettersInTopic | None,
    Param(
        "Partitions and offsets of the messages (origin), as 3:5, and ranges, as 3:5-9; without "
        "any, all.",
        Spelling.OFFSETS_BY_PARTITION,
        called="offsets",
    ),
]

Span: TypeAlias = tuple[int, int]

OFFSETS = "messages, offsets, ranges and (start, end) pairs"
IN_TOPIC = "messages of a topic, (partition, offset) pairs and {partition: offsets}"


def ranges_of(offsets: Iterable[Offsets]) -> list[Span]:
    """Return messages, offsets and ranges as (start, end) pairs, in order and neighbours joined."""
    spans = one_by_one(offsets, _span_of, OFFSETS)
    spans.sort()
    joined: list[Span] = []
    for start, end in spans:
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def ranges_by_partition(messages: Iterable[InTopic]) -> dict[int, list[Span]]:
    """Return what is meant in each partition as ranges, in the order of the partitions."""
    parts = _by_partition(one_by_one(messages, _parts_of, IN_TOPIC))
    return {partition: ranges_of(offsets) for partition, offsets in parts.items()}


def letters_and_ranges(letters: Letters) -> tuple[list[DeadLetter], list[Span]]:
    """Return the letters that are given as such, and the others as ranges of offsets."""
    found = one_by_one((letters,), _letter_or_span, f"dead letters, {OFFSETS}")
    named = [item for item in found if isinstance(item, DeadLetter)]
    spans: list[Any] = [item for item in found if not isinstance(item, DeadLetter)]
    return named, ranges_of(spans)


def letters_by_partition(letters: LettersInTopic) -> dict[int, list[OneLetter]]:
    """Return letters and offsets in each partition, in the order of the partitions."""
    return _by_partition(one_by_one((letters,), _letters_of, f"dead letters, {IN_TOPIC}"))


def failures_by_partition(failures: Iterable[Failure]) -> dict[int, list[Failure]]:
    """Return failed attempts in each partition, in the order of the partitions."""
    return _by_partition(map(_failures_of, failures))


def _by_partition(parts: Iterable[Iterable[tuple[int, Any]]]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for part in parts:
        for partition, item in part:
            check_count(partition, "partition", MAX_PARTITIONS - 1)
            found.setdefault(partition, []).append(item)
    return dict(sorted(found.items()))


def _failures_of(failure: Failure) -> Iterable[tuple[int, Failure]]:
    if not isinstance(failure.item, TopicMessage):
        raise InvalidInput(f"a failure names a message as the group read it, not {failure.item!r}")
    return ((failure.item.partition, failure),)


def _letter_or_span(item: Any) -> DeadLetter | Span | None:
    return item if isinstance(item, DeadLetter) else _span_of(item)


def _letters_of(item: Any) -> Iterable[tuple[int, Any]] | None:
    if isinstance(item, TopicDeadLetter):
        facts = item._asdict()
        return ((facts.pop("partition"), DeadLetter(**facts)),)
    return _parts_of(item)


def _span_of(item: Any) -> Span | None:
    """Return the range of one argument; None for what may be an iterable of others."""
    if isinstance(item, int):
        check_offset(item)
        return item, item
    if isinstance(item, Message):
        return item.offset, item.offset
    if type(item) is tuple and any(isinstance(part, int) for part in item):
        if len(item) != 2:
            raise InvalidInput(
                f"a range is a pair (start, end), not {item!r}; put single offsets into a list"
            )
        return _checked(*item)
    if isinstance(item, range):
        # An empty range holds nothing, and one with steps holds single offsets.
        return _checked(min(item), max(item)) if item and item.step in (1, -1) else None
    if isinstance(item, TopicMessage | Placed):
        raise InvalidInput(
            f"offset {item.offset} is of partition {item.partition} of a topic; give it to a group "
            "of the topic"
        )
    if isinstance(item, DeadLetter):
        raise InvalidInput(
            f"offset {item.origin} is a dead letter, which is done; redrive redelivers it"
        )
    return None


def _checked(start: int, end: int) -> Span:
    check_offset(start, "start of a range")
    check_offset(end, "end of a range")
    if end < start:
        raise InvalidInput(f"the range ({start}, {end}) ends before it starts; swap its ends")
    return start, end


def _parts_of(item: Any) -> Iterable[tuple[int, Any]] | None:
    """Return partitions and what is meant in them; None for what may be an iterable of others."""
    if isinstance(item, TopicMessage):
        return ((item.partition, item.offset),)
    if isinstance(item, Mapping):
        return item.items()
    if isinstance(item, Message | int | range):
        found = item.offset if isinstance(item, Message) else item
        raise InvalidInput(f"{found!r} does not say its partition; give (partition, offset)")
    if isinstance(item, tuple) and item and isinstance(item[0], int):
        if len(item) != 2:
            raise InvalidInput(
                f"{item!r} is not a pair (partition, offset); for a range of offsets give "
                "(partition, (start, end))"
            )
        return (item,)
    return None


RANGES_PER_CALL = 1000


def ack(group: GroupHandle, offsets: Iterable[Offsets]) -> Operation[int]:
    """Acknowledge messages; returns how many were pending until now."""
    return (yield from on_ranges(group, "hw_group_ack", (), offsets))


def nack(group: GroupHandle, offsets: Iterable[Offsets], delay_ms: int) -> Operation[int]:
    """Reject messages: they are redelivered after ``delay_ms``. Returns how many were pending."""
    return (yield from on_ranges(group, "hw_group_postpone", (delay_ms,), offsets))


def extend(group: GroupHandle, offsets: Iterable[Offsets], ack_ms: int) -> Operation[int]:
    """Delay the redelivery of pending messages to ``ack_ms`` from now; returns how many."""
    return (yield from on_ranges(group, "hw_group_postpone", (f"+{ack_ms}",), offsets))


def skip(group: GroupHandle, created: bytes, holes: list[tuple[int, int]]) -> Operation[None]:
    """Acknowledge offsets that compaction emptied, whether or not they were delivered."""
    # A group that was removed since it was read has nothing to skip.
    with contextlib.suppress(Refusal):
        yield from _in_steps(group, "hw_group_skip", (created,), ranges_of(holes))


def miss(
    group: GroupHandle, created: bytes | str, ranges: list[tuple[int, int]]
) -> Operation[None]:
    """Count offsets that the store has lost as missed, and acknowledge them.

    If that fails they stay pending, if they are; what else was read must reach its caller.
    """
    with contextlib.suppress(Refusal, StoreError):
        yield from _in_steps(group, "hw_group_missing", (created,), ranges_of(ranges))


def on_ranges(
    group: GroupHandle,
    function: str,
    args: tuple[Argument, ...],
    offsets: Iterable[Offsets],
) -> Operation[int]:
    """Do something to pending messages; returns how many. Raises UnknownGroup."""
    try:
        return (yield from _in_steps(group, function, args, ranges_of(offsets)))
    except Refusal:
        raise group.unknown() from None


def _in_steps(
    group: GroupHandle,
    function: str,
    args: tuple[Argument, ...],
    ranges: list[tuple[int, int]],
) -> Operation[int]:
    """Do something to ranges in order, as many in one call as the server does at once.

    The effect of a call stays, even if the next one fails.
    """
    total = done_ranges = 0
    while done_ranges < len(ranges):
        step = ranges[done_ranges : done_ranges + RANGES_PER_CALL]
        flat = [edge for span in step for edge in span]
        words = (group.name, *args, *flat)
        call = Call(function, group.key, words, repeatable=True, messages=reading.count_first)
        done, at = yield call
        total += done
        if at < 0:
            done_ranges += RANGES_PER_CALL
            continue
        while ranges[done_ranges][1] < at:
            done_ranges += 1
        ranges[done_ranges] = max(at, ranges[done_ranges][0]), ranges[done_ranges][1]
    return total
