"""A trace goes with a message, from where it was made to where it is handled."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    NumberDataPoint,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import headwater
from headwater import Headwater, aio
from headwater.kernel import tracing
from headwater.outbox import Consumer, Outbox, Streamer
from tests.support.stores import Stores


class Traces:
    """What an application collects."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self.tracer = self.provider.get_tracer("application")

    def span(self, name: str) -> ReadableSpan:
        """Return the one span of that name."""
        (found,) = self.spans(name)
        return found

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return all spans of that name."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def units(self) -> dict[str, str]:
        """Return the unit of every metric that was measured, under the schema of the traces."""
        data = self._reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.schema_url for scope in scopes} == {tracing.SCHEMA_URL}
        return {metric.name: metric.unit or "" for scope in scopes for metric in scope.metrics}

    def counted(self, name: str) -> float:
        """Return the sum of a counter, or how often a histogram was added to."""
        data = self._reader.get_metrics_data()
        assert data is not None
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint | HistogramDataPoint)
        ]
        return sum(
            point.value if isinstance(point, NumberDataPoint) else point.count for point in points
        )


@pytest.fixture
def traces() -> Iterator[Traces]:
    collected = Traces()
    tracing.install(collected.provider, collected.meters)
    try:
        yield collected
    finally:
        tracing.uninstall()


@pytest.fixture
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture
def name() -> str:
    return f"t-{secrets.token_hex(4)}"


def trace_of(span: Any) -> int:
    return int(span.get_span_context().trace_id)


@pytest.mark.parametrize("kind", ["stream", "topic", "queue"])
def test_a_handler_continues_the_trace_of_its_message(
    hw: Headwater, name: str, traces: Traces, kind: str
) -> None:
    with traces.tracer.start_as_current_span("request") as request:
        if kind == "stream":
            hw.stream(name).write("t", b"v")
        elif kind == "topic":
            hw.topic(name, partitions=1).write_many([("t", b"v")])
        else:
            hw.queue(name).push(b"v")
    source: Any = hw.queue(name) if kind == "queue" else getattr(hw, kind)(name).group("g")
    seen: list[int] = []

    def handle(message: Any) -> None:  # noqa: ARG001
        with traces.tracer.start_as_current_span("inside") as inside:
            seen.append(trace_of(inside))
        work.stop()

    work = source.worker(concurrency=1)(handle)
    work.run()
    assert seen == [trace_of(request)]
    behind = {"stream": "/g", "topic": "/0/g", "queue": ""}[kind]
    span = traces.span(f"process {name}{behind}")
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert span.kind is SpanKind.CONSUMER
    assert span.attributes is not None
    assert span.attributes["messaging.system"] == "headwater"
    assert span.attributes["messaging.operation.type"] == "process"
    assert traces.counted("messaging.client.sent.messages") == 1
    assert traces.counted("messaging.process.duration") == 1


def test_a_trace_goes_from_a_transaction_through_the_outbox_to_a_consumer(
    hw: Headwater, engine: sa.Engine, name: str, traces: Traces
) -> None:
    outbox = Outbox(engine)
    outbox.create_all()
    requests = []
    for n in range(2):
        with traces.tracer.start_as_current_span(f"request {n}") as request, engine.begin() as conn:
            outbox.stage(conn, name, "t", b"v")
            requests.append(request.get_span_context())
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"of no trace")])
    with Streamer(outbox, hw) as streamer:
        assert streamer.run_once() == 3
    # The write of the batch is a part of it.
    write, sent = sorted(traces.spans(f"send {name}"), key=lambda span: span.parent is None)
    assert write.parent is not None
    assert write.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in sent.links] == [one.span_id for one in requests]
    assert traces.counted("messaging.client.sent.messages") == 3
    consumer = Consumer(f"c-{name}", name, engine, hw, lambda *_: None)
    assert consumer.run_once() == 3
    batch = traces.span(f"process c-{name}")
    assert [link.context.trace_id for link in batch.links] == [one.trace_id for one in requests]
    assert [link.context.span_id for link in batch.links] == [one.span_id for one in requests]
    assert batch.attributes is not None
    assert batch.attributes["messaging.consumer.group.name"] == f"c-{name}"
    assert batch.attributes["messaging.batch.message_count"] == 3


