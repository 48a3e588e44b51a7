"""Actions on streams."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import Headers
from headwater.kernel.inputs import parse_size, parse_span, to_text
from headwater.log.keys import stream_key
from headwater.log.retention import preview
from headwater.log.types import Retention, StreamInfo
from headwater.metrics.alarms import CONSUMER
from headwater.serve.console.actions.action import Action, cli_words, given, place_of
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import stream_link
from headwater.serve.console.render import counted, number, policy, size
from headwater.serve.fields import MAX_DIGITS
from headwater.serve.http.messages import path_part
from headwater.views.overview import groups_of


def _reader(name: str) -> str:
    """Say who a reader outside the log is."""
    own = name.removeprefix(CONSUMER)
    return f"The reader {name}" if own == name else f"The SQL consumer {own}"


class _Need(NamedTuple):
    """The first offset that a group or reader still needs, and since when it was silent."""

    who: str
    offset: int
    idle_ms: int = 0

    def passed_by(self, end: int, first: int) -> str:
        """Say how much of what it needs an eviction up to an offset would take from it."""
        missed = end + 1 - max(self.offset, first)
        most = counted(missed, "message")
        return f"{self.who} has not read all of it: it misses up to {most}."


async def _needs(call: PageCall, info: StreamInfo) -> list[_Need]:
    """Return who still needs messages of a stream, the furthest behind first."""
    now_ms = int(time.time() * 1000)
    needs = [
        _Need(f"The group {row.group.name}", row.group.ack_offset, now_ms - row.group.seen_ms)
        for row in await call.hw.store.run(groups_of([info]))
        if not row.group.abandoned
    ]
    needs += [_Need(_reader(name), needed) for name, needed in info.readers.items()]
    return sorted(needs, key=lambda need: need.offset)


async def evict(call: PageCall) -> Action:
    """Evict messages, with a preview of who would be passed and by how much."""
    stream = given(call, "stream")
    call.check(stream)
    up_to = place_of(given(call, "up_to"))
    if isinstance(up_to, str):
        raise InvalidInput("up_to is an offset")
    handle = call.hw.stream(stream)
    info = await handle.info()
    end = min(up_to, info.last)
    bill = [f"This evicts {counted(max(end - info.first + 1, 0), 'message')} for good."]
    passed = [need for need in await _needs(call, info) if need.offset <= end]
    bill += [need.passed_by(end, info.first) for need in passed]
    if not passed:
        bill.append("No group or reader still needs them.")
    return Action(
        title=f"Evict {stream} up to {number(end)}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{path_part(stream)}/evict",
        body={"up_to": up_to},
        cli=cli_words("stream", "evict", stream, up_to, "--yes"),
        python=f"hw.stream({stream!r}).evict({up_to})",
        back=stream_link(stream),
        careful=True,
        counts=(max(end - info.first + 1, 0), len(passed)),
    )


async def retain(call: PageCall) -> Action:
    """Set how much is kept, with a preview of what goes at once and who holds that up."""
    stream = given(call, "stream")
    call.check(stream)
    keep = _policy(call)
    force = call.query.get("force") == "1"
    info = await call.hw.stream(stream).info()
    seen = await call.hw.store.run(preview(stream_key(stream), keep))
    wanted = max(seen.limit - seen.first + 1, 0)
    at_least = "at least " if seen.more else ""
    bill = [f"From now on: {policy(keep)}. It is applied continuously."]
    passed = [need for need in await _needs(call, info) if need.offset <= seen.limit]
    waited = [need for need in passed if not (keep.max_idle_ms and need.idle_ms > keep.max_idle_ms)]
    if not wanted:
        bill.append("Nothing would be evicted now.")
    elif force or not waited:
        bill.append(
            f"This evicts {at_least}{counted(wanted, 'message')} now, and {_passing(passed)}."
        )
        bill += [need.passed_by(seen.limit, info.first) for need in passed]
    else:
        now = max(waited[0].offset - info.first, 0)
        held = seen.limit + 1 - max(waited[0].offset, info.first)
        bill.append(
            f"This evicts {at_least}{number(now)} of {number(wanted)} messages now: "
            f"{number(held)} are kept for {waited[0].who[0].lower()}{waited[0].who[1:]}, which "
            f"needs {number(waited[0].offset)} next."
        )
    spelled = {
        "max_count": keep.max_count,
        "max_age_ms": keep.max_age_ms,
        "max_bytes": keep.max_bytes,
        "max_idle_ms": keep.max_idle_ms,
    }
    body = {name: limit for name, limit in spelled.items() if limit is not None}
    words = [
        word
        for name in ("max_count", "max_age", "max_bytes", "max_idle")
        if call.query.get(name)
        for word in (f"--{name.replace('_', '-')}", call.query[name].replace(",", "").strip())
    ] or ["--forever"]
    options = ", ".join(f"{name}={limit}" for name, limit in body.items())
    return Action(
        title=f"Set the retention of {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="PUT",
        path=f"/v1/streams/{path_part(stream)}/retention",
        body=body | ({"force": True} if force else {}),
        cli=cli_words("stream", "retain", stream, *words, *(["--force"] if force else [])),
        python=f"hw.stream({stream!r}).retain({options}{', force=True' if force else ''})",
        back=f"{stream_link(stream)}/settings",
        careful=wanted > 0,
        counts=(wanted, len(passed)),
    )


def _passing(passed: list[_Need]) -> str:
    if len(passed) == 1:
        return "one group or reader misses some of them"
    many = f"{number(len(passed))} groups and readers miss some of them"
    return many if passed else "no group or reader still needs them"


def _policy(call: PageCall) -> Retention:
    """Return the limits of a form; raises InvalidInput."""

    def limit(name: str, read: Any) -> int | None:
        text = call.query.get(name, "").replace(",", "").strip()
        return read(text) if text else None

    def count(text: str) -> int:
        if not text.isdecimal() or len(text) > MAX_DIGITS:
            raise InvalidInput(f"{text!r} is no number of messages")
        return int(text)

    return Retention(
        max_count=limit("max_count", count),
        max_age_ms=limit("max_age", parse_span),
        max_bytes=limit("max_bytes", parse_size),
        max_idle_ms=limit("max_idle", parse_span),
    )


async def delete(call: PageCall) -> Action:
    """Delete a stream, with what goes with it."""
    stream = given(call, "stream")
    call.check(stream)
    info = await call.hw.stream(stream).info()
    groups, readers = len(info.groups), len(info.readers)
    return Action(
        title=f"Delete {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=[
            f"This deletes {counted(info.length, 'message')}, {size(info.bytes)}, for good, with "
            f"{counted(groups, 'group')} and {counted(readers, 'registered reader')}.",
            "A stream of the same name written later starts at offset 1.",
        ],
        method="DELETE",
        path=f"/v1/streams/{path_part(stream)}",
        body=None,
        cli=cli_words("stream", "delete", stream, "--yes"),
        python=f"hw.stream({stream!r}).delete()",
        back="/streams",
        careful=True,
        counts=(info.length, groups, readers),
    )


async def write(call: PageCall) -> Action:
    """Write a message as it was typed: text, JSON or hex, with headers."""
    stream = given(call, "stream")
    call.check(stream)
    tag, kind = call.query.get("tag", ""), call.query.get("kind", "text")
    value = _typed(call.query.get("value", ""), kind)
    headers = _typed_headers(call.query.get("headers", ""))
    text, encoding = to_text(value)
    body: dict[str, Any] = {"tag": tag, "value": text}
    body |= {"encoding": encoding} if encoding else {}
    body |= {"headers": headers} if headers else {}
    words = [word for name, one in headers.items() for word in ("--header", f"{name}={one}")]
    spelled = ["--base64"] if encoding else []
    more = f", headers={headers!r}" if headers else ""
    return Action(
        title=f"Write to {stream}",
        scope=Scope.WRITE,
        name=stream,
        bill=[
            f"This appends one message with the tag {tag!r}: {counted(len(value), 'byte')} of "
            f"{kind}, {counted(len(headers), 'header')}. Waiting groups get it at once."
        ],
        method="POST",
        path=f"/v1/streams/{path_part(stream)}/messages",
        body=body,
        cli=cli_words("stream", "write", stream, *spelled, *words, "--", tag, text),
        python=f"hw.stream({stream!r}).write({tag!r}, {value if encoding else text!r}{more})",
        back=f"{stream_link(stream)}?at=last",
    )


def _typed(text: str, kind: str) -> bytes:
    """Return the bytes of a value that was typed; raises InvalidInput."""
    if kind == "hex":
        try:
            return bytes.fromhex(text.removeprefix("0x"))
        except ValueError as error:
            raise InvalidInput(f"the value is not hex: {error}") from None
    # A browser sends the ends of lines as CR LF.
    value = text.replace("\r\n", "\n").encode("utf-8", "surrogatepass")
    if kind == "json":
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(f"the value is not JSON: {error}") from None
    return value


def _typed_headers(text: str) -> dict[str, str]:
    """Return headers out of lines like ``name: value``; raises InvalidInput."""
    headers = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise InvalidInput(f"{line!r} is no header; write name: value")
        headers[name.strip()] = value.strip()
    Headers(headers)  # raises InvalidInput
    return headers
