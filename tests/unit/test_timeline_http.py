"""Requests are read the same however they are cut, and what is ambiguous is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.serve.http.parsing import MAX_HEAD_BYTES, Parser, Refused, Request
from headwater.serve.http.replies import Reply, spell
from headwater.serve.timeline.wire import duration

MANY = (
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfirst"
    b"\r\nGET /select?limit=3 HTTP/1.1\r\nhost:x\r\nAuthorization:  Bearer t \r\n\r\n"
    b"DELETE / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b"4\r\nsome\r\n1;x=y\r\n \r\n00\r\nTrailer: t\r\n\r\n"
    b"GET http://host:1/metrics?a=b HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"
)


def read(pieces: list[bytes]) -> list[Request]:
    parser = Parser(max_body=100)
    found = []
    for piece in pieces:
        parser.feed(piece)
        while request := parser.next():
            found.append(request)
    assert not parser.begun
    return found


@given(st.lists(st.integers(0, len(MANY)), max_size=8).map(sorted))
def test_requests_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    edges = [0, *cuts, len(MANY)]
    found = read([MANY[a:b] for a, b in pairwise(edges)])
    assert [(r.head.method, r.head.path, r.head.query, r.body) for r in found] == [
        ("POST", "/", "", b"first"),
        ("GET", "/select", "limit=3", b""),
        ("DELETE", "/", "", b"some "),
        ("GET", "/metrics", "a=b", b""),
    ]
    assert [r.head.keep_alive for r in found] == [True, True, False, True]
    assert found[1].head.authorization == "Bearer t"


REFUSED = {
    b"nonsense\r\n\r\n": 400,
    b"GET / HTTP/2.0\r\n\r\n": 400,
    b"GET  / HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost : x\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\n folded\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nA: \0\r\n\r\n": 400,
    b"GET / HTTP/1.1\nHost: x\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n": 400,
    b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n": 400,
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n": 400,
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n": 400,
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n" + b"x" * 64 + b"\r\n40\r\n": 413,
    b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n": 413,
    b"GET /" + b"x" * MAX_HEAD_BYTES: 431,
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.items())
def test_what_could_be_read_in_two_ways_or_is_too_large_is_refused(
    sent: bytes, status: int
) -> None:
    parser = Parser(max_body=100)
    parser.feed(sent)
    with pytest.raises(Refused) as refused:
        parser.next()
    assert refused.value.status == status


def test_a_client_that_waits_to_be_told_to_go_on_is_told_once() -> None:
    parser = Parser(max_body=100)
    parser.feed(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert parser.next() is None
    assert parser.wants_continue()
    assert not parser.wants_continue()
    parser.feed(b"ok")
    assert parser.next()


def test_a_reply_says_its_length_and_whether_it_is_the_last() -> None:
    text = spell(Reply(404, b"{}"), 0.0, keep_alive=False)
    assert text == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    assert spell(Reply(200, b"{}"), 0.0, keep_alive=True, bodiless=True).endswith(b"2\r\n\r\n")


def test_times_are_spelled_as_go_does() -> None:
    assert [duration(s) for s in (1.5, 0.00325, 0.0000125, 2e-8)] == [
        "1.5s",
        "3.25ms",
        "12.5µs",
        "20ns",
    ]
