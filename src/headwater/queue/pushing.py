"""Putting messages into a queue: one, or many, all or none in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from zlib import crc32

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.headers import Carried, GivenHeaders, encode_headers
from headwater.kernel.inputs import Duration, check_ms, refuse_own_name
from headwater.queue.bundles import with_checksums, with_headers
from headwater.queue.handles import QueueHandle
from headwater.queue.limits import (
    MAX_DEDUPE_MESSAGES,
    MAX_PUSH_BYTES,
    MAX_PUSH_MESSAGES,
    SAFE_DEDUPE_MS,
    check_dedupe,
    check_priority,
    check_source,
    check_value,
)
from headwater.queue.replies import PushReply
from headwater.store.call import Argument, Call, Operation
from headwater.store.faults import Refusal

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
