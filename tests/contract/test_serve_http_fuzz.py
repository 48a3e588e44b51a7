"""Whatever bytes come, in whatever pieces, the answers are the same, and nothing breaks."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headwater.serve.limits import HttpLimits
from tests.support.http import GET, POST, TOKEN, TOKENS, Echo, connect, open_connections, replies

LIMITS = HttpLimits(max_head=2000, max_body=500, max_buffered=5000, max_headers=10)

methods = st.sampled_from([b"GET", b"POST"] * 4 + [b"PUT", b"OPTIONS", b"BREW", b"get"])
targets = st.sampled_from(
    [b"/", b"/a?b=c"] * 5
    + [b"/public", b"/nowhere", b"/broken", b"/large?5000", b"http://x/a", b"*", b""]
)
versions = st.sampled_from([b"HTTP/1.1"] * 20 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "])
ends = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r"])
headers = st.sampled_from(
    [
        TOKEN.strip(),
        b"Authorization: Bearer look",
        b"Authorization:",
        b"Host: y",
        b"Connection: close",
        b"Connection: Upgrade\r\nUpgrade: h2c",
        b"Expect: 100-continue",
        b"A: " + b"x" * 300,
        b"A: \0",
        b" folded",
        b"Content-Length: 3",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip",
    ]
)
junk = st.binary(max_size=30)


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=4))
    text = b"".join(b"%x;e=f\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return text + b"0\r\n" + draw(st.sampled_from([b"", b"", b"T: u\r\n", b"junk\r\n"])) + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Draw a request that is right, or wrong in few places."""
    end = draw(ends)
    line = draw(methods) + b" " + draw(targets) + b" " + draw(versions) + b"\r\n"
    token = draw(st.sampled_from([TOKEN, TOKEN, b""]))
    wrong = draw(st.sampled_from([0, 0, 0, 1, 3]))
    given_headers = draw(st.lists(headers, max_size=wrong))
    head = line + b"Host: x\r\n" + token + b"".join(header + end for header in given_headers)
    body = draw(
        st.one_of(
            st.just(b"\r\n"),
            st.binary(max_size=600).map(lambda b: b"Content-Length: %d\r\n\r\n%b" % (len(b), b)),
            chunks().map(lambda text: b"Transfer-Encoding: chunked\r\n\r\n" + text),
        )
    )
    return head + body


streams = st.lists(st.one_of(*[requests()] * 9, junk), max_size=6).map(b"".join)


def answers(pieces: list[bytes]) -> tuple[list[tuple[int, bytes, bool]], bool]:
    """Return what the pieces are answered with, and whether the connection ends with that."""

    async def send() -> tuple[list[tuple[int, bytes, bool]], bool]:
        all_open = open_connections(LIMITS)
        handler = Echo(TOKENS)
        connection, wire = connect(handler, LIMITS, all_open)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        faults: list[object] = []
        for piece in pieces:
            await _settle()
            assert wire.reading
            if not wire.closed:
                connection.data_received(piece)
        await _settle()
        assert not faults
        # Every request that was handled is answered, and what is left waits for more bytes.
        found = replies(wire.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
        assert len(handler.counted) == len(found)
        ends = wire.closed or wire.ended
        connection.connection_lost(None)
        assert (all_open.buffered, len(all_open)) == (0, 0)
        # The body of an error may name the place at which the parser noticed it.
        return [(s, body if s == 200 else b"", last) for s, body, last in found], ends

    return asyncio.run(send())


async def _settle() -> None:
    """Let the connection go on with all that it has."""
    for _ in range(200):
        await asyncio.sleep(0)


fuzzed = settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


@fuzzed
@example(GET + TOKEN + b"\r\n" + POST + TOKEN + b"Content-Length: 3\r\n\r\nabc", [1, 40, 41])
@given(streams, st.lists(st.integers(0, 4000), max_size=8))
def test_any_split_is_answered_as_one_piece_is(stream: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    assert answers([stream[a:b] for a, b in pairwise(edges)]) == answers([stream])


@fuzzed
@given(
    st.lists(st.one_of(junk, st.sampled_from([GET, POST, TOKEN, b"\r\n", b"0\r\n"])), max_size=20)
)
def test_any_bytes_are_answered_or_waited_for(pieces: list[bytes]) -> None:
    found, ends = answers(pieces)
    assert [last for _, _, last in found[:-1]] == [False] * (len(found) - 1)
    assert not found or found[-1][2] == ends
