"""The notes by which processes of servers hand jobs to one another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.store.presence import NewJob, begin_job, note_job, take_job
from headwater.testing import PrivateStore
from headwater.testing.clock import AHEAD

LEASE_MS = 10_000
HOUR_MS = 3_600_000
JOB = NewJob("j", "redrive", b"{}", b"{}", b"{}")


@pytest.fixture
def hw() -> Iterator[PrivateStore]:
    with testing.store() as hw:
        hw.clock.advance(HOUR_MS)
        yield hw


def take(hw: PrivateStore) -> bool:
    return hw.store.run(take_job(("redrive",), "other", LEASE_MS)) is not None


def step_back(hw: PrivateStore, ms: int) -> None:
    hw.store.command("DECRBY", AHEAD, str(ms))


def test_a_job_is_taken_over_when_its_lease_is_over(hw: PrivateStore) -> None:
    assert hw.store.run(begin_job(JOB, "me", LEASE_MS)) is not None
    assert not take(hw)
    hw.clock.advance(LEASE_MS)
    assert take(hw)


def test_a_clock_that_is_stepped_back_puts_no_takeover_off(hw: PrivateStore) -> None:
    assert hw.store.run(begin_job(JOB, "me", LEASE_MS)) is not None
    step_back(hw, HOUR_MS // 2)
    assert take(hw), "nobody gives so long a lease"
    assert not take(hw), "the new one is as long as it should be"


def test_a_job_that_was_left_before_a_clock_was_stepped_back_begins_anew(hw: PrivateStore) -> None:
    assert hw.store.run(begin_job(JOB, "me", LEASE_MS)) is not None
    assert hw.store.run(begin_job(JOB, "you", LEASE_MS)) is None
    step_back(hw, HOUR_MS // 2)
    assert hw.store.run(begin_job(JOB, "you", LEASE_MS)) is not None


def test_who_has_a_job_keeps_it_across_a_step_of_the_clock(hw: PrivateStore) -> None:
    begun = hw.store.run(begin_job(JOB, "me", LEASE_MS))
    assert begun is not None
    step_back(hw, HOUR_MS // 2)
    assert hw.store.run(note_job("j", begun.token, b"{}", LEASE_MS)).taken
    assert not take(hw)


def test_jobs_that_no_process_can_do_do_not_hide_those_behind_them(hw: PrivateStore) -> None:
    for number in range(250):
        other = JOB._replace(id=f"o{number}", kind="of another release")
        assert hw.store.run(begin_job(other, "me", LEASE_MS)) is not None
    hw.clock.advance(1)
    assert hw.store.run(begin_job(JOB, "me", LEASE_MS)) is not None
    hw.clock.advance(LEASE_MS)
    taken = hw.store.run(take_job(("redrive",), "other", LEASE_MS))
    assert taken is not None
    assert taken.id == "j"
    assert not take(hw)
