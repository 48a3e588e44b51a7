"""Replies mean the same to a client in RESP2 and RESP3, as far as RESP2 has words for it."""

from __future__ import annotations

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
from headwater.serve.resp.commands import arguments_of
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


def packed(base: int, values: list[bytes], offsets: list[int] | None = None) -> PackedRun:
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
    headed = packed(300, [b"v"] * 40)
    columns = [*headed.batch.columns, pa.array([headers, b""] * 20, pa.binary())]
    runs: list[Run] = [
        packed(5, [b"x" * (n % 50) for n in range(100)]),
        # Longer than the lengths that are known beforehand.
        packed(105, [b"y" * n for n in range(4080, 4120)]),
        # Holes, before, in and behind it.
        packed(200, [b"z"] * 40, [200 + 2 * n for n in range(40)]),
        PackedRun(300, 339, 7, pa.RecordBatch.from_arrays(columns, ["tag", "value", "headers"])),
        PlainRun(340, 341, [(340, "a", b"1", 7), (341, "", b"", 7)], {341: headers}),
        # A part of a larger run.
        packed(400, [b"w%d" % n for n in range(100)]).cut(450, 489),
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
