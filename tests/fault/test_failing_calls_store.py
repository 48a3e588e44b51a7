"""The record of a store and the registries, while any call of their functions fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

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
from tests.support.failing_calls import FailingServer, Failure, Site

pytestmark = pytest.mark.fault

NOW, LONG_AGO = "1.0.0:1:1", "0.9.0:1:1"
REGISTRY = "hw:{streams}"
OPEN, OVER = "hw:{jobs}:open", "hw:{jobs}:over"


@pytest.fixture(scope="module")
def failing() -> Iterator[FailingServer]:
    with FailingServer() as server:
        yield server


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
