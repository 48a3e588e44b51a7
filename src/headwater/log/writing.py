"""Writing to a stream: one message, a batch, Arrow; sealing; staging and publishing in parallel.

A batch is one atomic call: all of it is in the log, at neighbouring offsets, or none. How it is
sent depends on its size alone: a few messages as plain entries, more as one packed batch, and what
fills a node as that node.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from headwater.errors import InvalidInput, LogError, StagingGone, StoreError
from headwater.kernel import arrow_compute as pc
from headwater.kernel.headers import Carried, GivenHeaders, encode_headers
from headwater.kernel.inputs import Duration, refuse_own_name
from headwater.log import handles, node, reading
from headwater.log.handles import StreamHandle, batch_of_entries
from headwater.log.keys import (
    HOT_MESSAGES,
    MAX_OFFSET,
    MAX_TAG_BYTES,
    MAX_VALUE_BYTES,
    NODE_BYTES,
    NODE_MESSAGES,
    PLAIN_MESSAGES,
    check_count,
    check_ms,
    check_name,
    reply_limits,
    stream_name,
)
from headwater.log.node import NOTHING_HELD, missing, open_runs
from headwater.log.reading import refuse_missing
from headwater.log.replies import PublishReply, ReadReply, WriteReply, rows
from headwater.log.types import Published
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

# A batch of at least half a node's rows or bytes is kept as a node as it is.
_FIT_MESSAGES = NODE_MESSAGES // 2
_FIT_BYTES = NODE_BYTES // 4


def write(
    stream: StreamHandle,
    tag: str,
    value: bytes | str,
    backlog: int | None,
    headers: GivenHeaders | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> Operation[int]:
    """Append one message and return its offset; see append for producer and sequence."""
    if producer is not None or sequence is not None:
        entry = (tag, value, headers)
        return (yield from write_many(stream, [entry], backlog, producer, sequence)).start
    if type(value) is not bytes:
        value = _bytes(value)
    if not isinstance(tag, str):
        raise InvalidInput(f"a tag must be a str, not {type(tag).__name__}")
    refuse_own_name(stream.name, "stream")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(
            f"a value may have {MAX_VALUE_BYTES} bytes, not {len(value)}; make it smaller"
        )
    try:
        raw_tag = tag.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"tag {tag!r} is not valid Unicode ({error.reason})") from None
    if len(raw_tag) > MAX_TAG_BYTES:
        raise InvalidInput(
            f"a tag may have {MAX_TAG_BYTES} bytes, not {len(raw_tag)}; make it smaller"
        )
    keep = "" if backlog is None else check_count(backlog, "backlog", MAX_OFFSET)
    if Carried.context is not None:
        headers = Carried.beside(headers)
    stored = encode_headers(headers) if headers is not None else b""
    args: tuple[Argument, ...]
    if not stored:
        args = ("", "", keep, "checked", raw_tag, value, crc32(value, crc32(raw_tag, len(raw_tag))))
    else:
        crc = node.message_crc(raw_tag, value, stored)
        args = ("", "", keep, "headed", raw_tag, value, crc, stored)
    call = Call("hw_stream_write", stream.key, args, messages=1)
    reply = WriteReply(*(yield call))
    offset = reply.last
    note_new(stream, offset)
    to_seal = time_to_seal(reply.unsealed, 1)
    if to_seal or stream.name not in stream.registered:
        yield from tidy_up(stream, to_seal, everything=False)
    return offset


def write_many(
    stream: StreamHandle,
    entries: Iterable[Any],
    backlog: int | None,
    producer: str | None,
    sequence: int | None,
) -> Operation[range]:
    """Append a batch and return its offsets; see append for producer and sequence."""
    batch = batch_of_entries(entries, carry=producer is None)
    return (yield from append(stream, batch, backlog, producer, sequence))


def append(
    stream: StreamHandle,
    batch: pa.RecordBatch,
    backlog: int | None,
    producer: str | None,
    sequence: int | None,
    *,
    compare: bool = True,
    like: pa.RecordBatch | None = None,
    after: int | None = None,
) -> Operation[range]:
    """Append a batch of a node's shape and return its offsets.

    A repeat of (producer, sequence) changes nothing and returns the offsets of the first time.
    Raises ReusedSequence when it has other content, unless the contents are not to be compared,
    and StaleSequence. ``like`` is the content that counts for that, in place of the batch's own.
    With ``after`` it is stale unless that is the newest sequence before it, 0 for none.
    """
    refuse_own_name(stream.name, "stream")
    node.check_batch(batch)
    head = _head(backlog, producer, sequence)
    if not batch.num_rows:
        return range(0)
    if after is not None:
        head = (head[0], f"{sequence}>{after}", head[2])
    elif producer is not None and compare:
        head = (head[0], f"{sequence}:{_digest(batch if like is None else like)}", head[2])
    call = Call(
        "hw_stream_write",
        stream.key,
        (*head, *_payload(batch, hot=stream.hot < HOT_MESSAGES)),
        repeatable=producer is not None,
        messages=batch.num_rows,
    )
    try:
        reply = WriteReply(*(yield call))
    except Refusal as refusal:
        raise refusal.of_sequence(stream.name, producer, sequence) from None
    stream.hot = reply.hot
    note_new(stream, reply.first)
    if producer is not None and not reply.repeat:
        _check_history(stream, reply)
    # A batch that could have been a node followed unsealed messages: seal them, so that the next
    # one goes straight to the nodes.
    fit = batch.num_rows >= _FIT_MESSAGES
    behind = 0 if reply.repeat else reply.unsealed
    to_seal = behind > 0 and (fit or time_to_seal(behind, batch.num_rows))
    yield from tidy_up(stream, to_seal, everything=fit)
    return range(reply.first, reply.last + 1)


def _digest(batch: pa.RecordBatch) -> str:
    """Return a digest of a batch's messages: a CRC-32 of lengths, bytes and times, and a size.

    It does not depend on how the batch is sliced, packed or cut.
    """
    crc, size = 0, 0
    for column in batch.columns:
        kind, data = column.type, column.buffers()[-1]
        at, end = column.offset, column.offset + len(column)
        if pa.types.is_integer(kind):
            at, end = 8 * at, 8 * end
        else:
            places = memoryview(column.buffers()[1]).cast("i")
            at, end = places[at], places[end]
            lengths = pc.binary_length(column).buffers()[1]
            crc = crc32(memoryview(lengths)[: 4 * len(column)], crc)
        if data is not None:
            crc = crc32(memoryview(data)[at:end], crc)
        size += end - at
    return f"{crc:08x}{size:x}"


def _check_history(stream: StreamHandle, reply: WriteReply) -> None:
    """Raise LostFuture when the store has lost a write that it acknowledged to this producer.

    The write itself is done: a repeat of it returns its offsets.
    """
    created, _, known = reply.history.partition(b" ")
    before = stream.wrote
    if created == before.created and known != before.history and before.history.startswith(known):
        return  # the reply to an earlier write of another thread, which comes late
    # Whoever writes after a loss is in the history; replies of several threads come in any order.
    last = max(reply.first - 1, before.upto)
    seen, lost = handles.go_on(before, stream.name, 1, reply.last, created, known, last)
    stream.wrote = seen._replace(upto=max(reply.last, seen.upto), lost=0)
    if lost:
        raise lost


def note_new(stream: StreamHandle, offset: int) -> None:
    """Have a new stream added to the registry, even if another one had its name before."""
    if offset == 1:
        stream.registered.discard(stream.name)


def tidy_up(stream: StreamHandle, to_seal: bool, *, everything: bool) -> Operation[None]:
    """Seal and register, which any client could do; a fault here must not fail the write.

    What is left undone is done with a later write, or by the housekeeper, which reports faults.
    """
    with contextlib.suppress(StoreError, LogError):
        if to_seal:
            yield from seal(stream.key, everything=everything)
        yield from stream.register()


def time_to_seal(unsealed: int, written: int) -> bool:
    """Return whether this write is the one of many that should seal: it crossed a border."""
    before = max(unsealed - written, 0)
    return unsealed >= 2 * NODE_MESSAGES and unsealed // NODE_MESSAGES != before // NODE_MESSAGES


def _head(backlog: int | None, producer: str | None, sequence: int | None) -> tuple[Argument, ...]:
    keep: Argument = "" if backlog is None else check_count(backlog, "backlog", MAX_OFFSET)
    if (producer is None) != (sequence is None):
        raise InvalidInput("producer and sequence go together; give both or neither")
    if producer is None or sequence is None:
        return ("", "", keep)
    return (check_name(producer, "producer"), check_count(sequence, "sequence", MAX_OFFSET), keep)


def _payload(batch: pa.RecordBatch, *, hot: bool) -> list[Argument]:
    if batch.num_rows <= PLAIN_MESSAGES and "time" not in batch.schema.names:
        if "headers" in batch.schema.names:
            return _headed_words(batch)
        words: list[Argument] = ["checked"]
        for tag, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            raw_tag = tag.encode()
            words += (raw_tag, value, node.message_crc(raw_tag, value))
        return words
    return ["packed", *packed_words(batch, hot=hot)]


def _headed_words(batch: pa.RecordBatch) -> list[Argument]:
    words: list[Argument] = ["headed"]
    for tag, value, headers in zip(*(one.to_pylist() for one in batch.columns), strict=True):
        raw_tag = tag.encode()
        words += (raw_tag, value, node.message_crc(raw_tag, value, headers), headers)
    return words


def packed_words(batch: pa.RecordBatch, *, hot: bool = False) -> list[Argument]:
    """Pack a batch as nodes, and return what is sent of them; see node_words."""
    return node_words(node.pack(part, hot=hot) for part in node.split(batch))


def node_words(nodes: Iterable[node.PackedNode]) -> list[Argument]:
    """Return what is sent of each node: count, first time, newest time, fit, bytes."""
    words: list[Argument] = []
    for packed in nodes:
        fit = packed.rows >= _FIT_MESSAGES or packed.raw_bytes >= _FIT_BYTES
        first = "" if packed.first_time is None else packed.first_time
        newest = "" if packed.newest_time is None else packed.newest_time
        words += [packed.rows, first, newest, int(fit), packed.blob]
    return words


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(
        f"a value must be bytes or str, not {type(value).__name__}; "
        'encode it, or open the handle with codec="json"'
    )


def seal(key: str, *, everything: bool) -> Operation[int]:
    """Repack the oldest part of the tail into nodes; returns how many messages were sealed.

    Full nodes only, unless ``everything``. Another client that seals at the same time makes the
    same nodes of the same messages; the store takes one and ignores the other.
    """
    least = 1 if everything else NODE_MESSAGES
    sealed_now = 0
    # Beyond the end there is nothing to read, but the reply has the boundary.
    start = end = MAX_OFFSET
    while True:
        args = (reply_limits(), "", start, end)
        reply = ReadReply(*(yield Call("hw_stream_read", key, args, read_only=True)))
        last, sealed, covered = reply.last, reply.sealed, reply.covered
        if last - sealed < least:
            return sealed_now
        if start != sealed + 1 or end < start:
            # Another client sealed, or wrote after the end that was read.
            start, end = sealed + 1, _end_of_node(sealed + 1, last, everything)
            continue
        runs, _ = open_runs(reply, NOTHING_HELD, stream_name(key))
        yield from refuse_missing(key, reply.created, missing(runs, start, covered))
        headers = any(run.headed for run in runs)
        parts = [run.cut(start, covered).to_arrow(headers=headers) for run in runs]
        packed = node.pack(node.of_rows(pa.concat_batches(parts)), sealed=True)
        span = (packed.first_time or 0, packed.newest_time or 0)
        words = (reply.created, sealed, covered, packed.rows, *span, packed.blob)
        boundary = yield Call("hw_stream_seal", key, words, repeatable=True, messages=packed.rows)
        if boundary < 0:
            return sealed_now
        sealed_now += covered - sealed
        start, end = covered + 1, _end_of_node(covered + 1, last, everything)


def _end_of_node(start: int, last: int, everything: bool) -> int:
    """Return the last offset of the next node; a short rest goes with the node before it."""
    end = start + NODE_MESSAGES - 1
    return last if everything and last - end < NODE_MESSAGES // 2 else end


# Staging and publishing: many clients stage batches in parallel, and one publishes them, once.
#
# Staged batches are beside the stream, in its slot, and readers do not see them. A publish names
# stagings in order, with a producer and a sequence. Its first call records them, and from then on
# they will be in the stream, once each, in that order: the rest is steps that do a bounded amount
# of work and may be repeated by any client. A publish of a sequence that is done or in progress
# takes nothing new; if both say what they hold, and it is not the same, the second is refused.


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
    args = (*head, *node_words(packed))
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
            "hw_stream_publish", stream.key, args, repeatable=True, messages=reading.count_published
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
        yield from tidy_up(stream, reply.unsealed > 0, everything=True)
    published = reply.last - reply.first + 1
    if published > 0 and not reply.repeat:
        note_new(stream, reply.first)
        large = published >= NODE_MESSAGES
        to_seal = reply.unsealed and (large or time_to_seal(reply.unsealed, published))
        yield from tidy_up(stream, bool(to_seal), everything=large)
    return Published(reply.first, reply.last)


def finish_left(stream: StreamHandle, left_ms: int) -> Operation[int]:
    """Finish the publishes that made no step for ``left_ms``; returns how many."""
    finished = 0
    reply = yield Call("hw_stream_publishing", stream.key, read_only=True)
    for producer, sequence, idle_ms in rows(reply, 3):
        if idle_ms >= left_ms:
            yield from publish(stream, (), producer.decode(), sequence)
            finished += 1
    return finished
