"""Actions on the groups of a stream."""

from __future__ import annotations

from headwater.log.types import GroupInfo
from headwater.serve.console.actions.action import Action, cli_words, given, place_of
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link, part, stream_link
from headwater.serve.console.render import number, size
from headwater.serve.tokens import Scope


async def _group(call: PageCall) -> tuple[str, str, GroupInfo]:
    stream, group = given(call, "stream"), given(call, "group")
    call.check(stream)
    return stream, group, await call.hw.stream(stream).group(group).info()


async def seek(call: PageCall) -> Action:
    """Move a group to an offset, with a bill of what that hands out again or skips."""
    stream, group, facts = await _group(call)
    to = place_of(given(call, "to"))
    info = await call.hw.stream(stream).info()
    target = {"first": info.first, "last": info.last + 1}.get(to, to) if isinstance(to, str) else to
    target = int(target)
    again = max(facts.next - max(target, info.first), 0)
    skipped = max(min(target, info.last + 1) - facts.next, 0)
    bill = []
    if again:
        each = info.bytes / info.length if info.length else 0
        bill.append(
            f"This hands out {number(again)} messages again, about {size(again * each)}, of which "
            f"{number(facts.pending)} are pending now and become new."
        )
    if skipped:
        bill.append(f"This skips {number(skipped)} messages, which the group will not get.")
    if facts.pending and not again:
        bill.append(f"{number(facts.pending)} pending messages are forgotten.")
    if not bill:
        bill.append("The group stands there already; nothing changes.")
    left = max(info.last + 1 - target, 0)
    bill.append(f"{number(left)} messages are then before it. Members keep working.")
    return Action(
        title=f"Seek {group} of {stream} to {to if isinstance(to, str) else number(to)}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{part(stream)}/groups/{part(group)}/seek",
        body={"to": to},
        cli=cli_words("stream", "seek", stream, group, to),
        python=f"hw.stream({stream!r}).group({group!r}).seek({to!r})",
        back=group_link(stream, group),
    )


async def remove(call: PageCall) -> Action:
    """Remove a group."""
    stream, group, facts = await _group(call)
    return Action(
        title=f"Remove {group} of {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=[
            f"The group is gone, with {number(facts.pending)} pending messages and "
            f"{number(facts.dead)} dead letters. Retention no longer waits for it.",
            "A member that reads later makes a new group, which begins at the first message.",
        ],
        method="DELETE",
        path=f"/v1/streams/{part(stream)}/groups/{part(group)}",
        body=None,
        cli=cli_words("stream", "remove-group", stream, group),
        python=f"hw.stream({stream!r}).group({group!r}).remove()",
        back=stream_link(stream),
        careful=True,
    )
