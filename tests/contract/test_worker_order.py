"""Workers that keep order: the messages of one tag one after the other, whoever fails or dies."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import pytest

import headwater
from headwater import Message, Stream, Topic
from tests.support.order_rules import overtaken
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.workers import Crew, all_done, at_work, done_in
from tests.support.zygote import Zygote

LONG = int(os.environ.get("HEADWATER_LONG", "0"))


class Noting:
    """A handler that notes what it begins and has done, and fails some at first."""

    def __init__(self, failing: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.notes: list[str] = []
        self.running: set[str] = set()
        self._failing = failing
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            assert message.tag not in self.running, "one at a time"
            self.running.add(message.tag)
            self.notes.append(f"begin {message.tag} {message.offset}")
        try:
            if message.offset in self._failing and message.attempt < 3:
                raise ValueError("not yet")
            with self._lock:
                self.notes.append(f"done {message.tag} {message.offset}")
        finally:
            with self._lock:
                self.running.discard(message.tag)


def written(stream: Stream, count: int, tags: int) -> dict[int, str]:
    names = [f"t{n * n % tags}" for n in range(count)]
    offsets = stream.write_many([(name, b"") for name in names])
    return dict(zip(offsets, names, strict=True))


def test_two_crews_keep_the_order_of_each_tag_though_some_fail(crew: Crew, name: str) -> None:
    stream = crew.hw.stream(name)
    tags = written(stream, 600, 40) | written(stream, 1, 3)
    handler = Noting(failing={5, 40, 41, 300})
    options: dict[str, Any] = {"ordered": True, "concurrency": 8, "backoff_ms": 1}
    workers = [crew.worker(stream, handler, **options) for _ in range(2)]
    with at_work(*workers):
        until(all_done(stream.group("g"), 601))
    assert overtaken(handler.notes, tags, frozenset()) == []
    done = [note for note in handler.notes if note.startswith("done")]
    assert len(done) == len(set(done)) == 601, "each was handled once"


def test_a_tag_waits_for_its_retry_and_continues_when_it_is_buried(crew: Crew, name: str) -> None:
    stream = crew.hw.stream(name)
    stream.write_many([("bad", b""), ("bad", b""), ("good", b""), ("good", b"")])
    tried: list[tuple[str, int]] = []

    def handler(message: Message) -> None:
        tried.append((message.tag, message.offset))
        if message.offset == 1:
            raise ValueError("never")

    options: dict[str, Any] = {"ordered": True, "max_attempts": 3, "backoff_ms": 200}
    worker = crew.worker(stream, handler, dead_letters=True, **options)
    with at_work(worker):
        until(all_done(stream.group("g"), 4))
    assert [offset for tag, offset in tried if tag == "bad"] == [1, 1, 1, 2]
    assert tried.index(("good", 4)) < tried.index(("bad", 2)), "others did not wait"
    assert [letter.origin for letter in stream.group("g").dead()] == [1]


def test_a_message_past_its_time_holds_its_tag_until_it_is_done(crew: Crew, name: str) -> None:
    stream, free, tried = crew.hw.stream(name), threading.Event(), []
    stream.write_many([("x", b""), ("x", b""), ("y", b"")])

    def handler(message: Message) -> None:
        tried.append((message.offset, message.attempt))
        if (message.offset, message.attempt) == (1, 1):
            assert free.wait(60)

    worker = crew.worker(stream, handler, ordered=True, timeout_ms=1500, backoff_ms=1)
    try:
        with at_work(worker):
            until(all_done(stream.group("g"), 3))
    finally:
        free.set()
    assert [each for each in tried if each[0] != 3] == [(1, 1), (1, 2), (2, 1)]


def test_workers_of_a_topic_keep_the_order_in_each_partition(crew: Crew, name: str) -> None:
    topic: Topic = crew.hw.topic(name, partitions=3)
    topic.write_many([(f"t{n % 20}", b"%d" % n) for n in range(200)])
    seen: dict[str, list[int]] = {}

    def handler(message: Any) -> None:
        seen.setdefault(message.tag, []).append(int(message.value))

    with at_work(crew.topic_worker(topic, handler, ordered=True, concurrency=8)):
        until(lambda: done_in(topic.group("g")) == 200)
    assert all(values == sorted(values) for values in seen.values())
    assert sum(map(len, seen.values())) == 200


@pytest.mark.fault
def test_each_tag_stays_in_order_while_workers_are_killed(
    stores: Stores, name: str, tmp_path: Any
) -> None:
    dice = random.Random(int(os.environ.get("HEADWATER_SEED", "7")))
    page = tmp_path / "notes"
    with headwater.connect(stores.url("plain")) as hw, Zygote("tests.support.members") as zygote:
        stream, group = hw.stream(name), hw.stream(name).group("g")
        manners = ["sync", "async", "sync"]

        def start(manner: str) -> int:
            order = {"role": "worker in order", "manner": manner, "stream": name}
            return zygote.start("", stores.url("plain"), page=str(page), **order)

        pids = [start(manner) for manner in manners]
        tags: dict[int, str] = {}
        for _ in range(6 * max(LONG, 1)):
            tags |= written(stream, dice.choice([3, 60, 300]), dice.choice([2, 30]))
            half = max(tags) - 40
            until(lambda: "g" in stream.info().groups and group.info().ack_offset > half - 200)  # noqa: B023
            dying = dice.randrange(3)
            os.kill(pids[dying], signal.SIGKILL)
            assert zygote.wait(pids[dying]) == -signal.SIGKILL
            pids[dying] = start(manners[dying])
        until(all_done(group, max(tags)), 60)
        assert [zygote.end(pid) for pid in pids] == [0, 0, 0]
    notes = page.read_text().splitlines()
    assert overtaken(notes, tags, frozenset()) == []
    assert {note for note in notes if note.startswith("done")} == {
        f"done {tag} {offset}" for offset, tag in tags.items()
    }
