"""Replays of streams by a task of the server: begun by a request, and noted in the store.

A replay is noted in the stream ``hw.replays`` when it begins, is asked to stop and ends, and in
``hw.replays.running`` every second in between: whichever process is asked knows of it, and may
stop it. It does not outlive its server: one that ends notes its replays as stopped, and those of
one that is killed are shown as lost after half a minute. Either goes on where it was by the same
request: the target knows how far it is, so that nothing is written twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import HeadwaterError, UnknownStream
from headwater.log.replaying import Replayed, ReplayRequest, default_producer
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.fields import Offset
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.views.record import View

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

log = logging.getLogger("headwater.serve")

REPLAYS: Final = "hw.replays"
RUNNING: Final = "hw.replays.running"
GONE_MS: Final = 30_000
_NOTE_S: Final = 1.0
_KEPT: Final = {REPLAYS: 300, RUNNING: 100}
_MOST_RUNNING: Final = 8

State = Literal["running", "stopping", "done", "stopped", "failed", "lost"]


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which offsets go where: into a stream, or to a sandbox group of ``into`` or of its own.

    ``speed`` is 1 for as it was, 10 for ten times that, null for as fast as can be. The same
    producer goes on where it was; without one it is that of the range and speed.
    """

    into: str | None = None
    group: str | None = None
    first: Offset | None = None
    last: Offset | None = None
    speed: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None
    producer: str | None = None

    def asked(self, source: str) -> ReplayRequest:
        """Return what is replayed; raises InvalidInput."""
        words = (self.into, self.first, self.last, self.speed, self.group, self.producer)
        asked = ReplayRequest(source, *words)
        asked.check()
        return asked


class ReplayView(View, frozen=True, kw_only=True):
    """A replay that a server runs or has run: everything below ``next`` is in ``into``.

    ``written`` counts what this run has copied, ``missed`` what was evicted before it could be.
    """

    replay: str
    state: State
    who: str
    source: str
    into: str
    group: str | None
    first: int
    last: int
    next: int
    written: int
    missed: int
    speed: float | None
    producer: str | None
    error: str | None = None
    noted_ms: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state not in ("running", "stopping")


class ReplaysView(View, frozen=True, kw_only=True):
    """Replays of a stream, the newest first."""

    replays: list[ReplayView]


