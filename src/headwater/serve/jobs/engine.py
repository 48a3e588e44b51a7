"""Runs the jobs of a server: begun by requests, noted in the store, taken over when a process ends.

A process has a job for ``LEASE_MS`` by the clock of the store, and extends that every second with a
note of how far it is. A job whose process is killed is taken by another process of the same store,
or by the next one that starts, and continues from its last note. A process that ends in order hands
its jobs over at once. So a step of a job may be done twice: what a kind of job does must do no
harm when it is repeated. A process that was silent, because it was suspended or cut off from the
store, asks whether it still has its job before it acts again: others may have stopped it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

import msgspec

from headwater.errors import HeadwaterError, StoreError
from headwater.kernel.failures import store_may_recover
from headwater.serve.http.messages import Refused
from headwater.store import presence
from headwater.store.call import Operation
from headwater.store.faults import Refusal
from headwater.store.presence import NewJob, NotedJob, TakenJob
from headwater.views.record import View

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

log = logging.getLogger("headwater.serve")

T = TypeVar("T")

LEASE_MS: Final = 10_000
# A call begins in the first half of the time for which a process has its job, and waits for a
# server that is down no longer than the second half.
_SURE_S: Final = LEASE_MS / 2000
_NOTE_S: Final = 1.0
# How often a process looks for jobs that no process has any more.
_LOOK_S: Final = 5.0
_MOST_RUNNING: Final = 16
# How long a process that ends waits until its jobs are noted as free.
_HAND_OVER_S: Final = 5.0


class JobTaken(Exception):
    """Another process has the job: this one ends its work on it, and notes nothing."""


class JobNote(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is; each kind adds what it needs to continue."""

    state: str
    error: str | None = None


Note = TypeVar("Note", bound=JobNote)
Shown = TypeVar("Shown", bound=View)


