"""Taking messages out of a queue, at once or by waiting for them.

A pop asks in steps that the server answers quickly, until it has what was asked for or there is no
more. A consumer that waits does so on a list of its own; see ``lua/shared/40-waiters.lua``.
"""

from __future__ import annotations

import contextlib
import logging
import math
from itertools import repeat

from headwater.errors import StoreError
from headwater.kernel.headers import Headers
from headwater.kernel.inputs import DEADLINE, MAX_EXACT, Duration, check_block, check_int, check_ms
from headwater.queue.bundles import count_messages, open_taken
from headwater.queue.handles import QueueHandle
from headwater.queue.keys import box_key
from headwater.queue.limits import check_count
from headwater.queue.replies import PopReply, Reply
from headwater.queue.types import Delivery, HeadedDelivery
from headwater.store.call import Argument, Call, Clock, Operation, Wait

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
    ack = "" if ack_ms is None else str(check_ms(ack_ms, DEADLINE, 1))
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
