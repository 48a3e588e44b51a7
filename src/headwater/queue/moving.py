"""Messages into a queue and out of it: push, pop at once, or wait for a message."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias
from zlib import crc32

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.headers import Carried, GivenHeaders, Headers, encode_headers
from headwater.kernel.inputs import (
    MAX_EXACT,
    Duration,
    check_block,
    check_int,
    check_ms,
    refuse_own_name,
)
from headwater.queue.handles import QueueHandle
from headwater.queue.keys import (
    MAX_DEDUPE_MESSAGES,
    MAX_PUSH_BYTES,
    MAX_PUSH_MESSAGES,
    SAFE_DEDUPE_MS,
    box_key,
    check_count,
    check_dedupe,
    check_priority,
    check_source,
    check_value,
)
from headwater.queue.replies import (
    PopReply,
    PushReply,
    Reply,
    count_messages,
    open_taken,
    with_checksums,
    with_headers,
)
from headwater.queue.types import Delivery, HeadedDelivery
from headwater.store.call import Argument, Call, Clock, Operation, Wait
from headwater.store.faults import Refusal

# ── Pushing ───────────────────────────────────────────────────────────────────────────────────────
# Putting messages into a queue: one, or many, all or none in one call.


# Of all messages of a push, or of each.
HeadersOfMany: TypeAlias = "GivenHeaders | Sequence[GivenHeaders | None]"


def push(
    queue: QueueHandle,
    value: bytes | str,
    delay_ms: Duration,
    priority: int,
    ttl_ms: Duration | None,
    dedupe: str | bytes | None,
    dedupe_ms: Duration,
    headers: GivenHeaders | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> Operation[str]:
    """Put one message into the queue and return its id."""
    keys = None if dedupe is None else [dedupe]
    found = yield from push_many(
        queue, [value], delay_ms, priority, ttl_ms, keys, dedupe_ms, producer, sequence, headers
    )
    return found[0]


def push_many(
    queue: QueueHandle,
    values: Iterable[bytes | str],
    delay_ms: Duration,
    priority: int,
    ttl_ms: Duration | None,
    dedupe: Sequence[str | bytes] | None,
    dedupe_ms: Duration,
    producer: str | None,
    sequence: int | None,
    headers: HeadersOfMany | None = None,
) -> Operation[list[str]]:
    """Put messages into the queue, all or none, and return their ids."""
    refuse_own_name(queue.name, "queue")
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInput(f"values must be several values, not {type(values).__name__}; use push")
    words: list[Any] = [check_value(value) for value in values]
    _check_size(words, MAX_PUSH_MESSAGES if dedupe is None else MAX_DEDUPE_MESSAGES)
    size = len(words)
    source = check_source(producer, sequence)
    if producer is None and Carried.context is not None and not isinstance(headers, Sequence):
        headers = Carried.beside(headers)
    stored = None if headers is None else _stored_headers(headers, size)
    if source[0]:
        source = (source[0], f"{source[1]}:{_digest(words, stored)}")
    remembered_ms = 0 if dedupe is None else check_ms(dedupe_ms, "dedupe_ms", 1)
    head: tuple[Argument, ...] = (
        check_ms(delay_ms, "delay_ms"),
        check_priority(priority),
        "" if ttl_ms is None else check_ms(ttl_ms, "ttl_ms", 1),
        *source,
        "" if dedupe is None else remembered_ms,
        "1" if stored is None else "h",
    )
    if stored is None:
        words = with_checksums(words)
    else:
        words = with_headers(words, stored)
        _check_size(words, MAX_PUSH_MESSAGES)
    if dedupe is not None:
        if source[0]:
            raise InvalidInput("producer and dedupe exclude each other; choose one")
        words = _with_keys(words, dedupe)
    if not words:
        return []
    keyed = remembered_ms >= SAFE_DEDUPE_MS
    repeatable = keyed or producer is not None
    call = Call("hw_queue_push", queue.key, (*head, *words), repeatable=repeatable, messages=size)
    try:
        reply = PushReply.of((yield call))
    except Refusal as refusal:
        raise refusal.of_sequence(queue.name, producer, sequence) from None
    if reply.new:
        # The queue is new, even if another one had its name before.
        queue.registered.discard(queue.key)
    if queue.key not in queue.registered:
        # The push is done: a fault in here must not look like a failed push.
        with contextlib.suppress(StoreError):
            yield from queue.register()
    if dedupe is not None:
        return [number.decode() for number in reply.numbers]
    first, last = map(int, reply.numbers)
    return [str(number) for number in range(first, last + 1)]


def _stored_headers(headers: Any, count: int) -> list[bytes] | None:
    """Return the headers of each value as they are stored; None when there are none at all."""
    if isinstance(headers, Mapping):
        stored = [encode_headers(headers)] * count
    else:
        each = [*headers] if isinstance(headers, Sequence) else []
        if len(each) != count or isinstance(headers, str | bytes):
            raise InvalidInput(
                "headers must be a mapping of str to bytes for all values, or one for each of the "
                f"{count} values"
            )
        stored = list(map(encode_headers, each))
    return stored if any(stored) else None


def _digest(values: list[bytes], headers: list[bytes] | None) -> str:
    """Return a digest of values and headers: a CRC-32 of their lengths and bytes, and a size."""
    crc = 0
    for stored in headers or ():
        crc = crc32(stored, crc32(len(stored).to_bytes(2, "little"), crc))
    for value in values:
        crc = crc32(value, crc32(len(value).to_bytes(4, "little"), crc))
    return f"{crc:08x}{sum(map(len, values)):x}"


def _check_size(values: list[bytes], most: int) -> None:
    if len(values) > most:
        raise InvalidInput(
            f"one push takes {most} messages, all or none, not {len(values)}; divide them"
        )
    size = sum(map(len, values))
    if size > MAX_PUSH_BYTES:
        raise InvalidInput(f"one push takes {MAX_PUSH_BYTES} bytes, not {size}; divide them")


def _with_keys(values: list[bytes], dedupe: Sequence[str | bytes]) -> list[bytes]:
    keys = [dedupe] if isinstance(dedupe, str | bytes) else list(dedupe)
    if len(keys) != len(values) or isinstance(dedupe, str | bytes):
        raise InvalidInput(f"dedupe must name a key for each of the {len(values)} values")
    return [
        part for key, value in zip(keys, values, strict=True) for part in (check_dedupe(key), value)
    ]


# ── Popping ───────────────────────────────────────────────────────────────────────────────────────
# Taking messages out of a queue, at once or by waiting for them.
#
# A pop asks in steps that the server answers quickly, until it has what was asked for or there is
# no more. A consumer that waits does so on a list of its own; see ``lua/shared/40-waiters.lua``.


log = logging.getLogger("headwater.queue")

# A waiter reports this often, so that the store knows which consumers are alive.
WAIT_SLICE_MS = 1000
# What one call takes at most; the server is not held up for longer by one consumer.
CALL_MESSAGES = 1000


def pop(
    queue: QueueHandle,
    count: int,
    ack_ms: Duration | None,
    block_ms: Duration | float | None,
    max_bytes: int | None = None,
) -> Operation[list[Delivery]]:
    """Take up to ``count`` messages; with ``ack_ms`` they are redelivered unless acknowledged.

    No more are taken once they have ``max_bytes``.
    """
    check_count(count)
    most = math.inf if max_bytes is None else check_int(max_bytes, "max_bytes", 1, MAX_EXACT)
    ack = "" if ack_ms is None else str(check_ms(ack_ms, "ack_ms", 1))
    patience = check_block(block_ms)
    if not count:
        return []
    if not patience:
        return (yield from _pop_now(queue, count, ack, [], most))
    waiter = yield from queue.take_waiter()
    found = yield from _wait_for_messages(queue, count, ack, patience, waiter, most)
    # Not reached when the wait was cancelled: then messages may still arrive for this waiter.
    queue.waiters.append(waiter)
    return found


def _pop_now(
    queue: QueueHandle, count: int, ack: str, found: list[Delivery], most: float
) -> Operation[list[Delivery]]:
    """Take what there is, in addition to what was found before, up to ``count`` in all."""
    while not (found and most < math.inf and sum(map(_size, found)) >= most):
        size = min(count - len(found), CALL_MESSAGES)
        try:
            reply = yield from _ask(queue, (size, ack, "", 0, "0", ""))
        except StoreError:
            if found:
                # What this pop took must reach its caller.
                return found
            raise
        taken = yield from _deliveries(queue, reply)
        found = found + taken if found else taken
        # That is all there is, unless the call stopped at one of its limits.
        if len(found) >= count or not (reply.more or len(taken) == size):
            break
    return found


def _size(delivery: Delivery) -> int:
    return len(delivery.value) + len(delivery.headers.encoded)


def _wait_for_messages(
    queue: QueueHandle, count: int, ack: str, patience: float, waiter: str, most: float
) -> Operation[list[Delivery]]:
    size = min(count, CALL_MESSAGES)
    waiter = f"{size}:{ack}:{waiter}"
    box = box_key(queue.key, waiter)
    leave = Call("hw_queue_leave", queue.key, (waiter,), repeatable=True)
    deadline = (yield Clock()) + patience
    known, boxed = "0", b""
    while True:
        wait_ms = max(0, int(min(deadline - (yield Clock()), WAIT_SLICE_MS)))
        reply = yield from _ask(queue, (size, ack, waiter, wait_ms, known, boxed), leave)
        found = yield from _deliveries(queue, reply)
        if found:
            if len(found) == size < count or reply.more:
                return (yield from _pop_now(queue, count, ack, found, most))
            return found
        if reply.more:
            # Not registered: the server had too much to pass over, and there may be more behind.
            known, boxed = "0", b""
            continue
        if not wait_ms:
            return []
        known = "1"
        if reply.due_ms >= 0:
            wait_ms = max(1, min(wait_ms, reply.due_ms))
        command = ("BLPOP", box, f"{wait_ms / 1000:.3f}")
        answer = yield Wait(box, command, wait_ms, leave=leave)
        boxed = answer[1] if answer else b""


def _ask(
    queue: QueueHandle, args: tuple[Argument, ...], leave: Call | None = None
) -> Operation[PopReply]:
    # Messages of a lost answer are redelivered only if they were to be acknowledged.
    again = args[1] != ""
    call = Call(
        "hw_queue_pop", queue.key, args, repeatable=again, messages=_messages_popped, leave=leave
    )
    reply = PopReply.of((yield call))
    if reply.damaged > queue.damaged:
        log.warning(
            "queue %r: %d messages could not be read and were put aside; see stats().damaged and "
            "scan('damaged')",
            queue.name,
            reply.damaged - queue.damaged,
        )
        queue.damaged = reply.damaged
    return reply


def _messages_popped(_: Call, reply: Reply) -> int:
    return sum(count_messages(bundle.texts) for bundle in PopReply.of(reply).bundles)


def _deliveries(queue: QueueHandle, reply: PopReply) -> Operation[list[Delivery]]:
    """Return what was popped; damaged messages are put aside, and the others are delivered."""
    found: list[Delivery] = []
    aside: list[Argument] = []
    for name, attempt, texts in reply.bundles:
        ids, values, headers, damaged = open_taken(texts)
        for message in damaged:
            aside += (name, message.id, message.found)
        receipts = map(f"{name.decode()}.".__add__, ids) if name else repeat("")
        # Without a loop of Python's own, because a pop makes many of them.
        begin = len(found)
        found += map(Delivery, ids, values, repeat(attempt), receipts)
        for place, stored in headers.items():
            one = found[begin + place]
            found[begin + place] = HeadedDelivery(
                one.id, one.value, one.attempt, one.receipt, Headers.stored(stored)
            )
    if aside:
        yield from _put_aside(queue, aside)
    return found


def _put_aside(queue: QueueHandle, words: list[Argument]) -> Operation[None]:
    log.error(
        "queue %r: the checksums of %d messages are wrong; they were put aside, see "
        "stats().damaged and scan('damaged')",
        queue.name,
        len(words) // 3,
    )
    # What this pop took must reach its caller.
    with contextlib.suppress(StoreError):
        gone: int = yield Call("hw_queue_aside", queue.key, tuple(words))
        queue.damaged += gone
