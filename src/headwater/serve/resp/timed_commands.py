"""Commands of timed jobs; a change is made under the name of the token's holder."""

from __future__ import annotations

from typing import Any, Final

from headwater.doors.catalogue import TIMED_JOB
from headwater.serve.resp.arguments import text_of
from headwater.serve.resp.commands import Words
from headwater.serve.resp.derived import commands_of, spelled_reply
from headwater.serve.resp.door import RespSession
from headwater.timed import operating


async def _look(session: RespSession, words: Words) -> Any:
    job = operating.info(text_of(words[1]))
    return spelled_reply(await session.door.client.store.run(job))


TIMED_COMMANDS: Final = commands_of(TIMED_JOB, _look)
