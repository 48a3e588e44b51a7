"""The audit: every change by admin scope is written to the stream ``hw.audit``, by every door.

A change is noted before it is made, with the object as it is then, and once more when it is done,
with the object as it is by then. Who is killed in between leaves the first note. If it cannot be
written, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from headwater.errors import HeadwaterError
from headwater.kernel.inputs import OwnName

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

T = TypeVar("T")

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


async def audited(
    hw: AsyncHeadwater,
    tag: str,
    facts: dict[str, str],
    asked: Any,
    look: Callable[[], Awaitable[Any]],
    work: Callable[[], Awaitable[T]],
    shown: Callable[[T], Any] = lambda answer: answer,
) -> T:
    """Make a change and note it, before and after; returns what ``work`` does.

    ``facts`` are those of all its notes, ``look`` shows the object, ``shown`` what was answered.
    """
    stream = hw.stream(AUDIT)

    async def note(outcome: Literal["begun", "done", "failed"], **more: Any) -> None:
        made = AuditNote(outcome=outcome, **facts, **more)
        await stream.write(tag, msgspec.json.encode(made))

    async def seen() -> Any:
        try:
            return await look()
        except HeadwaterError:
            return None  # it is not there

    await note("begun", asked=asked, before=await seen())
    try:
        answer = await work()
    except Exception as error:
        await note("failed", error=_cause(error))
        raise
    await note("done", after=await seen(), answer=shown(answer))
    return answer


def _cause(error: Exception) -> str:
    """Return what is noted of a failure: the type, and the words of this package's own errors.

    Drivers put statements and their parameters into the words of theirs.
    """
    kind = type(error)
    return (
        f"{kind.__name__}: {error}" if kind.__module__.startswith("headwater.") else kind.__name__
    )
