"""Traces and metrics by OpenTelemetry, with its API package alone.

    from headwater import tracing

    tracing.install()

From then on each operation of this process is a span, and messages that are written, pushed or
staged carry the context of the span in which they were made, as the header ``traceparent``. A
worker continues that trace in its handler; a streamer and a SQL consumer link their batches to the
traces of their messages. Nothing is installed by default, and then a message carries nothing.

Names and attributes follow the semantic conventions of OpenTelemetry for messaging. No span has a
tag, a value or an offset.

A write with a producer and a sequence carries no context: its repeat must be equal to it, and may
be made in another trace. Messages that are copied keep the context that they have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headwater.kernel import instrument
from headwater.kernel.headers import Carried
from headwater.kernel.instrument import Event
from headwater.kernel.packaging import __version__, extra_needed

with extra_needed("otel"):
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM: Final = "headwater"


class _Kind(NamedTuple):
    """What the conventions call an operation."""

    type: str
    span: SpanKind


_SEND: Final = _Kind("send", SpanKind.PRODUCER)
_RECEIVE: Final = _Kind("receive", SpanKind.CONSUMER)
_SETTLE: Final = _Kind("settle", SpanKind.CLIENT)
_PROCESS: Final = _Kind("process", SpanKind.CONSUMER)
_OTHER: Final = _Kind("", SpanKind.CLIENT)

_KINDS: Final = {
    **dict.fromkeys(("stream.write", "stream.publish", "queue.push", "streamer.batch"), _SEND),
    **dict.fromkeys(("stream.read", "stream.wait", "stream.look"), _RECEIVE),
    **dict.fromkeys(("group.read", "group.wait", "queue.pop", "queue.wait"), _RECEIVE),
    **dict.fromkeys(("group.ack", "group.fail", "group.extend"), _SETTLE),
    **dict.fromkeys(("queue.ack", "queue.nack", "queue.extend", "queue.settle"), _SETTLE),
    **dict.fromkeys(("worker.handle", "consumer.batch"), _PROCESS),
}


class _Running(NamedTuple):
    """A span under way; ``attached`` ends its being the current one."""

    span: trace.Span
    attached: object


class Tracing:
    """An Instrument that makes spans and metrics; ``install`` installs one.

    Handlers run inside the span of their message, so that what they call belongs to its trace.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(
            "headwater", __version__, tracer_provider, schema_url=SCHEMA_URL
        )
        meter = metrics.get_meter("headwater", __version__, meter_provider, schema_url=SCHEMA_URL)
        self._took = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Time of an operation of the client."
        )
        self._processed = meter.create_histogram(
            "messaging.process.duration", "s", "Time that a handler took."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were sent."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were received."
        )
        self._counted = meter.create_counter(
            "messaging.headwater.events", "{event}", "Retries, repairs and the like."
        )

    def begin(self, name: str, object: str) -> _Running:
        """Start a span for an operation."""
        return _Running(self._start(name, object, None, ()), None)

    def begin_handling(
        self, name: str, object: str, headers: Iterable[Mapping[str, bytes]]
    ) -> _Running:
        """Start a span for a handler, in the trace of its message or linked to those of a batch."""
        found = [context for context in map(_context_of, headers) if context is not None]
        if name == "worker.handle" and found:
            span = self._start(name, object, found[0], ())
        else:
            spans = (trace.get_current_span(context).get_span_context() for context in found)
            span = self._start(name, object, None, [trace.Link(one) for one in spans])
        return _Running(span, contexts.attach(trace.set_span_in_context(span)))

    def _start(
        self, name: str, object: str, parent: contexts.Context | None, links: Iterable[trace.Link]
    ) -> trace.Span:
        kind = _KINDS.get(name, _OTHER)
        return self._tracer.start_span(
            f"{kind.type or name} {object}", parent, kind.span, _attributes(name, object), [*links]
        )

    def end(self, token: Any, event: Event) -> None:
        """End the span of an operation, and measure it."""
        span, attached = token
        if attached is not None:
            contexts.detach(attached)
        kind = _KINDS.get(event.name, _OTHER)
        facts = _attributes(event.name, event.object)
        if event.messages > 1:
            # As the conventions ask for: not of a single message.
            span.set_attribute("messaging.batch.message_count", event.messages)
        if event.error:
            span.set_attribute("error.type", event.error)
            facts = {**facts, "error.type": event.error}
        if event.outcome in ("failed", "unknown"):
            span.set_status(Status(StatusCode.ERROR, event.error or event.outcome))
        span.end()
        (self._processed if kind is _PROCESS else self._took).record(event.seconds, facts)
        # What a streamer sends is counted by its writes.
        if event.messages and kind is _SEND and event.name != "streamer.batch":
            self._sent.add(event.messages, facts)
        elif event.messages and kind is _RECEIVE:
            self._consumed.add(event.messages, facts)

    def count(self, name: str, object: str, n: int = 1) -> None:
        """Count what takes no time of its own."""
        self._counted.add(n, {"messaging.system": SYSTEM, "event": name, "object": object})


def install(
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    *,
    carry: bool = True,
) -> None:
    """Make spans of all that happens in this process from now on.

    Without providers, those that the application has set. With ``carry=False`` messages carry no
    context. It takes the place of an instrument that is installed.
    """
    instrument.install(Tracing(tracer_provider, meter_provider))
    Carried.context = current_headers if carry else None


def uninstall() -> None:
    """Make no more spans, and let messages carry nothing."""
    instrument.install(None)
    Carried.context = None


def current_headers() -> dict[str, str]:
    """Return the headers that say which span is the current one; empty without one."""
    found: dict[str, str] = {}
    propagate.inject(found)
    return found


def _context_of(headers: Mapping[str, bytes]) -> contexts.Context | None:
    """Return the context that a message carries, or None."""
    texts = {name: headers[name].decode("latin-1") for name in headers if name in _FIELDS}
    if not texts:
        return None
    context = propagate.extract(texts, contexts.Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


_FIELDS: Final = frozenset({"traceparent", "tracestate", "baggage"})


def _attributes(name: str, object: str) -> dict[str, str]:
    """Return what the conventions say of an operation."""
    kind = _KINDS.get(name, _OTHER)
    destination, group = object, ""
    if name in _OF_GROUPS or (name == "worker.handle" and _HANDLED.fullmatch(object)):
        destination, _, group = object.rpartition("/")
    elif name == "consumer.batch":
        group = object
    found = {"messaging.system": SYSTEM, "messaging.operation.name": name}
    # The stream of a partition is named by its topic: "rides/3".
    if partition := _PARTITION.fullmatch(destination) if name.startswith(_OF_STREAMS) else None:
        destination = partition["topic"]
        found["messaging.destination.partition.id"] = partition["id"]
    found["messaging.destination.name"] = destination
    if kind.type:
        found["messaging.operation.type"] = kind.type
    if group:
        found["messaging.consumer.group.name"] = group
    return found


_PARTITION: Final = re.compile(r"(?P<topic>.+)/(?P<id>0|[1-9][0-9]{0,3})", re.DOTALL)
_HANDLED: Final = re.compile(rf"{_PARTITION.pattern}/[^/]+", re.DOTALL)
_OF_STREAMS: Final = ("stream.", "group.", "worker.")
_OF_GROUPS: Final = frozenset(name for name in _KINDS if name.startswith("group."))
