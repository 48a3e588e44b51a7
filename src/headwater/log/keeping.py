"""Keeping a stream in bounds: eviction, retention, compaction, tidying, deletion."""

from __future__ import annotations

from collections.abc import Callable

from headwater.errors import InvalidInput
from headwater.log import node
from headwater.log.handles import StreamHandle
from headwater.log.keys import STREAMS
from headwater.log.limits import MAX_OFFSET, NODE_MESSAGES, check_count, check_ms, check_name
from headwater.log.reading import fetch, info
from headwater.log.types import Message, Retained
from headwater.log.writing import seal
from headwater.store.call import Argument, Call, Operation

MARKER_MS = 24 * 3600 * 1000
PRODUCER_MS = 7 * 24 * 3600 * 1000
MEMBER_MS = 3600 * 1000


def evict(stream: StreamHandle, n: int, past_readers: bool = True) -> Operation[int]:
    """Forget messages up to offset ``n``, or all but the newest ``-n``; returns how many.

    Stops before the slowest registered reader unless ``past_readers``.
    """
    if isinstance(n, bool) or not isinstance(n, int) or abs(n) > MAX_OFFSET:
        raise InvalidInput(f"evict takes an offset, or -n to keep the newest n, not {n!r}")
    if n == 0:
        return 0
    key = stream.key
    args = (n,) if past_readers else (n, 1)
    reply = yield Call("hw_stream_evict", key, args, repeatable=n > 0)
    gone, more, in_the_way, created = reply
    # What -n means was settled by the first call; the rest only frees what that one left.
    while more:
        also, more, *_ = yield Call("hw_stream_evict", key, (1,), repeatable=True)
        gone += also
    if in_the_way:
        base, last, count, version, stay = in_the_way
        runs = yield from fetch(stream, [(base, last)])
        kept = [m for run in runs for m in run.cut(stay, last).messages()]
        node_words = _node_words(kept, stay, last)
        args = (created, stay, *node_words, base, last, version)
        if not (yield Call("hw_stream_replace", key, args, repeatable=True)):
            return int(gone) + (yield from evict(stream, stay - 1, past_readers))
        gone += count - len(kept)
    return int(gone)


def _node_words(messages: list[Message], base: int, last: int) -> tuple[Argument, ...]:
    """Spell a rewritten node of base..last: how many messages, the first time, the bytes."""
    if not messages:
        return (0, 0, b"")
    dense = len(messages) == last - base + 1
    batch = node.batch_of(
        [message.tag for message in messages],
        [message.value for message in messages],
        [message.time_ms for message in messages],
        None if dense else [message.offset for message in messages],
    )
    return (len(messages), messages[0].time_ms, node.pack(batch, sealed=True).blob)


def retain(
    key: str,
    max_count: int | None,
    max_age_ms: int | None,
    max_bytes: int | None,
    force: bool,
) -> Operation[Retained]:
    """Set the retention policy and apply it."""
    limits = [
        "" if limit is None else check_count(limit, what, MAX_OFFSET)
        for limit, what in (
            (max_count, "max_count"),
            (max_age_ms, "max_age_ms"),
            (max_bytes, "max_bytes"),
        )
    ]
    return (yield from _retain(key, ("set", int(force), *limits), int(force)))


def apply_retention(key: str, force: bool = False) -> Operation[Retained]:
    """Apply the policy that is set."""
    return (yield from _retain(key, ("apply", int(force)), int(force)))


def _retain(key: str, args: tuple[Argument, ...], force: int) -> Operation[Retained]:
    evicted = 0
    while True:
        gone, more, held, who = yield Call("hw_stream_retain", key, args, repeatable=True)
        evicted += gone
        if not more:
            return Retained(evicted, held, who.decode() or None)
        args = ("apply", force)


def set_reader(key: str, reader: str, offset: int | None) -> Operation[None]:
    """Say which offset a reader outside the log needs next; None forgets it."""
    position: Argument = "" if offset is None else check_count(offset, "offset", MAX_OFFSET)
    args = (check_name(reader, "reader"), position)
    yield Call("hw_stream_reader", key, args, repeatable=True)


