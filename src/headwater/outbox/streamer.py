"""The streamer: brings what is staged in the database to the log, each row once.

One streamer leads, any number stand by; the database holds the lock. The leader claims up to a
batch of rows (database.py), appends them under the claim's producer and number, and deletes exactly
those rows together with the next claim. Wherever it dies, the next leader finds the claim and
appends the same batch under the same producer and number, which the log deduplicates. So every
committed row is in its stream once, after what its transaction staged there before it; a row that
was rolled back never is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from headwater.client import Headwater
from headwater.errors import (
    DatabaseUnreachable,
    InvalidInput,
    OutcomeUnknown,
    RowRefused,
    StaleSequence,
    StoreError,
    StoreUnreachable,
)
from headwater.kernel.headers import OUTBOX_ID, with_header
from headwater.kernel.instrument import Outcome, observe
from headwater.kernel.stopping import StopSignal
from headwater.log import node, writing
from headwater.log.handles import StreamHandle
from headwater.log.keys import check_count
from headwater.log.retention import PRODUCER_MS
from headwater.outbox.batches import AppendedPart, traced_rows
from headwater.outbox.consuming import DatabaseOutage, is_passing
from headwater.outbox.database import (
    ID_HEADER,
    ClaimedBatch,
    Claims,
    ConnectionSource,
    LostLead,
    OutboxDatabase,
    Steps,
)
from headwater.outbox.outbox import Outbox
from headwater.store.presence import ReportedPart, reporting
from headwater.whole_store.members import member_name

log = logging.getLogger("headwater.outbox")

BATCH = 1000
_MOST_BATCH = 10_000
# A stand-by checks this often whether the lead is free.
_STAND_BY_S = 0.5
# A notification may get lost with a connection: the leader looks this often by itself.
_LOOK_S = 1.0
# A call of the store is retried for that long; then it is an outage, which is logged.
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a streamer has done since it was made; ``trouble`` is why it is retrying now."""

    rows: int
    batches: int
    leading: bool
    trouble: str | None


