"""One trace from an HTTP request to a Spark batch: transaction, streamer, log, group, worker.

A web server stages a message in the transaction that stores an order. The streamer moves it to the
log, a worker of a group handles it in the trace of the request, and a batch of Spark, which is of
many requests, links to each of them. With ``--spark`` the batch is one of Spark; without it, one
that this program reads. Needs ``pip install 'headwater[otel,sql]' opentelemetry-sdk``.
"""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import sqlalchemy as sa
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind

import headwater
from headwater import tracing
from headwater.outbox import Outbox, Streamer

ORDERS = "orders"
tracer = trace.get_tracer("shop")


class Shop(BaseHTTPRequestHandler):
    """Takes orders: the row and the message are in the database together, or neither is."""

    engine: sa.Engine
    outbox: Outbox

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with (
            tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER),
            self.engine.begin() as conn,
        ):
            conn.execute(sa.text("INSERT INTO orders (what) VALUES (:what)"), {"what": body})
            self.outbox.stage(conn, ORDERS, "order", body)
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def take_orders(engine: sa.Engine, outbox: Outbox, orders: list[bytes]) -> None:
    """Run the shop for some requests."""
    Shop.engine, Shop.outbox = engine, outbox
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for order in orders:
            url = f"http://127.0.0.1:{server.server_address[1]}/orders"
            urllib.request.urlopen(url, order).close()
        server.shutdown()


def handle_orders(hw: headwater.Headwater, count: int) -> None:
    """Handle so many messages as a worker of a group."""
    handled = []

    @hw.stream(ORDERS).group("mail").worker()
    def send_mail(message: headwater.Message) -> None:
        with tracer.start_as_current_span("send mail"):
            handled.append(message.offset)
        if len(handled) == count:
            send_mail.stop()

    send_mail.run()


def contexts_by_spark() -> list[str]:
    """Return the contexts that the messages of a batch carry, as Spark reads them."""
    from headwater.spark import session

    spark = session("local[1]", app_name="one-trace")
    try:
        read = spark.read.format("headwater").option("stream", ORDERS)
        rows = read.option("includeHeaders", "true").load().select("headers").collect()
    finally:
        spark.stop()
    return [
        bytes(pair.value).decode()
        for row in rows
        for pair in row.headers
        if pair.key == "traceparent"
    ]


def contexts_by_library(hw: headwater.Headwater) -> list[str]:
    """Return the same, as the library reads them."""
    found = hw.stream(ORDERS).read(1, 1000)
    return [one.headers["traceparent"].decode() for one in found if one is not None]


def process_batch(contexts: Iterable[str]) -> None:
    """Process a batch in a span that links to the request of each of its messages."""
    links = []
    for context in contexts:
        carried = propagate.extract({"traceparent": context})
        links.append(Link(trace.get_current_span(carried).get_span_context()))
    with tracer.start_as_current_span(f"batch {ORDERS}", kind=SpanKind.CONSUMER, links=links):
        pass


def show(spans: tuple[ReadableSpan, ...]) -> None:
    """Print each request with the spans of its trace, and the batches that link to it."""
    for request in (span for span in spans if span.name == "POST /orders"):
        own = request.context.trace_id
        names = [span.name for span in spans if span.context.trace_id == own]
        linked = [
            span.name for span in spans if own in [link.context.trace_id for link in span.links]
        ]
        print(f"trace {own:032x}")
        print(f"  spans:  {', '.join(sorted(names))}")
        print(f"  linked: {', '.join(linked)}")
        assert {"POST /orders", f"process {ORDERS}/mail", "send mail"} <= set(names)
        assert linked == [f"send {ORDERS}", f"batch {ORDERS}"]


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracing.install()
    engine = sa.create_engine("sqlite:///one-trace.db")
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE IF NOT EXISTS orders (what TEXT)"))
    with headwater.connect() as hw:
        hw.stream(ORDERS).delete()
        take_orders(engine, outbox, [b"a bicycle", b"two wheels"])
        with Streamer(outbox, hw) as streamer:
            streamer.run_once()
        handle_orders(hw, 2)
        by_spark = "--spark" in sys.argv[1:]
        process_batch(contexts_by_spark() if by_spark else contexts_by_library(hw))
    tracing.uninstall()
    engine.dispose()
    show(exporter.get_finished_spans())


if __name__ == "__main__":
    main()
