"""Over a socket: who is refused is answered before a body is read, and nobody is left waiting."""

from __future__ import annotations

import logging
import re

import pytest

from headwater.serve.limits import HttpLimits
from tests.contract.test_serve_http import REFUSED
from tests.support.http import CHUNKED, GET, POST, TOKEN, TOKENS, Echo, HttpServer, replies

LAST = b"Connection: close\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_answered_and_the_connection_closed(case: str) -> None:
    sent, status = REFUSED[case]
    with HttpServer(Echo(), HttpLimits(max_body=100)) as server:
        (answer,) = server.ask(sent)
        assert (answer.status, answer.closes) == (status, True)
        assert answer.body
        assert server.ask(GET + LAST)[0].status == 200


@pytest.mark.parametrize(
    "head", [b"", b"Authorization: Bearer wrong\r\n", b"Authorization: secret\r\n"]
)
def test_without_a_token_the_answer_comes_before_the_body(head: bytes) -> None:
    handler = Echo(TOKENS)
    with HttpServer(handler) as server, server.connect() as raw:
        raw.sendall(POST + head + b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n")
        # Nothing of the body is sent: the answer does not wait for it.
        (answer,) = replies(raw.makefile("rb").read())
    assert (answer.status, answer.closes) == (401, True)
    assert not handler.handled


def test_a_token_that_allows_less_is_refused_before_the_body() -> None:
    with HttpServer(Echo(TOKENS)) as server:
        head = POST + b"Authorization: Bearer look\r\nTransfer-Encoding: chunked\r\n\r\n"
        (answer,) = server.ask(head)
    assert (answer.status, answer.closes) == (403, True)


def test_a_body_that_is_sent_all_the_same_does_not_hide_the_answer() -> None:
    body = b"x" * (8 << 20)
    with HttpServer(Echo(TOKENS)) as server:
        (answer,) = server.ask(POST + b"Content-Length: %d\r\n\r\n" % len(body), body)
    assert answer.status == 401


def test_a_token_may_be_shown_after_a_refusal_without_a_body() -> None:
    with HttpServer(Echo(TOKENS)) as server:
        found = server.ask(
            GET + b"\r\n" + GET.replace(b"/", b"/nowhere", 1) + b"\r\n" + GET + TOKEN + LAST
        )
    assert [answer.status for answer in found] == [401, 404, 200]


def test_a_client_may_go_on_once_its_token_is_accepted() -> None:
    with HttpServer(Echo(TOKENS)) as server, server.connect() as raw:
        raw.sendall(POST + TOKEN + b"Content-Length: 4\r\nExpect: 100-continue\r\n" + LAST)
        assert raw.recv(len(CONTINUE)) == CONTINUE
        raw.sendall(b"body")
        (answer,) = replies(raw.makefile("rb").read())
    assert (answer.status, answer.body) == (200, b"POST /  body")


def test_a_body_for_everybody_is_refused_where_tokens_are_needed() -> None:
    public = POST.replace(b"/", b"/public", 1)
    with HttpServer(Echo(TOKENS)) as server:
        assert server.ask(public + LAST)[0].status == 200
        assert server.ask(public + b"Content-Length: 1\r\n\r\n")[0].status == 401


DEEP = {
    "lists": b"[" * 100_000 + b"]" * 100_000,
    "lists without an end": b"[" * 100_000,
    "objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "mixed": b'[{"a":' * 51 + b"1" + b"}]" * 51,
    "brackets in texts hide nothing": b'["]",' * 1000 + b"1" + b"]" * 1000,
    "escaped quotes hide nothing": b'["\\"]",' * 1000 + b"1" + b"]" * 1000,
    "101": b"[" * 101 + b"]" * 101,
}
FLAT = {
    "100": b"[" * 100 + b"]" * 100,
    "many": b"[" + b",".join([b'{"a":[]}'] * 10_000) + b"]",
    "brackets in texts": b'["' + b"[" * 1000 + b'", "' + b"{" * 1000 + b'"]',
    "quotes in texts": b"[" + b",".join([b'"\\"[[[\\\\"'] * 1000) + b"]",
}


@pytest.mark.parametrize("case", [*DEEP, *FLAT])
def test_deep_json_is_refused_before_it_is_decoded(case: str) -> None:
    body = (DEEP | FLAT)[case]
    head = POST.replace(b"/", b"/json", 1) + b"Content-Length: %d\r\n" % len(body)
    with HttpServer(Echo()) as server:
        (answer,) = server.ask(head + (b"\r\n" if case in DEEP else LAST) + body)
    assert (answer.status, answer.closes) == (400 if case in DEEP else 200, True)


@pytest.mark.parametrize("path", [b"/broken", b"/broken-head"])
def test_a_fault_of_the_server_is_answered_with_its_number_in_the_log(
    path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), HttpServer(Echo()) as server:
        (answer,) = server.ask(GET.replace(b"/", path, 1) + LAST)
    number = re.search(rb"request (\w+)", answer.body)
    assert answer.status == 500
    assert number
    assert f"request {number[1].decode()} failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_absolute_target_is_read_as_the_path_it_has() -> None:
    with HttpServer(Echo()) as server:
        for target, path in ((b"http://other:80/a?b", b"/a b"), (b"https://other", b"/ ")):
            (answer,) = server.ask(GET.replace(b"/", target, 1) + LAST)
            assert answer.body == b"GET " + path + b" "


def test_a_body_in_many_tiny_chunks_is_refused_and_in_small_ones_taken() -> None:
    with HttpServer(Echo()) as server:
        (answer,) = server.ask(CHUNKED + b"2\r\nxx\r\n" * 100_000)
        assert (answer.status, answer.closes) == (400, True)
        small = CHUNKED.replace(b"\r\n\r\n", b"\r\n" + LAST)
        (answer,) = server.ask(small + (b"20\r\n" + b"x" * 32 + b"\r\n") * 10_000 + b"0\r\n\r\n")
        assert (answer.status, len(answer.body)) == (200, len(b"POST /  ") + 320_000)


def test_trailers_mean_nothing() -> None:
    with HttpServer(Echo(TOKENS)) as server:
        late = b"1\r\nx\r\n0\r\n" + TOKEN + b"\r\n"
        assert server.ask(CHUNKED + late)[0].status == 401
