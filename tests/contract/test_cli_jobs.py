"""Jobs of servers, and dead letters of all groups and queues together, from the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import headwater
from headwater import Headwater, LettersMoved, connect, testing
from headwater.store.call import Operation, Pace
from headwater.whole_store.letters import move_everywhere
from tests.support.api import ApiClient, ApiServer
from tests.support.commands import run
from tests.support.servers import Server, until


@pytest.fixture
def store() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def hw(store: Server) -> Iterator[Headwater]:
    with connect(store.url) as hw:
        yield hw


def bury(hw: Headwater, name: str, count: int, error: str) -> None:
    """Leave dead letters in a group of a stream and in a queue of the same name."""
    hw.stream(name).write_many([("t", b"x")] * count)
    group = hw.stream(name).group("mail", dead_letters=True)
    group.bury(*group.read(count, ack_ms=600_000), error=error)
    queue = hw.queue(name)
    queue.push_many([b"x"] * count)
    queue.bury(*queue.pop(count, ack_ms=600_000), error=error)


def begin(client: ApiClient, **body: object) -> str:
    begun = client.post("/v1/letters/jobs", {"everywhere": True, **body})
    assert begun.status == 202, begun.body
    job: str = begun.body["job"]
    return job


def test_a_job_that_waits_is_undone_and_one_that_runs_leaves_the_rest(
    store: Server, hw: Headwater
) -> None:
    assert "no jobs" in run(store.url, "job", "list").out
    bury(hw, "rides", 3, "broken")
    with ApiServer(store.url) as api:
        client = api.client()
        waiting = begin(client, action="discard", delay_ms=3_600_000)
        (row,) = run(store.url, "job", "list", "--json").rows
        assert (row["job"], row["state"], row["kind"]) == (waiting, "waiting", "letters")
        assert row["what"] == "discard dead letters of all groups and queues"
        undone = run(store.url, "job", "stop", waiting)
        assert (undone.code, undone.out) == (
            0,
            "undone: it had not begun, and nothing was changed\n",
        )
        assert run(store.url, "letters", "list", "--json").rows == [
            {"name": "rides", "group": "mail", "dead": 3},
            {"name": "rides", "group": None, "dead": 3},
        ]
        slow = begin(client, action="redrive", rate_per_s=1)
        stopped = run(store.url, "job", "stop", slow, "--json").row
        assert stopped["state"] == "stopped"
        assert stopped["done"] < 6
        assert hw.stop_job(slow) is False
        again = run(store.url, "job", "stop", slow)
        assert (again.code, "has ended already" in again.err) == (1, True)
        assert waiting in run(store.url, "job", "list").out


def test_a_job_that_no_server_has_is_stopped_by_the_next(store: Server, hw: Headwater) -> None:
    bury(hw, "rides", 2, "broken")
    with ApiServer(store.url) as api:
        job = begin(api.client(), action="discard", delay_ms=3_600_000)
    assert [one.state for one in hw.jobs()] == ["lost"]
    assert hw.stop_job(job)
    with ApiServer(store.url):
        until(lambda: [one.state for one in hw.jobs()] == ["stopped"])
    assert hw.queue("rides").stats().dead == 2


def test_what_is_no_job_is_refused_with_the_command_that_lists_them(store: Server) -> None:
    refused = run(store.url, "job", "stop", "nobody")
    assert refused.code == 1
    assert "there is no job 'nobody'" in refused.err
    assert "headwater job list" in refused.err


def test_letters_of_all_groups_and_queues_are_chosen_by_name_and_filter(
    store: Server, hw: Headwater
) -> None:
    for name, error in (("rides", "late"), ("rides.eu", "broken"), ("mails", "late")):
        bury(hw, name, 2, error)

    def left() -> dict[str, int]:
        rows = run(store.url, "letters", "list", "--json").rows
        return {f"{one['name']}/{one['group'] or ''}": one["dead"] for one in rows}

    done = run(store.url, "letters", "redrive", "rides*", "--error", "late", "--json").row
    assert done == {"places": 2, "moved": 4, "gone": 0}
    assert left() == {"mails/mail": 2, "mails/": 2, "rides.eu/mail": 2, "rides.eu/": 2}
    assert run(store.url, "letters", "discard").code == 1, "it asks, and nobody answers"
    done = run(store.url, "letters", "discard", "mails", "--rate", "100", "--yes", "--json").row
    assert done == {"places": 2, "moved": 4, "gone": 0}
    assert left() == {"rides.eu/mail": 2, "rides.eu/": 2}
    assert asyncio.run(_redrive(store.url)) == (2, 4, 0)
    assert "no dead letters" in run(store.url, "letters", "list").out


def test_letters_that_fail_again_meanwhile_are_left_for_another_time() -> None:
    count = 1000
    with testing.store() as hw:
        queue = hw.queue("mails")

        def bury_all() -> None:
            hw.clock.advance(10)
            while taken := queue.pop(1000, ack_ms=600_000):
                queue.bury(*taken)

        def failing_again() -> Operation[LettersMoved]:
            """Redrive beside a consumer that fails at once; not for ever, so that it can end."""
            redriving = move_everywhere("redrive", (), None, Pace(None))
            request, failed = next(redriving), 0
            while True:
                reply = yield request
                if getattr(request, "function", "") == "hw_queue_redrive" and failed < 5:
                    bury_all()
                    failed += 1
                try:
                    request = redriving.send(reply)
                except StopIteration as done:
                    moved: LettersMoved = done.value
                    return moved

        queue.push_many([b"x"] * count)
        bury_all()
        assert hw.store.run(failing_again()) == (1, count, 0)


async def _redrive(url: str) -> LettersMoved:
    async with headwater.aio.connect(url) as hw:
        assert await hw.jobs() == []
        assert await hw.stop_job("nobody") is False
        assert await hw.discard_everywhere("no*such") == (0, 0, 0)
        return await hw.redrive_everywhere()
