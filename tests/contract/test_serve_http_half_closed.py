"""A client that closes its side of a connection is answered what it has sent before."""

from __future__ import annotations

import socket

import pytest

from headwater.serve.http.messages import Reply
from tests.support.api import ApiServer, messages_of
from tests.support.http import GET, POST, Echo, HttpServer, read_all, replies
from tests.support.servers import until
from tests.support.stores import Stores

HELD = GET.replace(b"/", b"/held", 1) + b"\r\n"
LARGE = GET.replace(b"/", b"/large?3000000", 1) + b"\r\n"


def half_closed(server: HttpServer, sent: bytes) -> socket.socket:
    raw = server.connect()
    raw.sendall(sent)
    raw.shutdown(socket.SHUT_WR)
    return raw


def test_every_request_before_it_is_answered_in_order() -> None:
    with HttpServer(Echo()) as server:
        sent = (
            GET + b"\r\n" + LARGE + POST + b"Content-Length: 4\r\n\r\nbody" + (GET + b"\r\n") * 500
        )
        with half_closed(server, sent) as raw:
            found = replies(read_all(raw))
    assert len(found) == 503
    assert [one.status for one in found] == [200] * 503
    assert (len(found[1].body), found[2].body) == (3_000_000, b"POST /  body")


def test_a_request_that_is_under_way_is_answered_when_it_is_done() -> None:
    handler = Echo()
    with HttpServer(handler) as server, half_closed(server, HELD + GET + b"\r\n") as raw:
        until(lambda: handler.held)
        # What came before this has been read, the end of the other connection included.
        assert server.ask(GET + b"Connection: close\r\n\r\n")[0].status == 200
        server.call(lambda: handler.held.pop()(Reply(200, b"late")))
        late, other = replies(read_all(raw))
        assert (late.body, other.status) == (b"late", 200)


@pytest.mark.parametrize("part", [b"", GET, POST + b"Content-Length: 4\r\n\r\nbo", b"\r\nnonsense"])
def test_half_a_request_is_not_waited_for(part: bytes) -> None:
    with HttpServer(Echo()) as server, half_closed(server, GET + b"\r\n" + part) as raw:
        first, *rest = replies(read_all(raw))
    assert first.status == 200
    assert [one.status for one in rest] in ([], [400])


@pytest.mark.parametrize("before", ["", "GET /v1/streams HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_nothing_waits_for_a_client_that_may_be_gone(
    stores: Stores, name: str, before: str
) -> None:
    """It would take a message that nobody gets."""
    with ApiServer(stores.url("plain")) as api:
        client = api.client()
        client.post(messages_of(name), {"value": "v"})
        read = f"/v1/streams/{name}/groups/g/read"
        assert len(client.post(read, {"count": 1}).body["messages"]) == 1
        body = '{"block_ms": 60000}'
        for line, sent in (
            (f"GET /v1/streams/{name}/tail", ""),
            (f"GET {messages_of(name, '?from=2&block_ms=60000')}", ""),
            (f"POST {read}", body),
        ):
            with socket.create_connection(("127.0.0.1", api.port), timeout=60) as raw:
                head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
                raw.sendall(f"{before}{head}{sent}".encode())
                raw.shutdown(socket.SHUT_WR)
                read_all(raw)
        client.post(messages_of(name), {"value": "w"})
        assert len(client.post(read, {"count": 1}).body["messages"]) == 1


def test_all_of_a_streamed_reply_is_sent(stores: Stores, name: str) -> None:
    with ApiServer(stores.url("plain")) as api:
        messages = [{"value": "v" * 1000}] * 2000
        assert api.client().post(messages_of(name), messages).status == 201
        with socket.create_connection(("127.0.0.1", api.port), timeout=60) as raw:
            path = messages_of(name, "?count=2000")
            lines = "Host: localhost\r\nAccept: application/x-ndjson\r\n"
            raw.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
            raw.shutdown(socket.SHUT_WR)
            assert read_all(raw).count(b'"offset":') == 2000
