"""A server that is told to stop answers what has begun, within its time, and then ends."""

from __future__ import annotations

import json
import signal
import socket
import time
from dataclasses import replace

from headwater.serve.http.messages import Reply
from tests.support.commands import line_of, running
from tests.support.farms import Replica, one_each
from tests.support.http import GET, POST, WIDE, Echo, HttpServer, read_all, replies
from tests.support.servers import until
from tests.support.timeline_http import element

HELD = GET.replace(b"/", b"/held", 1) + b"\r\n"


def test_what_has_begun_is_answered_and_what_is_idle_is_closed() -> None:
    handler = Echo()
    with HttpServer(handler, replace(WIDE, drain_ms=20_000)) as server:
        idle, working, sending = (server.connect() for _ in range(3))
        working.sendall(HELD + HELD)
        sending.sendall(POST + b"Content-Length: 4\r\n\r\nbo")
        until(lambda: handler.held)
        # All that was sent before this has been read.
        assert server.ask(GET + b"Connection: close\r\n\r\n")[0].status == 200
        server.stop()
        assert read_all(idle) == b""
        sending.sendall(b"dy")
        (sent,) = replies(read_all(sending))
        assert (sent.status, sent.body, sent.closes) == (200, b"POST /  body", True)
        server.call(lambda: handler.held.pop()(Reply(200, b"late")))
        # The second was not begun, as its client learns by the end of the connection.
        (late,) = replies(read_all(working))
        assert (late.status, late.body, late.closes) == (200, b"late", True)
        server.stopped()
        for raw in (idle, working, sending):
            raw.close()


def test_who_is_slower_than_the_time_that_is_left_is_cut_off() -> None:
    handler = Echo()
    with HttpServer(handler, replace(WIDE, drain_ms=500)) as server:
        trickling, reading, working = (server.connect() for _ in range(3))
        trickling.sendall(POST + b"Content-Length: 4\r\n\r\nbo")
        reading.sendall(GET.replace(b"/", b"/large?30000000", 1) + b"\r\n")
        working.sendall(HELD)
        until(lambda: handler.held)
        assert server.ask(GET + b"Connection: close\r\n\r\n")[0].status == 200
        began = time.monotonic()
        server.stop()
        server.stopped()
        assert 0.4 < time.monotonic() - began < 5
        assert read_all(trickling) == b""
        assert 0 < len(read_all(reading)) < 30_000_000
        assert read_all(working) == b""
        for raw in (trickling, reading, working):
            raw.close()


def test_a_server_that_is_terminated_answers_its_slow_clients_and_exits_with_0(
    three: list[Replica],
) -> None:
    words = ["timeline", "serve", "--instances", one_each(three), "--port", "0"]
    with running(None, *words, "--drain-ms", "20000") as program:
        port = int(line_of(program).rpartition(":")[2])
        body = json.dumps([element("k", 1, "a")]).encode()
        lines = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(5)]
        for raw in lines:
            head = POST.replace(b"Host: x", b"Host: localhost")
            raw.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
        # The server has read what came before this.
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as other:
                other.sendall(GET.replace(b"/", b"/metrics", 1) + b"Connection: close\r\n\r\n")
                assert read_all(other)
        program.send_signal(signal.SIGTERM)
        for place in range(10, len(body)):
            for raw in lines:
                raw.sendall(body[place : place + 1])
        for raw in lines:
            (answer,) = replies(read_all(raw))
            assert (answer.status, answer.closes) == (200, True)
            assert json.loads(answer.body)["inserted"] == 1
            raw.close()
        assert program.wait(60) == 0
