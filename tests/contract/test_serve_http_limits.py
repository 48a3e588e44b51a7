"""Places, bytes and time of connections are bounded, and who keeps within the bounds is served."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from functools import wraps
from typing import Any

import pytest

from headwater.errors import InvalidInput
from headwater.serve.http.connection import LINGER_S
from headwater.serve.http.messages import Reply
from headwater.serve.limits import HttpLimits
from tests.support.http import (
    GET,
    POST,
    TOKEN,
    TOKENS,
    WIDE,
    Echo,
    HttpServer,
    connect,
    open_connections,
    read_all,
    replies,
)
from tests.support.pages import ROOT
from tests.support.servers import until

LAST = b"Connection: close\r\n\r\n"
HELD = GET.replace(b"/", b"/held", 1)


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop, as connections need one."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def statuses(text: bytes) -> list[int]:
    return [answer.status for answer in replies(text)]


def test_every_limit_is_an_option_with_its_default_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "limits.md").read_text("utf-8")
    for field in fields(HttpLimits):
        option = "--" + field.name.replace("_", "-")
        assert f"| `{option}` | {field.default:,} |" in page


@pytest.mark.parametrize("field", fields(HttpLimits))
def test_a_limit_that_cannot_work_is_refused(field: Any) -> None:
    with pytest.raises(InvalidInput, match=field.name):
        replace(WIDE, **{field.name: -1})


def test_a_body_that_could_never_be_buffered_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidInput, match="max_buffered"):
        HttpLimits(max_buffered=1000, max_body=1001)


def test_a_connection_too_many_is_answered_503_and_the_others_are_served() -> None:
    with HttpServer(Echo(), replace(WIDE, max_connections=3)) as server:
        first = [server.connect() for _ in range(3)]
        for raw in first:
            raw.sendall(GET + b"\r\n")
            assert raw.recv(15) == b"HTTP/1.1 200 OK"
        with server.connect() as fourth:
            assert statuses(read_all(fourth)) == [503]
        first.pop().close()
        until(lambda: server.ask(GET + LAST)[0].status == 200)
        for raw in first:
            raw.close()


def test_who_only_holds_a_place_keeps_nobody_with_a_token_out() -> None:
    limits = replace(WIDE, max_connections=20, max_anonymous=5)
    with HttpServer(Echo(TOKENS), limits) as server:
        known = server.connect()
        known.sendall(GET + TOKEN + b"\r\n")
        assert known.recv(15) == b"HTTP/1.1 200 OK"
        silent = [server.connect() for _ in range(15)]
        for raw in silent:
            raw.sendall(b"GET /")
        for _ in range(3):
            assert server.ask(GET + TOKEN + LAST)[0].status == 200
        # The first ten gave up their places, and were told why.
        assert [statuses(read_all(raw)) for raw in silent[:10]] == [[503]] * 10
        known.sendall(GET + TOKEN + LAST)
        assert b"HTTP/1.1 200 OK" in read_all(known)
        for raw in [known, *silent]:
            raw.close()


def test_who_needs_no_token_is_not_anonymous() -> None:
    with HttpServer(Echo(), replace(WIDE, max_anonymous=1)) as server:
        lines = [server.connect() for _ in range(5)]
        for raw in lines:
            raw.sendall(GET + LAST)
            assert statuses(read_all(raw)) == [200]
            raw.close()


@in_loop
async def test_of_all_connections_the_one_that_holds_the_most_is_refused() -> None:
    limits = replace(WIDE, max_buffered=100_000, max_body=100_000)
    all_open, handler = open_connections(limits), Echo()
    begin = POST + b"Content-Length: 90000\r\n\r\n"
    (large, large_wire), (small, small_wire), (third, third_wire) = (
        connect(handler, limits, all_open) for _ in range(3)
    )
    large.data_received(begin + b"x" * 60_000)
    small.data_received(begin + b"x" * 20_000)
    third.data_received(begin + b"x" * 30_000)
    assert statuses(large_wire.written) == [503]
    assert large_wire.closed
    assert all_open.buffered == 50_000
    for connection, wire, rest in ((small, small_wire, 70_000), (third, third_wire, 60_000)):
        connection.data_received(b"x" * rest)
        assert statuses(wire.written) == [200]
        # What is answered is not held, once it is sent.
        connection.connection_lost(None)
    large.connection_lost(None)
    assert all_open.buffered == 0
    assert len(all_open) == 0


@in_loop
async def test_what_a_request_under_way_holds_is_counted_until_it_is_answered() -> None:
    limits = replace(WIDE, max_buffered=100_000, max_body=100_000)
    all_open, handler = open_connections(limits), Echo()
    begin = POST.replace(b"/", b"/held", 1) + b"Content-Length: 90000\r\n\r\n"
    working, wire = connect(handler, limits, all_open)
    working.data_received(begin + b"x" * 90_000)
    assert len(handler.held) == 1
    # It cannot be freed, so that whoever comes next is refused, and it is answered.
    other, other_wire = connect(handler, limits, all_open)
    other.data_received(begin + b"x" * 20_000)
    assert statuses(other_wire.written) == [503]
    other.connection_lost(None)
    # A client that leaves takes the bytes of its request along only when that has ended.
    working.connection_lost(None)
    assert (all_open.buffered, len(all_open)) == (90_000, 1)
    handler.held.pop()(Reply(200, b""))
    assert (all_open.buffered, len(all_open)) == (0, 0)
    assert handler.counted == [503, 200]
    assert not wire.written


@in_loop
async def test_a_reply_that_may_not_be_buffered_is_answered_503() -> None:
    handler = Echo()
    connection, wire = connect(handler, replace(WIDE, max_buffered=1000, max_body=1000))
    connection.data_received(GET.replace(b"/", b"/large?1001", 1) + b"\r\n")
    connection.data_received(GET.replace(b"/", b"/large?1000", 1) + b"\r\n")
    assert statuses(wire.written) == [503, 200]


@in_loop
async def test_who_is_refused_is_answered_once_although_the_rest_was_still_to_be_parsed() -> None:
    handler = Echo()
    connection, wire = connect(handler)
    chunks = b"1\r\nx\r\n" * 30_000
    connection.data_received(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    # What is behind the first pieces waits for its turn, and before that more arrives.
    while not wire.written:
        connection.data_received(chunks)
    await asyncio.sleep(0)
    assert statuses(wire.written) == [400]
    assert handler.counted == [400]
    connection.abort()


@in_loop
async def test_a_request_has_its_time_from_its_first_byte_to_its_last() -> None:
    handler = Echo()
    connection, wire = connect(handler, replace(WIDE, head_ms=10_000, request_ms=30_000))
    now = time.monotonic()
    sent = POST + b"Content-Length: 100\r\n\r\n" + b"x" * 99
    head = sent.index(b"x" * 99)
    connection.data_received(sent[: head - 1])
    connection.check_timeout(now + 9)
    connection.data_received(sent[head - 1 : head])
    # The head is complete; a byte every five seconds does not hold the place.
    for second in range(10, 31, 5):
        connection.data_received(b"x")
        connection.check_timeout(now + second)
        assert not wire.written
    connection.data_received(b"x")
    connection.check_timeout(now + 31)
    assert statuses(wire.written) == [408]
    connection.check_timeout(time.monotonic() + LINGER_S + 1)
    assert wire.closed


@in_loop
async def test_a_head_has_less_time_than_a_request() -> None:
    connection, wire = connect(Echo(), replace(WIDE, head_ms=10_000))
    now = time.monotonic()
    connection.data_received(GET)
    connection.check_timeout(now + 9)
    assert not wire.written
    connection.data_received(b"A: b\r\n")
    connection.check_timeout(now + 11)
    assert statuses(wire.written) == [408]


@pytest.mark.parametrize("sent", [b"", b"\r\n", GET + b"\r\n"])
def test_an_idle_client_is_disconnected_whatever_empty_lines_it_sends(sent: bytes) -> None:
    @in_loop
    async def idle() -> None:
        connection, wire = connect(Echo(), replace(WIDE, idle_ms=120_000))
        now = time.monotonic()
        connection.data_received(sent)
        connection.check_timeout(now + 119)
        assert not wire.closed
        connection.data_received(b"\r\n")
        connection.check_timeout(now + 122)
        assert wire.closed

    idle()


@in_loop
async def test_an_idle_client_without_a_token_is_disconnected_sooner() -> None:
    connection, wire = connect(Echo(TOKENS), replace(WIDE, head_ms=10_000))
    now = time.monotonic()
    connection.data_received(GET.replace(b"/", b"/public", 1) + b"\r\n")
    connection.check_timeout(now + 9)
    assert not wire.closed
    connection.check_timeout(now + 12)
    assert wire.closed


@in_loop
async def test_a_request_under_way_has_all_the_time_it_needs() -> None:
    handler = Echo()
    connection, wire = connect(handler)
    connection.data_received(HELD + b"\r\n" + b"GET")
    connection.check_timeout(time.monotonic() + 1_000_000)
    handler.held.pop()(Reply(200, b""))
    # The next one could be read from now on only, whenever its first bytes came.
    connection.check_timeout(time.monotonic() + 1)
    assert statuses(wire.written) == [200]
    assert not wire.closed


@in_loop
async def test_a_client_takes_each_reply_within_its_time_however_it_reads() -> None:
    connection, wire = connect(Echo(), replace(WIDE, reply_ms=60_000))
    connection.data_received(GET.replace(b"/", b"/large?5000", 1) + b"\r\n")
    wire.unsent = len(wire.written)
    now = time.monotonic()
    connection.check_timeout(now)
    for second in range(1, 60):
        wire.unsent -= 1
        connection.check_timeout(now + second)
        assert not wire.closed
    connection.check_timeout(now + 61)
    assert wire.closed


@in_loop
async def test_a_client_that_reads_steadily_is_not_too_slow_though_there_is_always_more() -> None:
    connection, wire = connect(Echo(), replace(WIDE, reply_ms=60_000))
    now = time.monotonic()
    for minute in range(5):
        connection.data_received(GET.replace(b"/", b"/large?5000", 1) + b"\r\n")
        # All but the newest reply is taken.
        wire.unsent = 5000
        connection.check_timeout(now + 50 * minute)
        assert not wire.closed


def test_a_client_that_does_not_read_is_closed_at_once_when_its_time_is_over() -> None:
    limits = replace(WIDE, reply_ms=500, max_connections=1)
    with HttpServer(Echo(), limits) as server, server.connect() as raw:
        raw.sendall(GET.replace(b"/", b"/large?30000000", 1) + LAST)
        until(lambda: server.ask(GET + LAST)[0].status == 200)
        # The rest of the reply was thrown away.
        assert 0 < len(read_all(raw)) < 30_000_000


def test_a_trickle_over_a_socket_does_not_hold_its_place() -> None:
    with HttpServer(Echo(), replace(WIDE, request_ms=500)) as server, server.connect() as raw:
        raw.sendall(POST + b"Content-Length: 100000\r\n\r\n")
        raw.settimeout(0.05)
        text = b""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                raw.sendall(b"x")
                piece = raw.recv(65536)
                text += piece
                if not piece:
                    break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
        assert statuses(text) == [408]


@pytest.mark.parametrize(
    "sent",
    [
        GET + TOKEN + b"\r\n",
        HELD + TOKEN + b"\r\n" + GET,
        POST + TOKEN + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000,
        POST + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000,
        b"nonsense\r\n" * 1000,
    ],
)
def test_nothing_of_a_connection_that_is_gone_waits_for_the_garbage_collector(sent: bytes) -> None:
    @in_loop
    async def come_and_go() -> None:
        handler, all_open = Echo(TOKENS), open_connections(WIDE)
        connection, _ = connect(handler, WIDE, all_open)
        connection.data_received(sent)
        connection.connection_lost(None)
        while handler.held:
            handler.held.pop()(Reply(200, b""))
        gone = weakref.ref(connection)
        del connection
        await asyncio.sleep(0)
        assert gone() is None

    gc.disable()
    try:
        come_and_go()
    finally:
        gc.enable()
