"""Commands are the same however their bytes are cut; what is too large or no command is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.serve.resp.limits import ANONYMOUS, FrameLimits, RespLimits
from headwater.serve.resp.parsing import CommandParser, split_words

KNOWN = RespLimits().known
SMALL = FrameLimits(4, 20, 400, 30)

words = st.lists(st.binary(max_size=40), min_size=1, max_size=6)
# Bytes that are nearly commands, so that every branch is reached.
pieces = st.sampled_from(
    [b"*", b"$", b"\r\n", b"\n", b"\r", b"0", b"1", b"2", b"3", b"-1", b"99999999999", b" ", b'"',
     b"'", b"\\x41", b"PING", b"*1\r\n$4\r\nPING\r\n", b"*0\r\n", b"\x00", b"*-1\r\n", b"$-1\r\n"]
)  # fmt: skip
noise = st.lists(st.one_of(pieces, st.binary(max_size=5)), max_size=30).map(b"".join)


def parse(
    fed: Sequence[bytes], limits: FrameLimits = KNOWN
) -> tuple[list[list[bytes]], str | None]:
    parser = CommandParser(limits)
    found = []
    for piece in fed:
        parser.feed(piece)
        while (command := parser.next()) is not None:
            found.append(command)
    return found, parser.fault


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(edge, len(data)) for edge in at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(words, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_commands_are_the_same_however_they_are_cut(
    commands: list[list[bytes]], cuts: list[int]
) -> None:
    data = b"".join(packed(*command) for command in commands)
    assert parse(cut(data, cuts)) == (commands, None)


@given(noise, st.lists(st.integers(0, 150), max_size=6))
def test_any_bytes_give_the_same_commands_and_fault_however_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    whole = parse([data], SMALL)
    assert parse(cut(data, cuts), SMALL) == whole
    assert parse([bytes([byte]) for byte in data], SMALL) == whole


@given(noise)
def test_what_is_held_stays_within_the_limits(data: bytes) -> None:
    parser = CommandParser(SMALL)
    for byte in data:
        parser.feed(bytes([byte]))
        while parser.next() is not None:
            pass
        # A line, the argument in progress and its end; and the arguments that came before.
        assert parser.held_bytes <= SMALL.max_frame + SMALL.max_inline + 32


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"*1\r\n$4\r\nPING\r\n*abc\r\n", "invalid multibulk length"),
        (b"*+1\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*1_0\r\n", "invalid multibulk length"),
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*" + b"1" * 40, "too big mbulk count string"),
        (b"*1\r\n:4\r\n", "expected '$', got ':'"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$" + b"1" * 40, "too big bulk count string"),
        (b"*1\r\n$4\r\nPINGER\r\n", "expected CRLF after a bulk string"),
        (b"x" * (64 << 10) + b"x", "too big inline request"),
        (b'SET "a\r\n', "unbalanced quotes in request"),
        (b"POST / HTTP/1.1\r\n", "this is not an HTTP server"),
        (b"Host: here\r\n", "this is not an HTTP server"),
    ],
)
def test_what_is_no_command_is_refused_in_the_words_of_redis(data: bytes, fault: str) -> None:
    found, said = parse([data])
    assert said == f"Protocol error: {fault}"
    assert found in ([], [[b"PING"]])


def test_nothing_is_parsed_behind_a_fault() -> None:
    assert parse([b"*x\r\n", b"*1\r\n$4\r\nPING\r\n"])[0] == []


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"*11\r\n", "unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", "unauthenticated bulk length"),
    ],
)
def test_who_has_shown_no_token_is_held_to_less(data: bytes, fault: str) -> None:
    assert parse([data], ANONYMOUS) == ([], f"Protocol error: {fault}")
    assert parse([data], KNOWN) == ([], None)


def test_the_sum_of_a_command_is_limited_before_it_arrives() -> None:
    limits = RespLimits(max_frame=10_000).known
    announced = b"*3\r\n$5000\r\n" + b"x" * 5000 + b"\r\n$5000\r\n"
    assert parse([announced], limits) == ([], "Protocol error: invalid bulk length")


def test_empty_commands_and_empty_lines_are_passed_over() -> None:
    assert parse([b"*0\r\n\r\n*-1\r\n\nPING\n*1\r\n$4\r\nECHO\r\n"]) == (
        [[b"PING"], [b"ECHO"]],
        None,
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"  SET  a\tb ", [b"SET", b"a", b"b"]),
        (rb'SET "a b" "\x41\n\"\q"', [b"SET", b"a b", b'A\n"q']),
        (rb"SET 'a \n \' b'", [b"SET", rb"a \n ' b"]),
        (b'SET a"b"', [b"SET", b"ab"]),
        (b'"" x', [b"", b"x"]),
        (b'"a"b', None),
        (b"'a", None),
        (b'"a\\', None),
    ],
)
def test_inline_commands_have_the_quotes_of_redis_cli(
    line: bytes, found: list[bytes] | None
) -> None:
    assert split_words(line) == found


def test_a_large_value_in_many_pieces_costs_no_more_than_its_size() -> None:
    value = b"x" * (4 << 20)
    data = packed(b"TWRITE", b"s", b"t", value)
    parser = CommandParser(KNOWN)
    joined = 0
    for at in range(0, len(data), 1024):
        parser.feed(data[at : at + 1024])
        before = parser._data
        command = parser.next()
        joined += parser._data is not before
    assert command == [b"TWRITE", b"s", b"t", value]
    assert joined <= 3