class HeldJob:
    """A job that this process has. ``note`` is how far it is: whoever works on it replaces it.

    ``asked_s`` is the monotonic time before which it had not been taken.
    """

    def __init__(
        self, hw: AsyncHeadwater, kind: AnyKind, taken: TakenJob, note: JobNote, asked_s: float
    ) -> None:
        self.id = taken.id
        self.kind = kind
        self.asked = taken.asked
        self.note: Any = note
        self.stop_asked = taken.stop
        self._hw = hw
        self._token = taken.token
        self._end = asyncio.Event()
        self._heard = (asked_s, taken.now_ms)
        if taken.stop:
            self._end.set()

    @property
    def ending(self) -> bool:
        """Whether the work is to end: somebody has stopped the job, or the process ends."""
        return self._end.is_set()

    @property
    def now_ms(self) -> float:
        """The time of the store."""
        heard, then_ms = self._heard
        return then_ms + (time.monotonic() - heard) * 1000

    @property
    def is_silent(self) -> bool:
        """Whether nothing could be noted for so long that another process may have the job."""
        return time.monotonic() - self._heard[0] > LEASE_MS / 1000

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have the job, nor for as long as a call takes."""
        return time.monotonic() - self._heard[0] < _SURE_S

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation of the store, as long as no other process has the job.

        Raises JobTaken before the first of its calls that comes too late.
        """
        return await self._hw.store.run(self._fenced(operation), _SURE_S)

    def end(self, *, stop: bool = False) -> None:
        """Have the work end soon: because the job is stopped, or because the process ends."""
        self.stop_asked = self.stop_asked or stop
        self._end.set()

    async def wait(self, seconds: float) -> None:
        """Wait, but not beyond the end of the work; others are served meanwhile."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), seconds)

    async def save(self, lease_ms: int | None = LEASE_MS) -> None:
        """Note how far the job is; 0 hands it over, None ends it. Raises JobTaken."""
        await self._hw.store.run(self._note(lease_ms), LEASE_MS / 1000)

    def _note(self, lease_ms: int | None) -> Operation[None]:
        sent = time.monotonic()
        note = msgspec.json.encode(self.note)
        reply = yield from presence.note_job(self.id, self._token, note, lease_ms)
        if not reply.taken:
            raise JobTaken
        self._heard = (sent, reply.now_ms)
        if reply.stop:
            self.end(stop=True)

    def _fenced(self, operation: Operation[T]) -> Operation[T]:
        try:
            request = operation.send(None)
            while True:
                if not self.is_sure:
                    yield from self._note(LEASE_MS)
                try:
                    reply = yield request
                except (Refusal, HeadwaterError) as error:
                    request = operation.throw(error)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result


class ServerJobs:
    """The jobs of a process, and what is known of those of others."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self.hw = hw
        self.kinds: dict[str, AnyKind] = {}
        self._me = secrets.token_hex(8)
        self._held: dict[str, tuple[HeldJob, asyncio.Task[None]]] = {}

    async def start(self, job: NewJob) -> bool:
        """Begin a job; False when it runs already. Raises Refused, 429, when there are many."""
        if len(self._held) >= _MOST_RUNNING:
            raise Refused(429, f"{_MOST_RUNNING} jobs run already; wait for the end of one")
        if job.id in self._held:
            return False
        by, asked_s = f"{self._me}.{secrets.token_hex(4)}", time.monotonic()
        taken = await self.hw.store.run(presence.begin_job(job, by, LEASE_MS))
        if taken is not None:
            self._hold(taken, asked_s)
        return taken is not None

    async def stop(self, job: str) -> None:
        """Stop a job, in whichever process it is; waits for its end when it is in this one."""
        await self.hw.store.run(presence.stop_job(job))
        if job in self._held:
            held, task = self._held[job]
            held.end(stop=True)
            await asyncio.wait([task])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take jobs that no process has any more, as long as the block runs; then hand all over."""
        task = asyncio.create_task(self._take_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self._hand_over()

    async def _take_on(self) -> None:
        while True:
            try:
                while len(self._held) < _MOST_RUNNING and await self._take():
                    pass
            except HeadwaterError as error:
                log.warning("a job could not be taken over: %s", error)
            await asyncio.sleep(_LOOK_S)

    async def _take(self) -> bool:
        by, asked_s = f"{self._me}.{secrets.token_hex(4)}", time.monotonic()
        kinds = tuple(self.kinds)
        taken = await self.hw.store.run(presence.take_job(kinds, by, LEASE_MS))
        if taken is None:
            return False
        if taken.id in self._held:
            # This process was silent for too long; its own task ends, as its token is the old one.
            self._held[taken.id][0].end()
            await asyncio.wait([self._held[taken.id][1]])
        try:
            self._hold(taken, asked_s)
        except ValueError as error:
            # A note of another release, whose processes can continue with it; others come after it.
            log.warning("the job %s could not be taken over: %s", taken.id, error)
        else:
            log.info("the job %s (%s) continues in this process", taken.id, taken.kind)
        return True

    def _hold(self, taken: TakenJob, asked_s: float) -> None:
        kind = self.kinds[taken.kind]
        job = HeldJob(self.hw, kind, taken, kind.read_note(taken.note), asked_s)
        task = asyncio.create_task(self._drive(job))
        self._held[job.id] = (job, task)
        task.add_done_callback(lambda done: self._over(job.id, done))

    def _over(self, job: str, task: asyncio.Task[None]) -> None:
        del self._held[job]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the job %s is left to whoever takes it next: %s", job, error)

    async def _drive(self, job: HeldJob) -> None:
        work = asyncio.create_task(job.kind.run(job))
        try:
            while not (await asyncio.wait([work], timeout=_NOTE_S))[0]:
                try:
                    await job.save()
                except StoreError:
                    if job.is_silent:
                        raise
            complete = work.result()
        except JobTaken:
            return
        except StoreError as error:
            if store_may_recover(error):
                raise
            job.note = _failed(job.note, error)
        except HeadwaterError as error:
            job.note = _failed(job.note, error)
        except Exception as error:
            log.exception("a job failed because of an error in the server")
            job.note = _failed(job.note, error)
        else:
            if not complete and not job.stop_asked:
                with suppress(JobTaken):
                    await job.save(0)
                return
            job.note = msgspec.structs.replace(job.note, state="done" if complete else "stopped")
        finally:
            work.cancel()
            await asyncio.wait([work])
        with suppress(JobTaken):
            await job.save(None)

    async def _hand_over(self) -> None:
        tasks = [task for _, task in self._held.values()]
        for job, _ in self._held.values():
            job.end()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_HAND_OVER_S)
            for task in late:
                # The store does not answer; the lease of the job ends by itself.
                task.cancel()
            await asyncio.wait(tasks)


class JobKind(ABC, Generic[Note, Shown]):
    """One kind of job: what its notes are, how it is shown, and what it does.

    ``view`` is written when a job begins; later, fields of the note replace those of the same name.
    """

    name: ClassVar[str]
    note: type[Note]
    view: type[Shown]

    def __init__(self, jobs: ServerJobs) -> None:
        self.hw = jobs.hw
        self._jobs = jobs
        jobs.kinds[self.name] = self

    @abstractmethod
    async def run(self, job: HeldJob) -> bool:
        """Do the work from ``job.note`` on, and keep that up to date; returns whether all is done.

        Ends early once ``job.ending``. Raises HeadwaterError, by which the job has failed, unless
        the store may recover from it.
        """

    def read_note(self, note: bytes) -> Note:
        """Return a note that a process has written; raises ValueError."""
        return msgspec.json.decode(note, type=self.note)

    async def begin(self, job: str, view: Shown, asked: object, note: Note) -> bool:
        """Begin a job; ``asked`` is what its process, and each that takes it over, is given.

        Returns False when it runs already. Raises Refused, 429, when there are many.
        """
        asked_for, noted = msgspec.json.encode(asked), msgspec.json.encode(note)
        return await self._jobs.start(NewJob(job, self.name, view.to_json(), asked_for, noted))

    async def jobs(self) -> list[Shown]:
        """Return what is known of the jobs: those under way, then the newest first.

        One of another release, which this one cannot read, is left out.
        """
        views = []
        for job in await self.hw.store.run(presence.list_jobs(self.name)):
            with suppress(ValueError):
                views.append(self._shown(job))
        return views

    async def stop(self, job: str) -> None:
        """Stop a job, in whichever process it is."""
        await self._jobs.stop(job)

    def _shown(self, job: NotedJob) -> Shown:
        note = self.read_note(job.note)
        facts = {
            field: fact
            for field, fact in msgspec.structs.asdict(note).items()
            if field in self.view.__struct_fields__
        }
        facts |= {"state": job.shown_state(note.state), "noted_ms": job.noted_ms}
        return msgspec.structs.replace(self.view.from_json(job.head), **facts)


AnyKind: TypeAlias = "JobKind[Any, Any]"


def _failed(note: Any, error: BaseException) -> Any:
    why = f"{type(error).__name__}: {error}"
    return msgspec.structs.replace(note, state="failed", error=why)
