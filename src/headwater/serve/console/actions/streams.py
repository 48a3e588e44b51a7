"""Actions on streams and their groups: write, evict, retain, delete, replay, seek, pause."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from headwater.doors.catalogue import GROUP, STREAM
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import Headers
from headwater.kernel.inputs import to_text
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import group_ruler, stream_profile
from headwater.log.keys import stream_key
from headwater.log.replaying import ReplayRequest
from headwater.log.retention import RetentionPreview, preview
from headwater.log.types import Retention, StreamInfo
from headwater.metrics.alarms import CONSUMER
from headwater.metrics.sweeps import RetentionForecast, forecast
from headwater.serve.console.actions.action import Action, cli_words, given, offset_of
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link, stream_link
from headwater.serve.console.pages.readers import rate_of
from headwater.serve.console.render import age, counted, number, policy, size
from headwater.serve.console.ruler import position_of
from headwater.serve.console.spelling import Bill, does, form_values
from headwater.serve.http.messages import path_part
from headwater.views.overview import groups_of, live_members


async def _forecast(
    call: PageCall, info: StreamInfo, due: RetentionPreview, **policy: Any
) -> RetentionForecast:
    """Return what becomes of messages that are due, by the groups that are not abandoned."""
    rows = await call.hw.store.run(groups_of([info]))
    groups = [row.group for row in rows if not row.group.abandoned]
    return forecast(info, due, groups, int(time.time() * 1000), **policy)


def _who(info: StreamInfo, name: str) -> str:
    """Say who needs messages of a stream: a group, or a reader outside the log."""
    if name in info.groups:
        return f"the group {name}"
    own = name.removeprefix(CONSUMER)
    return f"the reader {name}" if own == name else f"the SQL consumer {own}"


def _passed(info: StreamInfo, seen: RetentionForecast) -> list[str]:
    """Say how much of what each still needs an eviction would take from it."""
    return [
        f"T{_who(info, one.name)[1:]} has not read all of it: it misses up to "
        f"{counted(one.missed, 'message')}."
        for one in seen.passed
    ]


@does(STREAM, "evict")
async def evict(call: PageCall, stream: str) -> Bill:
    """Evict messages, with a preview of who would be passed and by how much."""
    up_to = offset_of(call, "up_to")
    info = await call.hw.stream(stream).info()
    end = min(up_to, info.last)
    due = RetentionPreview(info.first, info.last, end, more=False)
    seen = await _forecast(call, info, due, force=True)
    said = [f"This evicts {counted(seen.due, 'message')} for good."]
    said += _passed(info, seen) or ["No group or reader still needs them."]
    title = f"Evict {stream} up to {number(end)}"
    return Bill(said, (seen.due, len(seen.passed)), {"up_to": up_to}, title=title)


@does(STREAM, "retain")
async def retain(call: PageCall, stream: str) -> Bill:
    """Set how much is kept, with a preview of what goes at once and who holds that up."""
    asked, typed = form_values(call, STREAM.operation("retain"))
    keep = Retention(**{name: limit for name, limit in asked.items() if name != "force"})
    info = await call.hw.stream(stream).info()
    due = await call.hw.store.run(preview(stream_key(stream), keep))
    seen = await _forecast(call, info, due, keep=keep, force=bool(asked.get("force")))
    at_least = "at least " if seen.more else ""
    said = [f"From now on: {policy(keep)}. It is applied continuously."]
    if not seen.due:
        said.append("Nothing would be evicted now.")
    elif seen.held_by is None:
        said.append(
            f"This evicts {at_least}{counted(seen.due, 'message')} now, and {_passing(seen)}."
        )
    else:
        said.append(
            f"This evicts {at_least}{number(seen.evicted)} of {number(seen.due)} messages now: "
            f"{number(seen.due - seen.evicted)} are kept for {_who(info, seen.held_by)}, which "
            f"needs {number(seen.held_next)} next."
        )
    return Bill(
        said + _passed(info, seen),
        (seen.due, len(seen.passed)),
        asked,
        typed,
        () if asked.keys() - {"force"} else ("--forever",),
        title=f"Set the retention of {stream}",
        then=f"{stream_link(stream)}/settings",
        careful=seen.due > 0,
    )


def _passing(seen: RetentionForecast) -> str:
    if len(seen.passed) == 1:
        return "one group or reader misses some of them"
    many = f"{number(len(seen.passed))} groups and readers miss some of them"
    return many if seen.passed else "no group or reader still needs them"


@does(STREAM, "delete")
async def delete(call: PageCall, stream: str) -> Bill:
    """Delete a stream, with what goes with it."""
    info = await call.hw.stream(stream).info()
    groups, readers = len(info.groups), len(info.readers)
    said = [
        f"This deletes {counted(info.length, 'message')}, {size(info.bytes)}, for good, with "
        f"{counted(groups, 'group')} and {counted(readers, 'registered reader')}.",
        "A stream of the same name written later starts at offset 1.",
    ]
    return Bill(said, (info.length, groups, readers), then="/streams")


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


async def replay(call: PageCall) -> Action:
    """Copy a range into another stream, with a bill of what that writes and how long it takes."""
    stream = given(call, "stream")
    call.check(stream)
    asked = _asked(call, stream)
    call.check(asked.target)
    if not call.may(Scope.WRITE, asked.target):
        raise InvalidInput(f"a replay into {asked.target!r} needs the write scope for it")
    info = await call.hw.stream(stream).info()
    target = await call.hw.stream(asked.target).info()
    first, last = asked.first or info.first, min(asked.last or info.last, info.last)
    count = max(last - max(first, info.first) + 1, 0)
    each = info.bytes / info.length if info.length else 0
    bill = [
        f"This writes {counted(count, 'message')}, about {size(count * each)}, to {asked.target}, "
        + (f"which has {number(target.length)}." if target.exists else "which this creates.")
    ]
    if first < info.first:
        bill.append(
            f"{number(info.first - first)} messages of the range were evicted and are missing."
        )
    if asked.group:
        bill.append(
            f"The group {asked.group} of {asked.target} gets these messages and none before."
        )
    if target.groups and not asked.group:
        bill.append(f"Its groups get them: {', '.join(target.groups[:10])}.")
    bill.append(await _lasts(call, asked, first, last))
    bill.append(
        "It runs in this server, which records its progress. If this server stops, another one "
        "continues from there, and nothing is written twice."
    )
    fields = ("into", "group", "first", "last", "speed", "producer")
    body = {name: value for name in fields if (value := getattr(asked, name)) is not None}
    typed = body | ({"speed": f"{asked.speed:g}x"} if asked.speed else {})
    words = [word for name, value in typed.items() for word in (f"--{name}", value)]
    return Action(
        title=f"Replay {number(first)} – {number(last)} of {stream} into {asked.target}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{path_part(stream)}/replays",
        body=body,
        cli=cli_words("stream", "replay", stream, *words),
        python=f"hw.replay({stream!r}, {', '.join(f'{n}={one!r}' for n, one in body.items())})",
        back=f"{stream_link(stream)}/replay",
        counts=(count,),
        is_job=True,
    )


def _asked(call: PageCall, stream: str) -> ReplayRequest:
    """Return what a form asks for; raises InvalidInput."""
    speed = call.query.get("speed", "max")
    try:
        factor = None if speed == "max" else float(speed.removesuffix("x"))
    except ValueError:
        raise InvalidInput(f"{speed!r} is no speed; give 1, 10 or max") from None
    asked = ReplayRequest(
        stream,
        call.query.get("into", "").strip() or None,
        call.number("first"),
        call.number("last"),
        factor,
        call.query.get("group", "").strip() or None,
        call.query.get("producer", "").strip() or None,
    )
    asked.check()
    return asked


async def _lasts(call: PageCall, asked: ReplayRequest, first: int, last: int) -> str:
    """Say how long a replay takes, by the times that the nodes of its range have."""
    if asked.speed is None:
        return "It runs as fast as the store accepts it."
    profile = await call.hw.store.run(stream_profile(asked.source, first, last))
    times = [time_ms for _, time_ms in profile.points(first, last)]
    lasts_ms = (times[-1] - times[0]) / asked.speed if times else 0
    return f"At {asked.speed:g}x it takes about {age(lasts_ms)}."


async def stop_replay(call: PageCall) -> Action:
    """Stop a replay that runs."""
    stream, name = given(call, "stream"), given(call, "replay")
    call.check(stream)
    found = [
        one
        for one in await call.served.jobs.replays.known(call.grant, stream)
        if one.replay == name
    ]
    if not found:
        raise InvalidInput(f"there is no replay {name!r} of {stream!r}")
    return Action(
        title=f"Stop the replay of {stream} into {found[0].into}",
        scope=Scope.ADMIN,
        name=stream,
        bill=["What is written stays. You can continue it later from where it stopped."],
        method="DELETE",
        path=f"/v1/streams/{path_part(stream)}/replays/{path_part(name)}",
        body=None,
        cli=cli_words("job", "stop", name),
        python=f"hw.stop_job({name!r})",
        back=f"{stream_link(stream)}/replay",
    )


_RANGES: Final = 250


@does(GROUP, "seek")
async def seek(call: PageCall, stream: str, group: str) -> Bill:
    """Move a group to an offset, with a bill of what that hands out again or skips."""
    facts = await call.hw.stream(stream).group(group).info()
    to = await position_of(call, stream, given(call, "to"), facts.next)
    info = await call.hw.stream(stream).info()
    target = int({"first": info.first, "last": info.last + 1}.get(str(to), to))
    again = max(facts.next - max(target, info.first), 0)
    skipped = max(min(target, info.last + 1) - facts.next, 0)
    dropped, most = facts.pending, ""
    said = []
    if again:
        each = info.bytes / info.length if info.length else 0
        held, most = await _pending_in(call, stream, group, target, facts.next - 1)
        kept = f"; {most}{number(held)} of them are pending now and become new" if held else ""
        said.append(
            f"This delivers {counted(again, 'message')} again, about {size(again * each)}{kept}."
        )
        dropped = max(facts.pending - held, 0)
    if skipped:
        said.append(f"This skips {counted(skipped, 'message')}; the group will not get them.")
    if dropped:
        words = "at least " if most else ""
        said.append(
            f"It drops {words}{number(dropped)} pending messages before that offset: they count as "
            "done without being handled."
        )
    if not said:
        said.append("The group is already there; nothing changes.")
    left = max(info.last + 1 - target, 0)
    said.append(f"The group then has {counted(left, 'message')} to handle. Members keep working.")
    said.append(await _until_level(call, stream, group, left))
    title = f"Seek {group} of {stream} to {to if isinstance(to, str) else number(to)}"
    return Bill(said, (again, skipped), {"to": to}, title=title, pinned=(("to", str(to)),))


async def _pending_in(
    call: PageCall, stream: str, group: str, first: int, last: int
) -> tuple[int, str]:
    """Return how many messages of a part are pending, and "up to " where that is not exact."""
    handle = GroupHandle(StreamHandle(stream, set()), group, "console")
    drawn = await call.hw.store.run(group_ruler(handle, first, last, _RANGES))
    spans = [] if drawn is None else drawn.pending
    held = sum(min(one.last, last) - max(one.first, first) + 1 for one in spans)
    return held, "up to " if any(one.ranges > 1 for one in spans) else ""


async def _until_level(call: PageCall, stream: str, group: str, left: int) -> str:
    """Say how long a group takes for what lies before it, by how fast it was lately."""
    rate = await rate_of(call, stream, group)
    if not left:
        return "The group is then up to date."
    if rate is None:
        return "How long that takes is unknown: no history of the group's rate is recorded."
    if rate <= 0:
        return "How long that takes is unknown: the group handled nothing in the last 10 minutes."
    return (
        f"At its rate of the last 10 minutes, {number(round(rate, 1))}/s, that takes about "
        f"{age(left / rate * 1000)}, not counting new messages."
    )


@does(GROUP, "pause")
async def group_state(call: PageCall, stream: str, group: str) -> Bill:
    """Pause or resume a group."""
    facts = await call.hw.stream(stream).group(group).info()
    live = len(live_members(facts, now_ms=int(time.time() * 1000)))
    effect = (
        "Members get messages again, waiting ones at once."
        if facts.paused
        else "Members get no messages until it is resumed. They can still acknowledge what they "
        "have; messages that expire still become dead letters."
    )
    waits = (
        f"{number(facts.lag)} messages are new, {number(facts.pending)} pending; "
        f"{live} members have read in the last minute, {number(facts.waiting)} of them wait."
    )
    return Bill([effect, waits], verb="resume" if facts.paused else "pause")


async def settle_pending(call: PageCall) -> Action:
    """Skip pending messages, or return them to the group."""
    stream, group = given(call, "stream"), given(call, "group")
    call.check(stream)
    word = given(call, "action")
    if word not in ("skip", "return"):
        raise InvalidInput("action is skip or return")
    first, last = offset_of(call, "first"), offset_of(call, "last")
    if not 0 < first <= last:
        raise InvalidInput("first and last are offsets, the lower one first")
    held, most = await _pending_in(call, stream, group, first, last)
    span = f"{number(first)} – {number(last)}"
    skips = word == "skip"
    return Action(
        title=f"{word.title()} what is pending in {span} of {group} of {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=[
            f"{most}{number(held)} messages are pending there.".capitalize(),
            "They count as done without being handled: no member gets them, unless the group seeks "
            "back."
            if skips
            else "They are redelivered at once to the first member that reads; the attempt counts.",
            "A member that is working on one continues; its acknowledgement then has no effect.",
        ],
        method="POST",
        path=f"/v1/streams/{path_part(stream)}/groups/{path_part(group)}/pending",
        body={"action": word, "offsets": [{"first": first, "last": last}]},
        cli=cli_words("stream", "ack" if skips else "nack", stream, group, f"{first}-{last}"),
        python=f"hw.stream({stream!r}).group({group!r})."
        f"{'ack' if skips else 'nack'}(({first}, {last}))",
        back=group_link(stream, group),
        careful=skips,
        counts=(held,),
    )


@does(GROUP, "remove")
async def remove_group(call: PageCall, stream: str, group: str) -> Bill:
    """Remove a group."""
    facts = await call.hw.stream(stream).group(group).info()
    said = [
        f"This deletes the group, with {number(facts.pending)} pending messages and "
        f"{number(facts.dead)} dead letters. Retention stops waiting for it.",
        "A member that reads later creates a new group, which starts at the first message.",
    ]
    return Bill(said, (facts.pending, facts.dead), then=stream_link(stream))
