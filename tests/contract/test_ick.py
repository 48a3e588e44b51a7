"""What an Ick takes: any score, any member, any number of them, any key; and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import redis

import headwater
from headwater import Added, Headwater, Ick, InvalidInput, Listed, NotAnIck
from headwater.ick import keys, single
from headwater.ick.keys import ick_keys
from headwater.ick.single import IckHandle
from tests.support.servers import Server
from tests.support.stores import Stores


@pytest.fixture
def ick(client: Headwater, name: str) -> Ick:
    """An Ick that was never used."""
    return client.ick(name)


def sizes(ick: Ick) -> tuple[int, int] | None:
    """Return the sizes of the producer set and of the consumer set."""
    facts = ick.stats()
    return None if facts is None else (facts["pset_size"], facts["cset_size"])


EXACT = [
    *(0.1, 1 / 3, 1e-300, 5e-324, 1.7976931348623157e308, -2.5, 1e17, 123456789.123456789),
    *(2**53 - 1, -(2**53) + 1, 2**53, 2**60, 1_700_000_000.123456, math.inf, -math.inf, 0, -0.0),
]


def test_scores_keep_every_digit_through_every_operation(ick: Ick) -> None:
    given = {f"m{i}": float(score) for i, score in enumerate(EXACT)}
    assert ick.add({f"m{i}": score for i, score in enumerate(EXACT)}) == (len(EXACT), 0)
    assert ick.add(given) == (0, 0), "the very same scores"
    assert dict(ick.reserve(len(EXACT))) == given
    assert {m: s for m, s, *_ in ick.scan()} == given
    assert dict(ick.reserve(len(EXACT), backwash=True)) == given
    facts = ick.stats()
    assert facts is not None
    assert (facts["cset_min"], facts["cset_max"]) == (-math.inf, math.inf)


def test_members_are_bytes_and_come_back_as_text_where_they_are(ick: Ick) -> None:
    odd = b"\xff\x00\n{}"
    mixed: dict[str | bytes, float] = {"é": 1, odd: 2}
    assert ick.add(mixed) == (2, 0)
    assert ick.add({"é".encode(): 1}) == (0, 0)
    assert ick.reserve(2) == [("é", 1.0), (odd, 2.0)]
    assert ick.commit(*(member for member, _ in ick.reserve(2))) == 2


@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
def test_any_number_of_members_goes_in_one_call(ick: Ick) -> None:
    for size in (7999, 8000, 8001, 60_000):
        scores = {f"key-{i:08d}": float(i) for i in range(size)}
        assert ick.add(scores) == (size, 0)
        assert ick.add({member: -score for member, score in scores.items()}) == (0, size - 1)
        assert sizes(ick) == (size, 0)
        assert len(ick.reserve(size)) == size
        assert ick.exchange(size, *list(scores)[: size // 2], backwash=True) == [
            (member, -score) for member, score in reversed(scores.items()) if score >= size // 2
        ]
        assert ick.commit(*scores) == size - size // 2
        assert ick.commit(*scores) == 0
    ick.delete()


def test_a_scan_goes_over_both_sets_in_pages_and_changes_nothing(ick: Ick) -> None:
    scores = {f"m{i}": float(i) for i in range(3000)}
    ick.add(scores)
    ick.reserve(1200)
    found = list(ick.scan())
    assert {row.member: row.score for row in found} == scores
    assert {row.member for row in found if row.place == "cset"} == {f"m{i}" for i in range(1200)}
    assert Listed("m1", 1.0, "cset", None) in found
    assert sizes(ick) == (1800, 1200)
    ick.delete()


NOT_KEYS: list[Any] = ["", None, 5, b"k", "x" * (keys.MAX_KEY_BYTES + 1), "\ud800"]
REFUSED: dict[str, tuple[Callable[[Ick, Any], Any], list[Any]]] = {
    "score": (lambda i, v: i.add({"a": v}), [math.nan, "1", None, True, 2**53 + 1, 10**400, b"1"]),
    "member": (lambda i, v: i.add({v: 1}), [None, 5, 1.5, ("a",), "\ud800"]),
    "scores": (lambda i, v: i.add(v), [None, [("a", 1)], "ab", 5]),
    "n": (lambda i, v: i.reserve(v), [-1, 1.5, "1", None, True, keys.MAX_RESERVE + 1]),
    "n of an exchange": (lambda i, v: i.exchange(v, "a"), [-1, 1.5, "1", None, True]),
    "committed member": (lambda i, v: i.commit("a", v), [None, 5, 1.5, ["a"], "\ud800"]),
    "size": (lambda i, v: i.commit(*v), [[b"x" * 2**20] * 257]),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
def test_what_cannot_be_meant_is_refused_before_it_is_sent(ick: Ick, what: str) -> None:
    use, values = REFUSED[what]
    for value in values:
        with pytest.raises(InvalidInput) as caught:
            use(ick, value)
        assert len(str(caught.value)) > 20
    assert ick.stats() is None


@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
def test_a_key_may_be_any_text_on_one_server(client: Headwater, name: str) -> None:
    for key in (f"{name} a", f"{name}{{b", f"{name}}}b", f"{{}}{name}", f"{name}{{t}}", f"{name}é"):
        assert client.ick(key).add({"a": 1}) == (1, 0)
        assert client.ick(key).delete() == 2
    for wrong in NOT_KEYS:
        with pytest.raises(InvalidInput):
            client.ick(wrong)


@pytest.mark.cluster
@pytest.mark.parametrize("client", ["cluster-sync", "cluster-async"], indirect=True)
def test_on_a_cluster_a_key_with_braces_must_have_a_hash_tag(client: Headwater, name: str) -> None:
    for key in (name, f"{name}{{t}}", f"a{{b}}{name}{{c}}", f"{name} é"):
        assert client.ick(key).add({"a": 1}) == (1, 0)
        assert client.ick(key).reserve(1) == [("a", 1.0)]
        assert client.ick(key).delete() == 2
    for key in (f"{name}{{b", f"{name}}}b", f"{{}}{name}"):
        with pytest.raises(InvalidInput, match="different slots"):
            client.ick(key)


def test_an_add_on_a_full_server_is_refused_and_the_rest_works(name: str) -> None:
    with Server() as server, headwater.connect(server.url) as hw, server.client() as admin:
        ick = hw.ick(name)
        ick.add({f"m{i}": i for i in range(1000)})
        admin.config_set("maxmemory", "1mb")
        with pytest.raises(headwater.StoreError, match="memory"):
            ick.add({"more": 1})
        assert len(ick.reserve(10)) == 10
        assert ick.commit("m0", "m1") == 2
        assert ick.delete() == 3


def test_all_but_an_exchange_of_both_may_be_sent_again(name: str) -> None:
    """Sent twice, it would commit what the first try reserved."""
    handle = IckHandle(name, one_server=True)
    first: dict[str, Any] = {
        "add": next(single.add(handle, {"a": 1})),
        "reserve": next(single.exchange(handle, 5, (), True)),
        "commit": next(single.exchange(handle, 0, ("a",), False)),
        "exchange": next(single.exchange(handle, 5, ("a",), False)),
        "delete": next(single.delete(handle)),
    }
    assert {name for name, call in first.items() if not call.repeatable} == {"exchange"}


# ── An Ick does what redis-ick 0.1.4 documents, under the same keys ──────────────────────────────

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
    nothing: dict[str, object] = {
        "key": key,
        "pset_key": f"{key}/ick/{{{key}}}/pset",
        "cset_key": f"{key}/ick/{{{key}}}/cset",
        "ver": "ick.v1",
        "pset_size": 0,
        "cset_size": 0,
        "total_size": 0,
    }
    assert isinstance(ick.add({}), Added)
    assert ick.stats() == {**nothing}
    ick.add({"a": 5, "b": 6.6, "c": 4.4})
    total = {"total_size": 3, "total_min": 4.4, "total_max": 6.6}
    one = {"pset_size": 3, "pset_min": 4.4, "pset_max": 6.6}
    assert ick.stats() == {**nothing, **one, **total}
    ick.reserve(1)
    two = {"pset_size": 2, "pset_min": 5, "pset_max": 6.6}
    two |= {"cset_size": 1, "cset_min": 4.4, "cset_max": 4.4}
    assert ick.stats() == {**nothing, **two, **total}
    ick.reserve(3)
    assert dict(ick.stats() or {})["total_min"] == 4.4
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
