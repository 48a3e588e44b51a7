"""The audit: every change by admin scope is written to the stream ``hw.audit``.

A change is noted before it is made, with the object as it is then, and once more when it is done,
with the object as it is by then. Who is killed in between leaves the first note. If it cannot be
written, nothing is changed.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from headwater.errors import HeadwaterError
from headwater.kernel.inputs import OwnName
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Answered
from headwater.serve.http.messages import Reply, StreamedReply

AUDIT: Final = OwnName("hw.audit")


class AuditNote(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A note of the audit: who did what to which object, and how that was before or is after."""

    outcome: Literal["begun", "done", "failed"]
    who: str
    request_id: str
    what: str
    method: str
    path: str
    query: str = ""
    asked: Any = None
    before: Any = None
    after: Any = None
    answer: Any = None
    error: str | None = None


async def audited(call: ApiCall) -> Answered:
    """Make a change and note it; returns what the handler of the change does."""
    stream = call.hw.stream(AUDIT)
    tag = call.names[0] if call.names else ""

    def note(outcome: Literal["begun", "done", "failed"], **more: Any) -> bytes:
        return msgspec.json.encode(
            AuditNote(
                outcome=outcome,
                who=call.grant.holder,
                request_id=call.id,
                what=call.route.operation,
                method=call.request.method,
                path=call.request.path,
                query=call.request.query,
                **more,
            )
        )

    await stream.write(tag, note("begun", asked=call.body, before=await _seen(call)))
    try:
        answered = await call.route.run(call)
    except Exception as error:
        await stream.write(tag, note("failed", error=cause_of(error)))
        raise
    shown = None if isinstance(answered, Reply | StreamedReply) else answered
    await stream.write(tag, note("done", after=await _seen(call), answer=shown))
    return answered


def cause_of(error: Exception) -> str:
    """Return what is noted of a failure: the type, and the words of this package's own errors.

    Drivers put statements and their parameters into the words of theirs.
    """
    kind = type(error)
    return (
        f"{kind.__name__}: {error}" if kind.__module__.startswith("headwater.") else kind.__name__
    )


async def _seen(call: ApiCall) -> Any:
    """Return how the object of a change stands now; None when it is not there."""
    if call.route.look is None:
        return None
    try:
        return await call.route.look(call)
    except HeadwaterError:
        return None