def test_spans_and_metrics_follow_the_conventions(hw: Headwater, name: str, traces: Traces) -> None:
    topic = hw.topic(name, partitions=1)
    topic.write("t", b"v")
    group = topic.partition(0).group("g")
    (message,) = group.read(10, ack_ms=60_000)
    group.ack(message)
    hw.stream(name).write_many([("t", b"v")] * 3)
    by_type = {
        "send": (f"send {name}/0", SpanKind.PRODUCER, name, None, None),
        "receive": (f"receive {name}/0/g", SpanKind.CONSUMER, name, "g", None),
        "settle": (f"settle {name}/0/g", SpanKind.CLIENT, name, "g", None),
        "batch": (f"send {name}", SpanKind.PRODUCER, name, None, 3),
    }
    for kind, (spelled, role, destination, member_of, count) in by_type.items():
        span = traces.span(spelled)
        assert span.attributes is not None
        assert (span.kind, span.status.status_code) == (role, StatusCode.UNSET)
        assert span.attributes["messaging.destination.name"] == destination
        partition = None if kind == "batch" else "0"
        assert span.attributes.get("messaging.destination.partition.id") == partition
        assert span.attributes.get("messaging.consumer.group.name") == member_of
        assert span.attributes.get("messaging.batch.message_count") == count
        assert span.attributes["messaging.operation.type"] == ("send" if count else kind)
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.schema_url == tracing.SCHEMA_URL
    assert traces.counted("messaging.client.sent.messages") == 4
    assert traces.counted("messaging.client.consumed.messages") == 1
    assert traces.units() == {
        "messaging.client.operation.duration": "s",
        "messaging.client.sent.messages": "{message}",
        "messaging.client.consumed.messages": "{message}",
    }


def test_a_handler_of_a_topic_has_the_partition_of_its_message(
    hw: Headwater, name: str, traces: Traces
) -> None:
    topic = hw.topic(name, partitions=4)
    placed = topic.write("t", b"v")

    @topic.group("g").worker()
    def handle(_: headwater.TopicMessage) -> None:
        handle.stop()

    handle.run()
    span = traces.span(f"process {name}/{placed.partition}/g")
    assert span.attributes is not None
    assert span.attributes["messaging.destination.name"] == name
    assert span.attributes["messaging.destination.partition.id"] == str(placed.partition)
    assert span.attributes["messaging.consumer.group.name"] == "g"


def test_a_program_without_traces_loads_nothing_of_them() -> None:
    program = (
        "import sys, headwater, headwater.aio, headwater.outbox\n"
        "print('headwater.kernel.tracing' in sys.modules, headwater.kernel.instrument.current())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout == b"False None\n"


def test_a_failed_handler_is_a_failed_span(hw: Headwater, name: str, traces: Traces) -> None:
    queue = hw.queue(name)
    queue.push(b"v")

    @queue.worker(max_attempts=1)
    def handle(job: headwater.Delivery) -> None:
        handle.stop()
        raise LookupError(job.id)

    handle.run()
    span = traces.span(f"process {name}")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "LookupError"


def test_what_may_be_repeated_and_what_is_given_stays_as_it_is(
    hw: Headwater, name: str, traces: Traces
) -> None:
    stream = hw.stream(name)
    for _ in range(2):
        with traces.tracer.start_as_current_span("attempt"):
            assert stream.write("t", b"v", producer="p", sequence=1) == 1
            assert hw.queue(name).push(b"v", producer="p", sequence=1)
    with traces.tracer.start_as_current_span("other"):
        stream.write("t", b"v", headers={"traceparent": b"mine", "a": b"b"})
        stream.write_many([m for m in stream.read(1, 1) if m])
    stream.write("t", b"outside of any span")
    found = [dict(m.headers) for m in stream.read(1, 10) if m]
    assert found == [{}, {"traceparent": b"mine", "a": b"b"}, {}, {}]


def test_nothing_is_carried_unless_asked(hw: Headwater, name: str, traces: Traces) -> None:
    stream = hw.stream(name)
    tracing.install(traces.provider, carry=False)
    with traces.tracer.start_as_current_span("request"):
        stream.write("t", b"v")
    tracing.uninstall()
    with traces.tracer.start_as_current_span("request"):
        stream.write("t", b"v")
    assert [dict(m.headers) for m in stream.read(1, 10) if m] == [{}, {}]


def test_an_async_handler_continues_the_trace_too(
    stores: Stores, name: str, traces: Traces
) -> None:
    async def live() -> list[int]:
        async with aio.connect(stores.url("plain")) as hw:
            group = hw.stream(name).group("g")
            with traces.tracer.start_as_current_span("request") as request:
                await hw.stream(name).write("t", b"v")
            seen = [trace_of(request)]

            async def handle(message: Any) -> None:  # noqa: ARG001
                with traces.tracer.start_as_current_span("inside") as inside:
                    seen.append(trace_of(inside))
                work.stop()

            work = group.worker(concurrency=2)(handle)
            await work.run()
            return seen

    first, second = asyncio.run(live())
    assert first == second
