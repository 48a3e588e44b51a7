"""Points of the history are true: rates, what lags, the worst of a step, and within a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.alarms import Alarm, AlarmFacts, LetterErrors, alarms_of
from headwater.metrics.history import (
    OUTBOX,
    QUIET_MS,
    STORE,
    OutboxBacklog,
    Point,
    RateBook,
    Series,
    SeriesBook,
    StepBook,
)
from headwater.metrics.sweeps import CatchingUp, LagClock, StoreSample
from headwater.outbox.status import Checkpoint, Status
from headwater.queue.types import QueueSettings, QueueStats
from headwater.store.presence import SILENT_MS, ProcessNote, ReportedPart, SeenProcess
from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import ActiveRun, EndedRun
from headwater.timeline.records import InstanceStatus
from headwater.views.overview import StreamGroup
from tests.support.samples import group, stream

NOW_MS = 1_000_000


def sample(at_ms: int, info: StreamInfo, facts: GroupInfo) -> StoreSample:
    return StoreSample(at_ms, [info], [StreamGroup("s", facts)])


def test_rates_are_those_between_samples_and_ages_those_of_the_messages() -> None:
    book = RateBook()
    began = sample(NOW_MS, stream(100), group(50, 9, 51, NOW_MS - 500, None))
    first = book.points(began, None)
    assert first["stream", "s"] == Point()
    assert first["group", "s", "g"] == Point(0, 0, 51, 0.5, 9, 0)
    later = sample(
        NOW_MS + 2000, stream(300, r=201), group(91, 10, 210, NOW_MS - 500, NOW_MS + 1000)
    )
    second = book.points(later, OutboxBacklog(7, 3.5, 40, 12.5))
    assert second["stream", "s"].in_per_s == 100
    assert second["group", "s", "g"] == Point(0, 20, 210, 2.5, 10, 1)
    assert second["reader", "s", "r"].lag == 100
    assert second[OUTBOX] == Point(in_per_s=12.5, lag=7, lag_s=3.5)
    assert second[STORE] == Point(100, 20, 210, 2.5, 10, 1)


def test_a_seek_and_a_stream_that_begins_again_have_no_negative_rates() -> None:
    book = RateBook()
    book.points(sample(NOW_MS, stream(100), group(90, 0, 0, None, None)), None)
    found = book.points(sample(NOW_MS + 1000, stream(5), group(1, 0, 5, NOW_MS, None)), None)
    assert found["stream", "s"].in_per_s == found["group", "s", "g"].out_per_s == 0


def test_a_longer_step_has_the_mean_of_rates_and_the_worst_of_the_rest() -> None:
    step = StepBook(10)
    series = ("queue", "q")
    assert step.add(100_000, {series: Point(10, 0, 5, 1, 0, 0)}) == []
    assert step.add(109_999, {series: Point(30, 2, 1, 9, 4, 0)}) == []
    ((of, step_s, slot, point),) = step.add(110_000, {})
    assert (of, step_s, slot) == (series, 10, 10)
    assert point == Point(20, 1, 5, 9, 4, 0)
    assert step.add(120_000, {}) == []


def chosen(book: SeriesBook, now_ms: int, *busy: Series) -> tuple[set[Series], list[Series]]:
    points = {STORE: Point(), **{one: Point(lag=len(one[1])) for one in busy}}
    written, _, gone = book.choose(now_ms, points)
    return set(written), gone


def test_as_many_series_are_kept_as_may_be_and_what_lags_most_first() -> None:
    book = SeriesBook(2, {})
    q, qq, qqq = ("queue", "q"), ("queue", "qq"), ("queue", "qqq")
    assert chosen(book, NOW_MS, q, qq, qqq) == ({STORE, qq, qqq}, [])
    assert book.unkept == 1
    # A series that was quiet for a while stays, and only then makes room.
    assert chosen(book, NOW_MS + QUIET_MS, q, qq) == ({STORE, qq}, [])
    assert chosen(book, NOW_MS + QUIET_MS + 1, q, qq) == ({STORE, q, qq}, [qqq])
    assert book.unkept == 0


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_smaller_number_forgets_what_is_quiet(most: int) -> None:
    kept: dict[Series, int] = {("queue", str(n)): n for n in range(3)}
    book = SeriesBook(most, dict(kept))
    _, gone = chosen(book, NOW_MS + QUIET_MS)
    assert gone == list(kept)[: 3 - most]


# ── Since when a message waits is measured by when the stream had reached it ─────────────────────


def since(clock: LagClock, now_ms: int, last: int, next_: int, said_ms: int | None) -> int | None:
    facts = group(next_, 0, last + 1 - next_, said_ms, None)
    _, (row,) = clock.measured(now_ms, [stream(last)], [StreamGroup("s", facts)])
    return row.group.new_since_ms


def test_a_message_that_is_sealed_is_as_old_as_before() -> None:
    clock = LagClock()
    assert since(clock, 1000, 10, 1, 990) == 990
    # Of a node, the store knows the time of the newest message.
    assert since(clock, 9000, 500, 11, 8990) == 8990
    assert since(clock, 20_000, 500, 1, 8990) == 1000
    assert since(clock, 21_000, 500, 11, 8990) == 8990


def age(clock: LagClock, now_ms: int, last: int, needed: int, said_ms: int) -> int:
    info = replace(stream(last, sql=needed), reader_lag_ms={"sql": said_ms})
    (found,), _ = clock.measured(now_ms, [info], [])
    return found.reader_lag_ms["sql"]


def test_the_lag_of_a_reader_is_measured_as_that_of_a_group() -> None:
    clock = LagClock()
    assert age(clock, 1000, 10, 1, 10) == 10
    # The node that the message is in has a newest message of 8990.
    assert age(clock, 20_000, 500, 1, 11_010) == 19_000
    assert age(clock, 20_000, 500, 11, 11_010) == 11_010
    assert age(clock, 21_000, 500, 501, 0) == 0


def test_a_message_with_an_older_time_is_as_old_as_it_says() -> None:
    clock = LagClock()
    assert since(clock, 5000, 10, 1, 17) == 17


def test_nothing_waits_where_the_store_says_so() -> None:
    clock = LagClock()
    assert since(clock, 5000, 10, 11, None) is None


def test_a_stream_that_was_deleted_begins_again() -> None:
    clock = LagClock()
    since(clock, 1000, 100, 1, 990)
    assert since(clock, 5000, 10, 1, 4990) == 4990


@pytest.mark.parametrize("samples", [100, 5000])
def test_what_is_remembered_is_bounded_and_close(samples: int) -> None:
    clock = LagClock()
    for n in range(1, samples + 1):
        since(clock, n * 1000, n * 10, 1, n * 1000)
    written_ms = samples // 2 * 1000
    found = since(clock, samples * 1000, samples * 10, samples // 2 * 10, samples * 1000)
    assert found is not None
    assert written_ms <= found <= written_ms + samples * 1000 * 0.04


# ── Alarms say what is so, and what helps, of every object that a sample can have ────────────────


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
