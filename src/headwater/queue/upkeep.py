"""Looking after a queue: settings, pause, dead letters, purging, and what housekeepers do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Literal, get_args

from headwater.errors import InvalidInput, StoreError
from headwater.inputs import Duration, check_int, check_ms
from headwater.queue.acks import BUNDLES_PER_CALL, by_bundle
from headwater.queue.failing import with_causes
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import PAGE_MESSAGES, Spot, page
from headwater.queue.keys import QUEUES
from headwater.queue.limits import MAX_ATTEMPTS, check_count
from headwater.queue.replies import KeepReply, LettersReply, PurgeReply, Reply, settings_of
from headwater.queue.types import Backoff, KeptQueue, QueueItem, QueueSettings
from headwater.store.call import Argument, Call, Operation

# After so long without a push, what a producer was answered is forgotten.
SILENT_PRODUCER_MS = 7 * 24 * 3600 * 1000
MAX_LETTERS = 1_000_000_000


def configure(
    queue: QueueHandle,
    max_attempts: int | None,
    backoff: Backoff | None,
    backoff_ms: Duration | None,
    longest_backoff_ms: Duration | None,
) -> Operation[QueueSettings]:
    """Set what is given, leave the rest, and return the settings."""
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


def pause(queue: QueueHandle, on: bool) -> Operation[bool]:
    """Pause the queue or resume it; return whether that changed anything."""
    return bool((yield Call("hw_queue_pause", queue.key, (str(int(on)),), repeatable=True)))


def dead(queue: QueueHandle, count: int) -> Operation[list[QueueItem]]:
    """Return the messages that were given up, the oldest first."""
    check_count(count)
    yield from keep(queue)
    found: list[QueueItem] = []
    rest = [Spot("dead", 0)]
    while rest and len(found) < count:
        items, rest = yield from page(queue, rest, min(count - len(found), PAGE_MESSAGES))
        found += items
    return (yield from with_causes(queue, found[:count]))


def redrive(queue: QueueHandle, letters: Iterable[QueueItem] | None, count: int) -> Operation[int]:
    """Bring dead letters back; return how many."""
    return (yield from _end_letters(queue, "hw_queue_redrive", letters, count))


def discard(queue: QueueHandle, letters: Iterable[QueueItem] | None, count: int) -> Operation[int]:
    """Forget dead letters; return how many."""
    return (yield from _end_letters(queue, "hw_queue_discard", letters, count))


def _end_letters(
    queue: QueueHandle, function: str, letters: Iterable[QueueItem] | None, count: int
) -> Operation[int]:
    check_count(count, most=MAX_LETTERS)
    total = 0
    if letters is not None:
        words = by_bundle(_place(letter) for letter in letters)
        start = 0
        while start < len(words):
            part = words[start : start + 2 * BUNDLES_PER_CALL]
            args: tuple[Argument, ...] = (count - total, *part)
            call = Call(function, queue.key, args, repeatable=True, messages=_messages_gone)
            reply = LettersReply(*(yield call))
            total, start = total + reply.messages, start + 2 * reply.bundles
        return total
    yield from keep(queue)
    while total < count:
        # To do it twice would concern other letters than the first time.
        call = Call(
            function,
            queue.key,
            (count - total,),
            repeatable=count >= MAX_LETTERS,
            messages=_messages_gone,
        )
        reply = LettersReply(*(yield call))
        total += reply.messages
        if not reply.more:
            break
    return total


def _messages_gone(_: Call, reply: Reply) -> int:
    messages: int = reply[0]
    return messages


def _place(letter: QueueItem) -> str:
    if not isinstance(letter, QueueItem) or letter.state != "dead":
        raise InvalidInput("give letters as dead() returned them")
    return letter.place


def purge(queue: QueueHandle) -> Operation[int]:
    """Forget all messages, wherever they are; return how many."""
    return (yield from _purge(queue, "messages")).messages


def delete(queue: QueueHandle) -> Operation[bool]:
    """Remove the queue with all that belongs to it; return whether it existed."""
    reply = yield from _purge(queue, "all")
    queue.registered.discard(queue.key)
    yield Call("hw_registry_remove", QUEUES, (queue.name,), repeatable=True)
    return bool(reply.existed)


def _purge(queue: QueueHandle, what: Literal["messages", "all"]) -> Operation[PurgeReply]:
    call = Call("hw_queue_purge", queue.key, (what,), repeatable=True, messages=_messages_gone)
    reply = PurgeReply(*(yield call))
    # Nobody looks at these any more. They expire by themselves, should this client not finish.
    args = (reply.generation,)
    while (yield Call("hw_queue_free", queue.key, args, repeatable=True)):
        pass
    return reply


def _messages_kept(_: Call, reply: Reply) -> int:
    step = KeepReply(*reply)
    return step.returned + step.buried + step.outlived


def keep(queue: QueueHandle) -> Operation[KeptQueue]:
    """Do all that is due to a queue when nobody pops."""
    steps: list[KeepReply] = []
    while not steps or steps[-1].more:
        args = (SILENT_PRODUCER_MS,)
        call = Call("hw_queue_keep", queue.key, args, repeatable=True, messages=_messages_kept)
        steps.append(KeepReply(*(yield call)))
    return KeptQueue(
        queue.name,
        returned=sum(step.returned for step in steps),
        buried=sum(step.buried for step in steps),
        outlived=sum(step.outlived for step in steps),
        producers=sum(step.producers for step in steps),
    )
