"""Actions on the groups of a stream."""

from __future__ import annotations

import time
from typing import Final

from headwater.doors.catalogue import GROUP
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import group_ruler
from headwater.serve.console.actions.action import Action, cli_words, given, offset_of
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link, stream_link
from headwater.serve.console.pages.readers import rate_of
from headwater.serve.console.render import age, counted, number, size
from headwater.serve.console.ruler import position_of
from headwater.serve.console.spelling import Bill, does
from headwater.serve.http.messages import path_part
from headwater.views.overview import live_members

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
async def remove(call: PageCall, stream: str, group: str) -> Bill:
    """Remove a group."""
    facts = await call.hw.stream(stream).group(group).info()
    said = [
        f"This deletes the group, with {number(facts.pending)} pending messages and "
        f"{number(facts.dead)} dead letters. Retention stops waiting for it.",
        "A member that reads later creates a new group, which starts at the first message.",
    ]
    return Bill(said, (facts.pending, facts.dead), then=stream_link(stream))
