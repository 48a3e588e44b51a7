"""What is known of the servers of a store: memory, syncing, slow calls, the doctor's verdict."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from headwater.errors import HeadwaterError
from headwater.metrics.sweeps import StoreWatch
from headwater.store.doctor import DoctorReport, PastChecks, examine, past_checks
from headwater.store.presence import SeenProcess, all_processes

# What is this young is returned as it is.
_FRESH_S: Final = 10.0
# An examination is some hundred calls. What it says of lost messages changes with the fsync mode,
# which is looked at with the facts.
EXAMINED_S: Final = 600.0
_SEEN_S: Final = 5.0
_CHECKED_S: Final = 30.0
_FIELD: Final = re.compile(rb"^(\w+):(.*?)\r?$", re.MULTILINE)
_SLOW_CALLS: Final = "32"


class LongestCall(NamedTuple):
    """The longest of the slow calls that a server remembers."""

    ms: float
    command: str
    at_ms: int


class ServerFacts(NamedTuple):
    """What the servers of a store say of themselves: sums over all, and of fsync the weakest.

    ``most_memory`` is 0 where nothing limits it. ``fsync`` is "off", "no", "everysec" or "always";
    None, like ``longest``, where the server does not show it.
    """

    version: str
    memory: int
    most_memory: int
    replicas: int
    clients: int
    fsync: str | None
    longest: LongestCall | None


class StoreFacts:
    """Asks the servers of a store about themselves, at most every ten seconds for all who ask."""

    def __init__(self, watch: StoreWatch, store_url: str | None) -> None:
        self._watch = watch
        self._url = store_url
        self._servers: tuple[float, ServerFacts | None] = (-float("inf"), None)
        self._processes: tuple[float, list[SeenProcess]] = (-float("inf"), [])
        self._checks: tuple[float, PastChecks] = (-float("inf"), PastChecks(None, None))
        self._examined_at = -float("inf")
        self._report: DoctorReport | None = None
        self._examining: asyncio.Task[None] | None = None

    async def servers(self) -> ServerFacts | None:
        """Return what the servers say of themselves; None when they do not answer."""
        asked_at, facts = self._servers
        if self._watch.clock() - asked_at > _FRESH_S:
            try:
                facts = await self._ask()
            except (HeadwaterError, TimeoutError):
                facts = None
            if _promised(facts) != _promised(self._servers[1]):
                self._examined_at = -float("inf")
            self._servers = (self._watch.clock(), facts)
        return facts

    async def processes(self) -> list[SeenProcess]:
        """Return the processes that report themselves to the store."""
        asked_at, found = self._processes
        if self._watch.clock() - asked_at > _SEEN_S:
            found = await self._watch.hw.store.run(all_processes())
            self._processes = (self._watch.clock(), found)
        return found

    async def past_checks(self) -> PastChecks:
        """Return the last verify and the last scrub that are noted in the store."""
        asked_at, found = self._checks
        if self._watch.clock() - asked_at > _CHECKED_S:
            found = await self._watch.hw.store.run(past_checks())
            self._checks = (self._watch.clock(), found)
        return found

    def report(self) -> DoctorReport | None:
        """Return what the doctor found last; None until the first examination is over.

        Examines the store again beside that, when the last time is ten minutes ago, or the facts
        that it depends on have changed since.
        """
        if self._watch.clock() - self._examined_at > EXAMINED_S and self._examining is None:
            self._examining = asyncio.create_task(self._examine())
        return self._report

    async def close(self) -> None:
        """Wait for an examination that is under way."""
        if self._examining is not None:
            await asyncio.wait([self._examining])

    async def _examine(self) -> None:
        try:
            self._report = await asyncio.to_thread(examine, self._url)
        except HeadwaterError:
            self._report = None
        finally:
            self._examined_at = self._watch.clock()
            self._examining = None

    async def _ask(self) -> ServerFacts:
        told = [dict(_FIELD.findall(one)) for one in await self._watch.command("INFO")]

        def total(name: bytes) -> int:
            return sum(int(one.get(name, 0)) for one in told)

        versions = (one.get(b"valkey_version") or one[b"redis_version"] for one in told)
        return ServerFacts(
            version=", ".join(sorted({version.decode() for version in versions})),
            memory=total(b"used_memory"),
            most_memory=total(b"maxmemory"),
            replicas=total(b"connected_slaves"),
            clients=total(b"connected_clients"),
            fsync=await self._watch.fsync_mode(),
            longest=await self._longest(),
        )

    async def _longest(self) -> LongestCall | None:
        try:
            slow = await self._watch.command("SLOWLOG", "GET", _SLOW_CALLS)
        except HeadwaterError:
            return None  # a managed server does not show it
        return max(map(_slow_call, _flat(slow)), default=None)


def _promised(facts: ServerFacts | None) -> tuple[object, ...] | None:
    """Return the facts that decide whether messages can be lost."""
    return None if facts is None else (facts.version, facts.fsync, facts.replicas)


def _flat(replies: Iterable[list[list[object]]]) -> list[list[object]]:
    return [entry for reply in replies for entry in reply]


def _slow_call(entry: list[object]) -> LongestCall:
    _, seconds, microseconds, words, *_ = entry
    # For our own calls, the function; never the arguments, which may be a user's data.
    shown = [word.decode("utf-8", "replace") for word in words[:2]]  # type: ignore[index]
    name = " ".join(shown) if shown[0].upper().startswith("FCALL") else shown[0]
    return LongestCall(int(microseconds) / 1000, name, int(seconds) * 1000)  # type: ignore[call-overload]
