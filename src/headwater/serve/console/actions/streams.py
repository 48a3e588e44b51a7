"""Actions on streams."""

from __future__ import annotations

from headwater.errors import InvalidInput
from headwater.serve.console.actions.action import Action, cli_words, given, place_of
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import part, stream_link
from headwater.serve.console.render import number
from headwater.serve.tokens import Scope


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
    bill = [f"This evicts {number(max(end - info.first + 1, 0))} messages for good."]
    for name in info.groups:
        facts = await handle.group(name).info()
        passed = max(end + 1 - max(facts.ack_offset, info.first), 0)
        if passed:
            bill.append(f"The group {name} is passed: up to {number(passed)} messages are missed.")
    for name, needed in info.readers.items():
        passed = max(end + 1 - max(needed, info.first), 0)
        if passed:
            bill.append(f"The reader {name} is passed by {number(passed)} messages.")
    if len(bill) == 1:
        bill.append("Nobody is passed: every group and reader is further.")
    return Action(
        title=f"Evict {stream} up to {number(end)}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{part(stream)}/evict",
        body={"up_to": up_to},
        cli=cli_words("stream", "evict", stream, up_to),
        python=f"hw.stream({stream!r}).evict({up_to})",
        back=stream_link(stream),
        careful=True,
    )
