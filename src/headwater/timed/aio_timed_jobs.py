"""The timed jobs of a store for asyncio: what an operator may ask and do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.timed import operating
from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import JobEvent
from headwater.whole_store.client_handles import member_name

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater


class AsyncTimedJobs:
    """The timed jobs of a store, as an operator sees them; see TimedJobs."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._run = hw.store.run
        self._by = member_name(hw.store.token())

    async def list(self) -> list[TimedJobInfo]:
        """Return how all jobs stand that were ever declared, by their names."""
        return await self._run(operating.list_infos())

    async def info(self, name: str) -> TimedJobInfo:
        """Return how a job stands; raises UnknownTimedJob."""
        return await self._run(operating.info(name))

    async def history(self, name: str, count: int = 100) -> tuple[JobEvent, ...]:
        """Return the newest events of a job, oldest first; raises UnknownTimedJob."""
        return await self._run(operating.history(name, count))

    async def pause(self, name: str) -> bool:
        """Have nothing of a job begun any more; returns whether it was not paused yet.

        Runs that have started finish. Raises UnknownTimedJob.
        """
        return await self._run(operating.pause(name, self._by))

    async def resume(self, name: str) -> bool:
        """Have a paused job run again; returns whether it was paused.

        What was due while it was paused is not run. Raises UnknownTimedJob.
        """
        return await self._run(operating.resume(name, self._by))

    async def run(self, name: str) -> None:
        """Have a job run now, by the next runner that has a free place; raises UnknownTimedJob.

        It is recorded as a run by hand, and also happens while the job is paused.
        """
        await self._run(operating.run_now(name, self._by))

    async def delete(self, name: str) -> bool:
        """Remove a job with its history; returns whether it was there.

        A runner that still has it declares it again.
        """
        return await self._run(operating.delete(name))
