"""One message: its value, its headers, and its life from the outbox to every reader."""

from __future__ import annotations

import shlex
from typing import Final

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.api.traces import find_row, traced
from headwater.serve.console.actions.action import cli_words
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.letters import Place
from headwater.serve.console.links import consumer_link, group_link, query, stream_link
from headwater.serve.console.pages.stream import frame, opened
from headwater.serve.http.messages import Refused
from headwater.serve.http.targets import path_part
from headwater.views.traces import TraceStepView

_WORDS: Final = {"consumer": "SQL consumer", "query": "Spark query"}


async def show_message(call: PageCall) -> Context:
    """Show one message of a stream, and what became of it everywhere."""
    stream, given = call.names
    info = await opened(call)
    offset = _offset(given)
    trace, _, message = await traced(call.served, stream, offset)
    return (await frame(call, info, "Messages")) | {
        "offset": offset,
        "message": message,
        "row": trace.row,
        "life": [(one, _where(one), _link(stream, one)) for one in trace.steps],
        "hidden": trace.groups_left_out,
        "forms": _forms(call, stream, offset),
        "trace_forms": _trace_forms(call, stream, offset),
    }


async def show_row(call: PageCall) -> Context:
    """Show the message of a row of the outbox, or where else the row is."""
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
    row, served = _offset(call.name), call.served.database is not None
    found = await find_row(call.served, row) if served else None
    if found is not None and found.offset is not None:
        return {"see": f"{stream_link(found.stream)}/messages/{found.offset}"}
    return {"row": row, "found": found, "served": served}


def _offset(given: str) -> int:
    try:
        offset = int(given.replace(",", ""))
    except ValueError:
        offset = 0
    if not 1 <= offset < 2**53:
        raise InvalidInput(f"{given!r} is no offset; give a whole number from 1 on")
    return offset


def _where(step: TraceStepView) -> str:
    return f"{_WORDS.get(step.kind, step.kind)} {step.name}".strip()


def _link(stream: str, step: TraceStepView) -> str | None:
    if step.kind == "group":
        if step.state == "dead":
            return f"/dead?{query(place=Place(stream, step.name).key)}"
        return group_link(stream, step.name)
    if step.kind == "consumer":
        return consumer_link(step.name)
    return {"outbox": "/outbox", "batch": "/outbox", "query": "/spark"}.get(step.kind)


def _forms(call: PageCall, stream: str, offset: int) -> list[tuple[str, str]]:
    """Return how the same message is read elsewhere."""
    path = f"/v1/streams/{path_part(stream)}/messages?from={offset}&count=1"
    return [
        ("CLI", cli_words("stream", "read", stream, "--offset", offset, "--count", 1)),
        ("curl", shlex.join(["curl", f"{call.address}{path}"])),
        ("Python", f"hw.stream({stream!r}).read({offset}, 1)[0]"),
    ]


def _trace_forms(call: PageCall, stream: str, offset: int) -> list[tuple[str, str]]:
    """Return how the same life is shown elsewhere, and the lasting address of the page."""
    path = f"{path_part(stream)}/messages/{offset}"
    return [
        ("CLI", cli_words("stream", "trace", stream, offset)),
        ("curl", shlex.join(["curl", f"{call.address}/v1/streams/{path}/trace"])),
        ("Link", f"{call.address}/console/streams/{path}"),
    ]
