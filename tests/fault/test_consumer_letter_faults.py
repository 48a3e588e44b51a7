"""Dead letters of consumers that are killed: each is written once, and has its effect once."""

from __future__ import annotations

import signal

import pytest
import sqlalchemy as sa

from headwater import Headwater
from tests.support.consumer_letters import noted
from tests.support.consumer_processes import ConsumerProcesses
from tests.support.consumers import applied, effects, numbers
from tests.support.entries import entries, pairs
from tests.support.servers import until
from tests.support.stores import Stores

pytestmark = pytest.mark.fault


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.mark.parametrize("step", ["given up", "buried", "begun", "moved", "in the handler"])
def test_a_letter_is_written_once_wherever_its_consumer_dies(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "guilty": [4, 5, 9], "on_error": "skip", "attempts": 1}
    times = 2 if step in ("given up", "buried") else 5
    assert consumers.run(step=step, times=times, **order) == -signal.SIGKILL
    going_on = consumers.start(**order)
    until(applied(engine, 9))
    grave = hw.stream(f"{name}.c.sql-dead")
    until(lambda: grave.info().last == 3)
    assert consumers.end(going_on) == 0
    assert effects(engine, "c") == [1, 2, 3, 6, 7, 8, 10, 11, 12]
    assert pairs(grave.read(1, 100)) == [entries(1, offset)[0] for offset in (4, 5, 9)]


@pytest.mark.parametrize("step", ["given up", "buried"])
def test_a_message_whose_letter_was_written_before_a_kill_has_its_effect_once(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    dying = consumers.start(step=step, times=2, guilty=[4, 5], **order)
    assert consumers.wait(dying) == -signal.SIGKILL
    # A redrive before the consumer has retried the message leaves it to that.
    assert consumers.run(act="redrive", **order) == 0
    assert effects(engine, "c") == [1, 2, 3, 4]
    going_on = consumers.start(**order)
    until(applied(engine, 12))
    assert consumers.end(going_on) == 0
    assert consumers.run(act="redrive", **order) == 0
    assert effects(engine, "c") == [1, 2, 3, 4, *numbers(5, 12)]
    assert hw.stream(f"{name}.c.sql-dead").info().length == 0


@pytest.mark.parametrize(
    "step",
    [
        *(pytest.param(one, marks=pytest.mark.long) for one in ("begun", "moved", "committed")),
        *("handled", "buried"),
    ],
)
@pytest.mark.parametrize("times", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_redrives_at_once_apply_each_letter_once_wherever_one_died(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
    times: int,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    letters = list(range(1, 12, 2))
    giving_up = consumers.start(guilty=letters, **order)
    until(lambda: hw.stream(name).info().readers == {"consumer:c": 13})
    assert consumers.end(giving_up) == 0
    # Alone, so that it comes to its step for certain; it fails on every other letter.
    failing = {"act": "redrive", "guilty": letters[::2], **order}
    assert consumers.run(step=step, times=times, **failing) == -signal.SIGKILL
    # One redrive fails on what another one applies at the same time.
    at_once = [consumers.start(**failing), consumers.start(act="redrive", **order)]
    assert [consumers.wait(pid) for pid in at_once] == [0, 0]
    grave = hw.stream(f"{name}.c.sql-dead")
    for _ in range(3):
        assert consumers.run(act="redrive", **order) == 0
    assert grave.info().length == 0
    assert sorted(effects(engine, "c")) == numbers(1, 12)


@pytest.mark.parametrize(("step", "left"), [("dropped", 3), ("discarded", 0)])
def test_letters_are_discarded_all_or_not_wherever_a_discard_dies(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
    step: str,
    left: int,
) -> None:
    hw.stream(name).write_many(entries(12))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    giving_up = consumers.start(guilty=[4, 5, 9], **order)
    until(lambda: hw.stream(name).info().readers == {"consumer:c": 13})
    assert consumers.end(giving_up) == 0
    assert consumers.run(act="discard", step=step, **order) == -signal.SIGKILL
    grave = hw.stream(f"{name}.c.sql-dead")
    assert grave.info().length == 3, "they are evicted last"
    assert len(noted(engine, name)) == left
    # What is discarded has no effect any more; a letter that was to be, and is not, still has.
    assert consumers.run(act="redrive", **order) == 0
    assert grave.info().length == 0
    assert noted(engine, name) == []
    again = [4, 5, 9] if left else []
    assert effects(engine, "c") == [*numbers(1, 12, [4, 5, 9]), *again]


def test_a_discard_that_died_is_completed_by_the_next(
    consumers: ConsumerProcesses,
    manner: str,
    engine: sa.Engine,
    hw: Headwater,
    name: str,
) -> None:
    hw.stream(name).write_many(entries(6))
    order = {"manner": manner, "on_error": "skip", "attempts": 1}
    giving_up = consumers.start(guilty=[2, 4], **order)
    until(lambda: hw.stream(name).info().readers == {"consumer:c": 7})
    assert consumers.end(giving_up) == 0
    assert consumers.run(act="discard", step="discarded", **order) == -signal.SIGKILL
    assert consumers.run(act="discard", **order) == 0
    assert hw.stream(f"{name}.c.sql-dead").info().length == 0
    assert noted(engine, name) == []
    assert effects(engine, "c") == [1, 3, 5, 6]
