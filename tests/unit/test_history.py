"""The checker finds each kind of fault in a history that has it, and none in one that has none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from headwater.check.history import (
    AckBegun,
    AckDone,
    Anomaly,
    HistoryEvent,
    ReadBegun,
    ReadDone,
    ReturnBegun,
    WriteBegun,
    WriteDone,
    check_group,
    check_log,
)
from headwater.check.pipeline import Transaction, check_effects, check_streamed

Log = list[tuple[int, str]]


def write(
    call: str, values: str, at: float, first: int = 0, *, took: float = 1
) -> list[HistoryEvent]:
    """A write of one value per letter; acknowledged at ``first``, or never heard of again."""
    begun = WriteBegun(call, at, list(values))
    if not first:
        return [begun]
    return [begun, WriteDone(call, at + took, first, first + len(values) - 1)]


def log_of(values: str) -> Log:
    return list(enumerate(values, 1))


def names(found: Sequence[Anomaly]) -> list[str]:
    return [anomaly.name for anomaly in found]


# ── The log ──────────────────────────────────────────────────────────────────────────────────

GOOD: list[HistoryEvent] = [
    *write("1", "ab", 0, 1),
    *write("2", "c", 5),  # unknown: it happened
    *write("3", "de", 10, 4),
    *write("4", "fgh", 12),  # unknown: it did not
]


def test_a_good_history_has_no_anomalies() -> None:
    assert check_log(GOOD, log_of("abcde")) == []
    assert check_log([], []) == []


@pytest.mark.parametrize(
    ("log", "anomalies"),
    [
        ("abc", ["lost"]),
        ("abcd", ["lost"]),
        ("", ["lost", "lost"]),
        ("abcdec", ["duplicate"]),
        ("abcdex", ["invented"]),
        ("abcdefg", ["torn"]),
        ("abcdehgf", ["torn"]),
        ("abcdef", ["torn"]),
        ("acbde", ["torn", "misplaced"]),
        ("abdec", ["misplaced"]),
    ],
)
def test_every_fault_of_a_log_is_named(log: str, anomalies: list[str]) -> None:
    assert names(check_log(GOOD, log_of(log))) == anomalies


@pytest.mark.parametrize(
    "log", [[(2, "a"), (3, "b")], [(1, "a"), (3, "b")], [(1, "a"), (1, "b")], [(2, "b"), (1, "a")]]
)
def test_offsets_that_are_not_dense_are_a_gap(log: Log) -> None:
    events = [*write("1", "a", 0), *write("2", "b", 0)]
    assert "gap" in names(check_log(events, log))


def test_a_write_that_is_before_one_that_was_done_is_reordered() -> None:
    events = [*write("1", "a", 0, 2, took=5), *write("2", "b", 6, 1)]
    assert names(check_log(events, log_of("ba"))) == ["reordered"]
    unknown = [*write("1", "a", 0, 2, took=5), *write("2", "b", 6)]
    assert names(check_log(unknown, log_of("ba"))) == ["reordered"]
    at_once = [*write("1", "a", 0, 2, took=5), *write("2", "b", 4, 1)]
    assert check_log(at_once, log_of("ba")) == []


def test_a_repeat_counts_from_its_first_try() -> None:
    events = [
        *write("1", "a", 0),  # happened, but its writer did not hear of it
        *write("2", "b", 5, 2),
        *write("3", "a", 10, 1),  # the repeat is answered with the first answer
    ]
    assert check_log(events, log_of("ab")) == []
    again = [*events, *write("4", "a", 20, 3)]
    assert names(check_log(again, log_of("aba"))) == ["duplicate", "misplaced"]


# ── Groups ───────────────────────────────────────────────────────────────────────────────────


def read(
    call: str,
    at: float,
    *messages: tuple[int, str, int],
    ack_ms: int | None = 100,
    took: float = 1,
    group: str = "g",
) -> list[HistoryEvent]:
    begun = ReadBegun(call, at, group, ack_ms)
    return [begun, ReadDone(call, at + took, list(messages))] if messages else [begun]


def ack(call: str, at: float, *offsets: int, done: bool = True) -> list[HistoryEvent]:
    begun = AckBegun(call, at, "g", list(offsets))
    return [begun, AckDone(call, at + 1)] if done else [begun]


def faults(events: list[HistoryEvent], log: str = "ab", *, drained: bool = False) -> list[str]:
    return names(check_group(events, log_of(log), "g", drained=drained))


def test_a_good_group_has_no_anomalies() -> None:
    events = [
        *read("r1", 0, (1, "a", 1), (2, "b", 1)),
        *ack("a1", 5, 1),
        *read("r2", 110, (2, "b", 2)),
        *ack("a2", 115, 2, done=False),
        *read("r3", 220, (2, "b", 3)),
        *read("x", 0, (1, "a", 1), group="other"),
    ]
    assert faults(events, drained=True) == []


def test_a_message_that_comes_with_another_value_is_altered() -> None:
    assert faults(read("r1", 0, (1, "b", 1))) == ["altered"]
    assert faults(read("r1", 0, (3, "c", 1))) == ["altered"]


def test_a_message_that_comes_again_too_soon_is_doubled() -> None:
    assert faults([*read("r1", 0, (1, "a", 1)), *read("r2", 50, (1, "a", 2))]) == ["doubled"]
    assert faults([*read("r1", 0, (1, "a", 1)), *read("r2", 50, (1, "a", 1))]) == ["doubled"]
    assert faults([*read("r1", 0, (1, "a", 1)), *read("r2", 500, (1, "a", 1))]) == ["doubled"]
    same = [*read("r1", 0, (1, "a", 1), (1, "a", 1))]
    assert faults(same) == ["doubled"]


def test_a_message_that_may_have_waited_long_enough_is_not_doubled() -> None:
    # The first was delivered at any time in its read, so that 110 ms may lie between them.
    blocked = [*read("r1", 0, (1, "a", 1), took=60), *read("r2", 60, (1, "a", 2), took=50)]
    assert faults(blocked) == []
    # But not before it was written.
    assert faults([WriteBegun("w", 55, ["a"]), *blocked]) == ["doubled"]


def test_a_message_that_was_returned_may_come_at_once() -> None:
    given = ReturnBegun("n1", 10, "g", [1])
    assert faults([*read("r1", 0, (1, "a", 1)), given, *read("r2", 12, (1, "a", 2))]) == []
    other = ReturnBegun("n1", 10, "g", [2])
    late = [*read("r1", 0, (1, "a", 1)), other, *read("r2", 12, (1, "a", 2))]
    assert faults(late) == ["doubled"]


def test_without_retry_a_message_comes_once() -> None:
    once = read("r1", 0, (1, "a", 1), ack_ms=None)
    assert faults(once) == []
    assert faults([*once, *read("r2", 9999, (1, "a", 2), ack_ms=None)]) == ["doubled"]


def test_a_message_that_comes_after_its_ack_was_confirmed() -> None:
    first = [*read("r1", 0, (1, "a", 1)), *ack("a1", 5, 1)]
    assert faults([*first, *read("r2", 200, (1, "a", 2))]) == ["after ack"]
    # The read had begun before, and an ack that nobody confirmed proves nothing.
    assert faults([*first, *read("r2", 4, (1, "a", 2), took=500)]) == []
    unknown = [*read("r1", 0, (1, "a", 1)), *ack("a1", 5, 1, done=False)]
    assert faults([*unknown, *read("r2", 200, (1, "a", 2))]) == []


def test_a_message_that_nobody_got_is_undelivered() -> None:
    events = read("r1", 0, (1, "a", 1))
    assert faults(events, drained=True) == ["undelivered"]
    assert faults(events) == []


def test_events_survive_being_written_down() -> None:
    events = [*GOOD, *read("r1", 0, (1, "a", 1)), *ack("a1", 5, 1), ReturnBegun("n", 1.5, "g", [2])]
    lines = [msgspec.json.encode(event) for event in events]
    assert [msgspec.json.decode(line, type=HistoryEvent) for line in lines] == events


# ── Each anomaly of the pipeline is found in a history that has it, and in no sound one ──────────


ONE = Transaction([("s", "a"), ("s", "b"), ("t", "c")], "committed")
GONE = Transaction([("s", "x")], "aborted")


def names_of(found: list[Anomaly]) -> set[str]:
    return {name for name, _ in found}


def test_a_sound_history_has_no_anomaly() -> None:
    other = Transaction([("s", "d")], "committed")
    assert check_streamed([ONE, GONE, other], {"s": ["a", "d", "b"], "t": ["c"]}) == []
    assert check_effects(["a", "b"], ["a", "b"]) == []


@pytest.mark.parametrize(
    ("logs", "anomaly"),
    [
        ({"s": ["a", "b"]}, "lost"),
        ({"s": ["a", "b", "a"], "t": ["c"]}, "duplicate"),
        ({"s": ["a", "x", "b"], "t": ["c"]}, "aborted-read"),
        ({"s": ["a", "b", "c"], "t": ["c"]}, "invented"),
        ({"s": ["b", "a"], "t": ["c"]}, "reordered"),
    ],
)
def test_every_fault_of_the_way_to_the_log_is_named(
    logs: dict[str, list[str]], anomaly: str
) -> None:
    assert names_of(check_streamed([ONE, GONE], logs)) == {anomaly}


@pytest.mark.parametrize(
    ("applied", "anomaly"),
    [
        (["a", "b", "c", "b"], "double-effect"),
        (["a", "c"], "no-effect"),
        (["a", "b", "c", "d"], "invented"),
        (["b", "a", "c"], "reordered"),
    ],
)
def test_every_fault_of_a_consumer_is_named(applied: list[str], anomaly: str) -> None:
    assert names_of(check_effects(["a", "b", "c"], applied)) == {anomaly}
