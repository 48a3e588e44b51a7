"""Which server has a key: learned, and corrected by redirections."""

from __future__ import annotations

import pytest
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError

from headwater.store.connecting import SlotMap

SLOT = key_slot(b"hw:s:{a}")
TABLE = [
    [0, SLOT - 1, [b"h", 1, b"id"], [b"h", 11, b"id"]],
    [SLOT, SLOT, [b"h", 2, b"id"]],
    [SLOT + 1, 16383, [b"", 3, b"id"]],
]


def learned() -> SlotMap:
    slots = SlotMap((("seed", 9),))
    slots.learn(TABLE, ("asked", 3))
    return slots


def test_a_table_says_who_has_a_key() -> None:
    slots = learned()
    assert slots.owner("hw:s:{a}") == slots.owner("hw:s:{a}:tail") == ("h", 2)
    assert slots.primaries() == [("h", 1), ("h", 2), ("asked", 3)], "who names nobody was asked"


def test_a_move_is_remembered_and_an_ask_is_not() -> None:
    slots = learned()
    assert slots.redirect(AskError(f"{SLOT} h:3"), ("h", 2), moved=False) == ("h", 3)
    assert slots.owner("hw:s:{a}") == ("h", 2)
    assert not slots.stale
    assert slots.redirect(MovedError(f"{SLOT} :3"), ("h", 2), moved=True) == ("h", 3)
    assert slots.owner("hw:s:{a}") == ("h", 3)
    assert slots.stale


def test_a_slot_that_nobody_has_is_a_cluster_that_is_down() -> None:
    slots = SlotMap((("seed", 9),))
    assert slots.stale
    with pytest.raises(ClusterDownError):
        slots.owner("hw:s:{a}")


def test_servers_to_learn_from_take_turns_and_include_replicas() -> None:
    slots = learned()
    rounds = [slots.candidates() for _ in range(5)]
    assert {node for (node, *_) in rounds} == set(rounds[0])
    assert set(rounds[0]) == {("seed", 9), ("h", 1), ("h", 11), ("h", 2), ("asked", 3)}
