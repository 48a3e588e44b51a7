"""Replies as bytes, in RESP2 and RESP3: values, messages, facts, and errors with their codes.

ERR              the command is refused: unknown, wrong arguments, or against a rule
NOAUTH           the client has shown no token
WRONGPASS        there is no such token
NOPERM           the token does not allow that, or not for this name
READONLY         the server was started to read only
NOPROTO          another protocol than RESP2 and RESP3 was asked for
EXECABORT        MULTI was refused, and so was all that followed it; nothing was done
NOGROUP          the group has never read
NOTFOUND         there is no such stream, topic, queue, dirty list, timed job or timeline farm
STALE            a producer's repeat is older than what is remembered
REUSED           a producer's repeat has other entries than the first time
LEASELOST        another consumer of a channel has taken the shard over
WRONGTYPE        something else is stored under that key
TRYAGAIN         the store is down, or refuses for now; nothing was done
OUTCOME-UNKNOWN  the connection to the store broke after a write was sent; it may be done
LOSTFUTURE       the store has lost messages that were read or written before
DAMAGED          stored bytes cannot be read

A reply is made of Python's own values: int, str and bytes (a bulk string), None, bool, float, list
and tuple (an array), dict (a map); and of those below. RESP2 has no maps, numbers with fractions,
booleans and sets: there a map is an array of names and values, a boolean 1 or 0, a fraction text.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headwater import errors
from headwater.kernel import arrow_compute as pc
from headwater.log.node import PackedRun
from headwater.log.reading import FoundRuns
from headwater.log.types import GroupInfo, Message, StreamInfo


class StatusReply(NamedTuple):
    """A short text that says how something went, such as OK."""

    text: str


class ErrorReply(NamedTuple):
    """An error: a code in capitals, and what is wrong with its cure."""

    code: str
    text: str


class EncodedReply(NamedTuple):
    """A reply that is spelled already, the same in both protocols."""

    data: bytes


class Verbatim(NamedTuple):
    """A text of several lines; RESP3 marks it as text."""

    text: str


OK: Final = StatusReply("OK")
_NULLS: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
_SIMPLE_INTS: Final = tuple(b":%d\r\n" % number for number in range(1024))
_NO_LINES: Final = str.maketrans("\r\n", "  ")


def encode_reply(reply: Any, protocol: int) -> bytes:
    """Spell a reply."""
    if reply is OK:
        return b"+OK\r\n"
    parts: list[bytes] = []
    _spell(parts, reply, protocol)
    return b"".join(parts)


def _spell(parts: list[bytes], reply: Any, protocol: int) -> None:
    match reply:
        case EncodedReply():
            parts.append(reply.data)
        case Verbatim():
            text = reply.text.encode()
            parts.append(
                b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)
                if protocol == 3
                else b"$%d\r\n%b\r\n" % (len(text), text)
            )
        case StatusReply():
            parts.append(b"+%b\r\n" % _line(reply.text))
        case ErrorReply():
            parts.append(b"-%b %b\r\n" % (_line(reply.code), _line(reply.text)))
        case None:
            parts.append(_NULLS[protocol])
        case bool():
            parts.append(
                (b"#t\r\n" if reply else b"#f\r\n") if protocol == 3 else b":%d\r\n" % reply
            )
        case int():
            parts.append(_SIMPLE_INTS[reply] if 0 <= reply < 1024 else b":%d\r\n" % reply)
        case bytes():
            parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
        case str():
            text = reply.encode("utf-8", "surrogateescape")
            parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
        case float():
            _spell_float(parts, reply, protocol)
        case dict():
            size = len(reply) if protocol == 3 else 2 * len(reply)
            parts.append((b"%%%d\r\n" if protocol == 3 else b"*%d\r\n") % size)
            for name, value in reply.items():
                _spell(parts, name, protocol)
                _spell(parts, value, protocol)
        case frozenset():
            parts.append((b"~%d\r\n" if protocol == 3 else b"*%d\r\n") % len(reply))
            for value in sorted(reply):
                _spell(parts, value, protocol)
        case list() | tuple():
            parts.append(b"*%d\r\n" % len(reply))
            for value in reply:
                _spell(parts, value, protocol)
        case _:
            raise TypeError(f"{type(reply).__name__} cannot be spelled in RESP")


def _spell_float(parts: list[bytes], number: float, protocol: int) -> None:
    text = spell_number(number)
    if protocol == 3:
        parts.append(b",%b\r\n" % text)
    else:
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))


def spell_number(number: float) -> bytes:
    """Spell a number so that not a digit is lost; a whole one without a fraction, as Redis does."""
    if number.is_integer() and abs(number) < 1e17:
        return b"%d" % int(number)
    return repr(number).encode()


def _line(text: str) -> bytes:
    return text.translate(_NO_LINES).encode("utf-8", "surrogateescape")


log = logging.getLogger("headwater.serve")

# The first class that fits decides.
_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (errors.OutcomeUnknown, "OUTCOME-UNKNOWN"),
    (errors.UnknownGroup, "NOGROUP"),
    (errors.UnknownStream, "NOTFOUND"),
    (errors.UnknownTopic, "NOTFOUND"),
    (errors.UnknownQueue, "NOTFOUND"),
    (errors.UnknownIck, "NOTFOUND"),
    (errors.UnknownTimedJob, "NOTFOUND"),
    (errors.StaleSequence, "STALE"),
    (errors.ReusedSequence, "REUSED"),
    (errors.LeaseLost, "LEASELOST"),
    (errors.NotAnIck, "WRONGTYPE"),
    (errors.LostFuture, "LOSTFUTURE"),
    (errors.UnreadableNode, "DAMAGED"),
    (errors.QuorumFailed, "TRYAGAIN"),
    (errors.AllReplicasFailed, "TRYAGAIN"),
    (errors.FarmUnreachable, "TRYAGAIN"),
)
ERROR_CODES: Final = (
    "ERR", "NOAUTH", "WRONGPASS", "NOPERM", "READONLY", "NOPROTO", "EXECABORT", "NOGROUP",
    "NOTFOUND", "STALE", "REUSED", "LEASELOST", "WRONGTYPE",
    "TRYAGAIN", "OUTCOME-UNKNOWN", "LOSTFUTURE", "DAMAGED",
)  # fmt: skip


class CommandRefused(Exception):
    """A command is answered with an error."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(text)
        self.code = code


