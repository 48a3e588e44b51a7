"""Whoever works on a stream at the same time, acknowledged messages stay where they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headwater import Headwater, Stream
from tests.support.entries import offsets


def until_set(done: threading.Event, act: Callable[[], object]) -> int:
    """Repeat an act until told to stop; returns how often."""
    times = 0
    while not done.is_set():
        act()
        times += 1
    return times


def write_all(stream: Stream, writer: int, turns: int) -> dict[int, bytes]:
    """Write batches of many sizes, every tag and value once; returns what is where."""
    places: dict[int, bytes] = {}
    for turn in range(turns):
        size = (1, 5, 60, 520)[(turn + writer) % 4]
        values = [b"%d.%d.%d" % (writer, turn, i) for i in range(size)]
        rows = [(value.decode(), value) for value in values]
        written = stream.write_many(rows, producer=f"w{writer}", sequence=turn)
        assert stream.write_many(rows, producer=f"w{writer}", sequence=turn) == written
        places |= dict(zip(written, values, strict=True))
    return places


def test_writers_sealers_compactors_and_readers_do_not_disturb_each_other(
    client: Headwater, name: str
) -> None:
    done = threading.Event()
    client.stream(name).write("first", b"first")

    def follow() -> list[bytes]:
        stream, seen = client.stream(name), 1
        values: list[bytes] = []
        while not (done.is_set() and seen > stream.info().last):
            found = stream.read(seen, 300, block_ms=20)
            values += [m.value if m else b"gone" for m in found]
            seen += len(found)
        return values

    with ThreadPoolExecutor(8) as pool:
        rewriters = [
            pool.submit(until_set, done, client.stream(name).seal),
            pool.submit(until_set, done, client.stream(name).seal),
            pool.submit(until_set, done, client.stream(name).compact),
        ]
        follower = pool.submit(follow)
        writers = [pool.submit(write_all, client.stream(name), i, 12) for i in range(3)]
        places = {1: b"first"}
        for writer in writers:
            places |= writer.result(60)
        done.set()
        assert all(rewriter.result(60) for rewriter in rewriters)
        seen = follower.result(60)
    last = client.stream(name).info().last
    assert sorted(places) == list(range(1, last + 1))
    assert seen == [places[offset] for offset in sorted(places)]
    found = client.stream(name).read(1, last)
    assert [m.value for m in found if m] == seen
    assert client.stream(name).info().length == last


def test_compaction_beside_writers_keeps_the_last_of_every_tag(
    client: Headwater, name: str
) -> None:
    done = threading.Event()
    newest: dict[str, int] = {}
    client.stream(name).write("t", b"")

    def write() -> None:
        stream = client.stream(name)
        for turn in range(40):
            size = (3, 30, 510)[turn % 3]
            rows = [(f"t{i * 7 % 90}", b"%d" % turn) for i in range(size)]
            for offset, (tag, _) in zip(stream.write_many(rows), rows, strict=True):
                newest[tag] = offset

    with ThreadPoolExecutor(4) as pool:
        rewriters = [
            pool.submit(until_set, done, client.stream(name).compact),
            pool.submit(until_set, done, client.stream(name).compact),
            pool.submit(until_set, done, client.stream(name).seal),
        ]
        pool.submit(write).result(60)
        done.set()
        assert all(rewriter.result(60) for rewriter in rewriters)
    stream = client.stream(name)
    stream.compact()
    assert offsets(stream.read(1, 10**5)) == [1, *sorted(newest.values())]
    assert stream.info().length == 91


def test_eviction_beside_readers_never_gives_a_wrong_message(client: Headwater, name: str) -> None:
    """Each value names its offset, so that a message at a wrong place would show."""
    stream = client.stream(name)
    total = 20_000
    for first in range(1, total + 1, 800):
        stream.write_many([(f"t{i % 40}", b"%d" % i) for i in range(first, first + 800)])
    done = threading.Event()

    def read(start: int) -> None:
        reader, at = client.stream(name), start
        while not done.is_set():
            for place, message in enumerate(reader.read(at, 70)):
                assert message is None or (message.offset, message.value) == (
                    at + place,
                    b"%d" % (at + place),
                )
            at = at % total + 37

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read, start) for start in (1, 9000)]
        for limit in range(350, total, 350):
            stream.evict(limit)
            if limit % 1400 == 0:
                stream.compact()
        done.set()
        for reader in readers:
            reader.result(60)
    assert stream.info().first == (total - 1) // 350 * 350 + 1
