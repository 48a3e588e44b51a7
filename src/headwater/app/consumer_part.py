"""Consumers as parts of an application: each message has its effect in SQL exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from headwater.app.parts import Fault, Need, Part, PartCounts, Work
from headwater.app.resources import Resources
from headwater.app.worker_part import with_spans
from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.codecs import coder_of
from headwater.kernel.handlers import check_takes, is_async
from headwater.kernel.inputs import check_name


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
        for attempt in (
            lambda: [check_name(name, "stream") for name in self.source.names],
            lambda: coder_of(self.source.codec),
            lambda: check_takes(self.handler, "connection", "messages"),
        ):
            try:
                attempt()
            except InvalidInput as error:
                yield Fault(self.name, str(error))
        yield from self._check_database(resources)

    def _check_database(self, resources: Resources) -> Iterator[Fault]:
        from headwater.outbox.consumer_loop import Consumer
        from headwater.outbox.outbox import Outbox

        try:
            if self.is_async:
                resources.async_engine  # noqa: B018  it may lack a driver
            engine = resources.engine
            # It is never run: it refuses what it cannot work by.
            Consumer(self.name, "check", engine, resources.hw, _stand_in, **self.options)
            Outbox(engine).status()
        except HeadwaterError as error:
            yield Fault(self.name, str(error))

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
        return Consumer(self.name, given, resources.engine, hw, _stand_in).lag()


def _stand_in(conn: Any, messages: Any) -> None:
    """Stand for a handler while options are checked."""
