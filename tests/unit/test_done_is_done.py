"""What is done stays done: trouble with what comes after it does not look like its failure."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.errors import OutcomeUnknown, StoreUnreachable, UnreadableNode
from headwater.log import grouping, writing
from headwater.log.handles import GroupHandle, GroupOptions, StreamHandle
from headwater.store.call import Call, Operation

GONE = StoreUnreachable("redis://h", "Connection refused")


def finish(operation: Operation[Any], replies: dict[str, Any], fault: Exception) -> Any:
    """Run an operation with these replies by function; every other call fails."""
    try:
        request = operation.send(None)
        while True:
            assert isinstance(request, Call)
            if request.function in replies:
                request = operation.send(replies[request.function])
            else:
                request = operation.throw(fault)
    except StopIteration as done:
        return done.value


@pytest.mark.parametrize("fault", [GONE, OutcomeUnknown("hw_stream_seal", "broken")])
@pytest.mark.parametrize("unsealed", [1, 2000])
def test_a_write_that_is_acknowledged_is_reported_as_done(fault: Exception, unsealed: int) -> None:
    stream = StreamHandle("s", set())
    reply = {"hw_stream_write": [7, 7, unsealed, 0, 0, b"1 "]}
    assert finish(writing.write(stream, "t", b"v", None), reply, fault) == 7
    batch = [("t", b"v")] * 600
    reply = {"hw_stream_write": [1, 600, unsealed, 0, 0, b"1 "]}
    assert finish(writing.write_many(stream, batch, None, None, None), reply, fault) == range(
        1, 601
    )
    assert stream.registered == set(), "it will be told later"


def test_a_write_that_fails_is_reported_as_failed() -> None:
    stream = StreamHandle("s", set())
    with pytest.raises(StoreUnreachable):
        finish(writing.write(stream, "t", b"v", None), {}, GONE)


def test_what_a_read_took_reaches_its_caller_even_when_letters_cannot_be_buried() -> None:
    group = GroupHandle(StreamHandle("s", set()), "g", "m", GroupOptions(dead_letters=True))
    entry = [b"0-1", [b"k", b"t", b"v", b"v", b"t", b"5"]]
    reply = {"hw_group_read": [[1, 1, 1], [], [entry], b"1", 0, 1, -1, 1, b"", 0]}
    for fault in (GONE, UnreadableNode("it is broken")):
        (message,) = finish(grouping.read(group, 1, None, 1000, None), reply, fault)
        assert message.value == b"v"
