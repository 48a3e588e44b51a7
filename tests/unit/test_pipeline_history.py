"""Each anomaly of the pipeline is found in a history that has it, and in no sound one."""

from __future__ import annotations

import pytest

from headwater.check.history import Anomaly
from headwater.check.pipeline import Transaction, check_effects, check_streamed

ONE = Transaction([("s", "a"), ("s", "b"), ("t", "c")], "committed")
GONE = Transaction([("s", "x")], "aborted")


def names(found: list[Anomaly]) -> set[str]:
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
    assert names(check_streamed([ONE, GONE], logs)) == {anomaly}


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
    assert names(check_effects(["a", "b", "c"], applied)) == {anomaly}
