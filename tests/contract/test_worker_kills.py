"""Workers that are killed: between a failure and its burial, and while they work on a topic."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater import Headwater, Worker
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.workers import Refusing, all_done, at_work, done_in
from tests.support.zygote import Zygote

pytestmark = pytest.mark.fault


@pytest.fixture
def hw(stores: Stores) -> Iterator[Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("tests.support.members") as zygote:
        yield zygote


@pytest.mark.parametrize(
    ("place", "known"), [("before the report", "Unanswered"), ("before the burial", "LookupError")]
)
def test_a_worker_killed_after_its_last_failure_leaves_one_letter(
    stores: Stores, hw: Headwater, zygote: Zygote, name: str, place: str, known: str
) -> None:
    stream, group = hw.stream(name), hw.stream(name).group("g", dead_letters=True)
    stream.write_many([("good", b"1"), ("bad", b"2")])
    order = {"role": "failing worker", "manner": "sync", "stream": name, "place": place}
    pid = zygote.start("", stores.url("plain"), **order)
    assert zygote.wait(pid) == -signal.SIGKILL
    assert group.info().dead == 0
    handler = Refusing({"bad"})
    with at_work(Worker(group, handler, max_attempts=2, backoff_ms=1, ack_ms=1500)):
        until(lambda: all_done(group, 2)() and group.dead())
    assert handler.tries_of("bad") == [], "it had its attempts"
    (letter,) = group.dead()
    assert (letter.origin, letter.value, letter.cause and letter.cause.type) == (2, b"2", known)
    assert group.info().pending == 0
    assert hw.stream(f"{name}.g.dead").info().length == 1, "nothing was written twice"


def test_a_killed_worker_of_a_topic_loses_nothing(
    stores: Stores, hw: Headwater, zygote: Zygote, name: str, tmp_path: Path
) -> None:
    page = tmp_path / "handled"
    topic = hw.topic(name, partitions=4)
    topic.write_many(entries(100))
    order = {"role": "worker", "manner": "sync", "topic": name, "page": str(page)}
    pid = zygote.start("", stores.url("plain"), **order)
    until(lambda: page.exists() and page.read_text().count("\n") > 20)
    os.kill(pid, signal.SIGKILL)
    assert zygote.wait(pid) == -signal.SIGKILL
    seen: list[tuple[int, ...]] = []
    group = topic.group("g")
    worker = Worker(group, lambda m: seen.append((m.partition, m.offset)), ack_ms=500)
    with at_work(worker):
        until(lambda: done_in(group) == 100)
    handled = [tuple(map(int, line.split())) for line in page.read_text().splitlines()]
    assert len({*handled, *seen}) == 100
