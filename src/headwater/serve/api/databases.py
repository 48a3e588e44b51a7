"""The database of an outbox beside the store: its calls block, so each is made in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headwater.doors.catalogue import CONSUMER, Kind
from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import START_MS
from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.packaging import extra_needed
from headwater.metrics.exposition import Page
from headwater.metrics.history import OutboxBacklog
from headwater.metrics.sampler import add_outbox
from headwater.serve.tokens import Grant

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from headwater.outbox.batches import StagedRow, StreamedBatch
    from headwater.outbox.consumer_letters import ConsumerLetter
    from headwater.outbox.outbox import Outbox
    from headwater.outbox.status import Status

log = logging.getLogger("headwater.serve")


@contextmanager
def open_database(url: str, store_url: str | None) -> Iterator[ServedDatabase]:
    """Yield a database that is served, and close its connections at the end.

    Raises InvalidInput and DatabaseUnreachable, and ExtraMissing without the extra `sql`.
    """
    with extra_needed("sql"):
        from headwater.outbox.outbox import Outbox
        from headwater.sql.driver_errors import safe_name
        from headwater.sql.engines import open_engine
    with open_engine(url) as engine:
        yield ServedDatabase(Outbox(engine), safe_name(engine), store_url)


class InThreads:
    """An object whose methods block: each is done in a thread, and awaited."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __getattr__(self, verb: str) -> Any:
        return partial(asyncio.to_thread, self._call, verb)


class ServedDatabase:
    """The outbox of a database, and the consumers that have their positions in it."""

    def __init__(self, outbox: Outbox[Engine], name: str, store_url: str | None) -> None:
        self._outbox = outbox
        self._name = name
        self._store_url = store_url

    async def status(self) -> Status:
        """Return how the outbox stands, and where the consumers are."""
        return await asyncio.to_thread(self._outbox.status)

    async def batch_of(self, stream: str, offset: int) -> StreamedBatch | None:
        """Return the batch that brought a message; None when the ledger does not have it."""
        return await asyncio.to_thread(self._outbox.batch_of, stream, offset)

    async def find_row(self, row: int) -> StagedRow | StreamedBatch | None:
        """Return where a row of the outbox is."""
        return await asyncio.to_thread(self._outbox.find_row, row)

    def opened(self, kind: Kind, *names: str) -> InThreads:
        """Return an object that is in the database; its methods raise when it is not."""

        def call(verb: str, *args: Any, **named: Any) -> Any:
            from headwater.client import connect

            with connect(self._store_url, wait_ms=START_MS) as hw:
                return getattr(kind.open(self._outbox, hw, *names), verb)(*args, **named)

        return InThreads(call)

    async def letters_of(self, name: str, grant: Grant, **given: Any) -> list[ConsumerLetter]:
        """Return the oldest dead letters of a consumer; a grant must allow to read their stream.

        ``given`` is as ``KnownConsumer.dead`` takes it. There are no more once they have 4 MiB.
        """
        letters = await self.opened(CONSUMER, name).dead(**given, max_bytes=LIST_BYTES)
        return [letter for letter in letters if grant.allows(Scope.READ, letter.stream)]

    async def staged(self) -> OutboxBacklog | None:
        """Return what is staged, for the history; None when the database does not answer."""
        try:
            status = await self.status()
        except HeadwaterError as error:
            log.debug("the history of %s has a gap: %s", self._name, error)
            return None
        oldest_s = (status.oldest_ms or 0) / 1000
        return OutboxBacklog(status.backlog, oldest_s, status.batch, status.rows_per_s or 0.0)

    async def add_metrics(self, page: Page) -> None:
        """Add the metrics of the outbox to a page; one that does not answer has none."""
        try:
            add_outbox(page, self._name, await self.status())
        except HeadwaterError as error:
            log.warning("the metrics of %s are missing: %s", self._name, error)
