"""The position of one consumer on one stream: in SQL, where it counts, and in the log.

A position is reported to the log only after it was committed, so that retention never passes what
may still be needed.

Beside it is kept which stream, and which history of it, the position belongs to. The handle of the
stream starts from there, so that a read raises LostFuture when the store has lost what was applied,
whichever process applied it.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.exc import DBAPIError

from headwater.errors import CheckpointRemoved, InvalidInput, NotCreated, StoreError
from headwater.log.handles import NOTHING_SEEN, SeenHistory, Start, StreamHandle
from headwater.log.reading import Extent, extent, info, offset_at
from headwater.log.retention import set_reader
from headwater.outbox import checkpoints, given_up
from headwater.outbox.plan import Ask, ConsumerPlan, Execute, Fetch, Step, Transact, Work
from headwater.outbox.schema import SCHEMA, checkpoints_table, given_up_table
from headwater.sql.driver_errors import is_missing_table, safe_name
from headwater.sql.schemas import HAS_VERSIONS, VERSION

log = logging.getLogger("headwater.outbox")


class ConsumerPosition:
    """The position of a consumer: ``next`` is the offset it needs next, None until looked up.

    It is kept in SQL under the name of the stream, or under ``place``.
    """

    def __init__(self, plan: ConsumerPlan, stream: StreamHandle, place: str | None = None) -> None:
        self.next: int | None = None
        self.reader = plan.reader
        self._start = plan.start
        self._consumer = plan.name
        self._dialect = plan.database.dialect.name
        self._where = safe_name(plan.database)
        self._stream = stream
        self._place_name = place or stream.name
        self._time = plan.time
        self._reported: int | None = None
        self._reported_at = 0.0
        self._found_at: float | None = None
        # The history in SQL, and that of the transaction that is open; None without one.
        self._kept: str | None = None
        self._moved_with: str | None = None

    # ── In SQL ───────────────────────────────────────────────────────────────────────────────

    def look_up(self) -> Work[int]:
        """Find the position, or write the first one of a new consumer.

        A position that the log does not know is reported. Raises CheckpointRemoved when there was
        a position, and it is gone.
        """
        if self.next is not None:
            return self.next
        found: int | None
        kept: str | None
        found, kept = yield Transact(self._fetch_both())
        if found is None:
            if self._found_at is not None:
                raise CheckpointRemoved(self._consumer, self._stream.name)
            found, kept = (yield from self._begin()), None
        if found != self._reported:
            yield from self._report(found)
        self._kept = kept
        self._stream.seen = SeenHistory.of_text(kept, found - 1) if kept else NOTHING_SEEN
        self.next, self._found_at = found, self._time.monotonic()
        return found

    def has_moved(self) -> Work[bool]:
        """Look the position up again; returns whether it is another one now."""
        before, self.next = self.next, None
        return (yield from self.look_up()) != before

    def doubt(self, after_s: float) -> None:
        """Have the position looked up again if it was not for that long."""
        if self._found_at is not None and self._time.monotonic() - self._found_at >= after_s:
            self.next = None

    def load(self) -> Work[int | None]:
        """Return the position in SQL; None for a new consumer. Raises NotCreated, FormatTooNew."""
        position: int | None = yield Transact(self._fetch())
        return position

    def _fetch_both(self) -> Work[tuple[int | None, str | None]]:
        # In this order: a history that is newer than the position holds for it as well.
        position = yield from self._fetch()
        history: str | None = yield Fetch(checkpoints.LOAD_HISTORY, self._key())
        if self._found_at is None:
            # Not only when a message is given up: a table that is missing shows at the start.
            yield from _ask_table(Fetch(given_up.LOOK, self._key()), given_up_table)
        return position, history

    def _fetch(self) -> Work[int | None]:
        if self._found_at is None:
            found = None
            if (yield Fetch(text(HAS_VERSIONS[self._dialect]), {})):
                found = yield Fetch(text(VERSION), {"package": SCHEMA.name})
            SCHEMA.check_version(found, self._dialect, self._where)
        request = Fetch(checkpoints.LOAD, self._key())
        position: int | None = yield from _ask_table(request, checkpoints_table)
        return position

    def _begin(self) -> Work[int]:
        """Write the first position of a new consumer; a process of its name may be faster."""
        if self._start == "first":
            # Nothing may be evicted between looking for the first message and reporting it.
            yield from self._report(1)
        begun = yield from self.resolve(self._start)
        if begun != self._reported:
            yield from self._report(begun)
        yield Transact(self._create(begun, (yield Ask(extent(self._stream.name)))))
        found = yield from self.load()
        return begun if found is None else found

    def move(self, old: int, new: int) -> Work[bool]:
        """Move from ``old`` to ``new`` in the open transaction; returns whether it was there.

        The history that was read last is kept with it. Call ``passed`` after the commit.
        """
        history = self._moved_with = self._stream.seen.text()
        moved = {**self._row(new), "old": old, "history": history}
        return bool((yield Execute(checkpoints.MOVE, moved)))

    def passed(self, position: int) -> None:
        """Note that a move was committed."""
        self.next, self._kept = position, self._moved_with

    def expect(self) -> None:
        """Before a read: only what was applied can be lost, not what was read in vain."""
        seen = self._stream.seen
        if self.next is not None and seen.created:
            self._stream.seen = seen._replace(upto=self.next - 1)

    def keep_history(self) -> Work[None]:
        """After a read: note the history of a position that has none in SQL, as after ``seek``."""
        at = self.next
        if self._kept is not None or at is None or at == 1:
            return
        if (yield Transact(self.move(at, at), alone=True)):
            self.passed(at)
        else:
            self.next = None

    def _create(self, position: int, there: Extent) -> Work[None]:
        if (yield Execute(checkpoints.CREATE[self._dialect], self._row(position))):
            yield from self._forget_given_up(position, there)

    def _place(self, position: int, there: Extent) -> Work[None]:
        yield Execute(checkpoints.PLACE[self._dialect], self._row(position))
        yield from self._forget_given_up(position, there)

    def _forget_given_up(self, position: int, there: Extent) -> Work[None]:
        """Forget that messages were given up which are handled again.

        Of those that were evicted, or deleted with their stream, nothing but letters is left.
        """
        which = {"created": there.created, "first": max(position, there.first)}
        request = Execute(given_up.FORGET_FROM, {**self._key(), **which})
        yield from _ask_table(request, given_up_table)

    def _delete(self) -> Work[int]:
        gone: int = yield from _ask_table(
            Execute(checkpoints.REMOVE, self._key()), checkpoints_table
        )
        return gone

    def _key(self) -> dict[str, Any]:
        return {"who": self._consumer, "place": self._place_name}

    def _row(self, position: int) -> dict[str, Any]:
        return {**self._key(), "new": position, "now_ms": int(self._time.time() * 1000)}

    # ── In the log ───────────────────────────────────────────────────────────────────────────

    def report(self, every_s: float = 0.0) -> Work[None]:
        """Report the position to the log if it is new; not again before ``every_s`` is over.

        When the store is down, a later call reports it.
        """
        if self.next is None or self.next == self._reported:
            return
        if self._time.monotonic() - self._reported_at < every_s:
            return
        try:
            # A process of this name that is further may have ended: its position stays.
            yield from self._report(self.next, forward=True)
        except StoreError as error:
            log.debug("%s could not report its position: %s", self.reader, error)
        else:
            yield Step("reported")

    def _report(self, position: int, *, forward: bool = False) -> Work[None]:
        yield Ask(set_reader(self._stream.key, self.reader, position, forward=forward))
        self._reported, self._reported_at = position, self._time.monotonic()

    def resolve(self, start: Start) -> Work[int]:
        """Return the offset that "first", "last", an offset or a time stands for."""
        there = yield Ask(info(self._stream))
        if start == "first":
            return int(there.first)
        if start == "last":
            return int(there.last) + 1
        if not isinstance(start, int):
            return int((yield Ask(offset_at(self._stream, start))))
        if start > there.last + 1:
            raise InvalidInput(
                f"offset {start} is beyond stream {self._stream.name!r}, which ends at "
                f"{there.last}; use an offset up to {there.last + 1}, 'first' or 'last'"
            )
        return start

    # ── For its owner ────────────────────────────────────────────────────────────────────────

    def seek(self, start: Start) -> Work[int]:
        """Set the position, whatever it was; returns the offset."""
        target = yield from self.resolve(start)
        before = yield from self.load()
        # Retention waits at the lower of both until the new position is committed.
        yield from self._report(target if before is None else min(target, before))
        yield Transact(self._place(target, (yield Ask(extent(self._stream.name)))))
        yield from self._report(target)
        self.next = None
        return target

    def lag(self) -> Work[int]:
        """Count the offsets between the position and the end of the stream."""
        position = yield from self.load()
        if position is None:
            position = yield from self.resolve(self._start)
        there = yield Ask(info(self._stream))
        return max(int(there.last) + 1 - max(position, int(there.first)), 0)

    def remove(self) -> Work[bool]:
        """Remove the consumer from SQL and from the log; returns whether it existed."""
        gone = yield Transact(self._delete())
        yield Ask(set_reader(self._stream.key, self.reader, None))
        self.next = self._reported = self._found_at = None
        return bool(gone)


def _ask_table(request: Fetch | Execute, table: Table) -> Work[Any]:
    """Run a statement; raises NotCreated when its table is missing."""
    try:
        return (yield request)
    except DBAPIError as error:
        if is_missing_table(error):
            raise NotCreated(table.name) from None
        raise
