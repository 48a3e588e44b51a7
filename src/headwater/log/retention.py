"""Keeping a stream within bounds: eviction, retention, tidying, deletion."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

from headwater.errors import InvalidInput
from headwater.inputs import Duration, whole_ms
from headwater.log import counts
from headwater.log.compaction import node_words, rows_of
from headwater.log.extents import extent
from headwater.log.handles import Start, StreamHandle, check_start
from headwater.log.keys import DELETED, STREAMS
from headwater.log.limits import MAX_OFFSET, check_count, check_name
from headwater.log.reading import offset_at
from headwater.log.replies import (
    DeleteReply,
    EvictReply,
    RetainPreviewReply,
    RetainReply,
    TidyReply,
)
from headwater.log.types import Retained, Retention
from headwater.store.call import Argument, Call, Operation

PRODUCER_MS = 7 * 24 * 3600 * 1000
MEMBER_MS = 3600 * 1000

# A preview looks at this many times 256 nodes, which are about 10^8 messages.
_MOST_PREVIEWS = 400

# There were more readers than one call of hw_stream_evict asks for their positions.
ASK_AGAIN = 2


class RetentionPreview(NamedTuple):
    """What a policy would evict: ``first`` to ``limit`` of a stream that ends at ``last``.

    ``more``: there were more nodes than one preview reads, and it would evict more.
    """

    first: int
    last: int
    limit: int
    more: bool


def evict(stream: StreamHandle, n: int, past_readers: bool = True) -> Operation[int]:
    """Evict messages up to offset ``n``, or all but the newest ``-n``; returns how many.

    Stops before the slowest registered reader unless ``past_readers``.
    """
    if isinstance(n, bool) or not isinstance(n, int) or abs(n) > MAX_OFFSET:
        raise InvalidInput(f"evict takes an offset, or -n to keep the newest n, not {n!r}")
    if n == 0:
        return 0
    key = stream.key
    args: tuple[Argument, ...] = (n,) if past_readers else (n, 1)
    call = Call("hw_stream_evict", key, args, repeatable=n > 0, messages=counts.evicted)
    reply = EvictReply.of((yield call))
    gone = reply.gone
    while reply.more == ASK_AGAIN:
        reply = EvictReply.of((yield call))
        gone += reply.gone
    more, cut = reply.more, reply.cut
    # The first call has resolved -n; further ones only free what it left.
    while more:
        call = Call("hw_stream_evict", key, (1,), repeatable=True, messages=counts.evicted)
        rest = EvictReply.of((yield call))
        gone, more = gone + rest.gone, rest.more
    if cut:
        kept = yield from rows_of(stream, cut.stay, cut.last)
        words = node_words(kept, cut.stay, cut.last)
        args = (reply.created, cut.stay, *words, cut.base, cut.last, cut.version)
        if not (yield Call("hw_stream_replace", key, args, repeatable=True)):
            return gone + (yield from evict(stream, cut.stay - 1, past_readers))
        gone += cut.messages - kept.num_rows
    return gone


def retain(key: str, policy: Retention, force: bool) -> Operation[Retained]:
    """Set the retention policy and apply it."""
    return (yield from _retain(key, ("set", int(force), *_words(policy)), int(force)))


def _words(policy: Retention) -> list[Argument]:
    words: list[Argument] = []
    for name, limit in asdict(policy).items():
        words += [name, "" if limit is None else check_count(limit, name, MAX_OFFSET)]
    return words


def preview(
    key: str, policy: Retention, most_calls: int = _MOST_PREVIEWS
) -> Operation[RetentionPreview]:
    """Return how far a policy would evict now, if no reader held it up; changes nothing.

    A round trip for each 256 nodes that a limit of age or bytes would evict, 400 at most.
    """
    words = _words(policy)
    place = freed = 0
    for _ in range(most_calls):
        call = Call("hw_stream_retain_preview", key, (place, freed, *words), read_only=True)
        reply = RetainPreviewReply(*(yield call))
        if reply.place < 0:
            break
        place, freed = reply.place, reply.bytes
    return RetentionPreview(reply.first, reply.last, reply.limit, reply.place >= 0)


def policy_of(
    max_count: int | None,
    max_age_ms: Duration | None,
    max_bytes: int | None,
    max_idle_ms: Duration | None,
) -> Retention:
    """Return a policy with its spans of time in milliseconds."""
    age_ms = None if max_age_ms is None else whole_ms(max_age_ms)
    idle_ms = None if max_idle_ms is None else whole_ms(max_idle_ms)
    return Retention(max_count, age_ms, max_bytes, idle_ms)


def apply_retention(key: str, force: bool = False) -> Operation[Retained]:
    """Apply the policy that is set."""
    return (yield from _retain(key, ("apply", int(force)), int(force)))


def _retain(key: str, args: tuple[Argument, ...], force: int) -> Operation[Retained]:
    evicted = 0
    while True:
        call = Call("hw_stream_retain", key, args, repeatable=True, messages=counts.retained)
        reply = RetainReply(*(yield call))
        evicted += reply.gone
        if not reply.more:
            return Retained(evicted, reply.held, reply.held_by.decode() or None)
        args = ("apply", force)


def set_reader(
    key: str, reader: str, offset: int | None, *, forward: bool = False
) -> Operation[None]:
    """Register the offset that a reader outside the log needs next; None forgets the reader.

    forward: unless it is further already, because another process of the same name registered that.
    """
    position: Argument = "" if offset is None else check_count(offset, "offset", MAX_OFFSET)
    args = (check_name(reader, "reader"), position, "1" if forward else "")
    yield Call("hw_stream_reader", key, args, repeatable=True)


def seek_reader(stream: StreamHandle, reader: str, position: Start) -> Operation[int]:
    """Set the position of a reader outside the log; returns the offset."""
    check_start(position)
    bounds = yield from extent(stream.name)
    if position == "first":
        offset = bounds.first
    elif position == "last":
        offset = bounds.last + 1
    elif isinstance(position, int):
        offset = position
    else:
        offset = yield from offset_at(stream, position)
    if offset > bounds.last + 1:
        raise InvalidInput(
            f"offset {offset} is beyond stream {stream.name!r}, which ends at {bounds.last}; "
            f"use an offset up to {bounds.last + 1}, 'first' or 'last'"
        )
    yield from set_reader(stream.key, reader, offset)
    return offset


def tidy(
    key: str, producer_ms: int = PRODUCER_MS, member_ms: int = MEMBER_MS
) -> Operation[tuple[int, int]]:
    """Forget producers and members that were silent for that long; returns how many of each."""
    producers = members = place = 0
    while True:
        args = (producer_ms, member_ms, place)
        forgotten = TidyReply(*(yield Call("hw_stream_tidy", key, args, repeatable=True)))
        producers, members = producers + forgotten.producers, members + forgotten.members
        place = max(forgotten.place, 0)
        if not forgotten.producers and forgotten.place < 0:
            return producers, members


def delete(stream: StreamHandle) -> Operation[bool]:
    """Remove a stream with its groups and readers, at once; returns whether it existed.

    The keys of many groups are freed in steps; those that a client leaves, housekeepers make.
    """
    reply = DeleteReply(*(yield Call("hw_stream_delete", stream.key, repeatable=True)))
    if reply.more:
        yield Call("hw_registry_add", DELETED, (stream.name,), repeatable=True)
    yield Call("hw_registry_remove", STREAMS, (stream.name,), repeatable=True)
    stream.registered.discard(stream.name)
    if reply.more:
        yield from free(stream)
    return bool(reply.existed)


def free(stream: StreamHandle) -> Operation[None]:
    """Free what is left of a stream that was deleted; one of the same name is left alone."""
    while (yield Call("hw_stream_free", stream.key, repeatable=True)):
        pass
    yield Call("hw_registry_remove", DELETED, (stream.name,), repeatable=True)
