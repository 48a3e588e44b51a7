"""Jobs outlive a server that is killed: another goes on, nothing is done twice, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.request
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater import Headwater
from headwater.serve.jobs.engine import LEASE_MS, HeldJob, JobTaken, ServerJobs
from headwater.serve.jobs.letters import LetterJobs
from headwater.store.presence import NewJob, begin_job, list_jobs, note_job, stop_job, take_job
from tests.support.api import serving
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault

LETTERS, MESSAGES = 400, 300


def ask(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def bury_all(hw: Headwater) -> None:
    stream = hw.stream("s")
    stream.write_many([(f"t{number}", b"v") for number in range(LETTERS)])
    group = stream.group("g", dead_letters=True)
    group.bury(*group.read(LETTERS, ack_ms=600_000), error="late")
    queue = hw.queue("q")
    queue.push_many([b"%d" % number for number in range(LETTERS)])
    queue.bury(*queue.pop(LETTERS, ack_ms=600_000), error="late")


def states(port: int) -> list[dict[str, Any]]:
    letters = ask(port, "/v1/letters/jobs")["jobs"]
    return [*letters, *ask(port, "/v1/streams/from/replays")["replays"]]


@pytest.mark.timeout(360)
def test_jobs_of_a_killed_server_go_on_where_they_were() -> None:
    with Server(tcp=True, fsync="always") as store, headwater.connect(store.url) as hw:
        bury_all(hw)
        times = [1_000_000 + 200 * number for number in range(MESSAGES)]
        values = [b"%d" % number for number in range(MESSAGES)]
        table = pa.table({"tag": ["t"] * MESSAGES, "value": values, "time": times})
        hw.stream("from").append(table)
        group, queue, copy = hw.stream("s").group("g"), hw.queue("q"), hw.stream("copy")
        with serving(store.url) as (port, process):
            for place in ({"stream": "s", "group": "g"}, {"queue": "q"}):
                body = {"action": "redrive", "places": [place], "rate_per_s": 40}
                ask(port, "/v1/letters/jobs", body)
            ask(port, "/v1/streams/from/replays", {"into": "copy", "speed": 4})
            until(lambda: group.info().dead < LETTERS and queue.stats().dead < LETTERS, 60)
            assert copy.read(1, 1, block_ms=30_000)
            process.send_signal(signal.SIGKILL)
            process.wait()
        # Some fail again while nobody is there: these are new letters, which nobody asked for.
        again = group.read(5, ack_ms=600_000)
        group.bury(*again, error="again")
        held = queue.pop(5, ack_ms=600_000)
        queue.bury(*held, error="again")
        left = (group.info().dead, queue.stats().dead, copy.info().last)
        assert left[0] > 100
        assert left[1] > 100
        assert left[2] < MESSAGES, "the kill came in the middle of all of them"
        hw.stream("from").write("t", b"after it was asked for")
        with serving(store.url) as (port, _):
            assert {one["state"] for one in states(port)} <= {"lost", "running"}
            until(lambda: {one["state"] for one in states(port)} == {"done"}, 240)
            looked = [one["looked"] for one in states(port) if "looked" in one]
        assert (group.info().dead, queue.stats().dead) == (5, 5), "only those that failed again"
        assert group.info().pending == LETTERS - 5
        copied = [message.value for message in copy.read(1, 1000) if message is not None]
        assert copied == values, "each once, in order"
        assert max(looked) <= LETTERS + 5


def test_a_job_that_was_taken_over_refuses_the_notes_of_the_first_process(hw: Headwater) -> None:
    run = hw.store.run
    first = run(begin_job(NewJob("j", "kind", b"head", b"asked", b"0"), "one", 0))
    assert first is not None
    taken = run(take_job(("other", "kind"), "two", 60_000))
    assert taken is not None
    assert (taken.id, taken.asked, taken.note) == ("j", b"asked", b"0")
    assert taken.token > first.token
    assert run(take_job(("kind",), "three", 60_000)) is None
    assert not run(note_job("j", first.token, b"1", 60_000)).taken
    assert run(begin_job(NewJob("j", "kind", b"", b"", b""), "one", 60_000)) is None
    assert run(stop_job("j"))
    assert run(note_job("j", taken.token, b"2", 60_000)).stop
    assert run(note_job("j", taken.token, b"3", None)).taken
    (job,) = run(list_jobs("kind"))
    assert (job.over, job.note, job.head) == (True, b"3", b"head")
    assert not run(stop_job("j"))


def test_a_process_that_wakes_up_does_not_act_on_a_job_that_was_stopped() -> None:
    with Server() as server:
        asyncio.run(wake_up_late(server.url))


async def wake_up_late(store_url: str) -> None:
    async with await headwater.aio.connect(store_url) as hw:
        run, group = hw.store.run, hw.stream("s").group("g", dead_letters=True)
        await hw.stream("s").write_many([("t", b"v")] * 3)
        await group.bury(*await group.read(3, ack_ms=600_000), error="late")
        asked = b'{"body":{"action":"discard","places":[{"stream":"s","group":"g"}]},"begins_ms":0}'
        note = b'{"state":"running","end":"9"}'
        asleep_s = time.monotonic()
        first = await run(begin_job(NewJob("j", "letters", b"", asked, note), "one", 0))
        assert first is not None
        second = await run(take_job(("letters",), "two", 60_000))
        assert second is not None
        assert await run(stop_job("j"))
        assert (await run(note_job("j", second.token, note, None))).taken
        kind = LetterJobs(ServerJobs(hw))
        job = HeldJob(hw, kind, first, kind.read_note(note), asleep_s - LEASE_MS / 1000)
        with pytest.raises(JobTaken):
            await kind.run(job)
        assert (await group.info()).dead == 3
        # What is shown of it is of no form that this release knows: a list is without it.
        assert await kind.known() == []
