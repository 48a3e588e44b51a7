"""What an Ick takes: any score, any member, any number of them, any key; and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import headwater
from headwater import Headwater, Ick, InvalidInput, Listed
from headwater.ick import keys, single
from headwater.ick.single import IckHandle
from tests.support.servers import Server


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
