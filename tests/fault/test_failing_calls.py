"""The failing calls themselves: every call of the library has a site, and fails when it is told."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import pytest

from headwater import Batch, Headwater, Ick, IckChannel, NotAnIck
from headwater.errors import AccessDenied
from headwater.ick.channels import ChannelHandle
from headwater.ick.keys import ick_keys, shard_key
from headwater.metrics.history import (
    STORE,
    NewPoint,
    Point,
    keep_series,
    kept_history,
    read_points,
    write_points,
)
from headwater.store.call import Call
from headwater.store.library import COUNTS_MS, FORMAT, KEY, VERSION, read_record
from headwater.store.presence import PROCESSES_KEY as PROCESSES
from headwater.store.presence import (
    NewJob,
    Presence,
    all_processes,
    begin_job,
    list_jobs,
    note_job,
    stop_job,
    take_job,
)
from tests.support.contracts import FILES
from tests.support.failing_calls import FailingServer, Failure, Site
from tests.support.watch import let_pass, server_ms

pytestmark = pytest.mark.fault


def test_every_call_of_every_file_has_a_site(failing: FailingServer) -> None:
    code = "".join(
        re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", file.read_text("utf-8"), flags=re.DOTALL)
        for file in FILES
        if file.name != "scrub.lua"  # it runs what a scrub or a repair asks for
    )
    assert len(failing.sites()) == len(re.findall(r"redis\.p?call\(", code))
    assert {site.command for site in failing.sites()} == set(
        re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", code)
    )
    assert re.findall(r"redis\.p?call\(\s*[^\s']", code) == [], "the command is a constant"


def test_nothing_fails_until_it_is_asked_to(failing: FailingServer) -> None:
    stream = failing.hw.stream(f"s-{secrets.token_hex(4)}")
    with failing.armed(None) as passed:
        assert stream.write("t", b"v") == 1
    assert [site.command for site in passed][:2], "the calls of a write are seen"


def test_a_call_fails_once_or_with_all_later_ones_of_its_command(failing: FailingServer) -> None:
    with failing.armed(Failure(1, lasting=False)), pytest.raises(AccessDenied):
        failing.hw.stream("a").info()
    for lasting in (False, True):
        with failing.armed(Failure(1, lasting)):
            with pytest.raises(AccessDenied):
                failing.hw.stream("a").info()
            if lasting:
                with pytest.raises(AccessDenied):
                    failing.hw.stream("b").info()
            else:
                assert failing.hw.stream("b").info().last == 0


NOW, LONG_AGO = "1.0.0:1:1", "0.9.0:1:1"
REGISTRY = "hw:{streams}"
OPEN, OVER = "hw:{jobs}:open", "hw:{jobs}:over"


def fail_in_turn(
    failing: FailingServer, call: Call, check: Callable[[], None], prepare: Callable[[], None]
) -> set[Site]:
    """Fail a call in every place; then repeat it without a failure, and look."""

    def look(_: None, __: Failure) -> None:
        failing.hw.store.ask(call)
        check()

    return failing.fail_in_turn(prepare, lambda _: failing.hw.store.ask(call), look)


def test_every_call_of_the_functions_of_a_store_may_fail(failing: FailingServer) -> None:
    store = failing.hw.store
    admin = failing.server.client()

    def a_record() -> None:
        now = store.run(read_record()).now_ms
        admin.delete(KEY)
        admin.hset(KEY, mapping={"format": FORMAT, NOW: now, LONG_AGO: now - COUNTS_MS - 1})

    def noted() -> None:
        record = store.run(read_record())
        assert record.format == FORMAT, "an older client is still there"
        assert sorted(kind.release for kind in record.seen) == ["1.0.0", "2.0.0"]

    def raised() -> None:
        assert store.run(read_record()).format == FORMAT + 1

    def names() -> None:
        admin.delete(REGISTRY)
        admin.sadd(REGISTRY, "a", "b")

    def holds(*found: str) -> Callable[[], None]:
        def look() -> None:
            listed = store.ask(Call("hw_registry_list", REGISTRY, read_only=True))
            assert sorted(name.decode() for name in listed) == [*found]

        return look

    note = Call("hw_store_note", KEY, ("2.0.0", VERSION + 1, FORMAT + 1, COUNTS_MS))
    failed = fail_in_turn(failing, note, noted, a_record)
    failed |= fail_in_turn(failing, Call("hw_store_raise", KEY, (FORMAT + 1, 0)), raised, a_record)
    failed |= fail_in_turn(
        failing, Call("hw_store_record", KEY, read_only=True), a_record, a_record
    )
    failed |= fail_in_turn(
        failing,
        Call("hw_registry_add", REGISTRY, ("b", "c", "d")),
        holds("a", "b", "c", "d"),
        names,
    )
    failed |= fail_in_turn(
        failing, Call("hw_registry_remove", REGISTRY, ("a", "x")), holds("b"), names
    )
    failed |= fail_in_turn(
        failing, Call("hw_registry_list", REGISTRY, read_only=True), holds("a", "b"), names
    )
    admin.close()
    left = failing.sites("store", files="record|registry") - failed
    assert sorted(map(str, left)) == []


def test_every_call_of_the_functions_of_the_history_may_fail(failing: FailingServer) -> None:
    run, now_s = failing.hw.store.run, int(failing.server.client().time()[0])
    series = ("stream", "s")
    new = [NewPoint(one, 1, now_s, Point(1, 2, 3, 4, 5, 6)) for one in (STORE, series)]

    def prepare() -> None:
        run(keep_series({("queue", "old"): 1}, [series]))

    def operate(_: None) -> object:
        run(write_points("me", new, 60_000))
        run(keep_series({series: 7}, [("queue", "old")]))
        run(kept_history())
        return run(read_points([series], 1))

    def check(_: None, __: Failure) -> None:
        operate(None)
        assert run(kept_history()).series == {series: 7}
        assert Point(1, 2, 3, 4, 5, 6) in run(read_points([series], 1)).series[series]

    failed = failing.fail_in_turn(prepare, operate, check)
    assert not failing.sites("store", files="history") - failed


def test_every_call_of_the_functions_of_processes_may_fail(failing: FailingServer) -> None:
    run, old, new = failing.hw.store.run, Presence("app", "old"), Presence("app", "new")

    def prepare() -> None:
        run(old.beat())

    def operate(_: None) -> object:
        run(new.beat())
        run(old.leave())
        run(all_processes())
        # As if more were gone than are kept.
        gone = ("gone", "", 10**9, -1000, 0)
        return failing.hw.store.ask(Call("hw_process_note", PROCESSES, gone, repeatable=True))

    def check(_: None, __: Failure) -> None:
        run(old.beat())
        operate(None)
        run(new.beat())
        assert [one.note.name for one in run(all_processes())] == ["new"]

    failed = failing.fail_in_turn(prepare, operate, check)
    left = failing.sites("store", files="processes") - failed
    assert not left, left


def test_every_call_of_the_functions_of_jobs_may_fail(failing: FailingServer) -> None:
    run, admin = failing.hw.store.run, failing.server.client()
    kinds = ("k",)

    def prepare() -> None:
        admin.delete(*admin.keys("hw:{jobs}*"), "hw:{jobs}")
        for old in range(101):
            taken = run(begin_job(NewJob(f"old{old}", "k", b"h", b"a", b"0"), "x", 0))
            assert taken is not None
            if old:
                run(note_job(taken.id, taken.token, b"1", None))

    def operate(_: None) -> object:
        begun = run(begin_job(NewJob("new", "k", b"h", b"a", b"0"), "me", 60_000))
        assert begun is not None
        run(note_job("new", begun.token, b"1", 60_000))
        taken = run(take_job(kinds, "me", 0))
        assert taken is None or (taken.id, taken.asked) == ("old0", b"a")
        run(stop_job("new"))
        run(list_jobs("k"))
        return run(note_job("new", begun.token, b"2", None))

    def check(_: None, __: Failure) -> None:
        listed = {*admin.zrange(OPEN, 0, -1), *admin.zrange(OVER, 0, -1)}
        prefix = b"hw:{jobs}:job:"
        left = {bytes(key).removeprefix(prefix) for key in admin.scan_iter(prefix + b"*")}
        assert left <= listed, "what no set names would stay for ever"
        operate(None)
        found = {one.id: one for one in run(list_jobs("k"))}
        assert (found["new"].over, found["new"].note) == (True, b"2")
        assert found["old0"].is_left, "it waits for whoever takes it"
        assert len(found) == 101
        assert len(admin.keys("hw:{jobs}:job:*")) == 101

    failed = failing.fail_in_turn(prepare, operate, check)
    admin.close()
    left = failing.sites("store", files="jobs") - failed
    assert sorted(map(str, left)) == []


# Dirty lists while any call of a function fails: no member is lost, and all places are right.


FAR = 10**15
MANY = {f"n{i}": float(i) for i in range(1200)}


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
        assert dict(ick.stats() or {})["total_size"] == 0

    failing.fail_in_turn(fresh, operate, look)


def test_a_first_use_of_an_ick_may_fail(failing: FailingServer) -> None:
    def look(ick: Ick, _: Failure) -> None:
        ick.add({"a": 1})
        assert ick.reserve(9) == [("a", 1.0)]

    failing.fail_in_turn(
        lambda: failing.hw.ick(f"i-{secrets.token_hex(5)}"), lambda ick: ick.add({"a": 1}), look
    )


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
