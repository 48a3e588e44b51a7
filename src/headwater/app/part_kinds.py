"""The kinds of parts of an application: workers, consumers, streamer, timed jobs, housekeeping."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, TypeAlias

from headwater.app.log_lines import with_log_context
from headwater.app.parts import Fault, Need, Part, PartCounts, Resources, Work
from headwater.client import Headwater, keep_each
from headwater.errors import HeadwaterError, StoreError
from headwater.kernel.codecs import coder_of
from headwater.kernel.failures import Outage, store_may_recover
from headwater.kernel.handlers import check_takes, is_async
from headwater.kernel.inputs import Span, check_name, check_span
from headwater.kernel.stopping import StopSignal
from headwater.timed.jobs import JobTable, TimedJob

if TYPE_CHECKING:
    from headwater.outbox.streamer import Streamer


SourceKind: TypeAlias = Literal["stream", "topic", "queue"]
Backoff: TypeAlias = "Literal['exponential', 'fixed', 'none'] | Span"
# What is an option of the group of a stream or a topic, and not of its worker.
_OF_GROUP: Final = ("start", "max_pending", "dead_letters")


@dataclass(frozen=True, slots=True)
class MessagesFrom:
    """Where a worker takes its messages from."""

    kind: SourceKind
    name: str
    group: str | None = None
    codec: Any = None
    partitions: int | None = None

    def __str__(self) -> str:
        return self.name if self.group is None else f"{self.name}/{self.group}"


class WorkerPart(Part):
    """A handler, and the messages that it gets."""

    kind: ClassVar[str] = "worker"

    def __init__(
        self,
        name: str,
        source: MessagesFrom,
        handler: Callable[[Any], object],
        options: Mapping[str, Any],
        *,
        processes: int | None = None,
    ) -> None:
        super().__init__(
            name, str(source), is_async=is_async(handler), spread=True, processes=processes
        )
        self.source = source
        self.handler = handler
        self.options = worker_options(options)
        self.group_options = {key: self.options.pop(key) for key in _OF_GROUP if key in options}
        if source.kind != "queue" and self.options.get("max_attempts") is not None:
            # What is given up needs a place.
            self.group_options.setdefault("dead_letters", True)

    def check(self, resources: Resources) -> Iterator[Fault]:
        """Check names, codec, options and handler; then whether the store has the object."""
        source = self.source
        wrong = [
            *self.faults(
                lambda: check_name(source.name, source.kind),
                lambda: source.group is not None and check_name(source.group, "group"),
                lambda: coder_of(source.codec),
                lambda: check_takes(self.handler, "message"),
            )
        ]
        yield from wrong
        yield from self.faults(lambda: self._try_options(resources.hw))
        if not wrong:
            yield from self._missing(resources.hw)

    def _try_options(self, hw: Headwater) -> None:
        """Make a worker that is never run: it refuses what it cannot work by."""
        from headwater.workers.sources import check_limits

        # Names are checked before; the options of workers are the same in both kinds.
        if self.source.kind == "queue":
            _sync_worker(hw.queue("check"), _stand_in, self.options)
        else:
            group = hw.stream("check").group("check", **self.group_options)
            _sync_worker(group, _stand_in, self.options)
            check_limits(self.options.get("limits"), topic=self.source.kind == "topic")

    def _missing(self, hw: Headwater) -> Iterator[Fault]:
        """Name objects that are not there, or are of another kind."""
        kind, name = self.source.kind, self.source.name
        names = {"stream": hw.streams, "topic": hw.topics, "queue": hw.queues}
        found = names[kind]()
        if name in found:
            if kind == "topic":
                try:
                    hw.topic(name, self.source.partitions)
                except HeadwaterError as error:
                    yield Fault(self.name, str(error))
            return
        for other, lister in names.items():
            if other != kind and name in lister():
                yield Fault(
                    self.name, f"{name!r} is a {other}, not a {kind}; write {other}={name!r}"
                )
                return
        near = get_close_matches(name, found, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; it is made by the first write"
        yield Fault(self.name, f"the store has no {kind} {name!r} yet{hint}", fatal=False)

    def open(self, resources: Resources) -> Work:
        """Return the worker."""
        source = self.source
        hw: Any = resources.async_hw if self.is_async else resources.hw
        make = _async_worker if self.is_async else _sync_worker
        handler = with_log_context(self.name, self.object, self.handler)
        if source.kind == "queue":
            return make(hw.queue(source.name, codec=source.codec), handler, self.options)
        if source.kind == "topic":
            log = hw.topic(source.name, source.partitions, codec=source.codec)
        else:
            log = hw.stream(source.name, codec=source.codec)
        return make(log.group(source.group, **self.group_options), handler, self.options)

    def counts(self, work: Any) -> PartCounts:
        """Return how many messages were handled, and how many attempts failed."""
        counts = work.counts
        return PartCounts(counts.done, counts.failed, counts.stuck)

    def give_back(self, work: Any) -> int:
        """Return the messages whose handlers have not ended."""
        given: int = work.give_back()
        return given

    def lag(self, resources: Resources) -> int | None:
        """Return how many messages wait: those of a queue that are ready, or the group's lag."""
        source, hw = self.source, resources.hw
        if source.kind == "queue":
            return hw.queue(source.name).stats().ready
        assert source.group is not None
        if source.kind == "stream":
            return hw.stream(source.name).group(source.group).info().lag
        infos: Iterable[Any] = hw.topic(source.name).group(source.group).info()
        return sum(int(info.lag) for info in infos)


