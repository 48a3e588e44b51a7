"""Workers as parts of an application: messages of a stream, a topic or a queue, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from headwater.app.log_lines import with_log_context
from headwater.app.parts import Fault, Part, PartCounts, Work
from headwater.app.resources import Resources
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.codecs import coder_of
from headwater.kernel.handlers import check_takes, is_async
from headwater.kernel.inputs import Span, check_name, check_span

if TYPE_CHECKING:
    from headwater.client import Headwater

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
        source, known = self.source, True
        for attempt in (
            lambda: check_name(source.name, source.kind),
            lambda: source.group is not None and check_name(source.group, "group"),
            lambda: coder_of(source.codec),
            lambda: check_takes(self.handler, "message"),
        ):
            try:
                attempt()
            except InvalidInput as error:
                known = False
                yield Fault(self.name, str(error))
        try:
            self._try_options(resources.hw)
        except InvalidInput as error:
            yield Fault(self.name, str(error))
        if known:
            yield from self._missing(resources.hw)

    def _try_options(self, hw: Headwater) -> None:
        """Make a worker that is never run: it refuses what it cannot work by."""
        from headwater.workers.declared_limits import check_limits

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
