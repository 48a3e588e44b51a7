"""Alarms say what is so, and what helps, of every object that a sample can have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headwater.log.types import GroupInfo
from headwater.metrics.alarms import Alarm, AlarmFacts, LetterErrors, alarms_of
from headwater.metrics.sweeps import CatchingUp, StoreSample
from headwater.outbox.status import Checkpoint, Status
from headwater.queue.types import QueueSettings, QueueStats
from headwater.store.presence import SILENT_MS, ProcessNote, ReportedPart, SeenProcess
from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import ActiveRun, EndedRun
from headwater.timeline.records import InstanceStatus
from headwater.views.overview import StreamGroup
from tests.support.samples import group, stream

NOW = 1_000_000
BEHIND = group(1, 0, 5, NOW - 100_000, None)


def sample_of(*groups: GroupInfo, last: int = 5, now_ms: int = NOW, **readers: int) -> StoreSample:
    info = replace(stream(last, **readers), reader_lag_ms=dict.fromkeys(readers, 90_000))
    return StoreSample(now_ms, [info], [StreamGroup("s", one) for one in groups])


def the_alarm(facts: AlarmFacts) -> Alarm:
    (found,) = alarms_of(facts)
    return found


def test_a_paused_group_is_to_be_resumed_and_gets_no_other_cure() -> None:
    found = the_alarm(AlarmFacts(sample_of(replace(BEHIND, paused=True))))
    assert found.text == "Group g of s is paused, and 5 messages wait"
    assert "resume it" in found.cure
    assert the_alarm(AlarmFacts(sample_of(BEHIND))).cure == "start a member"


def test_who_never_catches_up_is_told_so() -> None:
    progress = CatchingUp()
    for step in range(7):
        done, end = 1 + 10 * step, 1000 + 100 * step
        now_ms = NOW + 10_000 * step
        busy = replace(group(done, 0, end - done + 1, NOW - 100_000, None), seen_ms=now_ms)
        sample = sample_of(busy, last=end, now_ms=now_ms)
        progress.note(sample)
    said = the_alarm(AlarmFacts(sample, progress=progress)).text
    assert said.endswith("it never catches up at this rate: 1.0 a second of 10.0 that arrive")
    for step in range(7, 30):
        done = 61 + 100 * (step - 6)
        busy = replace(group(done, 0, 1600 - done + 1, NOW, None), seen_ms=NOW + 10_000 * step)
        sample = sample_of(busy, last=1600, now_ms=NOW + 10_000 * step)
        if done < 1200:
            progress.note(sample)
    assert "level in about" in the_alarm(AlarmFacts(sample, progress=progress)).text


def a_queue(**facts: object) -> QueueStats:
    counts = dict.fromkeys(("delayed", "unacked", "dead", "damaged", "expired", "waited_ms"), 0)
    rates = dict.fromkeys(("pushed_per_s", "popped_per_s", "acked_per_s"), 0.0)
    ages = dict.fromkeys(("oldest_delayed_ms", "oldest_unacked_ms", "oldest_dead_ms"))
    known = {"name": "jobs", "ready": 3, "oldest_ms": 90_000, "waiting": 0, "paused": False}
    known |= {"pushed": 3, "popped": 0, "acked": 0, "exists": True, "priorities": (), "waits": ()}
    told: dict[str, Any] = counts | rates | ages | known | {"settings": QueueSettings()} | facts
    return QueueStats(**told)


def test_a_queue_that_nobody_pops_is_told() -> None:
    def said(queue: QueueStats) -> list[str]:
        return [one.text for one in alarms_of(AlarmFacts(StoreSample(NOW, queues=[queue])))]

    assert said(a_queue()) == ["Queue jobs has 3 messages ready, and nobody pops it"]
    assert said(a_queue(oldest_ms=30_000)) == []
    assert said(a_queue(paused=True)) == ["Queue jobs is paused"]
    assert "more than its consumers pop" in said(a_queue(popped_per_s=2.0))[0]


def test_dead_letters_are_told_with_their_errors() -> None:
    errors = LetterErrors(150, (("TimeoutError: no answer", 130), ("ValueError", 20)))
    dead = replace(group(6, 0, 0, None, None), dead=4177)
    found = the_alarm(AlarmFacts(sample_of(dead), errors={("s", "g"): errors}))
    assert found.detail == "of the newest 150: 130 × TimeoutError: no answer · 20 × ValueError"


def test_a_sql_consumer_without_progress_is_told() -> None:
    readers = {"consumer:totals": 2}
    sample = sample_of(last=5, **readers)
    found = the_alarm(AlarmFacts(sample))
    assert found.text == "SQL consumer totals on s is behind by 4 messages"
    outbox = Status(
        *(0, True, None, 0, 0, None, "p", "me", True, None),
        (Checkpoint("totals", "s", 2, 300_000),),
    )
    assert the_alarm(AlarmFacts(sample, outbox=outbox)).text.endswith(": no progress for 300 s")


def a_process(name: str, seen_ms: int, started_ms: int) -> SeenProcess:
    part = ReportedPart("mail", "worker", "orders/mail", "running")
    note = ProcessNote("worker", name, "host", 7, "1", started_ms, (part,))
    return SeenProcess(f"{name}{started_ms}", seen_ms, NOW, note)


def test_a_killed_worker_is_missed_until_another_of_its_name_runs() -> None:
    killed = a_process("mail", NOW - SILENT_MS - 1, NOW - 500_000)
    found = the_alarm(AlarmFacts(sample_of(), processes=[killed]))
    assert "Worker mail (process 7 on host) ended without a word" in found.text
    assert "it worked on orders/mail" in found.text
    other = a_process("bills", NOW, NOW - 5)
    assert len(alarms_of(AlarmFacts(sample_of(), processes=[killed, other]))) == 1
    again = a_process("mail", NOW, NOW - 5)
    assert alarms_of(AlarmFacts(sample_of(), processes=[killed, again])) == []


def a_job(last: EndedRun | None, *waiting: ActiveRun) -> TimedJobInfo:
    return TimedJobInfo(
        name="report",
        when="0 3 * * *",
        tz="UTC",
        missed="skip",
        overlap="skip",
        max_attempts=3,
        paused=False,
        next_ms=NOW,
        running=[],
        waiting=list(waiting),
        last=last,
        missed_runs=0,
        skipped_runs=0,
    )


def test_a_timed_job_that_fails_or_waits_for_a_runner_is_told() -> None:
    failed = a_job(EndedRun(1, NOW - 5000, "failed", 3, error="KeyError: 'day'"))
    found = the_alarm(AlarmFacts(sample_of(), timed=[failed]))
    assert "the last run failed after 3 attempts: KeyError: 'day'" in found.text
    assert found.since_ms == NOW - 5000
    assert alarms_of(AlarmFacts(sample_of(), timed=[a_job(EndedRun(1, 2, "done"))])) == []
    late = a_job(None, ActiveRun(1, NOW - 70_000))
    found = the_alarm(AlarmFacts(sample_of(), timed=[late]))
    assert (found.level, found.kind) == ("act", "overdue")


def test_an_instance_of_a_farm_that_is_down_is_told() -> None:
    down = InstanceStatus("10.0.0.1:6379", False, fault="refused", cluster=2)
    found = the_alarm(AlarmFacts(sample_of(), instances=[down, InstanceStatus("b", True)]))
    assert found.text == "Instance 10.0.0.1:6379 of the farm, in cluster 2, is down: refused"


def test_a_store_that_does_not_answer_comes_first() -> None:
    found = alarms_of(AlarmFacts(sample_of(BEHIND), missing="connection refused"))
    assert [one.kind for one in found] == ["store", "unread"]
    assert "does not answer (connection refused)" in found[0].text
    assert found[0].since_ms == NOW
