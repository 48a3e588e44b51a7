"""kill -9 of who moves a farm, again and again, while it is read and written: nothing is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from headwater.timeline import Farm
from tests.support.commands import run, start
from tests.support.farms import Replica, replicas
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault

KEYS = [f"key-{n}" for n in range(300)]


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
        farm.insert([(key, 1.0, "first") for key in KEYS])
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
                    key, member = chance.choice(KEYS), f"m{chance.randint(0, 3)}"
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
        found = farm.select(KEYS, limit=10)
        assert all("first" in {r.member for r in found[key]} for key in KEYS)
        scores = {(key, r.member): r.score for key, rows in found.items() for r in rows}
        assert {place: scores[place] for place in written} == written


def holds(replica: Replica, share: int) -> bool:
    count = replica.client.dbsize()
    assert isinstance(count, int)
    return count > share
