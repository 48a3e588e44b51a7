"""Limits while processes are killed: what handlers noted themselves exceeds none of them."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

import headwater
from headwater.kernel.inputs import Rate
from tests.support.limit_rules import Deliveries, faster_than, more_at_once
from tests.support.limited_workers import CONCURRENCY, GROUP_LIMITS, QUEUE_LIMITS
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.zygote import Zygote

pytestmark = pytest.mark.fault
LONG = int(os.environ.get("HEADWATER_LONG", "0"))
MANNERS = ("sync", "async", "sync")


def test_limits_are_never_exceeded_while_workers_are_killed(
    stores: Stores, name: str, tmp_path: Path
) -> None:
    dice = random.Random(int(os.environ.get("HEADWATER_SEED", "5")))
    pages = {"group_page": tmp_path / "group", "queue_page": tmp_path / "queue"}
    url, rounds = stores.url("plain"), max(LONG, 1)
    with headwater.connect(url) as hw, Zygote("tests.support.limited_workers") as zygote:
        stream, queue = hw.stream(name), hw.queue(name)

        def start(manner: str) -> int:
            order = {page: str(path) for page, path in pages.items()}
            return zygote.start("", url, name=name, manner=manner, **order)

        pids = [start(manner) for manner in MANNERS]
        written = 0
        for _ in range(rounds):
            stream.write_many([(f"t{n * n % 23}", b"v") for n in range(240)])
            queue.push_many([b"v"] * 120)
            written += 240
            begun = written - dice.randrange(40, 200)
            until(lambda: queue.stats().popped > 20 and stream.group("g").info().next > 1)
            until(lambda: pages["group_page"].read_bytes().count(b"end") >= begun, 60)  # noqa: B023
            for dying in dice.sample(range(3), 2):
                # From here on nothing that it notes counts: its messages may go to others.
                for page in pages.values():
                    with page.open("a") as notes:
                        notes.write(f"died {pids[dying]}\n")
                os.kill(pids[dying], signal.SIGKILL)
                assert zygote.wait(pids[dying]) == -signal.SIGKILL
                pids[dying] = start(MANNERS[dying])
        until(lambda: stream.group("g").info().ack_offset == written + 1, 120)
        until(lambda: queue.stats().ready + queue.stats().unacked == 0, 120)
        assert [zygote.end(pid) for pid in pids] == [0, 0, 0]

    group_notes, queue_notes = (path.read_text().splitlines() for path in pages.values())
    assert more_at_once(group_notes, GROUP_LIMITS.max_in_flight, 2) == []
    assert more_at_once(queue_notes, QUEUE_LIMITS.max_in_flight, None) == []
    assert {note.split()[2] for note in group_notes if note.startswith("end")} >= {
        str(offset) for offset in range(1, written + 1)
    }, "each was handled"
    begins = [float(note.split()[4]) for note in queue_notes if note.startswith("begin")]
    assert len(begins) >= 120 * rounds
    rate = Rate.of(str(QUEUE_LIMITS.rate), "rate")
    # What a process holds and has not begun was delivered before.
    seen = [Deliveries(at, at, 1) for at in begins]
    assert faster_than(seen, rate.messages, rate.burst, ahead=len(MANNERS) * CONCURRENCY) == []