class WrongArguments(CommandRefused):
    """The arguments of a command do not fit it; the reply adds how the command is written."""


def syntax_error() -> WrongArguments:
    """Return the refusal of arguments that make no sense, in the words of Redis."""
    return WrongArguments("syntax error")


def error_reply(error: BaseException) -> ErrorReply:
    """Return the reply to a command that failed; what nobody foresaw is shown in the log only."""
    if isinstance(error, CommandRefused):
        return ErrorReply(error.code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return ErrorReply(code, str(error))
    if isinstance(error, errors.StoreError) and not error.lasting:
        return ErrorReply("TRYAGAIN", str(error))
    if isinstance(error, errors.HeadwaterError):
        return ErrorReply("ERR", str(error))
    number = secrets.token_hex(6)
    log.error("command %s failed", number, exc_info=error)
    return ErrorReply(
        "ERR", f"the server failed by a fault of its own; its log says more of command {number}"
    )


_NULL_MESSAGES: Final = {2: b"*-1\r\n", 3: b"_\r\n"}
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
    null, size = _NULL_MESSAGES[form.protocol], form.parts
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
    """Spell what a read from an offset on found: one place for each offset.

    Messages are [[offset, tag, entry], ...] as RCP 11 spells them; those that are gone are null.
    Many are spelled column by column: no object is made for a message.
    """
    null = _NULL_MESSAGES[form.protocol]
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


def stream_facts(found: StreamInfo) -> dict[str, Any]:
    """Return where a stream stands."""
    return {
        "name": found.name,
        "first": found.first,
        "last": found.last,
        "length": found.length,
        "bytes": found.bytes,
        "nodes": found.nodes,
        "created-ms": found.created_ms,
        "last-time-ms": found.last_time_ms,
        "groups": list(found.groups),
        "readers": dict(found.readers),
    }


def group_facts(found: GroupInfo) -> dict[str, Any]:
    """Return where a group stands."""
    return {
        "name": found.name,
        "next": found.next,
        "ack-offset": found.ack_offset,
        "pending": found.pending,
        "lag": found.lag,
        "missed": found.missed,
        "expired": found.expired,
        "dead": found.dead,
        "dead-letters": found.dead_letters,
        "max-pending": found.max_pending,
        "ordered": found.ordered,
        "limits": str(found.limits),
        "waiting": found.waiting,
        "members": dict(found.members),
    }
