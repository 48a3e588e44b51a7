# Generated from aio_consumer_loop.py by `make derived`, which renews it: change that file.
"""The consumer: messages in order, each with its effect on a SQL database exactly once.

Position and effects are one transaction, and the position is compared before it is set. Two
processes of one name may run at once, and any of them may be killed at any moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine

from headwater.client import Headwater
from headwater.kernel.failures import LetterFilter
from headwater.kernel.handlers import check_done
from headwater.kernel.inputs import Duration
from headwater.kernel.stopping import StopSignal
from headwater.log.handles import Start
from headwater.log.topics import TopicStart
from headwater.outbox import plan
from headwater.outbox.consumer_letters import ConsumerLetter, ConsumerRedriven
from headwater.outbox.consumer_shell import ConsumerShell, TopicTurn
from headwater.outbox.consuming import PATIENCE_S, Turn
from headwater.outbox.plan import (
    ConsumerPlan,
    OnError,
    OnGap,
    Streams,
    TimeSource,
    engine_of,
)
from headwater.sql.driver_errors import naming_missing_rights
from headwater.store.presence import reporting

if TYPE_CHECKING:
    from headwater.outbox.outbox import Outbox

T = TypeVar("T")

# The messages are of the kind that the stream has: Message, or TopicMessage of a topic.
Handler: TypeAlias = "Callable[[Connection, list[Any]], object]"
OnReset: TypeAlias = "Callable[[Connection, Any], object]"


class Consumer(ConsumerShell[Handler, OnReset]):
    """Applies the messages of a stream, a topic, or several, to a SQL database, each exactly once.

    ``handler(conn, messages)`` writes its effects through ``conn`` and leaves commit and rollback
    alone; what it does elsewhere may happen more than once. With several streams it is called for
    one of them at a time, or is a mapping with a handler for each. Of a topic, given as an object,
    it is called for one partition at a time, with messages that know theirs; each partition has
    its own position. ``name`` says whose position it is: processes that share it share the work,
    and the log keeps what it still needs. When the handler raises, its batch is rolled back and
    retried. An async method that is cancelled rolls back the current transaction.

    batch       at most this many messages at a time
    start       where a new consumer begins: "first", "last", an offset, or a datetime
    on_error    what happens when the handler has failed ``attempts`` times, with a pause of
                ``backoff_ms`` that doubles each time: "stop" raises PoisonedBatch; "skip" finds the
                message that fails, writes it to the stream ``<stream>.<name>.dead``, and continues
    on_gap      what happens when messages were evicted or lost before it had them: "stop" raises
                GapError, "skip" skips and logs them
    on_reset    ``on_reset(conn, state)`` replaces the state; see headwater.outbox.write_reset
    steps       is called with the name of every step, for tests that stop it there
    time_source where its time comes from, for tests; the module ``time`` if not said
    """

    def __init__(
        self,
        name: str,
        stream: Streams,
        outbox: Outbox[Engine] | Engine,
        hw: Headwater,
        handler: Handler | Mapping[str, Handler],
        *,
        batch: int = 1000,
        start: Start = "first",
        on_error: OnError = "stop",
        attempts: int = 5,
        backoff_ms: Duration = 100,
        on_gap: OnGap = "stop",
        on_reset: OnReset | Mapping[str, OnReset] | None = None,
        steps: Callable[[str], None] | None = None,
        time_source: TimeSource | None = None,
    ) -> None:
        self._engine = engine_of(outbox, Engine)
        plan = ConsumerPlan(
            *(name, self._engine, batch, start, on_error, attempts, backoff_ms),
            *(on_gap, on_reset is not None, time_source or time),
        )
        one_server = hw.store.kind != "cluster"
        super().__init__(plan, stream, handler, on_reset, steps, one_server=one_server)
        self._store = hw.store
        self._stopped = False
        self._stop = StopSignal()
        self._alone = threading.Lock()

    def run_once(self) -> int:
        """Apply the next batch of each stream; returns how many messages were handled.

        0 means that there was nothing left. Raises GapError, PoisonedBatch, LostFuture,
        PositionLost, CheckpointRemoved, TransactionEnded, NotCreated, and errors of the store or
        the database.
        """
        return sum(self._do(self._each(Turn.run_once)))

    def run(self) -> None:
        """Apply what is there and what comes, until ``stop``.

        New messages are applied within milliseconds. Retries while the store or the database
        restarts, and logs once that it does. Raises what run_once raises when waiting would not
        help.
        """
        with reporting(self._store, self._report):
            self._run()

    def _run(self) -> None:
        # The consumer retries by itself; a call of the store must end soon enough to stop.
        self._patience_s = PATIENCE_S
        first, *others = self._turns.values()
        if not others:
            return self._do(first.run())
        with ThreadPoolExecutor(len(self._turns), "headwater-consumer") as pool:
            runs = [pool.submit(self._run_beside, turn) for turn in (first, *others)]
            try:
                for run in runs:
                    run.result()
            except BaseException:
                self._stop.set()
                raise
            finally:
                # The others were stopped because one failed; the next run continues.
                wait(runs)
                self._stop = StopSignal()
        return None

    def stop(self) -> None:
        """Ask ``run`` to return after the current batch, within half a second when it is waiting.

        May be called from any thread and from a signal handler. A stopped consumer stays stopped.
        """
        self._stopped = True
        self._stop.set()

    def lag(self) -> int:
        """Count the offsets from the position to the end of the stream."""
        return sum(self._do(self._each(Turn.lag)))

    def positions(self) -> dict[str, int | None]:
        """Return the offset needed next of each stream, as committed; None before the first run."""
        return dict(self._do(self._each(Turn.load)))

    def seek(self, position: TopicStart, *, stream: str | None = None) -> int | dict[int, int]:
        """Set where to continue, whatever it was; returns the offset, of a topic by partition.

        ``stream`` says which, when there are several, or names a partition as "rides/3". For a
        topic ``position`` may be a mapping from partitions to positions. Effects that are committed
        stay: the caller brings the state to what it was at that position. A process of this
        consumer that runs elsewhere follows with its next batch, or within about two seconds when
        it is waiting.
        """
        return self._do(self._seek(position, stream))

    def dead(
        self,
        count: int = 100,
        *,
        matching: LetterFilter | None = None,
        max_bytes: int | None = None,
    ) -> list[ConsumerLetter]:
        """Return the oldest dead letters of all its streams, with their causes; they stay there.

        Of those that fit ``matching``. There are no more once they have ``max_bytes``.
        """
        return self._do(self._dead(count, matching, max_bytes))

    def redrive(self) -> ConsumerRedriven:
        """Handle the dead letters that there are now again, in order, each exactly once.

        The handler gets each as the message that it was, after messages that came later. One that
        fails ``attempts`` times again stays a dead letter; the others are evicted. May run beside
        processes of this consumer. Raises what run_once raises.
        """
        return self._do(self._redrive())

    def discard(self, up_to: int | None = None, *, stream: str | None = None) -> int:
        """Drop the dead letters that there are now for good; returns how many.

        ``up_to`` is an offset among the letters of one stream, which ``stream`` names when there
        are several, or when it is a partition, as "rides/3". What SQL notes of them goes first:
        whoever is killed in between leaves nothing that is handled. May run beside processes of
        this consumer. Raises LostFuture, PositionLost, NotCreated, and errors of the store or the
        database.
        """
        return self._do(self._discard(up_to, stream))

    def remove(self) -> bool:
        """Forget the consumer, so that retention waits no longer; returns whether it existed.

        A process of this consumer that still runs ends with CheckpointRemoved.
        """
        return any(self._do(self._each(Turn.remove)))

    def _run_beside(self, turn: Turn | TopicTurn) -> None:
        try:
            self._do(turn.run())
        except BaseException:
            self._stop.set()
            raise

    # ── Doing what the work asks for ─────────────────────────────────────────────────────────

    def _do(self, job: plan.Work[T], conn: Connection | None = None) -> T:
        """Do all that work asks for; returns its result."""
        try:
            request = job.send(None)
            while True:
                try:
                    reply = self._perform(request, conn)
                except Exception as error:  # noqa: BLE001  the work decides
                    request = job.throw(error)
                else:
                    request = job.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    def _perform(self, request: plan.Request, conn: Connection | None) -> Any:
        match request:
            case plan.Step(name):
                return self._steps and self._steps(name)
            case plan.Ask(operation):
                return self._store.run(operation, self._patience_s)
            case plan.Pause(seconds):
                return self._stopped or self._stop.wait(seconds)
            case plan.Transact(inner, alone):
                # One at a time: a handler need not care how many streams there are.
                with self._alone if alone else nullcontext(), self._engine.begin() as conn:
                    return self._do(inner, conn)
        assert conn is not None
        match request:
            case plan.Fetch(statement, values):
                with naming_missing_rights(self._engine):
                    return conn.execute(statement, values).scalar()
            case plan.Execute(statement, values):
                with naming_missing_rights(self._engine):
                    return conn.execute(statement, values).rowcount
            case plan.Handle(stream, messages):
                result = self._handlers[stream](conn, messages)
                check_done(result)
                return result
            case plan.Restore(stream, state):
                result = self._resetters[stream](conn, state)
                check_done(result)
                return result
            case plan.InspectTransaction():
                plain = conn
                return plan.transaction_state(plain)
