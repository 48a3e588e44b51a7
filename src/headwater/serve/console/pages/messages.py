"""One message: its value, its headers, and its life from the outbox to every reader."""

from __future__ import annotations

import shlex
import time
from typing import Any, Final, NamedTuple

from headwater.errors import InvalidInput
from headwater.failures import LastFailure, read_failure
from headwater.headers import OUTBOX_ID
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.profile import StreamProfile, stream_profile
from headwater.log.ruler import GroupRuler
from headwater.log.types import GroupInfo, Message, StreamInfo
from headwater.serve.console.actions.action import cli_words
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.links import group_link, part
from headwater.serve.console.pages.stream import frame, opened
from headwater.serve.console.pages.stream_ruler import group_rulers, outside_readers
from headwater.serve.console.render import age, number, size
from headwater.serve.console.ruler import OutsideReader, Stretch
from headwater.serve.http.messages import Refused
from headwater.store.call import Call, Operation
from headwater.store.many import together
from headwater.views import overview

_GROUPS: Final = 100
_TRACE: Final = "traceparent"
_KINDS: Final = {"SQL": "SQL consumer", "Spark": "query of Spark"}


class LifeStep(NamedTuple):
    """One station of a message: where, what happened to it there, and when, if that is known.

    ``kind`` is how it is drawn: done, pending, due, dead, missed, new, or unknown.
    """

    where: str
    state: str
    kind: str
    time_ms: int | None = None
    link: str | None = None


async def show_message(call: PageCall) -> Context:
    """Show one message of a stream, and what became of it everywhere."""
    stream, given = call.names
    info = await opened(call)
    offset = _offset(given)
    if offset > info.last:
        raise Refused(404, f"offset {number(offset)} is not written yet; the last is {info.last}")
    message = (await call.hw.stream(stream).read(offset, 1))[0]
    profile = await call.hw.store.run(stream_profile(stream, offset, offset, 1))
    life = _written(call, message, offset, profile, info)
    rows = await call.hw.store.run(overview.groups_of([info]))
    drawn = await group_rulers(call, stream, rows[:_GROUPS], Stretch(offset, offset), 1)
    failures = await call.hw.store.run(
        together(_failure(stream, facts.name, offset) for facts, _ in drawn)
    )
    now_ms = int(time.time() * 1000)
    for (facts, ruler), failure in zip(drawn, failures, strict=True):
        life.append(_in_group(stream, facts, ruler, failure, offset, now_ms))
    readers, without = await outside_readers(call, info)
    life += [_outside(reader, offset) for reader in readers]
    if not any(reader.kind == "archive" for reader in readers):
        life.append(LifeStep("archive", "no archiver is registered for this stream", "unknown"))
    return frame(call, info, "Messages") | {
        "offset": offset,
        "message": message,
        "life": life,
        "without": without,
        "hidden": max(len(rows) - _GROUPS, 0),
        "forms": _forms(call, stream, offset),
    }


def _offset(given: str) -> int:
    try:
        offset = int(given.replace(",", ""))
    except ValueError:
        offset = 0
    if not 1 <= offset < 2**53:
        raise InvalidInput(f"{given!r} is no offset; give a whole number from 1 on")
    return offset


