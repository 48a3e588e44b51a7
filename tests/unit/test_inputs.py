"""What every data type accepts: spans of time, and the deadline by each of its names."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import Delivery, Headers, Message, TopicMessage
from headwater.errors import InvalidInput
from headwater.kernel.headers import (
    MAX_HEADER_NAME_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    encode_fields,
)
from headwater.kernel.inputs import (
    NO_LIMITS,
    Limits,
    Rate,
    check_block,
    check_ms,
    check_span,
)
from headwater.log.settling import ranges_by_partition, ranges_of
from headwater.log.types import DeadLetter, Placed
from headwater.queue import settling
from headwater.queue.handles import QueueHandle
from headwater.queue.types import QueueItem
from tests.support.limit_rules import Deliveries, faster_than, more_at_once


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (0, 0),
        (1500, 1500),
        (dt.timedelta(), 0),
        (dt.timedelta(minutes=2), 120_000),
        (dt.timedelta(microseconds=1), 1),
        (dt.timedelta(milliseconds=7, microseconds=1), 8),
    ],
)
def test_a_span_of_time_is_ms_or_a_timedelta(given: Any, ms: int) -> None:
    found = check_ms(given, "delay_ms")
    assert (found, type(found)) == (ms, int)


@pytest.mark.parametrize(
    "given", [-1, 1.5, "5", True, None, dt.timedelta(seconds=-1), dt.timedelta(days=4000)]
)
def test_what_is_no_span_of_time_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="delay_ms must be"):
        check_ms(given, "delay_ms")


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("250", 250),
        ("500ms", 500),
        ("30s", 30_000),
        ("5 m", 300_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        (40, 40),
        (dt.timedelta(seconds=2), 2000),
    ],
)
def test_where_words_are_taken_a_span_of_time_may_have_a_unit(given: Any, ms: int) -> None:
    assert check_span(given, "timeout") == ms


@pytest.mark.parametrize("given", ["", "s", "5x", "-1s", "1.5s", "٣s", -1, None, "40000d"])
def test_words_that_are_no_span_of_time_are_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        check_span(given, "timeout")


@pytest.mark.parametrize(
    ("given", "ms"),
    [(None, 0), (0, 0), (5, 5), (2.5, 2.5), (math.inf, math.inf), (dt.timedelta(seconds=2), 2000)],
)
def test_a_blocking_time_may_be_without_end(given: Any, ms: float) -> None:
    assert check_block(given) == ms


@pytest.mark.parametrize("given", [-1, math.nan, "5", True, dt.timedelta(seconds=-1)])
def test_what_is_no_blocking_time_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="block_ms must be 0 or more"):
        check_block(given)


# ── What ack, nack and extend accept, and what they refuse before anything is sent ───────────────


RECEIPT = "1733000000000123:0:1:2.1733000000000001"


def message(offset: int) -> Message:
    return Message(offset, "t", b"v", 1, 1)


def in_topic(partition: int, offset: int) -> TopicMessage:
    return TopicMessage(partition, offset, "t", b"v", 1, 1)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], []),
        ([5, 7, 6], [(5, 7)]),
        ([message(5), message(9)], [(5, 5), (9, 9)]),
        ([[message(5), 6], message(7)], [(5, 7)]),
        ([(message(5), message(9))], [(5, 5), (9, 9)]),
        ([(5, 9)], [(5, 9)]),
        ([range(5, 9), range(12, 9, -1)], [(5, 8), (10, 12)]),
        ([range(1, 7, 2)], [(1, 1), (3, 3), (5, 5)]),
        ([range(9, 9), [range(5, 5)], []], []),
        ([[(1, 2), range(4, 6), 8, message(9)], 3, (11, 11)], [(1, 5), (8, 9), (11, 11)]),
        ([iter([1, 2]), {4}], [(1, 2), (4, 4)]),
        ([{7: "a dict's keys"}.keys()], [(7, 7)]),
    ],
)
def test_messages_offsets_and_ranges_in_any_mixture(given: list[Any], meant: list[Any]) -> None:
    assert ranges_of(given) == meant


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, "not NoneType"),
        ("5", "not str"),
        ([b"5"], "not bytes"),
        (5.0, "not float"),
        ({5: 9}, "not dict"),
        (True, "must be an int, not True"),
        (0, "from 1 to"),
        (range(3), "start of a range must be from 1"),
        ((5, "9"), "end of a range must be an int"),
        ((5, 7, 9), r"a range is a pair \(start, end\), not \(5, 7, 9\); put single offsets"),
        ((9, 5), "ends before it starts"),
        (in_topic(3, 5), "offset 5 is of partition 3 of a topic"),
        (Placed(3, 5), "offset 5 is of partition 3 of a topic"),
        (DeadLetter(1, "t", b"v", 1, 5, 3), "offset 5 is a dead letter"),
        (Delivery("1", b"v", 1, RECEIPT), "not Delivery"),
    ],
)
def test_what_a_group_cannot_mean_is_refused(given: Any, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        ranges_of([1, given])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([in_topic(1, 5), [in_topic(0, 6), in_topic(1, 6)]], {0: [(6, 6)], 1: [(5, 6)]}),
        ([(1, 5), Placed(1, 7)], {1: [(5, 5), (7, 7)]}),
        ([(1, (5, 9)), (0, range(1, 3)), (1, [10, message(11)])], {0: [(1, 2)], 1: [(5, 11)]}),
        ([{2: range(1, 4), 0: [5, (7, 8)]}], {0: [(5, 5), (7, 8)], 2: [(1, 3)]}),
        ([((1, 5), in_topic(1, 6))], {1: [(5, 6)]}),
        ([], {}),
    ],
)
def test_messages_of_a_topic_by_partition(given: list[Any], meant: dict[int, Any]) -> None:
    assert ranges_by_partition(given) == meant


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (5, "5 does not say its partition"),
        (range(1, 3), r"range\(1, 3\) does not say its partition"),
        (message(5), "5 does not say its partition"),
        ((0, 5, 9), r"for a range of offsets give \(partition, \(start, end\)\)"),
        ((-1, 5), "partition must be from 0"),
        ((0, 0), "offset must be from 1"),
        ({"0": 1}, "partition must be an int, not '0'"),
        ((0, None), "not NoneType"),
        ("0/5", "not str"),
    ],
)
def test_what_a_group_of_a_topic_cannot_mean_is_refused(given: Any, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        ranges_by_partition([(0, 1), given])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (1, "give deliveries and receipts, or iterables of them, not int"),
        (None, "not NoneType"),
        (b"1", "not bytes"),
        ("1733000000000001", "is not a receipt; copy it as pop gave it"),
        (Delivery("7", b"v", 1, ""), "message 7 was taken without ack_ms"),
        (QueueItem("7", b"v", "ready", 0, 0, 1, None, None, "p"), "message 7 was seen, not taken"),
        (message(5), "not Message"),
    ],
)
def test_what_a_queue_cannot_mean_is_refused_before_anything_is_sent(
    given: Any, error: str
) -> None:
    queue = QueueHandle("q", set(), "m")
    for operation in (settling.ack(queue, [RECEIPT, given]), settling.nack(queue, [[given]], 0)):
        with pytest.raises(InvalidInput, match=error):
            next(operation)


# Headers are a small immutable map: what is accepted comes back, and nothing else is accepted.


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
VALUES = st.binary(max_size=9) | st.text(st.characters(codec="utf-8"), max_size=9)
MAPS = st.dictionaries(NAMES.filter(lambda name: not name.startswith("hw.")), VALUES, max_size=6)


@settings(max_examples=40, deadline=None)
@given(MAPS)
def test_what_is_accepted_comes_back(given: dict[str, bytes | str]) -> None:
    expected = {n: v.encode() if isinstance(v, str) else v for n, v in given.items()}
    headers = Headers(given)
    assert headers == expected == dict(Headers.stored(headers.encoded))
    assert list(headers) == sorted(given)
    assert len(headers.encoded) <= MAX_HEADERS_BYTES
    assert pickle.loads(pickle.dumps(headers)) == headers
    assert hash(headers) == hash(Headers(dict(reversed(given.items()))))


def test_headers_of_the_largest_size_are_accepted() -> None:
    name = "n" * MAX_HEADER_NAME_BYTES
    room = MAX_HEADERS_BYTES - len(encode_fields({name: bytes(300)})) + 300
    assert len(Headers({name: bytes(room)}).encoded) == MAX_HEADERS_BYTES
    with pytest.raises(InvalidInput, match=rf"may take {MAX_HEADERS_BYTES} bytes, not 4097"):
        Headers({name: bytes(room + 1)})
    assert len(Headers({f"n{i}": b"" for i in range(MAX_HEADERS)})) == MAX_HEADERS
    with pytest.raises(InvalidInput, match=f"may have {MAX_HEADERS} headers, not 33"):
        Headers({f"n{i}": b"" for i in range(MAX_HEADERS + 1)})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"": b""}, "the name of a header must be 1 to 128 visible ASCII"),
        ({"n" * 129: b""}, "the name of a header must be 1 to 128 visible ASCII"),
        ({"a b": b""}, "visible ASCII characters, not 'a b'"),
        ({"ü": b""}, "visible ASCII characters, not 'ü'"),
        ({"a\n": b""}, "visible ASCII"),
        ({b"a": b""}, "visible ASCII characters, not b'a'"),
        ({"hw.outbox": b""}, "begins with 'hw.'.*choose another name"),
        ({"a": 1}, "header 'a' must be bytes or str, not int"),
        ({"a": None}, "header 'a' must be bytes or str, not NoneType"),
        ({"a": "\ud800"}, "header 'a' is not valid Unicode"),
        ([("a", b"")], "headers must be a mapping"),
        ("a", "headers must be a mapping"),
        (0, "headers must be a mapping"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_cure(given: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Headers(given)


def test_headers_cannot_be_changed() -> None:
    headers: Any = Headers({"a": b"1"})
    with pytest.raises(TypeError):
        headers["a"] = b"2"
    assert repr(headers) == "Headers({'a': b'1'})"


def test_headers_that_were_read_are_taken_as_they_are() -> None:
    ours = Headers.stored(encode_fields({"hw.outbox": b"7"}))
    assert Headers(ours) == {"hw.outbox": b"7"}


# ── Limits as they are given, spelled and stored; and the rules by which tests judge them ────────


COUNTS = st.none() | st.integers(1, 10**6)
RATES = st.none() | st.builds(
    lambda count, span, burst: f"{count}/{span}" + (f" burst {burst}" if burst else ""),
    st.integers(1, 1000),
    st.sampled_from(["s", "500ms", "m", "2h", "d"]),
    st.none() | st.integers(1, 10**6),
)


@given(COUNTS, COUNTS, RATES, RATES)
def test_limits_are_read_as_they_were_stored(
    most: int | None, of_key: int | None, rate: str | None, rate_of_key: str | None
) -> None:
    limits = Limits(most, of_key, rate, rate_of_key)
    assert Limits.of_stored(limits.stored().encode()) == limits
    assert Limits(most, of_key, limits.rate, limits.rate_per_key) == limits
    assert bool(limits) == (limits != NO_LIMITS) == bool(limits.stored())


@pytest.mark.parametrize(
    ("text", "spelled"),
    [("100/s", "100/s burst 10"), (" 5 / s ", "5/s burst 2"), ("10/m", "10/m burst 1"),
     ("1/500ms", "1/500ms burst 2"), ("60/60s", "60/m burst 2"), ("7/90s burst 3", "7/90s burst 3"),
     ("1000000/s", "1000000/s burst 100000")],
)  # fmt: skip
def test_a_rate_is_spelled_out_with_its_burst(text: str, spelled: str) -> None:
    assert str(Rate.of(text, "rate")) == spelled


@pytest.mark.parametrize("text", ["", "5", "5/", "/s", "0/s", "-1/s", "5/w", "5/s burst", "5.5/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Rate.of(text, "rate")


def test_the_law_finds_handlers_beyond_a_limit() -> None:
    notes = ["begin a 1 p 0.1", "begin a 2 q 0.2", "begin b 3 p 0.3", "end a 1 p 0.4"]
    assert more_at_once(notes, 3, 2) == []
    assert len(more_at_once(notes, 2, None)) == 1
    assert len(more_at_once(notes, None, 1)) == 1
    assert more_at_once([*notes[:2], "died q", "begin a 2 p 0.5", "begin a 9 q 0.6"], 2, 2) == []


def test_the_law_finds_deliveries_beyond_a_rate() -> None:
    even = [Deliveries(n / 10, n / 10, 1) for n in range(20)]
    assert faster_than(even, 10, 1) == []
    assert faster_than([*even, Deliveries(1.0, 1.0, 1)], 10, 1) != []
    assert faster_than([Deliveries(0.0, 0.0, 3)], 10, 2) != []
    assert faster_than([Deliveries(0.0, 0.5, 3)], 10, 2) == [], "it may have been at any moment"
