"""An Ick does what redis-ick 0.1.4 documents, under the same keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from headwater import Added, Headwater, Ick, NotAnIck
from headwater.ick.keys import ick_keys
from tests.support.stores import Stores


@pytest.fixture
def ick(client: Headwater, name: str) -> Ick:
    """An Ick that was never used."""
    return client.ick(name)


def sizes(ick: Ick) -> tuple[int, int] | None:
    """Return the sizes of the producer set and of the consumer set."""
    facts = ick.stats()
    return None if facts is None else (facts["pset_size"], facts["cset_size"])


# A step: what is called, what it gives, and how large both sets are then. Each row of the table is
# one documented behaviour, begun on an Ick that was never used.
Step = tuple[Callable[[Ick], Any], Any, "tuple[int, int] | None"]
DOCUMENTED: dict[str, list[Step]] = {
    "what was never used is empty, and looking creates nothing": [
        (lambda i: i.stats(), None, None),
        (lambda i: i.delete(), 0, None),
        (lambda i: list(i.scan()), [], None),
    ],
    "an add of nothing creates the Ick": [
        (lambda i: i.add({}), (0, 0), (0, 0)),
        (lambda i: i.delete(), 1, None),
    ],
    "so does a reserve of nothing": [
        (lambda i: i.reserve(0), [], (0, 0)),
        (lambda i: i.delete(), 1, None),
    ],
    "and a commit of nothing": [(lambda i: i.commit(), 0, (0, 0))],
    "an add tells new members from lowered scores": [
        (lambda i: i.add({"foo": 5}), (1, 0), (1, 0)),
        (lambda i: i.add({"foo": 10, "bar": 13}), (1, 0), (2, 0)),
        (lambda i: i.add({"foo": 4.5, "baz": 1}), (1, 1), (3, 0)),
        (lambda i: i.add({"a": 7, "b": 8, "c": 9}), (3, 0), (6, 0)),
        (lambda i: i.add({"a": 1, "b": 8, "x": 3}), (1, 1), (7, 0)),
    ],
    "a score only falls": [
        (lambda i: i.add({"a": 5}), (1, 0), (1, 0)),
        (lambda i: i.add({"a": 9}), (0, 0), (1, 0)),
        (lambda i: i.add({"a": 5}), (0, 0), (1, 0)),
        (lambda i: i.reserve(1), [("a", 5.0)], (0, 1)),
    ],
    "an add looks at the producer set only": [
        (lambda i: i.add({"a": 5}), (1, 0), (1, 0)),
        (lambda i: i.reserve(1), [("a", 5.0)], (0, 1)),
        (lambda i: i.add({"a": 9}), (1, 0), (1, 1)),
        (lambda i: i.commit("a"), 1, (1, 0)),
        (lambda i: i.reserve(1), [("a", 9.0)], (0, 1)),
    ],
    "what is reserved comes again until it is committed": [
        (lambda i: i.add({"a": 7, "b": 8, "c": 9}), (3, 0), (3, 0)),
        (lambda i: i.reserve(1), [("a", 7.0)], (2, 1)),
        (lambda i: i.reserve(2), [("a", 7.0), ("b", 8.0)], (1, 2)),
        (lambda i: i.reserve(2), [("a", 7.0), ("b", 8.0)], (1, 2)),
        (lambda i: i.commit("b"), 1, (1, 1)),
        (lambda i: i.reserve(1), [("a", 7.0)], (1, 1)),
        (lambda i: i.reserve(2), [("a", 7.0), ("c", 9.0)], (0, 2)),
        (lambda i: i.commit("c", "a", "b"), 2, (0, 0)),
        (lambda i: i.reserve(2), [], (0, 0)),
    ],
    "a smaller reserve gives the lowest of what is reserved": [
        (lambda i: i.add({"a": 1, "b": 2, "c": 3}), (3, 0), (3, 0)),
        (lambda i: i.reserve(3), [("a", 1.0), ("b", 2.0), ("c", 3.0)], (0, 3)),
        (lambda i: i.reserve(1), [("a", 1.0)], (0, 3)),
    ],
    "a reserve of 0 moves and gives nothing, whatever is reserved": [
        (lambda i: i.add({"a": 1, "b": 2, "c": 3}), (3, 0), (3, 0)),
        (lambda i: i.reserve(1), [("a", 1.0)], (2, 1)),
        (lambda i: i.reserve(0), [], (2, 1)),
    ],
    "ties go by member, as bytes": [
        (lambda i: i.add({"b": 1, "a": 1, "B": 1, "é": 1, "": 1}), (5, 0), (5, 0)),
        (lambda i: [m for m, _ in i.reserve(9)], ["", "B", "a", "b", "é"], (0, 5)),
    ],
    "a member that is reserved already takes the lower score and uses no place": [
        (lambda i: i.add({"a": 5, "b": 6}), (2, 0), (2, 0)),
        (lambda i: i.reserve(2), [("a", 5.0), ("b", 6.0)], (0, 2)),
        (lambda i: i.add({"a": 9, "b": 1, "c": 7, "d": 10}), (4, 0), (4, 2)),
        (lambda i: i.reserve(3), [("b", 1.0), ("a", 5.0), ("c", 7.0)], (2, 3)),
    ],
    "a reserve can shrink the producer set without growing the consumer set": [
        (lambda i: i.add({"a": 5}), (1, 0), (1, 0)),
        (lambda i: i.reserve(1), [("a", 5.0)], (0, 1)),
        (lambda i: i.add({"a": 3}), (1, 0), (1, 1)),
        (lambda i: i.reserve(2), [("a", 3.0)], (0, 1)),
    ],
    "without backwash a later, lower score waits": [
        (lambda i: i.add({"a": 5}), (1, 0), (1, 0)),
        (lambda i: i.reserve(1), [("a", 5.0)], (0, 1)),
        (lambda i: i.add({"z": 1}), (1, 0), (1, 1)),
        (lambda i: i.reserve(1), [("a", 5.0)], (1, 1)),
    ],
    "with backwash the lowest of all come": [
        (lambda i: i.add({"a": 5, "b": 6}), (2, 0), (2, 0)),
        (lambda i: i.reserve(2), [("a", 5.0), ("b", 6.0)], (0, 2)),
        (lambda i: i.add({"z": 1, "b": 7}), (2, 0), (2, 2)),
        (lambda i: i.reserve(2, backwash=True), [("z", 1.0), ("a", 5.0)], (1, 2)),
        (lambda i: i.reserve(9), [("z", 1.0), ("a", 5.0), ("b", 6.0)], (0, 3)),
    ],
    "backwash alone empties the consumer set": [
        (lambda i: i.add({"a": 5, "b": 6}), (2, 0), (2, 0)),
        (lambda i: i.reserve(2), [("a", 5.0), ("b", 6.0)], (0, 2)),
        (lambda i: i.reserve(0, True), [], (2, 0)),
    ],
    "a commit touches the consumer set only": [
        (lambda i: i.add({"a": 1}), (1, 0), (1, 0)),
        (lambda i: i.commit("a", "b"), 0, (1, 0)),
    ],
    "a commit counts a member once": [
        (lambda i: i.add({"a": 1}), (1, 0), (1, 0)),
        (lambda i: i.reserve(1), [("a", 1.0)], (0, 1)),
        (lambda i: i.commit("a", "a", b"a"), 1, (0, 0)),
    ],
    "an exchange commits, then reserves": [
        (lambda i: i.add({"a": 1, "b": 2, "c": 3}), (3, 0), (3, 0)),
        (lambda i: i.exchange(2), [("a", 1.0), ("b", 2.0)], (1, 2)),
        (lambda i: i.exchange(2, "a"), [("b", 2.0), ("c", 3.0)], (0, 2)),
        (lambda i: i.exchange(0, "b", "c"), [], (0, 0)),
    ],
    "an exchange with backwash commits, folds back, then reserves": [
        (lambda i: i.add({"a": 5, "b": 6}), (2, 0), (2, 0)),
        (lambda i: i.reserve(2), [("a", 5.0), ("b", 6.0)], (0, 2)),
        (lambda i: i.add({"a": 2, "c": 1}), (2, 0), (2, 2)),
        (lambda i: i.exchange(1, "a", backwash=True), [("c", 1.0)], (2, 1)),
        (lambda i: i.exchange(2, "c"), [("a", 2.0), ("b", 6.0)], (0, 2)),
    ],
    "a second reserve may fold what the commit then forgets: what channels are for": [
        (lambda i: i.add({"a": 1}), (1, 0), (1, 0)),
        (lambda i: i.reserve(1), [("a", 1.0)], (0, 1)),
        (lambda i: i.add({"a": 2}), (1, 0), (1, 1)),
        (lambda i: i.reserve(2), [("a", 1.0)], (0, 1)),
        (lambda i: i.commit("a"), 1, (0, 0)),
    ],
    "a delete removes every key and tells how many": [
        (lambda i: i.add({"foo": 0, "x": 2}), (2, 0), (2, 0)),
        (lambda i: i.reserve(1), [("foo", 0.0)], (1, 1)),
        (lambda i: i.delete(), 3, None),
        (lambda i: i.add({"foo": 9}), (1, 0), (1, 0)),
        (lambda i: i.delete(), 2, None),
    ],
}


def test_every_documented_behaviour_of_redis_ick_holds(client: Headwater, name: str) -> None:
    for number, (behaviour, steps) in enumerate(DOCUMENTED.items()):
        ick = client.ick(f"{name}.{number}")
        for place, (call, gives, left) in enumerate(steps):
            assert (call(ick), sizes(ick)) == (gives, left), f"{behaviour}: step {place}"
        ick.delete()


def test_stats_name_keys_sizes_and_scores_as_redis_ick_does(ick: Ick) -> None:
    key = ick.key
    nothing = {
        "key": key,
        "pset_key": f"{key}/ick/{{{key}}}/pset",
        "cset_key": f"{key}/ick/{{{key}}}/cset",
        "ver": "ick.v1",
        "pset_size": 0,
        "cset_size": 0,
        "total_size": 0,
    }
    assert isinstance(ick.add({}), Added)
    assert ick.stats() == nothing
    ick.add({"a": 5, "b": 6.6, "c": 4.4})
    one = {"pset_size": 3, "pset_min": 4.4, "pset_max": 6.6}
    assert ick.stats() == nothing | one | {"total_size": 3, "total_min": 4.4, "total_max": 6.6}
    ick.reserve(1)
    two = {"pset_size": 2, "pset_min": 5, "pset_max": 6.6}
    two |= {"cset_size": 1, "cset_min": 4.4, "cset_max": 4.4}
    assert ick.stats() == nothing | two | {"total_size": 3, "total_min": 4.4, "total_max": 6.6}
    ick.reserve(3)
    assert (ick.stats() or {})["total_min"] == 4.4
    assert "pset_min" not in (ick.stats() or {})


@pytest.mark.parametrize("client", ["plain-async", "redis-sync"], indirect=True)
def test_a_ruby_producer_and_a_python_consumer_share_one_ick(
    client: Headwater, stores: Stores, name: str, request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["client"].partition("-")[0]
    path = stores.url(kind).removeprefix("unix://")
    with redis.Redis(unix_socket_path=path, decode_responses=True) as ruby:
        flag, pset, cset = name, f"{name}/ick/{{{name}}}/pset", f"{name}/ick/{{{name}}}/cset"
        # What redis-ick leaves behind: ickadd(key, 12.8, 'foo', 123, 'bar').
        ruby.set(flag, "ick.v1")
        ruby.zadd(pset, {"foo": 12.8, "bar": 123})
        ick = client.ick(name)
        assert ick.add({"foo": 3, "baz": 0.1}) == (1, 1)
        assert ick.reserve(2) == [("baz", 0.1), ("foo", 3.0)]
        assert ruby.zrange(cset, 0, -1, withscores=True) == [("baz", 0.1), ("foo", 3.0)]
        assert ruby.zrange(pset, 0, -1) == ["bar"]
        assert ick.commit("baz", "foo") == 2
        assert not ruby.exists(cset)
        assert ruby.get(flag) == "ick.v1"
        ick.delete()
        assert not ruby.exists(flag, pset, cset)


USES: dict[str, Callable[[Ick], Any]] = {
    "add": lambda i: i.add({"a": 1}),
    "add of nothing": lambda i: i.add({}),
    "reserve": lambda i: i.reserve(1),
    "reserve of nothing": lambda i: i.reserve(0),
    "commit": lambda i: i.commit("a"),
    "commit of nothing": lambda i: i.commit(),
    "exchange": lambda i: i.exchange(1, "a", backwash=True),
    "stats": lambda i: i.stats(),
    "scan": lambda i: list(i.scan()),
    "delete": lambda i: i.delete(),
}
# Which key is broken how, and what the error says was found there.
BROKEN: list[tuple[int, tuple[str, ...], str]] = [
    (0, ("SET", "{}", "ick.v2"), "version"),
    (0, ("SET", "{}", ""), "version"),
    (0, ("HSET", "{}", "a", "1"), "hash"),
    (0, ("ZADD", "{}", "1", "a"), "zset"),
    (0, ("DEL", "{}"), "none"),
    (1, ("SET", "{}", "warbles"), "string"),
    (1, ("RPUSH", "{}", "x"), "list"),
    (2, ("SET", "{}", "warbles"), "string"),
    (2, ("SADD", "{}", "x"), "set"),
]


@pytest.mark.damages
@pytest.mark.parametrize(("place", "command", "found"), BROKEN, ids=str)
@pytest.mark.parametrize("client", ["plain-async", "redis-sync"], indirect=True)
def test_what_is_no_ick_is_told_by_its_key_in_every_operation(
    client: Headwater, name: str, place: int, command: tuple[str, ...], found: str
) -> None:
    ick, keys = client.ick(name), ick_keys(name, one_server=True)
    ick.add({"x": 1, "y": 2})
    ick.reserve(1)
    client.store.command("DEL", keys[place])
    client.store.command(*(word.replace("{}", keys[place]) for word in command))
    before = [client.store.command("DUMP", key) for key in keys]
    for use in USES.values():
        with pytest.raises(NotAnIck) as caught:
            use(ick)
        assert (caught.value.key, caught.value.found) == (keys[place], found)
        assert repr(keys[place]) in str(caught.value)
    assert [client.store.command("DUMP", key) for key in keys] == before, "nothing was changed"