def with_spans(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose spans of time, if they are texts, are numbers of milliseconds."""
    return {
        name: check_span(value, name) if isinstance(value, str) and name.endswith("_ms") else value
        for name, value in given.items()
    }


def worker_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as workers take them; spans of time may be texts, as "30s".

    ``timeout`` is another name of ``timeout_ms``; ``backoff`` is "exponential", "fixed" or "none",
    or the first pause. Raises InvalidInput.
    """
    options = with_spans(given)
    if "timeout" in options:
        options["timeout_ms"] = check_span(options.pop("timeout"), "timeout", 1)
    backoff = options.pop("backoff", None)
    if backoff == "fixed":
        options["longest_backoff_ms"] = options.setdefault("backoff_ms", 1000)
    elif backoff == "none":
        options["backoff_ms"] = options["longest_backoff_ms"] = 0
    elif backoff not in (None, "exponential"):
        options["backoff_ms"] = first = check_span(backoff, "backoff")
        options["longest_backoff_ms"] = max(first, options.get("longest_backoff_ms", 60_000))
    return options


def _sync_worker(source: Any, handler: Callable[[Any], object], options: Mapping[str, Any]) -> Work:
    from headwater.queue.queue import Queue
    from headwater.workers.queue_worker import QueueWorker
    from headwater.workers.worker import Worker

    kind: Any = QueueWorker if isinstance(source, Queue) else Worker
    work: Work = kind(source, handler, **options)
    return work


def _async_worker(
    source: Any, handler: Callable[[Any], object], options: Mapping[str, Any]
) -> Work:
    from headwater.queue.aio_queue import AsyncQueue
    from headwater.workers.aio_queue_worker import AsyncQueueWorker
    from headwater.workers.aio_worker import AsyncWorker

    kind: Any = AsyncQueueWorker if isinstance(source, AsyncQueue) else AsyncWorker
    work: Work = kind(source, handler, **options)
    return work


def _stand_in(message: Any) -> None:
    """Stand for a handler while options are checked."""


@dataclass(frozen=True, slots=True)
class AppliedFrom:
    """What a consumer applies: streams by their names, or one topic."""

    streams: Sequence[str] = ()
    topic: str | None = None
    codec: Any = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""
        return tuple(self.streams) if self.topic is None else (self.topic,)


class ConsumerPart(Part):
    """A handler of batches, and the streams that it applies to the database."""

    kind: ClassVar[str] = "consumer"
    needs: ClassVar[frozenset[Need]] = frozenset({"store", "db"})

    def __init__(
        self,
        name: str,
        source: AppliedFrom,
        handler: Callable[..., object],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(name, ",".join(source.names), is_async=is_async(handler))
        self.source = source
        self.handler = handler
        self.options = with_spans(options)

    def check(self, resources: Resources) -> Iterator[Fault]:
        """Check names, codec, options, handler, and the tables of the database."""
        yield from self.faults(
            lambda: [check_name(name, "stream") for name in self.source.names],
            lambda: coder_of(self.source.codec),
            lambda: check_takes(self.handler, "connection", "messages"),
            lambda: self._check_database(resources),
        )

    def _check_database(self, resources: Resources) -> None:
        from headwater.outbox.consumer_loop import Consumer
        from headwater.outbox.outbox import Outbox

        if self.is_async:
            resources.async_engine  # noqa: B018  it may lack a driver
        engine = resources.engine
        # It is never run: it refuses what it cannot work by.
        Consumer(self.name, "check", engine, resources.hw, _batch_stand_in, **self.options)
        Outbox(engine).status()

    def open(self, resources: Resources) -> Work:
        """Return the consumer."""
        from headwater.outbox.aio_consumer_loop import AsyncConsumer
        from headwater.outbox.consumer_loop import Consumer

        make: Any = AsyncConsumer if self.is_async else Consumer
        hw: Any = resources.async_hw if self.is_async else resources.hw
        engine: Any = resources.async_engine if self.is_async else resources.engine
        source, codec = self.source, self.source.codec
        if source.topic is not None:
            given: Any = hw.topic(source.topic, codec=codec)
        else:
            given = [hw.stream(name, codec=codec) for name in source.streams]
        work: Work = make(self.name, given, engine, hw, self.handler, **self.options)
        return work

    def counts(self, work: Any) -> PartCounts:
        """Return how many messages were applied, and how many went to the dead letters."""
        stats = work.stats
        return PartCounts(stats.handled, stats.dead)

    def lag(self, resources: Resources) -> int | None:
        """Return how many messages wait to be applied."""
        from headwater.outbox.consumer_loop import Consumer

        hw, source = resources.hw, self.source
        given: Any = source.streams if source.topic is None else hw.topic(source.topic)
        return Consumer(self.name, given, resources.engine, hw, _batch_stand_in).lag()


def _batch_stand_in(conn: Any, messages: Any) -> None:
    """Stand for a handler while options are checked."""


class StreamerPart(Part):
    """Brings what transactions staged to the log."""

    kind: ClassVar[str] = "outbox"
    needs: ClassVar[frozenset[Need]] = frozenset({"store", "db"})

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, "outbox")
        self._options = dict(options)

    def check(self, resources: Resources) -> Iterator[Fault]:
        """Check the options, and that the outbox has its tables."""
        from headwater.outbox.outbox import Outbox

        yield from self.faults(
            lambda: self.open(resources).close(), lambda: Outbox(resources.engine).status()
        )

    def open(self, resources: Resources) -> Streamer:
        """Return the streamer."""
        from headwater.outbox.outbox import Outbox
        from headwater.outbox.streamer import Streamer

        return Streamer(Outbox(resources.engine), resources.hw, **self._options)

    def counts(self, work: Any) -> PartCounts:
        """Return how many rows were streamed."""
        return PartCounts(work.progress.rows)

    def lag(self, resources: Resources) -> int | None:
        """Return how many rows wait."""
        from headwater.outbox.outbox import Outbox

        return Outbox(resources.engine).status().backlog


# The parts of an application that run timed jobs: handlers in threads, and on the event loop.
SYNC_PART: Final = "timed"
ASYNC_PART: Final = "timed-async"


class TimedPart(Part):
    """Runs the timed jobs of an application; ``jobs`` may be added until it is opened."""

    kind: ClassVar[str] = "timed"

    def __init__(self, *, is_async: bool) -> None:
        super().__init__(ASYNC_PART if is_async else SYNC_PART, "timed jobs", is_async=is_async)
        self.jobs: list[TimedJob] = []

    def open(self, resources: Resources) -> Work:
        """Return a runner of all jobs."""
        from headwater.timed.aio_runner import AsyncTimedRunner
        from headwater.timed.runner import TimedRunner

        runner: Any
        if self.is_async:
            runner = AsyncTimedRunner(resources.async_hw)
        else:
            runner = TimedRunner(resources.hw)
        for job in self.jobs:
            runner.add(job)
        work: Work = runner
        return work

    def counts(self, work: Any) -> PartCounts:
        """Return how many runs are done, and how many attempts failed."""
        return PartCounts(work.counts.done, work.counts.failed)

    def give_back(self, work: Any) -> int:
        """Return the runs whose handlers have not ended."""
        given: int = work.give_back()
        return given


class _Parts(Protocol):
    @property
    def parts(self) -> Mapping[str, Part]: ...
    def add(self, part: Part) -> None: ...


class AppJobs(JobTable):
    """The timed jobs of an application, of both kinds; each goes to the part of its own."""

    def __init__(self, app: _Parts) -> None:
        super().__init__()
        self._app = app

    def add(self, job: TimedJob) -> None:
        """Add a job; raises InvalidInput when there is one of its name, of whichever kind."""
        super().add(job)
        own = TimedPart(is_async=is_async(job.handler))
        part = self._app.parts.get(own.name)
        if not isinstance(part, TimedPart):
            self._app.add(own)
            part = own
        part.jobs.append(job)


log = logging.getLogger("headwater.app")


class Housekeeper:
    """Keeps every stream, queue and channel of a store, round after round."""

    def __init__(self, hw: Headwater, interval_ms: int) -> None:
        self._hw = hw
        self._interval_s = interval_ms / 1000
        self._stop = StopSignal()
        self.rounds = 0
        self.faults = 0

    def run(self) -> None:
        """Keep until ``stop``; an outage of the store is waited out."""
        outage = Outage("the housekeeper", log)
        while not self._stop.is_set():
            try:
                self._keep_all()
                outage.over()
                self.rounds += 1
                self._stop.wait(self._interval_s)
            except StoreError as error:
                if not store_may_recover(error):
                    raise
                self._stop.wait(outage.meet(error))

    def stop(self) -> None:
        """Ask ``run`` to end after the current object."""
        self._stop.set()

    def _keep_all(self) -> None:
        for _ in keep_each(self._hw, tell_fault=self._tell_fault, stop=self._stop.is_set):
            pass

    def _tell_fault(self, fault: str) -> None:
        self.faults += 1
        log.error("housekeeping left something undone: %s", fault)


class KeeperPart(Part):
    """Seals, evicts, compacts and expires, as ``headwater keep`` does."""

    kind: ClassVar[str] = "keep"

    def __init__(self, name: str, every: Span) -> None:
        super().__init__(name, "store")
        self._every_ms = check_span(every, "every", 10)

    def open(self, resources: Resources) -> Housekeeper:
        """Return the housekeeper."""
        return Housekeeper(resources.hw, self._every_ms)

    def counts(self, work: Any) -> PartCounts:
        """Return the rounds, and how many objects could not be kept."""
        return PartCounts(work.rounds, work.faults)