class Streamer:
    """Streams an outbox to the log of ``hw``, in batches of up to ``batch`` rows.

    With ``id_header`` each message has the id of its row as the header ``hw.outbox-id``.
    ``steps`` is called with the name of every step as it is done, for tests that crash there.
    ``new_producer`` returns the name of a producer that the log has not seen, for tests that need
    to know it.
    """

    def __init__(
        self,
        outbox: Outbox[Any],
        hw: Headwater,
        *,
        batch: int = BATCH,
        id_header: bool = False,
        steps: Steps | None = None,
        new_producer: Callable[[], str] | None = None,
    ) -> None:
        if not isinstance(outbox, Outbox):
            raise InvalidInput(f"a streamer needs an Outbox, not a {type(outbox).__name__}")
        if not isinstance(hw, Headwater):
            raise InvalidInput(
                f"a streamer needs what headwater.connect() returns, not a {type(hw).__name__}"
            )
        if check_count(batch, "batch", _MOST_BATCH) == 0:
            raise InvalidInput(f"batch must be from 1 to {_MOST_BATCH}, not 0")
        self._source = ConnectionSource(outbox.engine)
        self._hw = hw
        self._batch = batch
        self._steps: Steps = steps or _ignore_step
        self._stop = StopSignal()
        self._name_producer = new_producer or partial(_new_producer, hw.store.token)
        self._suffix = ID_HEADER if id_header else ""
        self._producer = self._new_producer()
        self._registered: set[str] = set()
        self._rows = self._batches = 0
        self._leading = False
        self._trouble: str | None = None
        self._retries = False

    def __repr__(self) -> str:
        return f"Streamer({self._source.where!r}, {self._hw!r})"

    def __enter__(self) -> Streamer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def progress(self) -> Progress:
        """What was done so far."""
        return Progress(self._rows, self._batches, self._leading, self._trouble)

    def run_once(self) -> int:
        """Stream one batch of what is committed now; returns how many rows.

        0 when there is nothing, or when another streamer leads. When it returns, the rows are in
        the log and no longer in the outbox. Raises DatabaseUnreachable, DatabaseRefused,
        NotCreated, RowRefused, or an error of the store; nothing is lost then, and the next call
        continues.
        """
        self._retries = False
        while True:
            try:
                with self._source.open() as database:
                    return self._stream_once(database) if database.lead() else 0
            except LostLead:
                continue
            except DatabaseUnreachable:
                self._producer = self._new_producer()
                raise

    def run(self) -> None:
        """Stream until ``stop``: woken by commits, standing by while another streamer leads.

        It retries during an outage of the database or the store, with growing pauses, and logs
        when the outage begins and when it is over; only at first, a database of which no server
        answers is an error. Raises errors that do not pass by waiting, and InvalidInput if the
        engine has one connection for all threads. When it returns after ``stop``, no batch is left
        half-way.
        """
        self._source.check_own()
        with reporting(self._hw.store, self._report):
            self._run()

    def _report(self) -> ReportedPart:
        state = "streams" if self._leading else "stands by"
        return ReportedPart("streamer", "streamer", self._source.where, state, self._rows)

    def _run(self) -> None:
        self._retries = True
        outage = DatabaseOutage("the streamer", log, self._source.engine, time.monotonic)
        reached = False
        while not self._stop.is_set():
            try:
                with self._source.open() as database:
                    reached = True
                    self._serve(database, outage)
            except LostLead:
                log.warning("another streamer took the lead")
            except (DatabaseUnreachable, StoreError) as error:
                if isinstance(error, DatabaseUnreachable):
                    # A database that starts is there, as one that was reached before.
                    reached = reached or error.answered
                if not reached or not (isinstance(error, DatabaseUnreachable) or is_passing(error)):
                    raise
                self._trouble = str(error)
                self._stop.wait(outage.meet(error))
            finally:
                self._leading = False
            # A claim that was sent over a broken connection may still be committed.
            self._producer = self._new_producer()

    def stop(self) -> None:
        """Let ``run`` finish its batch and return; from any thread or signal handler."""
        self._stop.set()

    def close(self) -> None:
        """Close the connections that ``run_once`` keeps for its next call."""
        self._source.close()

    def _new_producer(self) -> str:
        return self._name_producer() + self._suffix

    # ── The leader ───────────────────────────────────────────────────────────────────────────

    def _serve(self, database: OutboxDatabase, outage: DatabaseOutage) -> None:
        """Stand by until the lead is free, then stream until asked to stop."""
        while not database.lead():
            self._is_well(outage)
            if self._stop.wait(_STAND_BY_S):
                return
        self._leading = True
        self._steps("leading")
        database.watch()
        claims = self._claims(database)
        claims.appended(self._append(claims.unfinished()))
        with ThreadPoolExecutor(1, "headwater-append") as appender:
            while True:
                batch = claims.next(more=not self._stop.is_set())
                self._is_well(outage)
                if batch is not None:
                    # While the store takes one batch, the database reads the next.
                    appended = appender.submit(self._append, batch)
                    claims.read_ahead()
                    claims.appended(appended.result())
                elif self._stop.is_set():
                    return
                else:
                    database.wait(_LOOK_S, self._stop.fileno())

    def _stream_once(self, database: OutboxDatabase) -> int:
        claims = self._claims(database)
        batch = claims.unfinished()
        if batch is None or not batch.rows:
            batch = claims.next()
        claims.appended(self._append(batch))
        claims.next(more=False)
        return len(batch.rows) if batch else 0

    def _claims(self, database: OutboxDatabase) -> Claims:
        claims = Claims(database, self._producer, self._batch, self._steps)
        if claims.claimed and claims.age_ms > PRODUCER_MS:
            log.warning(
                "a batch of %d rows was left half-way %d days ago; the log may no longer know it, "
                "and then has its rows twice",
                claims.claimed,
                claims.age_ms // 86_400_000,
            )
        return claims

    def _append(self, batch: ClaimedBatch | None) -> list[AppendedPart]:
        """Append a batch to its streams, and return where; a repeat is deduplicated by the log."""
        parts: list[AppendedPart] = []
        if batch is None:
            return parts
        for name, tags, values, headers, places in _by_stream(batch):
            observation = observe("streamer.batch", name, traced_rows(headers))
            try:
                offsets = self._append_to(name, tags, values, headers, batch)
                parts.append(AppendedPart(name, offsets, places))
            except BaseException as error:
                if observation is not None:
                    observation.end(self._outcome(error), error)
                raise
            if observation is not None:
                observation.messages, observation.bytes = len(values), sum(map(len, values))
                observation.end()
            self._steps(f"appended:{name}")
        self._rows += len(batch.rows)
        self._batches += 1
        return parts

    def _append_to(
        self,
        name: str,
        tags: Sequence[str],
        values: Sequence[bytes],
        headers: Sequence[bytes] | None,
        batch: ClaimedBatch,
    ) -> range:
        try:
            handle = StreamHandle(name, self._registered)
            entries = node.batch_of(tags, values, headers=headers)
            append = writing.append(handle, entries, None, batch.producer, batch.number)
            return self._hw.store.run(append, _PATIENCE_S)
        except StaleSequence:
            # The log has later batches of that producer, so it has this one: a producer claims a
            # batch only when the one before is in the log.
            log.info("batch %d of %s is in the log already", batch.number, batch.producer)
            return range(0)
        except OutcomeUnknown as error:
            # Whether it happened need not be known: it will be repeated.
            why = str(error.__cause__ or "the connection broke")
            raise StoreUnreachable(self._hw.store.where, why) from error
        except InvalidInput as error:
            raise RowRefused(name, str(error)) from error

    def _outcome(self, error: BaseException) -> Outcome:
        if isinstance(error, RowRefused):
            return "refused"
        if isinstance(error.__cause__, OutcomeUnknown):
            return "unknown"
        return "retried" if self._retries and is_passing(error) else "failed"

    def _is_well(self, outage: DatabaseOutage) -> None:
        self._trouble = None
        outage.over()


