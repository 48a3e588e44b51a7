"""Dirty lists while any call of a function fails: no member is lost, and all places are right."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import pytest

from headwater import Batch, Headwater, Ick, IckChannel, NotAnIck
from headwater.ick.channels import ChannelHandle
from headwater.ick.keys import ick_keys, shard_key
from headwater.store.call import Call
from tests.support.failing_calls import FailingServer, Failure
from tests.support.watch import let_pass, server_ms

pytestmark = pytest.mark.fault
FAR = 10**15
MANY = {f"n{i}": float(i) for i in range(1200)}


@pytest.fixture(scope="module")
def failing() -> Iterator[FailingServer]:
    with FailingServer() as server:
        yield server


# ── Icks ─────────────────────────────────────────────────────────────────────────────────────


def make_ick(hw: Headwater) -> Ick:
    ick = hw.ick(f"i-{secrets.token_hex(5)}")
    ick.add({"a": 1, "b": 2, "c": 3, "d": 4})
    ick.reserve(2)
    ick.add({"a": 5})
    return ick


ICKS: dict[str, Callable[[Ick], Any]] = {
    "add": lambda ick: ick.add({"b": 1, "x": 9}),
    "add many": lambda ick: ick.add(MANY),
    "reserve": lambda ick: ick.reserve(3),
    "reserve many": lambda ick: ick.reserve(2000),
    "backwash": lambda ick: ick.reserve(3, backwash=True),
    "backwash many": lambda ick: ick.reserve(2000, backwash=True),
    "exchange": lambda ick: ick.exchange(2, "a"),
    "commit": lambda ick: ick.commit("a", "b"),
    "look": lambda ick: (ick.stats(), list(ick.scan())),
    "delete": lambda ick: ick.delete(),
}


@pytest.mark.parametrize("name", ICKS)
def test_no_member_of_an_ick_is_lost(failing: FailingServer, name: str) -> None:
    operate = ICKS[name]
    known = {"a", "b", "c", "d"}

    def fresh() -> Ick:
        ick = make_ick(failing.hw)
        if name.endswith("many") and name != "add many":
            ick.add(MANY)
        return ick

    def look(ick: Ick, _: Failure) -> None:
        facts = ick.stats()
        there = {item.member for item in ick.scan()}
        if name == "delete":
            assert facts is None or known <= there
            ick.delete()
            assert ick.stats() is None
            return
        assert facts is not None
        committed = {"exchange": {"b"}, "commit": {"b"}}.get(name, set())
        assert known - committed <= there | committed
        assert "a" in there, "it became dirty again before it was committed"
        operate(ick)
        everything = ick.reserve(5000, backwash=True)
        assert {member for member, _ in everything} >= known - {"a", "b"}
        assert len(everything) == len({member for member, _ in everything})
        assert ick.commit(*(member for member, _ in everything)) == len(everything)
        assert (ick.stats() or {})["total_size"] == 0

    failing.fail_in_turn(fresh, operate, look)


def test_a_first_use_of_an_ick_may_fail(failing: FailingServer) -> None:
    def look(ick: Ick, _: Failure) -> None:
        ick.add({"a": 1})
        assert ick.reserve(9) == [("a", 1.0)]

    failing.fail_in_turn(
        lambda: failing.hw.ick(f"i-{secrets.token_hex(5)}"), lambda ick: ick.add({"a": 1}), look
    )


# ── Channels ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Case:
    """A channel of one shard, and what one of its consumers has."""

    hw: Headwater
    channel: IckChannel
    batch: Batch = field(default_factory=lambda: Batch(""))
    members: set[Any] = field(default_factory=set)

    def shard(self) -> str:
        view = self.hw.store.run(self.handle().open())
        return shard_key(self.channel.name, view.epoch, 0)

    def handle(self) -> ChannelHandle:
        return ChannelHandle(self.channel.name, 1, "helper", 1000, {self.channel.name})

    def call(self, function: str, *args: Any) -> Any:
        return self.hw.store.ask(Call(function, self.shard(), args, repeatable=True))


Deed: TypeAlias = "Callable[[Case], Any]"


def make_channel(hw: Headwater) -> Case:
    name = f"c-{secrets.token_hex(5)}"
    channel = hw.ick_channel(name, shards=1, consumer="me", ack_ms=60_000)
    case = Case(hw, channel)
    channel.add({f"r{i}": float(10 - i) for i in range(10)})
    case.batch = channel.reserve(3)
    channel.add({case.batch.reserved[0].member: 5.0})
    channel.add({"due": 1.0, "soon": 2.0}, not_before=server_ms(hw) + 1)
    channel.add({"late": 1.0, "later": 2.0}, not_before=FAR)
    let_pass(hw, 3)
    case.members = {f"r{i}" for i in range(10)} | {"due", "soon", "late", "later"}
    return case


def places(case: Case) -> dict[str, dict[bytes, bytes]]:
    """Return what is in each set of the shard, by plain reads."""
    found = {}
    for part in ("ready", "since", "later", "wish", "held"):
        (flat,) = case.hw.store.command("ZRANGE", f"{case.shard()}:{part}", 0, -1, "WITHSCORES")
        found[part] = dict(zip(flat[::2], flat[1::2], strict=True))
    (flat,) = case.hw.store.command("HGETALL", f"{case.shard()}:made")
    found["made"] = dict(zip(flat[::2], flat[1::2], strict=True))
    return found


def audit(case: Case) -> None:
    found = places(case)
    assert found["ready"].keys() == found["since"].keys()
    assert found["later"].keys() == found["wish"].keys()
    assert found["held"].keys() == found["made"].keys()
    assert not found["ready"].keys() & found["later"].keys()
    (shard,) = (case.channel.stats() or pytest.fail("it is gone")).shards
    assert (shard.ready, shard.later, shard.reserved) == tuple(
        len(found[part]) for part in ("ready", "later", "held")
    )
    assert shard.lease is None or shard.reserved > 0, "a lease of nothing"


CHANNELS: dict[str, Deed] = {
    "add": lambda case: case.channel.add({"r9": 0.5, "late": 0.5, "new": 1.0}),
    "add later": lambda case: case.channel.add({"r9": 0.5, "late": 0.5, "x": 1.0}, not_before=FAR),
    "reserve": lambda case: case.channel.reserve(6),
    "reserve who waited longest": lambda case: case.channel.reserve(8),
    "reserve all": lambda case: case.channel.reserve(100),
    "reserve many": lambda case: case.channel.reserve(5000),
    "commit": lambda case: case.channel.commit(case.batch),
    "commit one": lambda case: case.channel.commit(case.batch, case.batch.reserved[1].member),
    "release": lambda case: case.channel.release(case.batch),
    "release for later": lambda case: case.channel.release(case.batch, delay_ms=10**6),
    "renew": lambda case: case.channel.renew(case.batch),
    "look": lambda case: (case.channel.stats(), list(case.channel.scan())),
    "put": lambda case: case.call("hw_channel_put", "p", 1, 0, 5, "late", 1, 0, 5, "q", 1, FAR, 0),
}


@pytest.mark.parametrize("restarts", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("name", CHANNELS)
def test_no_member_of_a_channel_is_lost(failing: FailingServer, name: str, restarts: bool) -> None:
    operate = CHANNELS[name]

    def fresh() -> Case:
        case = make_channel(failing.hw)
        if name == "reserve many":
            case.channel.add(MANY)
        return case

    def look(case: Case, _: Failure) -> None:
        if restarts:
            # Only generations of members that are reserved no more may have stayed.
            defects = case.hw.repair(case.channel.name, dry_run=False).repaired
            assert {defect.cure for defect in defects} <= {"headwater repair: drops its generation"}
        # A call by somebody who may: it brings right what is not.
        case.channel.add({"healed": 99.0})
        audit(case)
        there = {item.member for item in case.channel.scan()}
        again = case.batch.reserved[0].member
        may_be_gone = {row.member for row in case.batch.reserved} - {again}
        assert case.members - there <= (may_be_gone if name.startswith("commit") else set())
        operate(case)
        audit(case)
        while (batch := case.channel.reserve(100)).reserved:
            case.channel.commit(batch)
        audit(case)
        found = places(case)
        assert (found["ready"], found["held"]) == ({}, {})

    failing.fail_in_turn(fresh, operate, look, forgetting=restarts)


@pytest.mark.parametrize("shards", [3, 0])
def test_a_change_of_layout_or_a_delete_is_finished_by_another(
    failing: FailingServer, shards: int
) -> None:
    def fresh() -> Case:
        case = make_channel(failing.hw)
        case.channel.release(case.batch)
        case.call("hw_channel_reserve", "dead", 1, 2)
        let_pass(failing.hw, 2)
        return case

    def operate(case: Case) -> None:
        if shards:
            case.channel.reshard(shards)
        else:
            case.channel.delete()

    def look(case: Case, _: Failure) -> None:
        other = failing.hw.ick_channel(case.channel.name, shards=1, consumer="other")
        if not shards:
            other.delete()
            assert other.stats() is None
            return
        assert other.reshard(shards).settled
        assert {item.member for item in other.scan()} == case.members
        facts = other.stats()
        assert facts is not None
        assert len(facts.shards) == shards

    failing.fail_in_turn(fresh, operate, look)


def make_wrong(hw: Headwater) -> Ick:
    """Put something else under a key of an Ick."""
    ick = hw.ick(f"i-{secrets.token_hex(5)}")
    hw.store.command("SET", ick_keys(ick.key, True)[1], "not a set")
    return ick


def use_wrong(ick: Ick) -> None:
    with pytest.raises(NotAnIck):
        ick.add({"a": 1})


def test_what_is_no_ick_is_refused_whatever_fails(failing: FailingServer) -> None:
    def try_it(ick: Ick) -> None:
        with contextlib.suppress(NotAnIck):
            ick.add({"a": 1})

    failing.fail_in_turn(lambda: make_wrong(failing.hw), try_it, lambda ick, _: use_wrong(ick))


def test_every_call_is_passed_by_one_of_these(failing: FailingServer) -> None:
    hw = failing.hw
    changed, large = make_channel(hw), hw.ick(f"i-{secrets.token_hex(5)}")
    changed.call("hw_channel_reserve", "me", 1, 2)
    let_pass(hw, 2)
    crowd = hw.ick_channel(f"c-{secrets.token_hex(5)}", shards=1)
    deeds: list[Callable[[], Any]] = [
        *(partial(operate, make_ick(hw)) for operate in ICKS.values()),
        *(partial(operate, make_channel(hw)) for operate in CHANNELS.values()),
        lambda: (large.add(MANY), large.reserve(2000, backwash=True)),
        lambda: (crowd.add(MANY), crowd.reserve(2000)),
        lambda: changed.channel.reshard(2),
        changed.channel.delete,
        partial(use_wrong, make_wrong(hw)),
    ]
    passed = set()
    for deed in deeds:
        with failing.armed(None) as sites:
            deed()
        passed |= set(sites)
    # What brings members right runs only after something has failed.
    left = failing.sites("ick") - passed - failing.sites("ick", files="15-recover")
    assert not left, sorted(map(str, left))
