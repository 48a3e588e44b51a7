"""Upkeep of a queue: settings, pause, purging, and what housekeepers do."""

from __future__ import annotations

import contextlib
from typing import Literal, get_args

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.inputs import (
    Duration,
    Limits,
    check_for_queue,
    check_int,
    check_ms,
    refuse_own_name,
)
from headwater.queue.handles import QueueHandle
from headwater.queue.keys import MAX_ATTEMPTS, QUEUES
from headwater.queue.replies import KeepReply, PurgeReply, Reply, settings_of
from headwater.queue.types import Backoff, KeptQueue, QueueSettings
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import fault_of_one

# After this long without a push, the answers to a producer are forgotten.
SILENT_PRODUCER_MS = 7 * 24 * 3600 * 1000


def configure(
    queue: QueueHandle,
    max_attempts: int | None,
    backoff: Backoff | None,
    backoff_ms: Duration | None,
    longest_backoff_ms: Duration | None,
) -> Operation[QueueSettings]:
    """Set what is given, leave the rest, and return the settings."""
    refuse_own_name(queue.name, "queue")
    if backoff is not None and backoff not in get_args(Backoff):
        raise InvalidInput(f"backoff must be one of {get_args(Backoff)}, not {backoff!r}")
    args: tuple[Argument, ...] = (
        "" if max_attempts is None else check_int(max_attempts, "max_attempts", 0, MAX_ATTEMPTS),
        backoff or "",
        "" if backoff_ms is None else check_ms(backoff_ms, "backoff_ms"),
        "" if longest_backoff_ms is None else check_ms(longest_backoff_ms, "longest_backoff_ms"),
    )
    found = settings_of((yield Call("hw_queue_configure", queue.key, args, repeatable=True)))
    with contextlib.suppress(StoreError):
        yield from queue.register()
    return found


def limit(queue: QueueHandle, limits: Limits) -> Operation[Limits]:
    """Set how many messages are in flight and how fast they go; returns the limits before."""
    refuse_own_name(queue.name, "queue")
    check_for_queue(limits)
    call = Call("hw_queue_limit", queue.key, (limits.stored(),), repeatable=True)
    before = Limits.of_stored((yield call))
    with contextlib.suppress(StoreError):
        yield from queue.register()
    return before


def pause(queue: QueueHandle, on: bool) -> Operation[bool]:
    """Pause the queue or resume it; return whether that changed anything."""
    return bool((yield Call("hw_queue_pause", queue.key, (str(int(on)),), repeatable=True)))


def purge(queue: QueueHandle) -> Operation[int]:
    """Forget all messages, wherever they are; return how many."""
    return (yield from _purge(queue, "messages")).messages


def delete(queue: QueueHandle) -> Operation[bool]:
    """Remove the queue with all that belongs to it; return whether it existed."""
    reply = yield from _purge(queue, "all")
    queue.registered.discard(queue.key)
    yield Call("hw_registry_remove", QUEUES, (queue.name,), repeatable=True)
    return bool(reply.existed)


def _messages_gone(_: Call, reply: Reply) -> int:
    messages: int = reply[0]
    return messages


def _purge(queue: QueueHandle, what: Literal["messages", "all"]) -> Operation[PurgeReply]:
    call = Call("hw_queue_purge", queue.key, (what,), repeatable=True, messages=_messages_gone)
    reply = PurgeReply(*(yield call))
    # These keys are no longer read. They expire by themselves if this client does not finish.
    args = (reply.generation,)
    while (yield Call("hw_queue_free", queue.key, args, repeatable=True)):
        pass
    return reply


def _messages_kept(_: Call, reply: Reply) -> int:
    step = KeepReply(*reply)
    return step.returned + step.buried + step.outlived


def keep(queue: QueueHandle) -> Operation[KeptQueue]:
    """Process everything that is due in a queue that nobody pops.

    What cannot be done is reported in ``fault``, not raised.
    """
    steps: list[KeepReply] = []
    fault = None
    try:
        while not steps or steps[-1].more:
            args = (SILENT_PRODUCER_MS,)
            call = Call("hw_queue_keep", queue.key, args, repeatable=True, messages=_messages_kept)
            steps.append(KeepReply(*(yield call)))
    except Exception as error:  # noqa: BLE001  whatever it is, the other queues can be kept
        fault = fault_of_one(error)
    return KeptQueue(
        queue.name,
        returned=sum(step.returned for step in steps),
        buried=sum(step.buried for step in steps),
        outlived=sum(step.outlived for step in steps),
        producers=sum(step.producers for step in steps),
        fault=fault,
    )