_Columns: TypeAlias = (
    "tuple[str, Sequence[str], Sequence[bytes], Sequence[bytes] | None, Sequence[int] | None]"
)


def _by_stream(batch: ClaimedBatch) -> Iterator[_Columns]:
    """Group rows by stream, in the order of each stream's first row; rows keep their order.

    Returns the stream, tags, values and, in a batch in which a row has some, headers of each; then
    the places of these rows in the batch, None for all of it.
    """
    if not batch.rows:
        return
    streams, tags, values, *more = zip(*batch.rows, strict=True)
    stored = _with_ids(*more) if batch.has_ids else more[0] if more else None
    if streams.count(streams[0]) == len(streams):
        yield streams[0], tags, values, stored, None
        return
    places: dict[str, list[int]] = {}
    for place, stream in enumerate(streams):
        places.setdefault(stream, []).append(place)
    for stream, some in places.items():
        yield (
            stream,
            [tags[place] for place in some],
            [values[place] for place in some],
            None if stored is None else [stored[place] for place in some],
            some,
        )


def _with_ids(staged: Sequence[bytes], ids: Sequence[int]) -> list[bytes]:
    rows = zip(staged, ids, strict=True)
    return [with_header(headers, OUTBOX_ID, b"%d" % row) for headers, row in rows]


def _new_producer(token: Callable[[], str]) -> str:
    """Return a name by which the log knows a streamer.

    It is new with every streamer and every connection. A database that was restored from a
    backup counts its batches from an earlier number; under one fixed name, the log would take
    them for repeats.
    """
    return f"outbox:{member_name(token())}"


def _ignore_step(_: str) -> None:
    """Ignore a step."""
