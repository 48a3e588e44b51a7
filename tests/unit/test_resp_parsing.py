"""Commands are the same however their bytes are cut; what is too large or no command is refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import hiredis
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import errors
from headwater.kernel.headers import Headers
from headwater.log import node
from headwater.log.node import PackedRun, PlainRun, Run
from headwater.log.reading import FoundRuns
from headwater.log.types import Message
from headwater.serve.limits import ANONYMOUS, FrameLimits, RespLimits
from headwater.serve.resp.commands import arguments_of
from headwater.serve.resp.parsing import CommandParser, split_words
from headwater.serve.resp.replies import (
    ERROR_CODES,
    OK,
    CommandRefused,
    ErrorReply,
    MessageForm,
    StatusReply,
    Verbatim,
    encode_array,
    encode_reply,
    error_reply,
    spell_messages,
    spell_runs,
)
from headwater.serve.resp.table import COMMANDS

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


# ── Replies mean the same to a client in RESP2 and RESP3, as far as RESP2 has words for it ───────


plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=30),
    st.floats(allow_nan=False),
)
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.binary(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def read(data: bytes) -> Any:
    nothing = object()
    reader = hiredis.Reader(notEnoughData=nothing)
    reader.feed(data)
    found = reader.gets()
    assert found is not nothing
    assert not reader.has_data()
    return found


def as_resp2(value: Any) -> Any:
    """Say in RESP2 what it has no word for."""
    match value:
        case bool():
            return int(value)
        case float():
            return read(encode_reply(value, 2))
        case list():
            return [as_resp2(inner) for inner in value]
        case dict():
            return [as_resp2(part) for pair in value.items() for part in pair]
        case _:
            return value


@given(values)
@settings(max_examples=40)
def test_replies_are_what_clients_read(value: Any) -> None:
    assert read(encode_reply(value, 3)) == value
    assert read(encode_reply(value, 2)) == as_resp2(value)


@given(st.floats(allow_nan=False))
def test_no_digit_of_a_number_is_lost_in_resp2(number: float) -> None:
    assert float(read(encode_reply(number, 2))) == number


@pytest.mark.parametrize("protocol", [2, 3])
def test_texts_errors_and_messages(protocol: int) -> None:
    assert encode_reply(OK, protocol) == b"+OK\r\n"
    assert read(encode_reply(StatusReply("PONG"), protocol)) == b"PONG"
    assert read(encode_reply(Verbatim("a\r\nb"), protocol)) in (b"a\r\nb", "a\r\nb")
    assert encode_reply(ErrorReply("ERR", "a\r\nb\nc"), protocol) == b"-ERR a  b c\r\n"
    messages = [Message(1, "tä", b"a\r\n", 0), None]
    spelled = spell_messages(messages, MessageForm(protocol))
    assert read(encode_array(2, spelled, None)) == [[1, "tä".encode(), b"a\r\n"], None]
    assert read(encode_array(0, [], (1, 0))) == [[1, 0]]


def packed_run(base: int, values: list[bytes], offsets: list[int] | None = None) -> PackedRun:
    """Return a run whose tags tell the offsets; one with ``offsets`` has holes."""
    at = offsets or list(range(base, base + len(values)))
    batch = node.batch_of([f"tä{offset}" for offset in at], values, None, offsets)
    return PackedRun(base, at[-1] + (2 if offsets else 0), 7, batch)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("with_headers", [False, True])
def test_messages_that_are_read_as_columns_are_spelled_as_those_that_are_read_one_by_one(
    protocol: int, with_headers: bool
) -> None:
    headers = Headers({"a": b"b"}).encoded
    headed = packed_run(300, [b"v"] * 40)
    columns = [*headed.batch.columns, pa.array([headers, b""] * 20, pa.binary())]
    runs: list[Run] = [
        packed_run(5, [b"x" * (n % 50) for n in range(100)]),
        # Longer than the lengths that are known beforehand.
        packed_run(105, [b"y" * n for n in range(4080, 4120)]),
        # Holes, before, in and behind it.
        packed_run(200, [b"z"] * 40, [200 + 2 * n for n in range(40)]),
        PackedRun(300, 339, 7, pa.RecordBatch.from_arrays(columns, ["tag", "value", "headers"])),
        PlainRun(340, 341, [(340, "a", b"1", 7), (341, "", b"", 7)], {341: headers}),
        # A part of a larger run.
        packed_run(400, [b"w%d" % n for n in range(100)]).cut(450, 489),
    ]
    found = FoundRuns(runs, 500, 5, 600)
    messages: list[Any] = [None] * 500
    for run in runs:
        for message in run.messages():
            messages[message.offset - 3] = message
    form = MessageForm(protocol, with_headers=with_headers)
    by_columns = read(encode_array(500, spell_runs(found, 3, form), None))
    assert by_columns == read(encode_array(500, spell_messages(messages, form), None))
    assert len(by_columns) == 500


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandRefused("syntax error"), "ERR"),
        (errors.InvalidInput("no"), "ERR"),
        (errors.OutcomeUnknown("here", "broke"), "OUTCOME-UNKNOWN"),
        (errors.StoreUnreachable("here", "away"), "TRYAGAIN"),
        (errors.StoreUnreachable("here", "wrong", lasting=True), "ERR"),
        (errors.UnknownGroup("s", "g"), "NOGROUP"),
        (errors.UnknownStream("s"), "NOTFOUND"),
        (errors.NotAnIck("k", "list"), "WRONGTYPE"),
        (errors.QuorumFailed(1, 2, 3, []), "TRYAGAIN"),
    ],
)
def test_an_error_has_a_code_and_says_the_cure(error: Exception, code: str) -> None:
    reply = error_reply(error)
    assert (reply.code, reply.text) == (code, str(error))
    assert code in ERROR_CODES


def test_a_fault_of_the_server_is_shown_in_its_log_only(caplog: pytest.LogCaptureFixture) -> None:
    reply = error_reply(ZeroDivisionError("secret"))
    assert reply.code == "ERR"
    assert "secret" not in reply.text
    assert reply.text.split()[-1] in caplog.text


def test_the_hints_of_a_command_come_from_its_syntax() -> None:
    found = arguments_of(COMMANDS[b"TREAD"].syntax)
    assert [argument["name"] for argument in found] == [
        "key", "offset", "count", "milliseconds", "group", "retry-ms", "first", "n", "deadletters",
        "ordered", "withattempt", "withheaders", "withinfo",
    ]  # fmt: skip
    assert found[3] == {
        "name": "milliseconds",
        "type": "integer",
        "token": "BLOCK",
        "flags": [StatusReply("optional")],
    }
    block = arguments_of("tag entry [tag entry ...]")[-1]
    assert block["type"] == "block"
    assert block["flags"] == [StatusReply("multiple"), StatusReply("optional")]
    for command in COMMANDS.values():
        arguments_of(command.syntax)
