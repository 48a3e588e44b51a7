"""What the commands on groups of a stream promise."""

from __future__ import annotations

import datetime as dt

import pytest

from headwater import Stream
from tests.support.commands import StreamCommands, run
from tests.support.servers import until


def test_all_groups_are_shown_with_where_they_stand(hw_stream: StreamCommands) -> None:
    stream, url = hw_stream.stream, hw_stream.url
    stream.write_many([("tag", b"value")] * 10)
    group = stream.group("workers")
    group.read(4, ack_ms=60_000)
    group.ack(1)
    heading, _, row = hw_stream("groups").out.splitlines()
    assert dict(zip(heading.split(), row.split(), strict=True)) == {
        "group": "workers",
        "next": "5",
        "ack_offset": "2",
        "pending": "3",
        "lag": "6",
        "missed": "0",
        "expired": "0",
        "dead": "0",
        "members": "1",
        "waiting": "0",
    }
    facts = hw_stream("groups", "--json").row
    assert (facts["stream"], facts["group"], facts["lag"]) == (stream.name, "workers", 6)
    assert list(facts["members"]) == [group.member]
    everywhere = run(url, "stream", "groups")
    assert everywhere.out.splitlines()[0].split()[:2] == ["stream", "group"]
    assert [stream.name, "workers"] in [line.split()[:2] for line in everywhere.out.splitlines()]


@pytest.mark.parametrize("word", ["x", "5-", "-5", "5-x", "1.5", "5..9"])
def test_what_is_no_offset_is_bad_usage(hw_stream: StreamCommands, word: str) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    stream.group("g").read(1, ack_ms=60_000)
    assert hw_stream("ack", "g", "--", word).code == 2
    assert stream.group("g").info().pending == 1


def test_a_range_that_ends_before_it_starts_is_refused(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    stream.group("g").read(1)
    answer = hw_stream("ack", "g", "9-5")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: the range 9-5 ends before it starts")


def test_a_group_is_set_to_an_offset_an_end_or_a_time(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    offset = stream.write("tag", b"old")
    (old,) = stream.read(offset, 1)
    assert old is not None
    until(lambda: _later(stream, old.time_ms))
    last = stream.info().last
    stream.group("g").read(1)
    assert hw_stream("seek", "g", "first").out == "g reads on at 1\n"
    assert hw_stream("seek", "g", "last", "--json").row["next"] == last + 1
    assert hw_stream("seek", "g", "2", "--json").row["next"] == 2
    time = dt.datetime.fromtimestamp((old.time_ms + 1) / 1000, dt.UTC)
    expected = stream.offset_at(old.time_ms + 1)
    assert expected > 1
    assert hw_stream("seek", "g", time.isoformat(), "--json").row["next"] == expected
    local = time.astimezone().replace(tzinfo=None).isoformat()
    assert hw_stream("seek", "g", local, "--json").row["next"] == expected
    assert hw_stream("seek", "g", "yesterday").code == 2
    beyond = hw_stream("seek", "g", "999999")
    assert beyond.code == 1
    assert "error: offset 999999 is beyond stream" in beyond.err


def test_a_number_with_a_sign_seeks_from_where_the_group_stands(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("t", b"v")] * 100)
    stream.group("g").read(50)
    assert hw_stream("seek", "g", "-20").out == "g reads on at 31\n"
    assert hw_stream("seek", "g", "+5", "--json").row["next"] == 36
    assert hw_stream("seek", "g", "--json", "-1000").row["next"] == 1, (
        "as far as there is something"
    )
    assert hw_stream("seek", "g", "+1000").code == 1
    assert "--jsn" in hw_stream("seek", "g", "--jsn").err
    assert hw_stream("seek", "g", "-20", "--jsn").code == 2
    assert stream.group("g").info().next == 1
    stream.register_reader("r", 50)
    assert run(hw_stream.url, "reader", "seek", stream.name, "r", "-9", "--json").row["next"] == 41


def _later(stream: Stream, time_ms: int) -> bool:
    (message,) = stream.read(stream.write("tag", b"new"), 1)
    return message is not None and message.time_ms > time_ms


def test_dead_letters_are_shown_and_given_back(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("a", b"one"), ("b", b"\xfftwo")])
    group = stream.group("g", dead_letters=True)
    group.read(2, ack_ms=1, expire_ms=1)
    assert hw_stream("dead", "g").out == (
        "no dead letters; of 2 pending messages, one that has expired becomes a dead letter with "
        "the next read of the group, or by headwater keep\n"
    )
    until(group.bury)
    rows = hw_stream("dead", "g", "--json").rows
    assert [(row["origin"], row["attempts"], row["tag"]) for row in rows] == [
        (1, 1, "a"),
        (2, 1, "b"),
    ]
    assert rows[1]["encoding"] == "base64"
    heading, _, *shown = hw_stream("dead", "g", "--count", "1").out.splitlines()
    assert heading.split() == ["origin", "attempts", "buried", "tag", "value", "cause"]
    assert [row.split()[-2:] for row in shown] == [["one", "expired"]]
    assert hw_stream("discard", "g", "3", "7-9").out == "discarded: 0\n"
    assert hw_stream("redrive", "g", "--count", "1", "--rate", "100").out == "redriven: 1\n"
    assert hw_stream("redrive", "g", "--json").row["redriven"] == 1
    assert [message.offset for message in group.read(5, ack_ms=60_000)] == [1, 2]
    group.bury(1, error=ValueError("no such ride"))
    assert hw_stream("dead", "g", "--json").row["cause"] == "ValueError: no such ride"
    assert "ValueError: no such ride" in hw_stream("dead", "g").out
    assert "headers" not in hw_stream("dead", "g").out
    assert "no dead letters" in hw_stream("dead", "g", "--error", "timeout").out
    assert hw_stream("pause", "g").out == "paused\n"
    assert hw_stream("pause", "g", "--json").row["changed"] is False
    assert hw_stream("resume", "g").out == "runs\n"
    assert hw_stream("redrive", "g", "7").out == "redriven: 0\n"
    assert hw_stream("discard", "g", "--tag", "nobody", "--yes").out == "discarded: 0\n"
    for words, code in ((("1", "--error", "x"), 1), (("--after", "soon"), 2)):
        assert hw_stream("redrive", "g", *words).code == code
    stream.write("c", b"three", headers={"a": "1"})
    group.bury(*group.read(1, ack_ms=60_000))
    *_, last = hw_stream("dead", "g").out.splitlines()
    assert last.split()[-4:] == ["c", "a=1", "three", "-"]
    assert group.discard(3) == 1
    group.bury(2)
    assert hw_stream("discard", "g", "2-5", "--json").row == {
        "stream": stream.name,
        "group": "g",
        "discarded": 1,
    }
    assert hw_stream("discard", "g", "--count", "1").out == "discarded: 1\n"
    assert hw_stream("dead", "g").out == "no dead letters\n"
    assert hw_stream("discard", "g", "x").code == 2


def test_a_group_without_dead_letters_says_so(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    stream.group("g").read(1)
    assert hw_stream("dead", "g").out == "g keeps no dead letters\n"
