"""Changes by admin scope are written to the stream ``hw.audit``, as those over HTTP are."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal

import msgspec

from headwater.errors import HeadwaterError
from headwater.serve.api.audit import AUDIT, AuditNote, cause_of
from headwater.serve.resp.commands import RespCommand, Words
from headwater.serve.resp.session import RespSession


async def audited(
    session: RespSession, command: RespCommand, words: Words, work: Awaitable[Any]
) -> Any:
    """Make a change and note it, before and after; if it cannot be noted, it is not made."""
    asked = [word.decode("utf-8", "replace") for word in words]
    stream = session.door.client.stream(AUDIT)
    who = "" if session.grant is None else session.grant.holder
    number = f"resp-{session.id}-{session.door.commands}"

    async def note(outcome: Literal["begun", "done", "failed"], **more: Any) -> None:
        made = AuditNote(
            outcome=outcome,
            who=who,
            request_id=number,
            what=command.name.lower(),
            method="RESP",
            path=asked[1],
            **more,
        )
        await stream.write(asked[1], msgspec.json.encode(made))

    async def seen() -> Any:
        assert command.look is not None
        try:
            return await command.look(session, words)
        except HeadwaterError:
            return None

    await note("begun", asked=asked, before=await seen())
    try:
        answer = await work
    except Exception as error:
        await note("failed", error=cause_of(error))
        raise
    await note("done", after=await seen(), answer=answer)
    return answer
