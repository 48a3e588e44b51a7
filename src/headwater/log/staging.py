"""Staging and publishing: many clients stage batches in parallel, and one publishes them, once.

Staged batches are beside the stream, in its slot, and readers do not see them. A publish names
stagings in order, with a producer and a sequence. Its first call records them, and from then on
they will be in the stream, once each, in that order: the rest is steps that do a bounded amount of
work and may be repeated by any client. A publish of a sequence that is done or in progress takes
nothing new; if both say what they hold, and it is not the same, the second is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from headwater.errors import InvalidInput, StagingGone
from headwater.inputs import Duration, refuse_own_name
from headwater.log import counts, node, writing
from headwater.log.handles import StreamHandle
from headwater.log.limits import MAX_OFFSET, NODE_MESSAGES, check_count, check_ms, check_name
from headwater.log.replies import PublishReply, UnfinishedPublish
from headwater.log.types import Published
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

# How long a staging to which nothing is added waits for its publish.
STAGED_MS: Final = 24 * 3600 * 1000
# As the server reads it, see store/lua/shared/20-producers.lua.
_DIGEST: Final = re.compile(r"[0-9a-f]{1,64}(\.[0-9a-f]{1,64}){0,3}")
# A publish without progress for this long was abandoned by the client that began it.
LEFT_MS: Final = 60_000


def stage(
    stream: StreamHandle, batch: pa.RecordBatch, staging: str, place: int, keep_ms: Duration
) -> Operation[int]:
    """Stage a batch of a node's shape; returns the place of the next one."""
    node.check_batch(batch)
    nodes = map(node.pack, node.split(batch)) if batch.num_rows else ()
    return stage_nodes(stream, nodes, staging, place, keep_ms)


def stage_nodes(
    stream: StreamHandle,
    nodes: Iterable[node.PackedNode],
    staging: str,
    place: int,
    keep_ms: Duration = STAGED_MS,
) -> Operation[int]:
    """Stage nodes that are packed already; returns the place of the next one."""
    refuse_own_name(stream.name, "stream")
    check_count(place, "place", MAX_OFFSET)
    head: tuple[Argument, ...] = (
        check_name(staging, "staging"),
        check_ms(keep_ms, "keep_ms", 1),
        place,
    )
    packed = list(nodes)
    if not packed:
        return place
    args = (*head, *writing.node_words(packed))
    rows = sum(one.rows for one in packed)
    try:
        reply: int = yield Call("hw_stream_stage", stream.key, args, repeatable=True, messages=rows)
    except Refusal:
        raise StagingGone(stream.name, staging) from None
    return reply


def unstage(stream: StreamHandle, stagings: Sequence[str]) -> Operation[int]:
    """Forget what is staged under these names, unless its publish has begun; returns how many."""
    names = tuple(check_name(staging, "staging") for staging in stagings)
    if not names:
        return 0
    reply: int = yield Call("hw_stream_unstage", stream.key, names, repeatable=True)
    return reply


def staged_bytes(stream: StreamHandle, prefix: str = "") -> Operation[int]:
    """Return how many bytes are staged and not published, under names with a prefix.

    Of more than 1000 stagings, those are counted that expire last.
    """
    found: int = yield Call("hw_stream_staged", stream.key, (prefix,), read_only=True)
    return found


def publish(
    stream: StreamHandle,
    stagings: Sequence[str],
    producer: str,
    sequence: int,
    content: str | None = None,
) -> Operation[Published]:
    """Append stagings to the stream, in order, once for each (producer, sequence).

    ``content`` is a digest of what they hold. Raises ReusedSequence when the sequence was published
    with another one, or is being published with it; digests have a part in common, or differ.
    """
    numbered: Argument = check_count(sequence, "sequence", MAX_OFFSET)
    if content is not None:
        if not _DIGEST.fullmatch(content):
            raise InvalidInput(
                f"content must be hex digits, in parts that are joined by dots, not {content!r}; "
                "give a digest of the messages, as hashlib's hexdigest"
            )
        numbered = f"{sequence}:{content}"
    head: tuple[Argument, ...] = (check_name(producer, "producer"), numbered)
    names = tuple(check_name(staging, "staging") for staging in stagings)
    if len(set(names)) != len(names):
        raise InvalidInput("a staging is named twice; name each once")
    while True:
        args = (*head, *names)
        call = Call(
            "hw_stream_publish", stream.key, args, repeatable=True, messages=counts.published
        )
        try:
            reply = PublishReply(*(yield call))
        except Refusal as refusal:
            if refusal.code == "NO_STAGING":
                raise StagingGone(stream.name, refusal.words[0]) from None
            raise refusal.of_sequence(stream.name, producer, sequence) from None
        if reply.noted:
            names = ()
        if reply.done:
            break
        # Nodes are kept as they are when everything before them is sealed.
        yield from writing.tidy_up(stream, reply.unsealed > 0, everything=True)
    published = reply.last - reply.first + 1
    if published > 0 and not reply.repeat:
        writing.note_new(stream, reply.first)
        large = published >= NODE_MESSAGES
        to_seal = reply.unsealed and (large or writing.time_to_seal(reply.unsealed, published))
        yield from writing.tidy_up(stream, bool(to_seal), everything=large)
    return Published(reply.first, reply.last)


def finish_left(stream: StreamHandle, left_ms: int) -> Operation[int]:
    """Finish the publishes that made no step for ``left_ms``; returns how many."""
    finished = 0
    reply = yield Call("hw_stream_publishing", stream.key, read_only=True)
    for unfinished in UnfinishedPublish.all_of(reply):
        if unfinished.idle_ms >= left_ms:
            yield from publish(stream, (), unfinished.producer.decode(), unfinished.sequence)
            finished += 1
    return finished
