"""After a failover that lost writes, no number that was given before is given again in silence."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from headwater import Headwater, IckChannel, LeaseLost, LostFuture, Stream
from headwater.log.handles import diverged_at
from headwater.log.keys import stream_key
from headwater.log.replies import BuryReply
from headwater.store.call import Call, Operation
from headwater.store.presence import NewJob, begin_job, note_job, take_job
from headwater.timed import operating, states
from headwater.timed.engine import TimedEngine
from headwater.timed.states import ActiveRun, JobSpec, JobState, TimedStep
from tests.support.entries import pairs
from tests.support.forwarder import ServerPair, rows
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server, until
from tests.support.watch import blocked

pytestmark = pytest.mark.fault


class LossyFailover:
    """Clients of a server of which the second half is lost.

    ``warm`` uses both halves through one address, ``fresh`` knows only what was not lost.
    """

    def __init__(self, servers: ServerPair, opened: contextlib.ExitStack) -> None:
        self._servers, self._opened = servers, opened
        self.warm = opened.enter_context(Headwater(servers.url))
        self.copy = servers.copy

    def happen(self) -> Headwater:
        """Lose what was written since the copy; returns a fresh client."""
        self._servers.fail_over()
        return self._opened.enter_context(Headwater(self._servers.new.url))


@pytest.fixture
def failover() -> Iterator[LossyFailover]:
    with ServerPair() as servers, contextlib.ExitStack() as opened:
        yield LossyFailover(servers, opened)


def drained(channel: IckChannel) -> list[str]:
    """Reserve and commit everything."""
    found: list[str] = []
    while batch := channel.reserve(100):
        found += [str(row.member) for row in batch.reserved]
        channel.commit(batch)
    return sorted(found)


def test_a_channel_gives_no_fencing_token_twice(failover: LossyFailover) -> None:
    failover.warm.ick_channel("c", shards=1).add({"m": 1})
    failover.copy()
    lost = failover.warm.ick_channel("c", consumer="lost")
    batch = lost.reserve(1)
    fresh = failover.happen().ick_channel("c", consumer="fresh")
    again = fresh.reserve(1)
    assert [row.member for row in again.reserved] == ["m"]
    assert again.token > batch.token
    for act in (lost.commit, lost.release, lost.renew):
        with pytest.raises(LeaseLost):
            act(batch)
    assert fresh.commit(again) == 1


def test_a_lease_that_a_change_of_layout_ended_does_not_give_its_token_again(
    failover: LossyFailover,
) -> None:
    failover.warm.ick_channel("c", shards=1).add({"m": 1})
    failover.copy()
    lost = failover.warm.ick_channel("c", consumer="lost", ack_ms=1)
    batch = lost.reserve(1)
    fresh = failover.happen().ick_channel("c", consumer="fresh")
    assert fresh.reshard(2).settled
    assert drained(fresh) == ["m"]
    with pytest.raises(LeaseLost):
        lost.commit(batch)


def test_a_batch_that_was_lost_does_not_clean_what_its_consumer_reserved_since(
    failover: LossyFailover,
) -> None:
    """The lease itself was not lost, so the token is still the right one."""
    warm = failover.warm.ick_channel("c", shards=1, consumer="warm")
    warm.add({"held": 1})
    warm.reserve(1)
    warm.add({"m": 2})
    failover.copy()
    batch = warm.reserve(2)
    failover.happen().ick_channel("c").add({"m": 2})
    again = warm.reserve(2)
    assert again.token == batch.token
    assert [row.member for row in batch.reserved] == ["held", "m"]
    old, new = (each.reserved[1].generation for each in (batch, again))
    assert new > old
    assert warm.commit(batch, "m") == 0, "it was made dirty after that batch"
    assert warm.commit(again) == 2


def test_members_are_not_added_to_a_layout_that_was_lost(failover: LossyFailover) -> None:
    warm = failover.warm.ick_channel("c", shards=2)
    warm.add({"before": 1})
    failover.copy()
    assert warm.reshard(3).settled
    warm.add({"lost": 1})
    fresh = failover.happen()
    warm.add({f"m{n}": 1 for n in range(20)})
    found = drained(fresh.ick_channel("c"))
    assert found == sorted(["before", *(f"m{n}" for n in range(20))])
    assert_sound(fresh)


def test_a_consumer_does_not_look_into_a_layout_that_was_lost(failover: LossyFailover) -> None:
    warm = failover.warm.ick_channel("c", shards=2)
    warm.add({"before": 1})
    failover.copy()
    assert warm.reshard(3).settled
    assert drained(warm) == ["before"]
    fresh = failover.happen()
    fresh.ick_channel("c").add({"after": 1})
    assert drained(warm) == ["after", "before"]


def test_a_channel_that_was_lost_is_made_anew_where_all_look_for_it(
    failover: LossyFailover,
) -> None:
    failover.copy()
    warm = failover.warm.ick_channel("c", shards=2)
    warm.add({"lost": 1})
    fresh = failover.happen()
    warm.add({"m": 1})
    assert "c" in fresh.ick_channels()
    assert drained(fresh.ick_channel("c")) == ["m"]
    assert_sound(fresh)


def test_a_queue_gives_no_receipt_twice(failover: LossyFailover) -> None:
    queue = failover.warm.queue("q")
    queue.push(b"v")
    failover.copy()
    (lost,) = queue.pop(1, ack_ms=FAR)
    fresh = failover.happen().queue("q")
    (again,) = fresh.pop(1, ack_ms=FAR)
    assert (again.value, again.attempt, again.id) == (lost.value, lost.attempt, lost.id)
    assert again.receipt != lost.receipt
    for act in (queue.ack, queue.nack, queue.release):
        assert act(lost) == 0
    assert queue.extend(lost, ack_ms=FAR) == 0
    assert fresh.ack(again) == 1


def test_a_queue_gives_no_id_twice(failover: LossyFailover) -> None:
    queue = failover.warm.queue("q")
    queue.push(b"kept")
    failover.copy()
    lost = queue.push_many([b"lost"] * 50)
    fresh = failover.happen().queue("q")
    found = fresh.push_many([b"new"] * 50)
    assert not set(lost) & set(found)


def test_a_push_that_was_lost_is_stored_by_its_repeat(failover: LossyFailover) -> None:
    queue = failover.warm.queue("q")
    queue.push_many([b"1"], producer="p", sequence=1)
    failover.copy()
    queue.push_many([b"2"], producer="p", sequence=2)
    fresh = failover.happen().queue("q")
    for _ in range(2):
        queue.push_many([b"1"], producer="p", sequence=1)
        queue.push_many([b"2"], producer="p", sequence=2)
    assert [message.value for message in fresh.pop(9)] == [b"1", b"2"]


JOB = NewJob("j", "k", b"head", b"asked", b"0")


def test_a_job_of_a_server_gives_no_token_twice(failover: LossyFailover) -> None:
    run = failover.warm.store.run
    failover.copy()
    lost = run(begin_job(JOB, "lost", FAR))
    fresh = failover.happen().store.run
    again = fresh(begin_job(JOB, "fresh", FAR))
    assert lost is not None
    assert again is not None
    assert again.token > lost.token
    assert not run(note_job("j", lost.token, b"1", FAR)).taken
    assert fresh(note_job("j", again.token, b"2", FAR)).taken


def test_a_job_that_is_taken_over_gives_no_token_twice(failover: LossyFailover) -> None:
    run = failover.warm.store.run
    begun = run(begin_job(JOB, "first", 60_000))
    assert begun is not None
    run(note_job("j", begun.token, b"0", 0))
    failover.copy()
    lost = run(take_job(("k",), "lost", FAR))
    again = failover.happen().store.run(take_job(("k",), "fresh", FAR))
    assert lost is not None
    assert again is not None
    assert again.token > lost.token > begun.token
    assert not run(note_job("j", lost.token, b"1", FAR)).taken


def test_the_end_of_a_timed_run_that_was_lost_is_not_noted_for_another(
    failover: LossyFailover,
) -> None:
    """A run is known by its runner and by when it began."""
    spec = JobSpec(every_ms=1000)

    class Runner:
        """One that looks at a job once."""

        def __init__(self, hw: Headwater, me: str) -> None:
            self._hw, self._me = hw, me
            self._stream = operating.job_stream("j")

        def change(self, decide: Callable[[JobState], TimedStep | None]) -> TimedStep | None:
            def change(state: JobState | None) -> TimedStep | None:
                return decide(state) if state else states.define(None, spec, 1500, self._me)

            _, step = self._hw.store.run(operating.change(self._stream, change))
            return step

        def take(self) -> ActiveRun:
            step = self.change(
                lambda state: states.look(state, "j", 2100, self._me, True, lambda _: False)
            )
            assert step is not None
            assert step.taken is not None
            return step.taken

        def end(self, run: ActiveRun) -> TimedStep | None:
            return self.change(lambda state: states.end(state, run, 2200, 1, None))

    warm = Runner(failover.warm, "lost")
    warm.change(lambda _: None)
    failover.copy()
    lost = warm.take()
    fresh = Runner(failover.happen(), "fresh")
    again = fresh.take()
    assert (again.due_ms, again.attempt) == (lost.due_ms, lost.attempt)
    assert warm.end(lost) is None, "it is told that somebody else has the run"
    assert fresh.end(again) is not None


def test_a_runner_of_timed_jobs_goes_on_after_its_reports_were_lost(
    failover: LossyFailover,
) -> None:
    engine, run = TimedEngine([], "me"), failover.warm.store.run
    run(engine.begin())
    failover.copy()
    for _ in range(3):
        run(engine.beat())
    run(engine._hear())
    other = TimedEngine([], "other")
    fresh = failover.happen()
    for _ in range(5):
        fresh.store.run(other.begin())
    run(engine.beat())
    run(engine._hear())
    assert "other" in engine._seen


def test_a_batch_of_dead_letters_gets_no_number_twice(failover: LossyFailover) -> None:
    """The stream of the letters may be on another server, which remembers the numbers."""
    stream = failover.warm.stream("s")
    stream.write_many([("t", b"1"), ("t", b"2")])
    group = stream.group("g", dead_letters="letters")
    group.read(2, ack_ms=FAR)

    def bury() -> Operation[BuryReply]:
        key = stream_key("s")
        yield Call("hw_group_fail", key, ("g", 1, "", -1, "", "Error\nwhy"))
        return BuryReply.of((yield Call("hw_group_bury", key, ("g", "", 0, 10))))

    failover.copy()
    lost = failover.warm.store.run(bury())
    again = failover.happen().store.run(bury())
    assert (again.claims, again.stream) == (lost.claims, lost.stream)
    assert again.number > lost.number


KEPT, LOST = 500, 100


class Failover(NamedTuple):
    """A stream of which the new primary has lost the end, seen by a warm and by a fresh client."""

    warm: Stream
    fresh: Stream


@pytest.fixture(params=["plain", "nodes"])
def lost(request: pytest.FixtureRequest) -> Iterator[Failover]:
    with ServerPair() as servers:
        name = secrets.token_hex(4)
        with Headwater(servers.url) as hw, Headwater(servers.old.url) as writer:
            stream = writer.stream(name)
            stream.write_many(rows("X", 1, KEPT))
            servers.copy()
            if request.param == "nodes":
                stream.write_many(rows("X", KEPT + 1, LOST))
                stream.seal()
            else:
                for row in rows("X", KEPT + 1, LOST):
                    stream.write(*row)
            warm = hw.stream(name)
            read = warm.read(1, KEPT + LOST)
            assert pairs(read) == rows("X", 1, KEPT + LOST)
            servers.fail_over()
            with Headwater(servers.new.url) as other:
                yield Failover(warm, other.stream(name))


def test_a_warm_reader_is_told_what_is_lost_and_never_reads_it_again(lost: Failover) -> None:
    for _ in range(2):
        with pytest.raises(LostFuture) as caught:
            lost.warm.read(KEPT + LOST + 1, 10)
        found = caught.value
        assert (found.stream, found.first, found.last) == (lost.warm.name, KEPT + 1, KEPT + LOST)
    assert lost.warm.read(KEPT + 1, 10) == []
    lost.fresh.write_many(rows("Y", KEPT + 1, 3 * LOST))
    assert pairs(lost.warm.read(KEPT + 1, 3 * LOST)) == rows("Y", KEPT + 1, 3 * LOST)


@pytest.mark.parametrize("written", [1, LOST // 2, LOST, 3 * LOST])
def test_a_reader_is_told_also_when_others_have_the_offsets_by_now(
    lost: Failover, written: int
) -> None:
    lost.fresh.write_many(rows("Y", KEPT + 1, written))
    with pytest.raises(LostFuture) as caught:
        lost.warm.read_from(KEPT + LOST + 1, 10)
    assert (caught.value.first, caught.value.last) == (KEPT + 1, KEPT + LOST)
    passage = lost.warm.read_from(KEPT + 1, 1000)
    assert [m.value for m in passage.messages] == [
        value for _, value in rows("Y", KEPT + 1, written)
    ]


@pytest.mark.parametrize("written", [1, LOST, 3 * LOST])
def test_the_cache_of_a_warm_reader_gives_nothing_that_was_lost(
    lost: Failover, written: int
) -> None:
    lost.fresh.write_many(rows("Y", KEPT + 1, written))
    lost.fresh.seal()
    right = rows("X", 1, KEPT) + rows("Y", KEPT + 1, written)
    assert pairs(lost.warm.group("g").read(1000)) == right
    scanned = [value for batch in lost.warm.scan() for value in batch["value"].to_pylist()]
    assert scanned == [value for _, value in right]


def test_a_reader_that_had_not_come_so_far_continues(lost: Failover) -> None:
    lost.fresh.write_many(rows("Y", KEPT + 1, 7))
    assert len(lost.fresh.read(1, KEPT)) == KEPT
    assert pairs(lost.fresh.read(KEPT + 1, 100)) == rows("Y", KEPT + 1, 7)


def test_a_producer_is_told_which_of_its_writes_are_lost() -> None:
    with ServerPair() as servers:
        name = secrets.token_hex(4)
        with Headwater(servers.url) as hw:
            stream = hw.stream(name)
            stream.write_many(rows("X", 1, 5), producer="p", sequence=1)
            servers.copy()
            stream.write_many(rows("X", 6, 5), producer="p", sequence=2)
            servers.fail_over()
            with Headwater(servers.new.url) as other:
                other.stream(name).write_many(rows("Y", 6, 20))
            with pytest.raises(LostFuture) as caught:
                stream.write_many(rows("X", 11, 5), producer="p", sequence=3)
            assert (caught.value.first, caught.value.last) == (6, 10)
            # It is written, and what was lost can be written again.
            assert stream.write_many(rows("X", 11, 5), producer="p", sequence=3) == range(26, 31)


def test_a_restart_that_loses_nothing_is_no_loss() -> None:
    with Server(fsync="always") as server, Headwater(server.url) as hw:
        stream = hw.stream("s")
        for n in range(20):
            stream.write_many(rows("X", n + 1, 1), producer="p", sequence=n)
            assert len(stream.read(n + 1, 5)) == 1
            if n % 5 == 0:
                server.kill()
                server.start()
        assert pairs(stream.read(1, 100)) == rows("X", 1, 20)


def test_a_read_that_waits_while_the_server_restarts_is_no_loss() -> None:
    with (
        Server(tcp=True, fsync="always") as server,
        Headwater(server.url) as hw,
        Headwater(server.url) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = hw.stream("s")
        stream.write_many(rows("X", 1, 5))
        assert len(stream.read_from(1, 5).messages) == 5
        waiting = pool.submit(stream.read_from, 6, 5, block_ms=60_000)
        until(lambda: blocked(other))
        server.kill()
        server.start()
        until(lambda: blocked(other))
        other.stream("s").write("X", b"X6")
        assert pairs(waiting.result().messages) == rows("X", 6, 1)
        assert stream.read_from(7, 5).messages == []
        other.stream("s").write("X", b"X7")
        assert pairs(stream.read_from(7, 5).messages) == rows("X", 7, 1)


def test_histories_differ_where_the_first_of_them_was_left() -> None:
    assert diverged_at(b"", b"") == 0
    assert diverged_at(b"10:501", b"10:501") == 0
    assert diverged_at(b"10:501", b"10:501 20:601") == 601
    assert diverged_at(b"10:501 20:601", b"10:501 30:551") == 551
    assert diverged_at(b"20:601", b"15:551") == 551
    full = b" ".join(b"%d:%d" % (n, 10 * n) for n in range(2, 18))
    assert diverged_at(b"1:10 " + full.rpartition(b" ")[0], full) == 170, (
        "the oldest one is dropped"
    )
    longer = b" ".join(b"%d:%d" % (n, 10 * n) for n in range(1, 17))
    assert diverged_at(full, longer) == 170, "also when the newer history is the longer one"