def compact(stream: StreamHandle, marker_ms: int) -> Operation[int]:
    """Keep the last message of every tag; returns how many messages went.

    A message with an empty value marks its tag as deleted; the marker itself goes once it is
    older than ``marker_ms`` and every registered reader is past it. Offsets do not change. Takes
    memory for one set of all tags; the log may be larger.
    """
    check_ms(marker_ms, "marker_ms")
    yield from seal(stream.key, everything=True)
    facts = yield from info(stream)
    positions = yield from _group_positions(stream.key, facts.groups)
    floor = min([*facts.readers.values(), *positions, MAX_OFFSET])
    old_marker = facts.last_time_ms - marker_ms
    seen: set[str] = set()
    markers: set[int] = set()

    def is_last_of_tag(message: Message) -> bool:
        if message.tag in seen:
            return False
        seen.add(message.tag)
        if not message.value and message.time_ms <= old_marker and message.offset < floor:
            markers.add(message.offset)
        return True

    pile = _Pile(stream.key)
    removed = yield from _rewrite(stream, facts.sealed, pile, is_last_of_tag, None)
    # Markers go when nothing older of their tags is left. If they went together, whoever stopped
    # half way, or lost a race, would leave a deleted tag without its marker: alive again.
    if markers and not pile.lost_race:
        removed += yield from _rewrite(
            stream, facts.sealed, pile, lambda message: message.offset not in markers, markers
        )
    return removed


def _rewrite(
    stream: StreamHandle,
    below: int,
    pile: _Pile,
    stays: Callable[[Message], bool],
    only: set[int] | None,
) -> Operation[int]:
    """Rewrite the nodes up to ``below``, newest first, with the messages that stay.

    Only those nodes that hold one of the offsets ``only``, when it is given. Returns how many
    messages went.
    """
    removed = 0
    while True:
        args = (below, 64)
        reply = yield Call("hw_stream_nodes", stream.key, args, read_only=True)
        first, _, created, found = reply
        rows = list(zip(*(iter(found),) * 5, strict=True))
        for base, last, count, _, version in rows:
            if last < first:
                break
            below = base - 1
            if only is not None and only.isdisjoint(range(base, last + 1)):
                removed += yield from pile.flush(created, first)
                continue
            runs = yield from fetch(stream, [(max(base, first), last)])
            kept = [
                message
                for run in reversed(runs)
                for message in reversed(run.cut(max(base, first), last).messages())
                if stays(message)
            ]
            if pile.old and len(pile.messages) + len(kept) > NODE_MESSAGES:
                removed += yield from pile.flush(created, first)
            pile.add(base, last, count, version, kept)
        if len(rows) < 64 or below < first:
            return removed + (yield from pile.flush(created, first))


def _group_positions(key: str, groups: tuple[str, ...]) -> Operation[list[int]]:
    positions = []
    for group in groups:
        reply = yield Call("hw_group_info", key, (group,), read_only=True)
        positions.append(reply[1])
    return positions


class _Pile:
    """Neighbouring nodes that shrank, gathered newest first until they fill one new node."""

    def __init__(self, key: str) -> None:
        self._key = key
        self.lost_race = False
        self.old: list[tuple[int, int, int, int]] = []
        self.messages: list[Message] = []

    def add(self, base: int, last: int, count: int, version: int, kept: list[Message]) -> None:
        self.old.append((base, last, count, version))
        self.messages += kept

    def flush(self, created: bytes, first: int) -> Operation[int]:
        """Put one node in the place of the pile; returns how many messages that removed."""
        old, messages = self.old[::-1], self.messages[::-1]
        self.old, self.messages = [], []
        before = sum(count for _, _, count, _ in old)
        if not old or (len(old) == 1 and len(messages) == before):
            return 0
        base, last = max(old[0][0], first), old[-1][1]
        # Rows below `first` were evicted already; they do not count as compacted.
        before -= max(first - old[0][0], 0)
        args: list[Argument] = [created, base, *_node_words(messages, base, last)]
        for old_base, old_last, _, version in old:
            args += [old_base, old_last, version]
        if (yield Call("hw_stream_replace", self._key, tuple(args), repeatable=True)):
            return before - len(messages)
        self.lost_race = True
        return 0


def tidy(
    key: str, producer_ms: int = PRODUCER_MS, member_ms: int = MEMBER_MS
) -> Operation[tuple[int, int]]:
    """Forget producers and members that were silent for so long; returns how many of each."""
    producers = members = 0
    while True:
        silent, gone = yield Call("hw_stream_tidy", key, (producer_ms, member_ms), repeatable=True)
        producers, members = producers + silent, members + gone
        if not silent:
            return producers, members


def delete(stream: StreamHandle) -> Operation[bool]:
    """Remove a stream with its groups and readers; returns whether it existed."""
    existed = yield Call("hw_stream_delete", stream.key, repeatable=True)
    yield Call("hw_registry_remove", STREAMS, (stream.name,), repeatable=True)
    stream.registered.discard(stream.name)
    return bool(existed)