class Replays:
    """The replays of a process, and what is known of those of others."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._hw = hw
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping: set[str] = set()

    async def known(self, source: str) -> list[ReplayView]:
        """Return what is known of the replays of a stream, the newest first."""
        found: dict[str, ReplayView] = {}
        for note in await self._notes(REPLAYS):
            if note.source == source:
                found.pop(note.replay, None)
                found[note.replay] = note
        for note in await self._notes(RUNNING):
            known = found.get(note.replay)
            if known is not None and not known.over and note.noted_ms >= known.noted_ms:
                found[note.replay] = msgspec.structs.replace(note, state=known.state)
        now_ms = time.time() * 1000
        return [
            msgspec.structs.replace(note, state="lost")
            if not note.over and now_ms - note.noted_ms > GONE_MS
            else note
            for note in reversed(found.values())
        ]

    async def _notes(self, name: str) -> list[ReplayView]:
        stream = self._hw.stream(name)
        info = await stream.info()
        first = max(info.last - _KEPT[name] + 1, info.first)
        found = await stream.read(first, _KEPT[name]) if info.length else []
        notes = []
        for one in found:
            # Somebody else may have written to the stream, too.
            with contextlib.suppress(ValueError):
                if one is not None:
                    note = ReplayView.from_json(one.value)
                    notes.append(msgspec.structs.replace(note, noted_ms=one.time_ms))
        return notes

    async def start(self, who: str, asked: ReplayRequest) -> ReplayView:
        """Begin a replay, or go on with it; raises Refused, 409, for one that runs already."""
        if len(self._tasks) >= _MOST_RUNNING:
            raise Refused(429, f"{_MOST_RUNNING} replays run already; wait for the end of one")
        info = await self._hw.stream(asked.source).info()
        if not info.exists:
            raise UnknownStream(asked.source)
        if asked.producer is None:
            asked = asked._replace(producer=default_producer(asked, info.created_ms))
        words = (asked.source, asked.target, asked.producer)
        name = sha256(repr(words).encode()).hexdigest()[:12]
        running = [one for one in await self.known(asked.source) if one.replay == name]
        if name in self._tasks or (running and not running[0].over):
            raise Refused(409, "this replay runs already; stop it first, or wait for its end")
        note = ReplayView(
            replay=name,
            state="running",
            who=who,
            source=asked.source,
            into=asked.target,
            group=asked.group,
            first=asked.first or 0,
            last=asked.last or 0,
            next=asked.first or 0,
            written=0,
            missed=0,
            speed=asked.speed,
            producer=asked.producer,
        )
        since = await self._note(note)
        task = asyncio.create_task(self._run(note, asked, since))
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._over(name, done))
        return note

    def _over(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        self._stopping.discard(name)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the end of a replay could not be noted", exc_info=error)

    async def _run(self, note: ReplayView, asked: ReplayRequest, since: int) -> None:
        newest: list[Replayed] = []
        replay = asyncio.create_task(
            self._hw.replay(
                *asked[:2],
                first=asked.first,
                last=asked.last,
                speed=asked.speed,
                group=asked.group,
                producer=asked.producer,
                progress=lambda now: newest.__setitem__(slice(None), [now]),
                stop=lambda: note.replay in self._stopping,
            )
        )
        while not (await asyncio.wait([replay], timeout=_NOTE_S))[0]:
            # A store that is away ends the replay itself, whose error is noted.
            with contextlib.suppress(HeadwaterError):
                if newest:
                    await self._note(_as_far(note, newest[0], "running"), RUNNING)
                await self._look_for_stop(note.replay, since)
        error = replay.exception()
        if error is None:
            done = replay.result()
            await self._note(_as_far(note, done, "done" if done.complete else "stopped"))
            return
        if not isinstance(error, HeadwaterError):
            log.error("a replay failed by a fault of the server", exc_info=error)
        ended = _as_far(note, newest[0], "failed") if newest else note
        why = f"{type(error).__name__}: {error}"
        await self._note(msgspec.structs.replace(ended, state="failed", error=why))

    async def _look_for_stop(self, name: str, since: int) -> None:
        """See whether another process has been asked to stop a replay of this one."""
        for message in (await self._hw.stream(REPLAYS).read_from(since + 1, 100)).messages:
            if message.tag == f"stop {name}":
                self._stopping.add(name)

    async def stop(self, note: ReplayView) -> None:
        """Stop a replay, in whichever process it is."""
        if note.replay in self._tasks:
            self._stopping.add(note.replay)
            await asyncio.wait([self._tasks[note.replay]])
        elif not note.over:
            asked = msgspec.structs.replace(note, state="stopping")
            await self._note(asked, tag=f"stop {note.replay}")

    async def _note(self, note: ReplayView, stream: str = REPLAYS, tag: str = "") -> int:
        written = self._hw.stream(stream).write(
            tag or note.replay, note.to_json(), backlog=_KEPT[stream]
        )
        return await written

    async def close(self) -> None:
        """Stop all replays of this process, and note how far they are."""
        self._stopping.update(self._tasks)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


def _as_far(note: ReplayView, now: Replayed, state: State) -> ReplayView:
    return msgspec.structs.replace(
        note,
        state=state,
        first=now.first,
        last=now.last,
        next=now.next,
        written=now.written,
        missed=now.missed,
    )


async def list_replays(call: ApiCall) -> ReplaysView:
    """Show the replays of a stream, as far as they are, the newest first."""
    return ReplaysView(replays=await call.served.replays.known(call.name))


async def start_replay(call: ApiCall) -> ReplayView:
    """Copy a range of a stream into another one, or for a sandbox group, at a speed.

    It runs beside all requests and is shown by GET. The same request again goes on with one that
    was stopped or lost, and writes nothing twice. A server that ends stops it. Needs the write
    scope for the stream that is written.
    """
    asked = call.body.asked(call.name)
    call.require(Scope.WRITE, asked.target)
    return await call.served.replays.start(call.grant.holder, asked)


async def stop_replay(call: ApiCall) -> ReplaysView:
    """Stop a replay; what it has copied stays."""
    replays = call.served.replays
    found = [one for one in await replays.known(call.name) if one.replay == call.names[1]]
    if not found:
        raise Refused(404, "there is no such replay; GET lists those of the stream")
    await replays.stop(found[0])
    return await list_replays(call)


_PATH: Final = "/v1/streams/{stream}/replays"
REPLAY_ROUTES: Final = (
    Route("GET", _PATH, list_replays, Scope.READ, answer=ReplaysView),
    Route(
        "POST",
        _PATH,
        start_replay,
        Scope.ADMIN,
        body=ReplayBody,
        answer=ReplayView,
        status=202,
        look=list_replays,
    ),
    Route(
        "DELETE",
        f"{_PATH}/{{replay}}",
        stop_replay,
        Scope.ADMIN,
        answer=ReplaysView,
        look=list_replays,
    ),
)
