"""Requests are read the same however they are cut, and what is ambiguous is refused."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.serve.http.messages import Reply, Request
from headwater.serve.timeline.wire import duration
from tests.support.http import CHUNKED, GET, POST, WIDE, Echo, connect, parser

MAX_HEAD_BYTES = WIDE.max_head

MANY = (
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfirst"
    b"\r\nGET /select?limit=3 HTTP/1.1\r\nhost:x\r\nAuthorization:  Bearer t \r\n\r\n"
    b"PUT / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    b"Content-Length: 2\r\n\r\nup"
    b"GET http://host:1/metrics?a=b HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"
    b"DELETE / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nConnection: close\r\n\r\n"
    b"4\r\nsome\r\n1;x=y\r\n \r\n00\r\nAuthorization: Bearer late\r\n\r\n"
)


def read(pieces: list[bytes]) -> list[Request]:
    parsing = parser()
    for piece in pieces:
        parsing.feed(piece)
    assert not parsing.begun
    assert parsing.refused is None
    return list(parsing.requests)


@given(st.lists(st.integers(0, len(MANY)), max_size=8).map(sorted))
def test_requests_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    edges = [0, *cuts, len(MANY)]
    assert read([MANY[a:b] for a, b in pairwise(edges)]) == [
        Request("POST", "/", "", "/", True, b"first"),
        Request("GET", "/select", "limit=3", "/select", True, b""),
        Request("PUT", "/", "", "/", True, b"up"),
        Request("GET", "/metrics", "a=b", "/metrics", True, b"", http11=False),
        Request("DELETE", "/", "", "/", False, b"some "),
    ]


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_wish_for_another_protocol_is_ignored_whatever_the_body(cut: int) -> None:
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
    sent = (
        GET + wish + b"\r\n"
        + POST + wish + b"Content-Length: 3\r\n\r\none"
        + POST + wish + b"Transfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
        + GET + b"\r\n"
        + POST + b"Connection: close, Upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\n\r\nlast"
    )  # fmt: skip
    found = read([sent[at : at + cut] for at in range(0, len(sent), cut)])
    assert [request.body for request in found] == [b"", b"one", b"two", b"", b"last"]
    assert [request.keep_alive for request in found] == [True, True, True, True, False]


def test_a_request_of_http_1_0_needs_no_host_and_is_the_last() -> None:
    assert read([b"GET / HTTP/1.0\r\n\r\n"]) == [
        Request("GET", "/", "", "/", False, b"", http11=False)
    ]


REFUSED = {
    "nonsense": (b"nonsense\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "a proxy is meant": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (GET + b"Host: x\r\n\r\n", 400),
    "empty Host and another": (POST.replace(b" x", b"") + b"Host: y\r\n\r\n", 400),
    "Host that is none": (GET.replace(b"x", b"a b") + b"\r\n", 400),
    "Host with a path": (GET.replace(b"x", b"a/b") + b"\r\n", 400),
    "second Authorization behind an empty one": (
        GET + b"Authorization:\r\nAuthorization: b\r\n\r\n",
        400,
    ),
    "fragment": (b"GET /#a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target of another scheme": (b"GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target without a host": (b"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target with a user": (b"GET http://u:p@x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "absolute target and no Host": (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
    "an asterisk is no path": (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a path without its slash": (b"GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "two Authorizations": (GET + b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400),
    "space before colon": (GET + b"A : b\r\n\r\n", 400),
    "folded header": (GET + b"A: b\r\n folded\r\n\r\n", 400),
    "NUL in a header": (GET + b"A: \0\r\n\r\n", 400),
    "control in a header": (GET + b"A: \x01\r\n\r\n", 400),
    "bare CR in a header": (GET + b"A: b\rc\r\n\r\n", 400),
    "bare CR behind a header": (GET + b"A: b\rB: c\r\n\r\n", 400),
    "header without a name": (GET + b": b\r\n\r\n", 400),
    "bare LF behind the request line": (b"GET / HTTP/1.1\nHost: x\r\n\r\n", 400),
    "bare LF behind a header": (b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n", 400),
    "bare LF at the end of the head": (GET + b"\n", 400),
    "byte above 127 in the target": (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "target that cannot be read": (b"GET http://[x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "Content-Length -1": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "two Content-Lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    "the same length twice": (POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
    "length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunks and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n", 400),
    "another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    "chunks of HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "chunk size -1": (CHUNKED + b"-1\r\n", 400),
    "chunk size 0x1": (CHUNKED + b"0x1\r\na\r\n", 400),
    "chunk longer than said": (CHUNKED + b"2\r\nabc\r\n", 400),
    "bare LF behind a chunk": (CHUNKED + b"1\r\na\n0\r\n\r\n", 400),
    "chunk size that no machine holds": (CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n", 400),
    "chunk extension without an end": (CHUNKED + b'1;a="b\r\nx\r\n', 400),
    "control in a chunk extension": (CHUNKED + b"1;a=\0\r\nx\r\n", 400),
    "bare LF behind a chunk extension": (CHUNKED + b"1;a\nx\r\n", 400),
    "space behind a chunk size": (CHUNKED + b"1 \r\nx\r\n", 400),
    "NUL in trailers": (CHUNKED + b"0\r\nA: \0\r\n\r\n", 400),
    "Transfer-Encoding in trailers": (CHUNKED + b"0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "junk in trailers": (CHUNKED + b"0\r\nnonsense here\r\n\r\n", 400),
    "folded trailer": (CHUNKED + b"0\r\nA: b\r\n c\r\n\r\n", 400),
    "large chunks": (CHUNKED + b"40\r\n" + b"x" * 64 + b"\r\n40\r\n" + b"x" * 64 + b"\r\n", 413),
    "large body": (POST + b"Content-Length: 101\r\n\r\n", 413),
    "large target": (b"GET /" + b"x" * MAX_HEAD_BYTES, 431),
    "large header": (GET + b"A: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    "many headers": (GET + b"a:\r\n" * WIDE.max_headers + b"\r\n", 431),
    "many trailers": (CHUNKED + b"0\r\n" + b"a:\r\n" * WIDE.max_headers + b"\r\n", 431),
    "large header without an end": (GET + b"A: " + b"x" * MAX_HEAD_BYTES, 431),
    "large trailer without an end": (CHUNKED + b"0\r\nA: " + b"x" * 2 * MAX_HEAD_BYTES, 431),
}


@pytest.mark.parametrize("cut", [1, 1000, 1 << 20])
@pytest.mark.parametrize("case", REFUSED)
def test_what_could_be_read_in_two_ways_or_is_too_large_is_refused(case: str, cut: int) -> None:
    sent, status = REFUSED[case]
    parsing = parser()
    for at in range(0, len(sent), cut):
        parsing.feed(sent[at : at + cut])
    assert not parsing.requests
    assert parsing.refused is not None
    assert parsing.refused.status == status


def test_what_is_complete_before_nonsense_is_answered() -> None:
    parsing = parser()
    parsing.feed(GET + b"\r\n" + POST + b"nonsense\r\n\r\n")
    assert len(parsing.requests) == 1
    assert parsing.refused is not None


def test_a_client_that_waits_to_be_told_to_go_on_is_told_once() -> None:
    parsing = parser()
    parsing.feed(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n")
    assert not parsing.wants_continue()
    parsing.feed(b"\r\n")
    assert parsing.wants_continue()
    assert not parsing.wants_continue()
    parsing.feed(b"ok")
    assert parsing.requests


def test_a_reply_says_its_length_and_whether_it_is_the_last() -> None:
    text = Reply(404, b"{}").spelled(0.0, keep_alive=False)
    assert text == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    assert Reply(200, b"{}").spelled(0.0, keep_alive=True, bodiless=True).endswith(b"2\r\n\r\n")


def test_a_client_that_sends_far_ahead_is_read_on_when_the_last_it_sent_is_begun() -> None:
    async def flood() -> None:
        handler = Echo()
        connection, wire = connect(handler)
        one = GET.replace(b"/", b"/held", 1) + b"\r\n"
        for _ in range(3):
            connection.data_received(one * 2000)
        assert len(handler.held) == 1, "requests of a connection are answered in order"
        for answered in range(1, 6001):
            assert wire.reading is (answered == 6000)
            handler.held.pop()(Reply(200, b""))
            assert wire.written.count(b"HTTP/1.1 200 OK") == answered
            await asyncio.sleep(0)
        assert wire.reading is True
        assert not handler.held

    asyncio.run(flood())


def test_times_are_spelled_as_go_does() -> None:
    assert [duration(s) for s in (1.5, 0.00325, 0.0000125, 2e-8)] == [
        "1.5s",
        "3.25ms",
        "12.5µs",
        "20ns",
    ]
