"""The seam between an application and what it runs: a part, what parts share, a part that runs.

A part is a declaration: its name, what it needs, how it is checked, and how its work is opened. The
work is what runs until it is asked to stop; it is opened again each time the part is started.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.failures import delay_s
from headwater.kernel.inputs import check_int, check_name
from headwater.kernel.packaging import extra_needed
from headwater.kernel.profiles import VARIABLES, load, store_of

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from headwater.aio_client import AsyncHeadwater
    from headwater.client import Headwater


@dataclass(frozen=True, slots=True)
class Places:
    """Where an application finds its store and its database, as it was told.

    ``db`` is a URL or an engine of SQLAlchemy. What is None comes from the profile, if one is
    named, and else from the environment.
    """

    store: str | None = None
    db: Any = None
    profile: str | None = None

    def store_url(self) -> str | None:
        """Return the URL of the store; None for what ``connect`` uses without one."""
        return store_of(self.store, self.profile if self.store is None else None)

    def database(self) -> Any:
        """Return the URL of the database, or its engine; raises InvalidInput when there is none."""
        import os

        found = self.db
        if found is None and self.profile is not None:
            profile = load(self.profile)
            found = profile and profile.values.get(VARIABLES["db"])
        found = found or os.environ.get(VARIABLES["db"])
        if found is None:
            raise InvalidInput(f"no database is named; give App(db=URL), or set ${VARIABLES['db']}")
        return found


class SharedFile(NamedTuple):
    """Where a process counts: its number, of so many, in a file that all of them map; -1: none."""

    number: int = 0
    processes: int = 1
    file: int = -1


class Resources:
    """The clients and engines of one process; safe to share between threads.

    Each is opened with its first use, and closed with the process.
    """

    def __init__(
        self, places: Places, *, wait_ms: int | None = None, shared: SharedFile | None = None
    ) -> None:
        self.shared = shared or SharedFile()
        self._places = places
        self._wait_ms = wait_ms
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._hw: Headwater | None = None
        self._engine: Engine | None = None
        self._async_hw: AsyncHeadwater | None = None
        self._async_engine: AsyncEngine | None = None
        self._own_async_engine = False
        # Tasks that begin together share one client.
        self._connecting = asyncio.Lock()

    @property
    def hw(self) -> Headwater:
        """The client of the store; connects with its first use, and raises what connect raises."""
        from headwater.client import connect

        with self._lock:
            if self._hw is None:
                hw = connect(self._places.store_url(), wait_ms=self._wait_ms)
                self._hw = self._opened.enter_context(hw)
            return self._hw

    @property
    def open_hw(self) -> Headwater | None:
        """The client of the store if somebody has used it, and it is not closed."""
        return self._hw

    @property
    def open_async_hw(self) -> AsyncHeadwater | None:
        """The client of the event loop if it is connected."""
        return self._async_hw

    @property
    def engine(self) -> Engine:
        """The engine of the database; raises InvalidInput, DatabaseUnreachable, ExtraMissing."""
        with extra_needed("sql"):
            from sqlalchemy import Engine
            from sqlalchemy.ext.asyncio import AsyncEngine

            from headwater.sql.engines import open_engine

        with self._lock:
            if self._engine is None:
                given = self._places.database()
                if isinstance(given, AsyncEngine):
                    raise InvalidInput(
                        "the database of the application is an AsyncEngine, which only async "
                        "handlers can use; give its URL, for both kinds"
                    )
                self._engine = (
                    given
                    if isinstance(given, Engine)
                    else self._opened.enter_context(open_engine(given))
                )
            return self._engine

    @property
    def async_hw(self) -> AsyncHeadwater:
        """The client of the event loop, once ``open_async`` has connected it."""
        assert self._async_hw is not None, "open_async was not awaited"
        return self._async_hw

    async def open_async(self) -> AsyncHeadwater:
        """Connect the client of the running event loop, unless it is connected."""
        from headwater import aio

        async with self._connecting:
            if self._async_hw is None:
                self._async_hw = await aio.connect(self._places.store_url(), wait_ms=self._wait_ms)
            return self._async_hw

    @property
    def async_engine(self) -> AsyncEngine:
        """The engine of the event loop; raises InvalidInput, ExtraMissing."""
        with extra_needed("sql"):
            from sqlalchemy.ext.asyncio import AsyncEngine

        if self._async_engine is None:
            given = self._places.database()
            self._own_async_engine = not isinstance(given, AsyncEngine)
            self._async_engine = _async_engine_of(given) if self._own_async_engine else given
        return self._async_engine

    async def close_async(self) -> None:
        """Close what belongs to the event loop."""
        hw, self._async_hw = self._async_hw, None
        engine, self._async_engine = self._async_engine, None
        if engine is not None and self._own_async_engine:
            await engine.dispose()
        if hw is not None:
            await hw.close()

    def close(self) -> None:
        """Close the client and the engine of threads."""
        with self._lock:
            self._hw = self._engine = None
            self._opened.close()


def _async_engine_of(given: Any) -> AsyncEngine:
    """Return an async engine for a URL, or for that of an engine; raises InvalidInput."""
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import create_async_engine

    from headwater.sql.engines import parse_url

    url = given.url if isinstance(given, Engine) else parse_url(given)
    if url.get_backend_name() == "sqlite":
        url = url.set(drivername="sqlite+aiosqlite")
    try:
        return create_async_engine(url)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"async handlers on this database need {error.name}; install it, or write def instead "
            "of async def"
        ) from None


Need: TypeAlias = Literal["store", "db"]
MAX_PROCESSES: Final = 64


class Fault(NamedTuple):
    """Something that a check found; one that is not ``fatal`` is logged, and the part runs."""

    part: str
    what: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.part}: {self.what}"


class PartCounts(NamedTuple):
    """What a part has done: messages, rows or runs that are done, and attempts that failed.

    ``stuck`` threads run a handler past its time now; only a new process is rid of them.
    """

    done: int = 0
    failed: int = 0
    stuck: int = 0

    def plus(self, other: PartCounts) -> PartCounts:
        """Return the sum of both."""
        return PartCounts(*(one + another for one, another in zip(self, other, strict=True)))


class Work(Protocol):
    """What a part runs. The ``run`` of an async part returns a coroutine."""

    def run(self) -> Any:
        """Work until ``stop``; whatever it raises ends the work, and the part is restarted."""

    def stop(self) -> None:
        """Ask ``run`` to end when what is begun is done; from any thread."""


class Part(ABC):
    """One part of an application.

    ``object`` names what it works on, for logs and views. An ``is_async`` part runs on the event
    loop of its process, any other in a thread. A part that is ``spread`` runs in each process of an
    application, any other in one of them; with ``processes`` it runs in that many of its own.
    A part that ``counts_itself`` counts its operations in the file of ``Resources.shared``.
    """

    kind: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset({"store"})
    counts_itself: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        object: str,
        *,
        is_async: bool = False,
        spread: bool = False,
        processes: int | None = None,
    ) -> None:
        self.name = check_name(name, "part")
        self.object = object
        self.is_async = is_async
        self.spread = spread
        self.processes = processes
        if processes is not None:
            check_int(processes, "processes", 1, MAX_PROCESSES)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.object!r})"

    def check(self, resources: Resources) -> Iterable[Fault]:  # noqa: ARG002
        """Return what is wrong with the part before it runs; may ask the store and the database.

        It changes nothing there. Errors of the store or the database may be raised: they are
        listed as faults.
        """
        return ()

    def faults(self, *attempts: Callable[[], object]) -> Iterator[Fault]:
        """Yield why attempts were refused."""
        for attempt in attempts:
            try:
                attempt()
            except HeadwaterError as error:
                yield Fault(self.name, str(error))

    @abstractmethod
    def open(self, resources: Resources) -> Work:
        """Return the work of the part, ready to run; of an async part, in the event loop."""

    def is_ready(self, work: Any) -> bool:  # noqa: ARG002  most are as soon as they run
        """Return whether the work that runs does its work already."""
        return True

    def counts(self, work: Any) -> PartCounts:  # noqa: ARG002  a part may count nothing
        """Return what the work has done since it was opened."""
        return PartCounts()

    def give_back(self, work: Any) -> int:  # noqa: ARG002  a part may hold nothing
        """Return what the work still holds, as its process ends; returns how many messages."""
        return 0

    def lag(self, resources: Resources) -> int | None:  # noqa: ARG002
        """Return how much waits for the part; None when it cannot be counted."""
        return None


def chosen(parts: Iterable[Part], only: Iterable[str], without: Iterable[str]) -> list[Part]:
    """Return the parts that are named by ``only``, or all, but for those of ``without``.

    Raises InvalidInput for a name that no part has.
    """
    by_name = {part.name: part for part in parts}
    wanted, unwanted = list(only), set(without)
    for name in (*wanted, *unwanted):
        if name not in by_name:
            raise InvalidInput(
                f"the application has no part {name!r}; it has {', '.join(by_name) or 'none'}"
            )
    return [
        by_name[name] for name in by_name if name in (wanted or by_name) and name not in unwanted
    ]


log = logging.getLogger("headwater.app")

PartStatus: TypeAlias = Literal["starting", "running", "resting", "stopped"]
FIRST_REST_S: Final = 0.5
LONGEST_REST_S: Final = 30.0
# A part that ran for this long before it died is restarted as if it died for the first time.
WELL_S: Final = 60.0


class PartState(NamedTuple):
    """What is known of a part at a moment; ``why`` is what it died of."""

    name: str
    kind: str
    object: str
    status: PartStatus
    counts: PartCounts
    restarts: int
    why: str | None = None


class PartRun:
    """A part in one process; ``over`` decides when it is started again."""

    def __init__(self, part: Part, clock: Callable[[], float] = time.monotonic) -> None:
        self.part = part
        self.status: PartStatus = "starting"
        self.why: str | None = None
        self.restarts = 0
        self._deaths = 0
        self._clock = clock
        self._began = clock()
        self._work: Work | None = None
        self._before = PartCounts()
        self._stopping = False
        # Between a start and a request to stop, which come from different threads.
        self._lock = threading.Lock()

    def begin(self, work: Work) -> bool:
        """Note that the work is opened; returns whether it should run."""
        with self._lock:
            self._work = work
            self._began = self._clock()
            self.status = "stopped" if self._stopping else "running"
            return not self._stopping

    def over(self, error: BaseException | None) -> float | None:
        """Note that the work has ended; returns the seconds until its next start, if any."""
        with self._lock:
            self._before = self._total()
            self._work = None
            if self._stopping:
                self.status = "stopped"
                if error is not None:
                    log.warning("part %s failed as it stopped: %s", self.part.name, _reason(error))
                return None
            if self.status == "running" and self._clock() - self._began >= WELL_S:
                self._deaths = 0
            self._deaths += 1
            self.restarts += 1
            self.status = "resting"
            self.why = "it ended by itself" if error is None else _reason(error)
        rest_s = delay_s(self._deaths, FIRST_REST_S, LONGEST_REST_S)
        log.error(
            "part %s died, and is started again in %g s: %s",
            self.part.name, rest_s, self.why, exc_info=error,
        )  # fmt: skip
        return rest_s

    def stop(self) -> None:
        """Ask the work to end, or not to begin."""
        with self._lock:
            self._stopping = True
            if self._work is not None:
                self._work.stop()

    def ended(self) -> None:
        """Note that nothing of it runs any more."""
        self.status = "stopped"

    def give_back(self) -> int:
        """Return what the work still holds; returns how many messages."""
        work = self._work
        return 0 if work is None else self.part.give_back(work)

    def state(self) -> PartState:
        """Return what is known of the part now."""
        part = self.part
        work, status = self._work, self.status
        if status == "running" and work is not None and not part.is_ready(work):
            status = "starting"
        why = self.why if status == "resting" else None
        return PartState(
            part.name, part.kind, part.object, status, self._total(), self.restarts, why
        )

    def _total(self) -> PartCounts:
        work = self._work
        return self._before if work is None else self._before.plus(self.part.counts(work))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]
