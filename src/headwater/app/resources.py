"""What the parts of one process share: a client of the store, a database, and their async twins.

Each is opened with its first use, and closed with the process.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.errors import InvalidInput
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


class Resources:
    """The clients and engines of one process; safe to share between threads."""

    def __init__(self, places: Places, *, wait_ms: int | None = None) -> None:
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
