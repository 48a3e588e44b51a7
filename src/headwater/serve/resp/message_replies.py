"""Messages as bytes, in RESP2 and RESP3: [[offset, tag, entry], ...] as RCP 11 spells them.

A read of many messages is spelled column by column: no object is made for a message. Those that are
gone are null. What a client asks for is added to each message: its attempt, then its headers as a
map.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headwater.kernel import arrow_compute as pc
from headwater.log.node import PackedRun
from headwater.log.reading import FoundRuns
from headwater.log.types import Message
from headwater.serve.resp.replies import encode_reply

_NULLS: Final = {2: b"*-1\r\n", 3: b"_\r\n"}
_NO_HEADERS: Final = {2: b"*0\r\n", 3: b"%0\r\n"}
# From this many messages on, columns are faster than messages.
_MANY: Final = 32
_BYTES: Final = pa.binary()
_NOTHING: Final = pa.scalar(b"", _BYTES)
# What stands between a part and a bulk string, for lengths that most strings have.
_LENGTHS: Final = pa.array([b"\r\n$%d\r\n" % length for length in range(4096)], _BYTES)


class MessageForm(NamedTuple):
    """How messages are spelled: by which protocol, and with what beside them."""

    protocol: int
    with_attempt: bool = False
    with_headers: bool = False

    @property
    def parts(self) -> int:
        """Of how many parts a message is made."""
        return 3 + self.with_attempt + self.with_headers


def encode_array(count: int, parts: Iterable[bytes], info: tuple[int, int] | None) -> bytes:
    """Spell an array of this many messages that are spelled already.

    ``info`` is its first element then: the first and last offset of the stream.
    """
    if info is None:
        return b"".join((b"*%d\r\n" % count, *parts))
    return b"".join((b"*%d\r\n*2\r\n:%d\r\n:%d\r\n" % (count + 1, *info), *parts))


def spell_messages(messages: Iterable[Message[Any] | None], form: MessageForm) -> list[bytes]:
    """Spell messages one by one; None is null."""
    null, size = _NULLS[form.protocol], form.parts
    parts: list[bytes] = []
    add = parts.append
    for message in messages:
        if message is None:
            add(null)
            continue
        tag, value = message.tag.encode(), message.value
        add(
            b"*%d\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
            % (size, message.offset, len(tag), tag, len(value), value)
        )
        if form.with_attempt:
            add(b":%d\r\n" % message.attempt)
        if form.with_headers:
            add(encode_reply(dict(message.headers), form.protocol))
    return parts


def spell_runs(found: FoundRuns, offset: int, form: MessageForm) -> list[bytes]:
    """Spell what a read from an offset on found: one place for each offset."""
    null = _NULLS[form.protocol]
    parts: list[bytes] = []
    at = offset
    for run in found.runs:
        if run.base > at:
            parts.append(null * (run.base - at))
            at = run.base
        if isinstance(run, PackedRun) and _in_columns(run, form):
            parts.append(_spell_columns(run, form))
        else:
            for message in run.messages():
                parts.append(null * (message.offset - at))
                parts += spell_messages((message,), form)
                at = message.offset + 1
            parts.append(null * (run.last + 1 - at))
        at = run.last + 1
    parts.append(null * (offset + found.places - at))
    return parts


def _in_columns(run: PackedRun, form: MessageForm) -> bool:
    headed = form.with_headers and run.headed
    return run.batch.num_rows >= _MANY and not (run.sparse or headed)


def _spell_columns(run: PackedRun, form: MessageForm) -> bytes:
    """Spell a run without holes, of whose messages none has headers that are asked for."""
    tags, values = run.batch.column(0).cast(_BYTES), run.batch.column(1)
    offsets = pa.arange(run.base, run.last + 1).cast(pa.string()).cast(_BYTES)
    end = b"\r\n" + (_NO_HEADERS[form.protocol] if form.with_headers else b"")
    spelled = pc.binary_join_element_wise(
        pa.scalar(b"*%d\r\n:" % form.parts, _BYTES),
        offsets,
        _lengths(tags),
        tags,
        _lengths(values),
        values,
        pa.scalar(end, _BYTES),
        _NOTHING,
    )
    _, places, data = spelled.buffers()
    return bytes(memoryview(data)[: memoryview(places).cast("i")[len(spelled)]])


def _lengths(strings: pa.Array) -> pa.Array:
    """Return what stands before each bulk string."""
    lengths = pc.binary_length(strings)
    try:
        return _LENGTHS.take(lengths)
    except pa.ArrowIndexError:
        before, behind = pa.scalar(b"\r\n$", _BYTES), pa.scalar(b"\r\n", _BYTES)
        digits = lengths.cast(pa.string()).cast(_BYTES)
        return pc.binary_join_element_wise(before, digits, behind, _NOTHING)
