"""Attempts of workers: retried with growing delays, then buried with the reason, whoever dies."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import Delivery, Group, InvalidInput, Queue, Stream
from headwater.kernel.failures import MAX_TEXT, MAX_TYPE, Cause, read_failure, spelled
from headwater.workers.attempts import Retries
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.workers import Crew, Refusing, all_done, at_work

SECRET = "hunter2"


@pytest.fixture
def stream(crew: Crew, name: str) -> Stream:
    return crew.hw.stream(name)


@pytest.fixture
def group(stream: Stream) -> Group:
    """Look at the group that the workers are members of."""
    return stream.group("g")


@pytest.fixture
def queue(crew: Crew, name: str) -> Queue:
    return crew.hw.queue(name)


# ── Back-off ─────────────────────────────────────────────────────────────────────────────────


@given(
    first=st.integers(0, 10**6),
    more=st.integers(0, 10**7),
    attempt=st.integers(1, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_doubles_up_to_its_cap_and_is_spread_over_its_upper_half(
    first: int, more: int, attempt: int, chance: float
) -> None:
    retries = Retries(None, first, first + more, dice=lambda: chance)
    whole = min(first * 2 ** min(attempt - 1, 60), first + more)
    delay = retries.delay_ms(attempt)
    assert whole / 2 <= delay <= whole
    assert delay >= Retries(None, first, first + more, dice=lambda: 0.0).delay_ms(attempt)
    assert retries.delay_ms(attempt + 1) >= delay, "with the same luck no later one is shorter"


@given(st.text(max_size=9), st.integers(0, 2 * MAX_TEXT), st.booleans())
def test_an_error_is_read_as_it_was_stored_up_to_its_length(
    text: str, more: int, known: bool
) -> None:
    text += "x" * more
    stored = ("7:" if known else ":") + spelled(ValueError(text))
    found = read_failure(stored.encode())
    assert found.delivered_ms == (7 if known else None)
    assert found.cause is not None
    assert (found.cause.type, len(found.cause.text) <= MAX_TEXT) == ("ValueError", True)
    if len(text) <= MAX_TEXT:
        assert found.cause.text == text
    long_name = type("E" * 300, (Exception,), {})
    assert len(spelled(long_name("x")).partition("\n")[0]) == MAX_TYPE


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"max_attempts": "3"}, {"longest_backoff_ms": 5}, {"backoff_ms": -1}],
    ids=str,
)
def test_retries_that_cannot_be_are_refused_when_a_worker_is_made(
    crew: Crew, stream: Stream, queue: Queue, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        crew.worker(stream, print, **options)
    with pytest.raises(InvalidInput, match=next(iter(options))):
        crew.queue_worker(queue, print, **options)


# ── The last attempt ─────────────────────────────────────────────────────────────────────────


def test_after_its_last_attempt_a_message_is_a_dead_letter_with_the_reason(
    crew: Crew, stream: Stream, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write_many([("good", b"1"), ("bad", SECRET.encode()), ("good", b"3")])
    handler = Refusing({"bad"})
    worker = crew.worker(stream, handler, max_attempts=3, backoff_ms=5, dead_letters=True)
    with at_work(worker), caplog.at_level(logging.ERROR, "headwater.workers"):
        until(lambda: all_done(group, 3)() and group.dead())
    assert handler.tries_of("bad") == [1, 2, 3]
    (letter,) = group.dead()
    assert (letter.origin, letter.value, letter.attempts) == (2, SECRET.encode(), 3)
    assert letter.cause == Cause("LookupError", "no 'bad' here")
    assert stream.read(2, 1)[0].time_ms <= (letter.delivered_ms or 0) <= letter.buried_ms  # type: ignore[union-attr]
    lines = [record.getMessage() for record in caplog.records]
    assert [f"offset 2 of {stream.name}/g failed, attempt {n}" in lines[n - 1] for n in (1, 2, 3)]
    assert [("redelivered in" in line, "buried" in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert SECRET not in caplog.text

    group.redrive()
    assert [m.attempt for m in group.read(9, ack_ms=60_000)] == [1]
    group.bury(2)
    assert group.dead()[0].cause is None, "redriving has cleared it"


def test_after_its_last_attempt_a_message_of_a_queue_is_a_dead_letter_with_the_reason(
    crew: Crew, queue: Queue
) -> None:
    queue.push_many([b"good", b"bad"])
    handler = Refusing({b"bad"})
    with at_work(crew.queue_worker(queue, handler, max_attempts=3, backoff_ms=5)):
        until(lambda: queue.stats().dead == 1 and queue.stats().acked == 1)
    assert handler.tries_of(b"bad") == [1, 2, 3]
    (letter,) = queue.dead()
    assert (letter.value, letter.attempt) == (b"bad", 3)
    assert letter.cause == Cause("LookupError", "no b'bad' here")
    assert letter.pushed_ms <= (letter.delivered_ms or 0) <= (letter.buried_ms or 0)

    assert queue.redrive() == 1
    queue.bury(*queue.pop(ack_ms=60_000))
    assert queue.dead()[0].cause is None, "redriving has cleared it"


def test_attempts_need_a_place_for_what_is_given_up(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    handler = Refusing({"t"})
    with pytest.raises(InvalidInput, match=r"keeps no dead letters.*dead_letters=True"):
        crew.worker(stream, handler, max_attempts=3).run()
    assert handler.tried == []
    assert group.info().next == 1


def test_messages_that_were_not_begun_lose_no_attempt(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(4))
    for _ in range(3):
        handler = Refusing(set())
        worker = crew.worker(stream, handler, max_attempts=1, dead_letters=True)
        messages = group.read(4, ack_ms=60_000)
        assert [message.attempt for message in messages] == [1] * 4
        assert group.release(messages) == 4
    with at_work(worker):
        until(all_done(group, 4))
    assert group.dead() == []


# ── Values that do not fit ───────────────────────────────────────────────────────────────────


def test_a_value_that_does_not_fit_is_buried_at_once(
    crew: Crew, stream: Stream, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write_many([("a", b"[1]"), ("b", SECRET.encode()), ("c", b"[3]")])
    seen: list[Any] = []
    worker = crew.worker(
        stream, lambda m: seen.append(m.data), codec=list[int], dead_letters=True, max_attempts=5
    )
    with at_work(worker), caplog.at_level(logging.ERROR, "headwater.workers"):
        until(lambda: all_done(group, 3)() and group.dead())
    assert sorted(seen) == [[1], [3]]
    (letter,) = group.dead()
    assert (letter.origin, letter.attempts, letter.value) == (2, 1, SECRET.encode())
    assert letter.cause is not None
    assert letter.cause.type == "Undecodable"
    assert f"message 2 of stream {stream.name}" in letter.cause.text
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"offset 2 of {stream.name}/g, attempt 1, does not fit its codec" in line
    assert SECRET not in caplog.text


def test_a_value_of_a_queue_that_does_not_fit_is_buried_at_once(crew: Crew, queue: Queue) -> None:
    queue.push_many([b"[1]", b"{"])
    seen: list[Any] = []

    def handler(delivery: Delivery) -> None:
        seen.append(delivery.data)

    with at_work(crew.queue_worker(queue, handler, codec="json")):
        until(lambda: queue.stats().dead == 1 and queue.stats().acked == 1)
    (letter,) = queue.dead()
    assert (seen, letter.value, letter.attempt) == ([[1]], b"{", 1)
    assert letter.cause is not None
    assert letter.cause.type == "Undecodable"


def test_without_dead_letters_what_does_not_fit_waits_and_the_log_names_the_cure(
    crew: Crew, stream: Stream, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write_many([("a", b"{"), ("b", b"[2]")])
    seen: list[Any] = []
    worker = crew.worker(stream, lambda m: seen.append(m.data), codec="json")
    with at_work(worker), caplog.at_level(logging.ERROR, "headwater.workers"):
        until(lambda: seen and "offset 1" in caplog.text)
    assert seen == [[2]]
    assert "redelivered in 60000 ms; open the group with dead_letters=True" in caplog.text
    assert group.info().pending == 1, "nothing is lost"
