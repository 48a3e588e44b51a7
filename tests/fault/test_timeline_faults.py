"""A farm whose instances die, lose everything, stand still or are cut off: who is served, and how.

Three clusters of one instance, and a quorum of two. The table:

    down   reads                        writes   lost
    0      all                          taken    nothing
    1      all; SendOneReadOne by luck  taken    nothing
    2      the same                     fail     nothing
    3      fail                         fail     all, when nothing was on disk
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from headwater import AllReplicasFailed, QuorumFailed
from headwater.kernel.instrument import installed
from headwater.timeline import Farm, Tally
from headwater.timeline.farm.reading import READ_STRATEGIES
from tests.support import blocking
from tests.support.commands import run, start
from tests.support.farms import Replica, one_each, open_farm, replicas
from tests.support.forwarder import Forwarder
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault

RECORDS = [(f"key-{i}", float(i % 7), f"m{i}") for i in range(30)]
KEYS = [key for key, _, _ in RECORDS]


@pytest.fixture(scope="module")
def shared() -> Iterator[list[Server]]:
    with contextlib.ExitStack() as running:
        yield [running.enter_context(Server(tcp=True)) for _ in range(3)]


@pytest.fixture
def servers(shared: list[Server]) -> list[Server]:
    """Three servers that run and are empty, whatever was done to them before."""
    for server in shared:
        if not server.answers():
            server.restart()
        server.client().flushall()
    return shared


@pytest.fixture
def open_(loop: blocking.Loop) -> Iterator[Callable[..., Farm]]:
    with contextlib.ExitStack() as opened:

        def open_(urls: str, manner: str = "sync", **words: Any) -> Farm:
            farm = open_farm(manner, loop, urls, **words)
            opened.callback(farm.close)
            return farm

        yield open_


def reads_all(farm: Farm) -> bool:
    """Read every key; whatever fails, no answer is wrong."""
    try:
        found = farm.select(KEYS)
    except AllReplicasFailed:
        return False
    assert all(found[key] == [(key, score, member)] for key, score, member in RECORDS)
    return True


def is_empty(farm: Farm) -> bool:
    try:
        return not any(farm.select(KEYS).values())
    except AllReplicasFailed:
        return False


def takes_writes(farm: Farm) -> bool:
    try:
        farm.insert([("more", 1, "m")])
    except QuorumFailed:
        return False
    return True


@pytest.mark.parametrize("manner", ["sync", "async"])
@pytest.mark.parametrize("strategy", READ_STRATEGIES)
def test_the_table_of_failures_holds(
    servers: list[Server], open_: Callable[..., Farm], strategy: str, manner: str
) -> None:
    farm = open_(one_each(servers), manner, read_strategy=strategy, read_rate=40)
    farm.insert(RECORDS)
    farm.settle()
    assert reads_all(farm)
    assert takes_writes(farm)
    for down in (1, 2):
        servers[down].kill()
        reads = [reads_all(farm) for _ in range(5)]
        if strategy != "SendOneReadOne":
            assert all(reads)
        assert takes_writes(farm) == (down == 1)
    servers[0].kill()
    assert not reads_all(farm)
    with pytest.raises(QuorumFailed) as failed:
        farm.insert(RECORDS)
    assert (failed.value.answered, failed.value.needed) == (0, 2)
    for server in servers:
        server.restart()
    # Nothing was on disk, so all is lost; the farm itself goes on.
    until(lambda: takes_writes(farm))
    until(lambda: is_empty(farm))


def test_two_of_three_that_lost_everything_are_filled_from_the_third(
    servers: list[Server], open_: Callable[..., Farm]
) -> None:
    farm = open_(one_each(servers))
    farm.insert(RECORDS)
    farm.delete([(key, 9, "gone") for key in KEYS])
    farm.settle()
    for server in servers[1:]:
        server.kill()
        server.restart()
    until(lambda: not farm.select(KEYS).partial)
    assert reads_all(farm)
    farm.settle()
    assert reads_all(open_(servers[2].url)), "a read alone brings back what it shows"
    assert farm.repair(KEYS).written == 2 * len(KEYS), "the deletes, which no read shows"
    with servers[0].client() as one, servers[2].client() as other:
        assert {*one.keys()} == {*other.keys()}


@contextlib.contextmanager
def standing_still(server: Server) -> Iterator[None]:
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
        until(server.answers)


def test_a_server_that_stands_still_holds_up_no_write_and_few_reads(
    servers: list[Server], open_: Callable[..., Farm]
) -> None:
    farm = open_(one_each(servers), timeout_ms=3000)
    first = open_(one_each(servers), timeout_ms=3000, read_strategy="SendAllReadFirstLinger")
    for each in (farm, first):
        each.insert(RECORDS)
        assert reads_all(each)
        each.settle()
    with standing_still(servers[1]):
        began = time.monotonic()
        farm.delete([("more", 5, "m")])
        assert reads_all(first)
        assert time.monotonic() - began < 2.5, "neither waited for it"
        found = farm.select(KEYS)
        assert found.partial
        began = time.monotonic()
        assert farm.select(KEYS).partial
        assert time.monotonic() - began < 2.5, "it is not waited for again and again"
    until(lambda: not farm.select(KEYS).partial)
    farm.repair(["more"])
    with servers[1].client() as client:
        assert client.zscore("more-", "m") == 5


def test_one_that_is_asked_alone_and_slow_is_helped_by_the_others(
    servers: list[Server], open_: Callable[..., Farm]
) -> None:
    farm = open_(
        one_each(servers[:1] + servers[2:]),
        read_strategy="SendVarReadFirstLinger",
        read_rate=0,
        promote_after_ms=30,
        timeout_ms=1500,
    )
    farm.insert(RECORDS)
    farm.settle()
    with installed(tally := Tally()), standing_still(servers[0]):
        until(lambda: reads_all(farm) and tally.counts["select_send_all_promotion"])
    assert tally.counts["select_send_all_permit_granted"] == 0


def test_a_farm_that_was_cut_in_two_is_one_again(
    servers: list[Server], open_: Callable[..., Farm]
) -> None:
    """Each side writes where it can; the newest operation on each member is what is left."""
    direct = [f"127.0.0.1:{server.port}" for server in servers]
    with Forwarder(servers[2].port) as way:
        left = open_(f"{direct[0]};{direct[1]};127.0.0.1:{way.port}", timeout_ms=5000)
        right = open_(direct[2])
        left.insert([("k", 1, "a"), ("k", 1, "b"), ("k", 1, "c")])
        left.settle()
        way.switch(1)
        way.cut()
        left.delete([("k", 2, "a"), ("k", 2, "b")])
        right.insert([("k", 3, "a"), ("k", 2, "b"), ("k", -1, "d")])
        assert [record.member for record in left.select(["k"])["k"]] == ["c"]
        assert left.select(["k"]).partial
        left.settle()
        way.switch(servers[2].port)
        until(lambda: not left.select(["k"]).partial)
        assert [record.member for record in left.select(["k"])["k"]] == ["a", "c", "d"]
        left.settle()
        for url in direct:
            assert [record.member for record in open_(url).select(["k"])["k"]] == ["a", "c", "d"]


def test_a_farm_opens_and_closes_while_everything_is_down(open_: Callable[..., Farm]) -> None:
    for manner in ("sync", "async"):
        farm = open_("127.0.0.1:1,127.0.0.1:2;127.0.0.1:3", manner)
        assert not takes_writes(farm)
        assert not reads_all(farm)
        assert farm.repair(["k"]).failures == 2


def test_servers_that_come_and_go_under_load_lose_no_acknowledged_write(
    servers: list[Server], open_: Callable[..., Farm]
) -> None:
    """One at a time is emptied and healed, while writers go on and repeat what failed."""
    farm = open_(one_each(servers))
    stop, taken = threading.Event(), [0, 0]

    def write(who: int) -> None:
        while not stop.is_set():
            number = taken[who] + 1
            with contextlib.suppress(QuorumFailed):
                farm.insert([(f"load-{who}-{number % 5}", number, f"m{number}")])
                taken[who] = number

    writers = [threading.Thread(target=write, args=(who,)) for who in (0, 1)]
    for writer in writers:
        writer.start()
    keys = [f"load-{who}-{i}" for who in (0, 1) for i in range(5)]

    def write_more(count: int) -> None:
        enough = sum(taken) + count
        until(lambda: sum(taken) > enough)

    for server in servers[:2]:
        write_more(20)
        server.kill()
        write_more(20)
        server.restart()
        until(lambda: not farm.repair(keys).failures)
    stop.set()
    for writer in writers:
        writer.join()
    assert not farm.repair(keys).failures
    for place in range(3):
        found = open_(servers[place].url).select(keys, limit=10_000)
        for who in (0, 1):
            have = {r.member for key in keys if key.startswith(f"load-{who}") for r in found[key]}
            assert have >= {f"m{number}" for number in range(1, taken[who] + 1)}


# kill -9 of who moves a farm, again and again, while it is read and written: nothing is lost.


RECORD_KEYS = [f"key-{n}" for n in range(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_a_move_under_load_that_is_killed_again_and_again_loses_nothing(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    instances = replicas(server, 6)
    before = f"{instances[0].url},{instances[1].url};{instances[2].url}"
    after = f"{instances[0].url},{instances[3].url};{instances[4].url};{instances[5].url}"
    state = tmp_path_factory.mktemp("reshard") / "state"
    words = ["timeline", "reshard", "--instances", before, "--to", after, "--state", str(state)]
    with Farm.open(before) as farm:
        farm.insert([(key, 1.0, "first") for key in RECORD_KEYS])
    done = threading.Event()
    written: dict[tuple[str, str], float] = {}
    failures: list[BaseException] = []

    def use() -> None:
        chance = random.Random(1)
        score = 1.0
        try:
            with Farm.open(before) as farm:
                while not done.is_set():
                    score += 1
                    key, member = chance.choice(RECORD_KEYS), f"m{chance.randint(0, 3)}"
                    farm.insert([(key, score, member)])
                    written[key, member] = score
                    shown = farm.select([key], limit=10)[key]
                    assert {"first", member} <= {record.member for record in shown}
        except BaseException as error:
            failures.append(error)
            raise

    user = threading.Thread(target=use)
    user.start()
    try:
        for share in (50, 150):
            with start(None, *words, "--rate", "150") as program:
                until(partial(holds, instances[5], share))
                program.kill()
        finished = run(None, *words, "--rate", "100000")
        assert finished.code == 0, finished.err
        latest = max(written.values())
        until(lambda: max(dict(written).values()) > latest or failures)
    finally:
        done.set()
        user.join()
    assert not failures, failures
    with Farm.open(after) as farm:
        found = farm.select(RECORD_KEYS, limit=10)
        assert all("first" in {r.member for r in found[key]} for key in RECORD_KEYS)
        scores = {(key, r.member): r.score for key, rows in found.items() for r in rows}
        assert {place: scores[place] for place in written} == written


def holds(replica: Replica, share: int) -> bool:
    count = replica.client.dbsize()
    assert isinstance(count, int)
    return count > share
