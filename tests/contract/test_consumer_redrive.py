"""A consumer handles its dead letters again when it is asked to: in order, each exactly once."""

from __future__ import annotations

import importlib
import secrets
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import LostFuture, Message, PositionLost
from headwater.outbox import Outbox
from tests.support.commands import run
from tests.support.consumer_letters import Fixable, Killed
from tests.support.consumers import Desk, drain
from tests.support.entries import entries

SKIPS: dict[str, Any] = {"on_error": "skip", "attempts": 2, "backoff_ms": 0}


def test_letters_have_their_effect_once_as_the_messages_that_they_were(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many([*entries(3), ("t", b"bad", {"a": b"1"}), *entries(3, 5)])
    handler = Fixable(2, 4)
    reader = desk.consumer("c", name, handler, **SKIPS)
    assert reader.redrive() == (0, 0), "there is no letter yet"
    drain(reader)
    handler.places.clear()
    handler.given.clear()
    assert reader.redrive() == (2, 0)
    second, fourth = handler.given
    assert (second.offset, fourth.offset) == (2, 4)
    assert (fourth.tag, fourth.value, dict(fourth.headers)) == ("t", b"bad", {"a": b"1"})
    assert desk.effects("c") == [1, 3, 5, 6, 7, 2, 4]
    assert reader.dead() == []
    assert reader.redrive() == (0, 0)
    assert reader.positions() == {name: 8}
    assert reader.lag() == 0


def test_a_letter_that_fails_again_stays_one_and_the_others_do_not_wait_for_it(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(6))
    handler = Fixable(2, 4, 5)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    handler.places = {4}
    assert reader.redrive() == (2, 1)
    assert desk.effects("c") == [1, 3, 6, 2, 5]
    (left,) = reader.dead()
    assert (left.origin, left.attempts) == (4, 2)
    handler.places.clear()
    assert reader.redrive() == (1, 0)
    assert desk.effects("c") == [1, 3, 6, 2, 5, 4]
    assert reader.dead() == []


def test_where_a_consumer_is_among_its_letters_is_no_position_of_its_own(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(3))
    handler = Fixable(2)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    reader.redrive()
    found = Outbox(desk.engine).status().checkpoints
    assert [one.stream for one in found if one.stream.startswith(name)] == [name]
    assert desk.hw.stream(f"{name}.c.sql-dead").info().readers == {}, "nothing waits for it"


def test_letters_of_a_topic_are_redriven_in_each_partition(desk: Desk, name: str) -> None:
    topic = desk.hw.topic(name, partitions=2)
    topic.write_many(entries(20, tags=10))
    handler = Fixable(1)
    reader = desk.consumer("c", topic, handler, **SKIPS)
    while reader.run_once():
        pass
    assert {letter.origin for letter in reader.dead()} == {1}
    handler.places.clear()
    handler.given.clear()
    assert reader.redrive() == (2, 0)
    assert [(one.partition, one.offset) for one in handler.given] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("step", ["moved", "handled", "committed", "given up", "buried"])
def test_whoever_is_killed_leaves_no_letter_twice_and_none_behind(
    desk: Desk, name: str, step: str
) -> None:
    desk.hw.stream(name).write_many(entries(5))
    handler = Fixable(2, 3, 4)
    drain(desk.consumer("c", name, handler, **SKIPS))
    handler.places = {3}
    seen: list[str] = []

    def die(at: str) -> None:
        seen.append(at)
        if at == step and seen.count(step) == 2 - (step in ("given up", "buried")):
            raise Killed

    with pytest.raises(Killed):
        desk.consumer("c", name, handler, steps=die, **SKIPS).redrive()
    again = desk.consumer("c", name, handler, **SKIPS)
    again.redrive()
    handler.places.clear()
    again.redrive()
    assert sorted(desk.effects("c")) == [1, 2, 3, 4, 5]
    assert again.dead() == []


def test_a_message_keeps_its_type(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(2))
    handler = Fixable(1)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    handler.places.clear()
    reader.redrive()
    assert isinstance(handler.given[-1], Message)


APP = """
import headwater

app = headwater.App(store={store!r}, db={db!r})
broken = True


@app.consumer("c", stream={stream!r}, on_error="skip", attempts=1)
{prefix}def apply(conn, messages):
    if broken and any(message.offset == 2 for message in messages):
        raise ValueError("cannot handle it")
"""


@pytest.mark.parametrize("prefix", ["", "async "])
def test_the_command_redrives_by_the_handler_of_an_application(
    desk: Desk, name: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if desk.manner == "async":
        return  # the command makes its own consumer
    module = f"shop_{secrets.token_hex(4)}"
    db = desk.engine.url.render_as_string(hide_password=False)
    text = APP.format(store=desk.hw.store.where, db=db, stream=name, prefix=prefix)
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    desk.hw.stream(name).write_many(entries(3))
    drain(desk.consumer("c", name, Fixable(2), **SKIPS))
    command = ("consumer", "redrive", f"{module}:app", "c", "--json")
    first = run(None, *command)
    assert first.code == 0, first.err
    assert first.row == {"consumer": "c", "handled": 0, "failed": 1}
    importlib.import_module(module).broken = False  # type: ignore[attr-defined]
    assert run(None, *command).row == {"consumer": "c", "handled": 1, "failed": 0}
    refused = run(None, "consumer", "redrive", f"{module}:app", "nobody")
    assert (refused.code, "it has c" in refused.err) == (1, True)


@pytest.mark.parametrize("later", [1, 2, 3])
def test_letters_of_a_stream_that_was_deleted_and_began_again_are_not_passed_over(
    desk: Desk, name: str, later: int
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(2))
    handler = Fixable(*range(1, 9))
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    handler.places.clear()
    assert reader.redrive() == (2, 0)
    assert desk.hw.stream(f"{name}.c.sql-dead").delete()
    handler.places = set(range(1, 9))
    stream.write_many(entries(later, 3))
    drain(reader)
    assert len(reader.dead()) == later
    handler.places.clear()
    assert desk.consumer("c", name, handler, **SKIPS).redrive() == (later, 0)
    assert len(desk.effects("c")) == 2 + later


def test_a_letter_that_was_buried_again_before_a_kill_is_not_handled_as_well(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(3))
    handler = Fixable(2, 3)
    drain(desk.consumer("c", name, handler, **SKIPS))
    handler.places = {2}

    def die(at: str) -> None:
        if at == "buried":
            raise Killed

    with pytest.raises(Killed):
        desk.consumer("c", name, handler, steps=die, **SKIPS).redrive()
    handler.places.clear()
    again = desk.consumer("c", name, handler, **SKIPS)
    while again.dead():
        again.redrive()
    assert sorted(desk.effects("c")) == [1, 2, 3]


def test_letters_before_a_position_that_the_log_does_not_reach_are_kept(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(2))
    handler = Fixable(1, 2, 3)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    handler.places = {3}
    assert reader.redrive() == (2, 0)
    # As in a store that was restored from an older copy.
    ahead = "UPDATE headwater_checkpoints SET next_offset = 99 WHERE stream LIKE :letters"
    with desk.engine.begin() as conn:
        assert conn.execute(sa.text(ahead), {"letters": f"{name}.c.sql-dead%"}).rowcount == 1
    stream.write_many(entries(1, 3))
    drain(reader)
    with pytest.raises((LostFuture, PositionLost)):
        desk.consumer("c", name, handler, **SKIPS).redrive()
    assert len(reader.dead()) == 1


def test_the_longest_name_of_a_consumer_can_redrive(desk: Desk, name: str) -> None:
    short = name[-8:]
    longest = "c" * (200 - len(f"{short}..sql-dead"))
    desk.hw.stream(short).write_many(entries(1))
    reader = desk.consumer(longest, short, Fixable(1), **SKIPS)
    drain(reader)
    assert reader.redrive() == (0, 1)