def _written(
    call: PageCall,
    message: Message[Any] | None,
    offset: int,
    profile: StreamProfile,
    info: StreamInfo,
) -> list[LifeStep]:
    """Return how a message came into the log, and where it lies there."""
    if message is None:
        why = "evicted" if offset < info.first else "removed by compaction"
        return [LifeStep("log", f"offset {number(offset)} has no message: {why}", "missed")]
    steps = []
    row = message.headers.get(OUTBOX_ID)
    if row is not None:
        known = "" if call.served.database else "; its database is not served here (--db)"
        text = f"row {row.decode('ascii', 'replace')}; its batch and the time of its commit "
        steps.append(LifeStep("outbox", f"{text}are not kept once it is in the log{known}", "done"))
    else:
        steps.append(LifeStep("outbox", "the message carries no id of an outbox", "unknown"))
    if _TRACE in message.headers:
        trace = message.headers[_TRACE].decode("ascii", "replace")
        steps.append(LifeStep("trace", trace, "done"))
    state = f"offset {number(offset)}"
    steps.append(LifeStep("log", state, "done", message.time_ms))
    if profile.sample:
        node = profile.sample[0]
        heat = "cold" if node.last <= profile.cold else "hot"
        text = f"in the {heat} node {number(node.base)} – {number(node.last)}: "
        text += f"{number(node.messages)} messages, {size(node.bytes)}"
        steps.append(LifeStep("node", text, "done"))
    else:
        steps.append(LifeStep("node", "in the tail, not sealed yet", "new"))
    return steps


def _failure(stream: str, group: str, offset: int) -> Operation[LastFailure | None]:
    """Return why a message failed in a group for the last time; None when that is not known."""
    handle = GroupHandle(StreamHandle(stream, set()), group, "console")
    call = Call("hw_group_causes", handle.key, (group, offset, offset), read_only=True)
    for text in (yield call):
        return read_failure(text.partition(b":")[2])
    return None


def _in_group(
    stream: str,
    facts: GroupInfo,
    ruler: GroupRuler,
    failure: LastFailure | None,
    offset: int,
    now_ms: int,
) -> LifeStep:
    """Return what became of a message in a group."""
    where, link = f"group {facts.name}", group_link(stream, facts.name)
    why = f": {failure.cause}" if failure and failure.cause else ""
    first_ms = failure.delivered_ms if failure else None
    for dead in ruler.dead:
        if dead.first <= offset <= dead.last:
            text = f"dead after {dead.attempt} attempts{why or ': no error was reported'}"
            return LifeStep(where, text, "dead", first_ms, "/dead")
    if any(low <= offset <= high for low, high in ruler.gaps):
        return LifeStep(
            where, "missed: it was evicted before the group read it", "missed", None, link
        )
    for one in ruler.pending:
        if one.first <= offset <= one.last:
            due = "now" if one.due_ms <= now_ms else f"in {age(one.due_ms - now_ms)}"
            text = f"pending, attempt {one.attempt}, redelivered {due}; which member holds it is "
            text += f"not kept{why and '; last error' + why}"
            kind = "due" if one.due_ms <= now_ms else f"pending-{min(one.attempt, 3)}"
            return LifeStep(where, text, kind, first_ms, link)
    if offset >= ruler.next:
        before = offset - ruler.next
        text = f"not handed out yet; {number(before)} messages are before it"
        return LifeStep(where, text, "new", None, link)
    return LifeStep(where, "done; when is not kept", "done", None, link)


def _outside(reader: OutsideReader, offset: int) -> LifeStep:
    """Return what became of a message at a reader outside the log."""
    where = f"{_KINDS.get(reader.kind, reader.kind)} {reader.name}"
    note = f" ({reader.note})" if reader.note else ""
    if offset >= reader.next:
        return LifeStep(where, f"not yet: it needs {number(reader.next)} next{note}", "new")
    if reader.kind == "archive":
        text = "archived; the name of the file is in the manifest of the archive"
        return LifeStep(where, text, "done")
    return LifeStep(where, f"done: it needs {number(reader.next)} next{note}", "done")


def _forms(call: PageCall, stream: str, offset: int) -> list[tuple[str, str]]:
    """Return how the same message is read elsewhere."""
    path = f"/v1/streams/{part(stream)}/messages?from={offset}&count=1"
    return [
        ("CLI", cli_words("stream", "read", stream, "--offset", offset, "--count", 1)),
        ("curl", shlex.join(["curl", f"{call.address}{path}"])),
        ("Python", f"hw.stream({stream!r}).read({offset}, 1)[0]"),
    ]
