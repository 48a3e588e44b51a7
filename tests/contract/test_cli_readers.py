"""What `headwater reader`, `headwater consumer` and `headwater stream set-group` promise."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import Headwater
from headwater.outbox import Consumer, Outbox
from tests.support.commands import StreamCommands, run
from tests.support.consumer_letters import noted
from tests.support.consumers import drain
from tests.support.entries import entries
from tests.support.stores import Stores


def test_readers_are_listed_moved_and_forgotten(hw_stream: StreamCommands) -> None:
    stream, url = hw_stream.stream, hw_stream.url
    stream.write_many(entries(10))
    assert run(url, "reader", "list", stream.name).out.startswith("no readers")
    reader = f"nightly-{stream.name}"
    stream.register_reader(reader, 4)
    stream.register_reader("consumer:totals", 9)
    rows = run(url, "reader", "list", stream.name, "--json").rows
    assert [(row["reader"], row["next"], row["lag"]) for row in rows] == [
        ("consumer:totals", 9, 2),
        (reader, 4, 7),
    ]
    assert all(0 <= row["lag_ms"] < 60_000 for row in rows)
    everywhere = run(url, "reader", "list").out.splitlines()
    assert [stream.name, reader, "4", "7"] in [line.split()[:4] for line in everywhere]
    assert (
        run(url, "reader", "seek", stream.name, reader, "last").out == f"{reader} needs 11 next\n"
    )
    assert run(url, "reader", "seek", stream.name, reader, "2", "--json").row["next"] == 2
    assert stream.info().readers[reader] == 2
    assert run(url, "reader", "forget", stream.name, reader).out == f"forgot {reader}\n"
    stream.register_reader(reader, 3)
    gone = run(url, "reader", "remove", reader, "--json").row
    assert (gone["reader"], gone["streams"]) == (reader, [stream.name])
    assert list(stream.info().readers) == ["consumer:totals"]


def test_a_reader_that_is_unknown_is_refused_in_every_form(hw_stream: StreamCommands) -> None:
    stream, url = hw_stream.stream, hw_stream.url
    stream.write_many(entries(3))
    stream.register_reader("nightly", 1)
    for words in (
        ("seek", stream.name, "nightlyy", "1"),
        ("seek", stream.name, "nightlyy", "1", "--json"),
        ("forget", stream.name, "nightlyy"),
    ):
        answer = run(url, "reader", *words)
        assert (answer.code, answer.out) == (1, "")
        assert "has no reader 'nightlyy'; did you mean 'nightly'?" in answer.err
    assert run(url, "reader", "remove", f"{stream.name}-nobody").code == 1
    assert run(url, "reader", "seek", stream.name, "nightly", "9").code == 1
    assert run(url, "reader", "seek", stream.name, "nightly", "soon").code == 2
    answer = run(url, "reader", "seek", stream.name, "consumer:totals", "1")
    assert (answer.code, "headwater consumer seek totals" in answer.err) == (1, True)


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture
def consumer(hw: Headwater, outbox: Outbox, name: str) -> Consumer:
    """A consumer that has applied three messages of one stream and none of another."""
    hw.stream(name).write_many(entries(5))

    def handle(_conn: Any, _messages: Any) -> None:
        pass

    made = Consumer(f"c-{name}", [name, f"{name}-2"], outbox, hw, handle, batch=3)
    made.run_once()
    return made


@on_sqlite
def test_consumers_are_listed_moved_forgotten_and_removed(
    hw: Headwater, store_url: str, database_url: str, consumer: Consumer, name: str
) -> None:
    def command(*words: str) -> Any:
        return run(store_url, "consumer", *words, "--db", database_url, "--json")

    def positions() -> list[tuple[Any, ...]]:
        rows = command("list").rows
        return [(row["stream"], row["next_offset"], row["lag"]) for row in rows]

    other = f"{name}-2"
    assert positions() == [(name, 4, 2), (other, 1, 0)]
    assert command("seek", consumer.name, "2", "--stream", name).row["next"] == {name: 2}
    assert command("seek", consumer.name, "first").row["next"] == {name: 1, other: 1}
    assert command("seek", consumer.name, "2").code == 1
    assert consumer.positions() == {name: 1, other: 1}
    reader = f"consumer:{consumer.name}"
    assert command("forget", consumer.name, "--stream", name).row["streams"] == [name]
    assert (reader in hw.stream(name).info().readers, positions()[0]) == (False, (name, 1, 5))
    assert command("remove", consumer.name, "--stream", other).row["streams"] == [other]
    assert positions() == [(name, 1, 5)]
    assert command("remove", consumer.name).row["streams"] == [name]
    assert positions() == []


@on_sqlite
def test_dead_letters_of_a_consumer_are_shown_with_their_causes(
    hw: Headwater, outbox: Outbox, store_url: str, database_url: str, name: str
) -> None:
    hw.stream(name).write("t", b"bad")

    def handle(_conn: Any, _messages: Any) -> None:
        raise ValueError("too bad")

    made = Consumer(f"c-{name}", name, outbox, hw, handle, attempts=1, on_error="skip")
    words = ("consumer", "dead", made.name, "--db", database_url)
    made.seek("first")
    assert run(store_url, *words).out == "no dead letters\n"
    assert (made.run_once(), made.stats.dead) == (0, 1)
    row = run(store_url, *words, "--json").row
    assert [row[key] for key in ("stream", "origin", "attempts", "tag", "value", "cause")] == [
        *(name, 1, 1, "t", "bad", "ValueError: too bad")
    ]
    assert row["delivered_ms"] > 0 < row["buried_ms"]
    assert "ValueError: too bad" in run(store_url, *words).out


@on_sqlite
def test_dead_letters_of_a_consumer_are_discarded_after_a_question(
    hw: Headwater, outbox: Outbox, store_url: str, database_url: str, name: str
) -> None:
    streams = [name, f"{name}-2"]
    for stream in streams:
        hw.stream(stream).write_many(entries(3))

    def handle(_conn: Any, _messages: Any) -> None:
        raise ValueError("too bad")

    made = Consumer(f"c-{name}", streams, outbox, hw, handle, attempts=1, on_error="skip")
    drain(made)
    words = ("consumer", "discard", made.name, "--db", database_url)
    assert run(store_url, *words).code == 1, "nobody said yes"
    refused = run(store_url, *words, "--up-to", "1", "--yes")
    assert (refused.code, f"name one of {name}, {name}-2" in refused.err) == (1, True)
    assert run(store_url, *words, "--up-to", "0", "--stream", name, "--yes").code == 2
    assert len(made.dead()) == 6
    row = run(store_url, *words, "--up-to", "2", "--stream", name, "--yes", "--json").row
    assert row == {"consumer": made.name, "discarded": 2}
    assert [noted(outbox.engine, stream) for stream in streams] == [[3], [1, 2, 3]]
    assert run(store_url, *words, "--yes").out == "discarded 4\n"
    assert [noted(outbox.engine, stream) for stream in streams] == [[], []]


@on_sqlite
def test_a_consumer_that_is_unknown_is_refused_in_every_form(
    store_url: str, database_url: str, consumer: Consumer, name: str
) -> None:
    mistyped = f"{consumer.name}x"
    for words in (
        ["seek", mistyped, "first"],
        ["seek", mistyped, "first", "--json"],
        ["remove", mistyped],
        ["forget", mistyped],
        ["dead", mistyped],
        ["discard", mistyped, "--yes"],
    ):
        answer = run(store_url, "consumer", *words, "--db", database_url)
        assert (answer.code, answer.out) == (1, "")
        assert f"did you mean {consumer.name!r}?" in answer.err
    wrong = ("remove", consumer.name, "--stream", f"{name}-3")
    answer = run(store_url, "consumer", *wrong, "--db", database_url)
    assert (answer.code, "has no position on" in answer.err) == (1, True)
    assert set(consumer.positions().values()) == {4, 1}


def test_a_group_is_created_and_changed(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many(entries(10))
    made = hw_stream("set-group", "g", "--start", "4", "--max-pending", "2", "--json").row
    assert (made["next"], made["max_pending"], made["dead_letters"]) == (4, 2, None)
    changed = hw_stream("set-group", "g", "--max-pending", "0", "--dead-letters", "--json").row
    assert (changed["next"], changed["max_pending"]) == (4, None)
    assert changed["dead_letters"] == f"{stream.name}.g.dead"
    assert hw_stream("set-group", "g", "--dead-letters-to", "graves").out == (
        "g: next 4, max pending without limit, dead letters graves\n"
    )
    assert hw_stream("set-group", "g", "--no-dead-letters", "--json").row["dead_letters"] is None
    assert hw_stream("set-group", "g", "--ordered").out.endswith(", in the order of each tag\n")
    again = hw_stream("set-group", "g", "--start", "first")
    assert (again.code, "headwater stream seek" in again.err) == (1, True)
    mistyped = hw_stream("set-group", "gg", "--max-pending", "5")
    assert (mistyped.code, "did you mean 'g'?" in mistyped.err) == (1, True)
    assert hw_stream("set-group", "g").code == 2
    assert hw_stream("set-group", "g", "--dead-letters", "--dead-letters-to", "x").code == 2
    assert stream.info().groups == ("g",)
