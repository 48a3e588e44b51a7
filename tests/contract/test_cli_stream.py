"""What ``headwater stream`` promises."""

from __future__ import annotations

import base64
import datetime as dt
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import headwater
from headwater import Stream
from tests.support.commands import Answer, run
from tests.support.servers import until
from tests.support.stores import Stores

Run: TypeAlias = Callable[..., Answer]


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("embedded")


@pytest.fixture
def stream(url: str, name: str) -> Iterator[Stream]:
    with headwater.connect(url) as hw:
        yield hw.stream(name)


@pytest.fixture
def hw_stream(url: str, name: str) -> Run:
    """Run `headwater stream COMMAND NAME ...` on the test's own stream."""

    def run_on(command: str, *words: str, stdin: bytes | str | None = None) -> Answer:
        return run(url, "stream", command, name, *words, stdin=stdin)

    return run_on


# ── write ────────────────────────────────────────────────────────────────────────────────────


def test_one_message_is_written_and_its_offset_told(hw_stream: Run, stream: Stream) -> None:
    assert hw_stream("write", "tag", "käse") == (0, "1\n", "")
    assert hw_stream("write", "tag", "two", "--json").row == {"stream": stream.name, "offset": 2}
    (message,) = stream.read(1, 1)
    assert message is not None
    assert (message.tag, message.value) == ("tag", "käse".encode())


def test_a_value_may_be_any_bytes(hw_stream: Run, stream: Stream) -> None:
    word = os.fsdecode(b"a\xff")
    assert hw_stream("write", "tag", word).code == 0
    assert hw_stream("write", "--separator", word, stdin=b"tag a\xff value\n").code == 0
    assert [m and (m.tag, m.value) for m in stream.read(1, 9)] == [
        ("tag", b"a\xff"),
        ("tag ", b" value"),
    ]
    answer = hw_stream("write", word, "value")
    assert (answer.code, answer.err.count("\n")) == (1, 1)


def test_a_repeat_of_a_producers_write_is_written_once(hw_stream: Run, stream: Stream) -> None:
    words = ("write", "tag", "value", "--producer", "cron", "--sequence", "7")
    assert hw_stream(*words).out == "1\n"
    assert hw_stream(*words).out == "1\n"
    assert stream.info().length == 1


def test_each_line_of_stdin_is_a_message(hw_stream: Run, stream: Stream) -> None:
    lines = b"one\n\xff\x00two\n\nlast without an end"
    answer = hw_stream("write", stdin=lines)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "written 4 messages, the first at 1, the last at 4\n"
    assert [m and (m.tag, m.value) for m in stream.read(1, 9)] == [
        ("", b"one"),
        ("", b"\xff\x00two"),
        ("", b""),
        ("", b"last without an end"),
    ]


def test_lines_may_share_a_tag_or_carry_their_own(hw_stream: Run, stream: Stream) -> None:
    assert hw_stream("write", "--tag", "all", stdin="a\nb\n").code == 0
    answer = hw_stream("write", "--separator", "::", "--json", stdin="k1::v1\nk2::v2::v3\nk3::\n")
    assert answer.row == {"stream": stream.name, "written": 3, "first": 3, "last": 5}
    assert [m and (m.tag, m.value) for m in stream.read(1, 9)] == [
        ("all", b"a"),
        ("all", b"b"),
        ("k1", b"v1"),
        ("k2", b"v2::v3"),
        ("k3", b""),
    ]


def test_lines_are_written_in_batches(hw_stream: Run, stream: Stream) -> None:
    lines = "".join(f"{n}\n" for n in range(2500))
    assert hw_stream("write", "--batch", "300", "--json", stdin=lines).row["written"] == 2500
    assert [m and m.value for m in stream.read(1, 2500)] == [b"%d" % n for n in range(2500)]


def test_no_lines_are_no_messages(hw_stream: Run, stream: Stream) -> None:
    assert hw_stream("write", "--json", stdin="").row["written"] == 0
    assert not stream.info().exists


def test_a_line_without_the_separator_stops_the_writing_and_says_where(
    hw_stream: Run, stream: Stream
) -> None:
    answer = hw_stream("write", "--separator", "=", "--batch", "2", stdin="a=1\nb=2\nc=3\nd\n")
    assert answer.code == 1
    assert "error: line 4 has no separator '='" in answer.err
    assert "written before that: 2 messages, from 1 to 2" in answer.err
    assert stream.info().last == 2


def test_a_line_longer_than_a_value_may_be_is_refused(hw_stream: Run, stream: Stream) -> None:
    answer = hw_stream("write", stdin=b"x" * (17 << 20))
    assert answer.code == 1
    assert "error: a line has more than the 16777216 bytes" in answer.err
    assert not stream.info().exists


def test_large_lines_are_divided_into_batches_that_fit(hw_stream: Run, stream: Stream) -> None:
    lines = b"\n".join(b"x" * (15 << 20) for _ in range(6))
    assert hw_stream("write", "--json", stdin=lines).row["written"] == 6
    assert stream.info().last == 6


def test_backlog_evicts_the_oldest(hw_stream: Run, stream: Stream) -> None:
    hw_stream("write", stdin="1\n2\n3\n4\n")
    hw_stream("write", "tag", "5", "--backlog", "2")
    assert stream.info().first == 4


@pytest.mark.parametrize(
    "words",
    [
        ("tag",),
        ("--tag", "a", "--separator", "b"),
        ("tag", "value", "--separator", "b"),
        ("tag", "value", "--producer", "p"),
        ("--producer", "p", "--sequence", "1"),
        ("--separator", ""),
        ("--batch", "0"),
    ],
)
def test_options_of_write_that_do_not_go_together_are_bad_usage(
    hw_stream: Run, stream: Stream, words: tuple[str, ...]
) -> None:
    assert hw_stream("write", *words, stdin="line\n").code == 2
    assert not stream.info().exists


# ── read ─────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_read_as_a_table(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("a", b"one"), ("b", b"two")])
    heading, _, *rows = hw_stream("read").out.splitlines()
    assert heading.split() == ["offset", "time", "tag", "value"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert [row.split()[2:] for row in rows] == [["a", "one"], ["b", "two"]]


def test_messages_are_read_as_json_lines(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("a", "käse"), ("b", b"\xff\x00"), ("c", b"")])
    answer = hw_stream("read", "--json")
    times = {row.pop("time_ms") for row in answer.rows}
    assert len(times) == 1
    rows = [{k: v for k, v in row.items() if k != "time_ms"} for row in answer.rows]
    assert rows == [
        {"offset": 1, "tag": "a", "value": "käse"},
        {"offset": 2, "tag": "b", "value": "/wA=", "encoding": "base64"},
        {"offset": 3, "tag": "c", "value": ""},
    ]
    assert base64.b64decode(rows[1]["value"]) == b"\xff\x00"


def test_a_read_begins_and_ends_where_it_is_told(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"%d" % n) for n in range(1, 31)])

    def offsets(*words: str) -> list[int]:
        return [row["offset"] for row in hw_stream("read", "--json", *words).rows]

    assert offsets() == list(range(1, 11))
    assert offsets("--offset", "29") == [29, 30]
    assert offsets("-o", "5", "-c", "3") == [5, 6, 7]
    assert offsets("--count", "0") == []
    stream.evict(20)
    assert offsets("--count", "2") == [21, 22]


def test_long_reads_come_in_pages_but_in_one_table(hw_stream: Run, stream: Stream) -> None:
    for _ in range(3):
        stream.write_many([("tag", b"value")] * 8000)
    assert len(hw_stream("read", "--count", "24000", "--json").rows) == 24_000
    assert len(hw_stream("read", "--count", "24000").out.splitlines()) == 24_002


def test_what_is_gone_is_told_as_a_range(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("a", b"5")])
    stream.compact()
    stream.evict(1)
    answer = hw_stream("read", "--offset", "1", "--json")
    assert [row.get("gone", row.get("offset")) for row in answer.rows] == [
        {"first": 1, "last": 1},
        2,
        {"first": 3, "last": 3},
        4,
        5,
    ]
    stream.evict(3)
    rows = hw_stream("read", "--offset", "1").out.splitlines()[2:]
    assert rows[0].split() == ["1-3", "-", "-", "gone"]


def test_a_read_beyond_the_end_says_what_the_stream_holds(hw_stream: Run, stream: Stream) -> None:
    stream.write("tag", b"value")
    answer = hw_stream("read", "--offset", "50", "--block-ms", "1")
    assert answer == (0, "", "nothing from offset 50 on; the stream holds 1\n")
    stream.evict(1)
    assert hw_stream("read").err == "nothing from offset 2 on; the stream holds nothing\n"


def test_a_read_may_be_a_members_read(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 5)
    taken = hw_stream("read", "--group", "g", "-c", "2", "--retry-ms", "60000", "--json")
    assert [(row["offset"], row["attempt"]) for row in taken.rows] == [(1, 1), (2, 1)]
    table = hw_stream("read", "--group", "g", "-c", "2", "--retry-ms", "60000")
    assert table.out.splitlines()[0].split() == ["offset", "time", "tag", "attempt", "value"]
    assert stream.group("g").info().pending == 4


def test_data_cannot_act_on_the_terminal(hw_stream: Run, stream: Stream) -> None:
    stream.write("[red]tag\x1b[31m", b"\x1b]0;title\x07 [bold]value\r\n")
    for answer in (hw_stream("read"), hw_stream("tail", "-c", "1")):
        assert "\x1b" not in answer.out
        assert "\x07" not in answer.out
        assert "[red]tag\\x1b[31m" in answer.out
        assert "\\x1b]0;title\\x07 [bold]value\\r\\n" in answer.out


@pytest.mark.parametrize(
    "words",
    [
        ("--offset", "0"),
        ("--offset", "x"),
        ("--count", "-1"),
        ("--retry-ms", "5"),
        ("--group", "g", "--offset", "1"),
    ],
)
def test_options_of_read_that_cannot_be_meant_are_bad_usage(
    hw_stream: Run, stream: Stream, words: tuple[str, ...]
) -> None:
    stream.write("tag", b"value")
    assert hw_stream("read", *words).code == 2


def test_the_tail_begins_so_many_back_and_stops_after_so_many(
    hw_stream: Run, stream: Stream
) -> None:
    stream.write_many([("tag", b"%d" % n) for n in range(1, 31)])
    answer = hw_stream("tail", "-n", "5", "--count", "3", "--json")
    assert [row["offset"] for row in answer.rows] == [26, 27, 28]
    lines = hw_stream("tail", "--count", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == ["21", "22"]
    assert hw_stream("tail", "--count", "0").out == ""


# ── streams as a whole ───────────────────────────────────────────────────────────────────────


def test_all_streams_are_listed(url: str, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 3)
    rows = {row["name"]: row for row in run(url, "stream", "list", "--json").rows}
    assert rows[stream.name]["length"] == 3
    table = run(url, "stream", "list").out
    assert any(line.split()[:4] == [stream.name, "1", "3", "3"] for line in table.splitlines())


def test_a_store_without_streams_says_so(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    assert run(url, "stream", "list", "--json") == (0, "", "")
    assert run(url, "stream", "list").out.startswith("no streams")
    assert run(url, "stream", "groups").out.startswith("no groups")


def test_info_tells_how_a_stream_stands(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 3)
    stream.retain(max_count=100)
    stream.register_reader("outside", 2)
    stream.group("g").read(1)
    facts = hw_stream("info", "--json").row
    assert (facts["first"], facts["last"], facts["length"]) == (1, 3, 3)
    assert facts["retention"] == {"max_count": 100, "max_age_ms": None, "max_bytes": None}
    assert (facts["readers"], facts["groups"]) == ({"outside": 2}, ["g"])
    shown = dict(line.split(maxsplit=1) for line in hw_stream("info").out.splitlines())
    assert shown["offsets"].strip() == "1-3"
    assert shown["readers"].strip() == "outside at 2"


def test_eviction_is_up_to_an_offset_or_down_to_a_number(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 30)
    assert hw_stream("evict", "10").out == "evicted 10 messages; the first is now 11\n"
    answer = hw_stream("evict", "--keep", "5", "--json")
    assert answer.row == {"stream": stream.name, "evicted": 15, "first": 26}
    assert hw_stream("evict").code == 2
    assert hw_stream("evict", "3", "--keep", "5").code == 2
    assert hw_stream("evict", "--keep", "0").code == 2


def test_retention_is_shown_set_applied_and_lifted(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 30)
    assert hw_stream("retain").out == "everything is kept\n"
    assert hw_stream("retain", "--max-count", "20").out == "max_count 20: evicted 10 messages\n"
    stream.group("slow", start=11).read(0)
    stream.write_many([("tag", b"value")] * 5)
    applied = hw_stream("retain", "--apply")
    assert applied.out == "max_count 20: evicted 0 messages; 5 held for slow\n"
    forced = hw_stream("retain", "--apply", "--force", "--json").row
    assert (forced["evicted"], forced["held"], forced["held_by"]) == (5, 0, None)
    hw_stream("retain", "--max-age", "7d", "--max-bytes", "2GiB")
    assert hw_stream("retain", "--json").row == {
        "stream": stream.name,
        "max_count": None,
        "max_age_ms": 604_800_000,
        "max_bytes": 2**31,
    }
    assert hw_stream("retain", "--forever").out == "everything is kept: evicted 0 messages\n"
    assert hw_stream("retain").out == "everything is kept\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--max-age", "soon"),
        ("--max-bytes", "2XB"),
        ("--max-count", "-1"),
        ("--force",),
        ("--apply", "--forever"),
        ("--max-count", "1", "--apply"),
    ],
)
def test_a_retention_that_cannot_be_meant_is_bad_usage(
    hw_stream: Run, stream: Stream, words: tuple[str, ...]
) -> None:
    stream.write("tag", b"value")
    assert hw_stream("retain", *words).code == 2


def test_compaction_is_done_now_or_left_to_the_housekeeper(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("a", b"1"), ("a", b"2"), ("b", b"3")])
    assert hw_stream("compact").out == "removed 1 messages\n"
    assert hw_stream("compact", "--json").row == {"stream": stream.name, "removed": 0}
    assert hw_stream("compact", "--auto").out == "the housekeeper compacts it\n"
    assert stream.info().auto_compact
    answer = hw_stream("compact", "--no-auto", "--json")
    assert answer.row == {"stream": stream.name, "auto_compact": False}
    assert not stream.info().auto_compact


def test_sealing_tells_how_many(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 3)
    assert hw_stream("seal").out == "sealed 3 messages\n"
    assert hw_stream("seal", "--json").row["sealed"] == 0


def test_deletion_asks_first(hw_stream: Run, stream: Stream) -> None:
    stream.write("tag", b"value")
    for answer in (hw_stream("delete", stdin="n\n"), hw_stream("delete", stdin="")):
        assert answer.code == 1
        assert f"Delete {stream.name} with 1 messages and 0 groups?" in answer.err
    assert stream.info().exists
    assert hw_stream("delete", stdin="y\n").code == 0
    assert not stream.info().exists
    stream.write("tag", b"value")
    assert hw_stream("delete", "--yes", "--json").row == {"stream": stream.name, "deleted": True}
    assert not stream.info().exists


# ── groups ───────────────────────────────────────────────────────────────────────────────────


def test_all_groups_are_shown_with_where_they_stand(
    url: str, hw_stream: Run, stream: Stream
) -> None:
    stream.write_many([("tag", b"value")] * 10)
    group = stream.group("workers")
    group.read(4, retry_ms=60_000)
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


def test_offsets_and_ranges_are_acknowledged_and_given_back(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("tag", b"value")] * 20)
    group = stream.group("g")
    group.read(20, retry_ms=60_000)
    assert hw_stream("ack", "g", "1", "5-9", "3").out == "acknowledged 7 that were pending\n"
    assert hw_stream("ack", "g", "1-9", "--json").row["acked"] == 2
    assert hw_stream("nack", "g", "10-11").out == "given back 2 that were pending\n"
    assert [message.offset for message in group.read(20, retry_ms=60_000)] == [10, 11]
    answer = hw_stream("nack", "g", "12", "1", "--delay-ms", "60000", "--json")
    assert answer.row["nacked"] == 1
    assert group.read(20, retry_ms=60_000) == []


@pytest.mark.parametrize("word", ["x", "5-", "-5", "5-x", "1.5", "5..9"])
def test_what_is_no_offset_is_bad_usage(hw_stream: Run, stream: Stream, word: str) -> None:
    stream.write("tag", b"value")
    stream.group("g").read(1, retry_ms=60_000)
    assert hw_stream("ack", "g", "--", word).code == 2
    assert stream.group("g").info().pending == 1


def test_a_range_that_ends_before_it_starts_is_refused(hw_stream: Run, stream: Stream) -> None:
    stream.write("tag", b"value")
    stream.group("g").read(1)
    answer = hw_stream("ack", "g", "9-5")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: the range (9, 5) ends before it starts")


def test_a_group_is_set_to_an_offset_an_end_or_a_time(hw_stream: Run, stream: Stream) -> None:
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
    assert "error: offset 999999 lies beyond stream" in beyond.err


def _later(stream: Stream, time_ms: int) -> bool:
    (message,) = stream.read(stream.write("tag", b"new"), 1)
    return message is not None and message.time_ms > time_ms


def test_dead_letters_are_shown_and_given_back(hw_stream: Run, stream: Stream) -> None:
    stream.write_many([("a", b"one"), ("b", b"\xfftwo")])
    group = stream.group("g", dead_letters=True)
    group.read(2, retry_ms=1, expire_ms=1)
    assert hw_stream("dead", "g").out == "no dead letters\n"
    until(group.bury)
    rows = hw_stream("dead", "g", "--json").rows
    assert [(row["origin"], row["attempts"], row["tag"]) for row in rows] == [
        (1, 1, "a"),
        (2, 1, "b"),
    ]
    assert rows[1]["encoding"] == "base64"
    heading, _, *shown = hw_stream("dead", "g", "--count", "1").out.splitlines()
    assert heading.split() == ["origin", "attempts", "buried", "tag", "value"]
    assert [row.split()[-1] for row in shown] == ["one"]
    assert hw_stream("redrive", "g", "--count", "1").out == "given back 1\n"
    assert hw_stream("redrive", "g", "--json").row["returned"] == 1
    assert [message.offset for message in group.read(5, retry_ms=60_000)] == [1, 2]


def test_a_group_without_dead_letters_says_so(hw_stream: Run, stream: Stream) -> None:
    stream.write("tag", b"value")
    stream.group("g").read(1)
    assert hw_stream("dead", "g").out == "g keeps no dead letters\n"


def test_a_group_is_removed(hw_stream: Run, stream: Stream) -> None:
    stream.write("tag", b"value")
    stream.group("g").read(1)
    stream.group("h").read(1)
    assert hw_stream("remove-group", "g").out == "removed g\n"
    assert hw_stream("remove-group", "h", "--json").row["removed"]
    assert stream.info().groups == ()


# ── errors ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("read", ()),
        ("tail", ()),
        ("info", ()),
        ("groups", ()),
        ("ack", ("g", "1")),
        ("nack", ("g", "1")),
        ("seek", ("g", "first")),
        ("dead", ("g",)),
        ("redrive", ("g",)),
        ("remove-group", ("g",)),
        ("evict", ("1",)),
        ("retain", ("--max-count", "1")),
        ("compact", ()),
        ("seal", ()),
        ("delete", ("--yes",)),
    ],
)
def test_a_stream_that_was_never_written_is_taken_for_a_typing_error(
    hw_stream: Run, stream: Stream, command: str, words: tuple[str, ...]
) -> None:
    answer = hw_stream(command, *words)
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err == (
        f"error: there is no stream {stream.name!r}; write to it first or check the name\n"
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ack", ("1",)),
        ("nack", ("1",)),
        ("seek", ("first",)),
        ("dead", ()),
        ("redrive", ()),
        ("remove-group", ()),
    ],
)
def test_a_group_that_never_read_is_said_to_be_unknown(
    hw_stream: Run, stream: Stream, command: str, words: tuple[str, ...]
) -> None:
    stream.write("tag", b"value")
    answer = hw_stream(command, "nobody", *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: stream {stream.name!r} has no group 'nobody'")
    assert answer.err.count("\n") == 1


def test_a_name_that_is_refused_is_one_line(url: str) -> None:
    answer = run(url, "stream", "write", "a name", "tag", "value")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: the name of a stream must not contain ' '")
    assert answer.err.count("\n") == 1


def test_the_store_is_named_before_or_after_the_command(url: str, stream: Stream) -> None:
    stream.write("tag", b"value")
    elsewhere = "redis://127.0.0.1:1"
    words = ("stream", "info", stream.name, "--json")
    assert run(elsewhere, "--store", url, *words).row["name"] == stream.name
    assert run(elsewhere, *words, "--store", url).row["name"] == stream.name
    assert run(elsewhere, "--store", elsewhere, *words, "--store", url).code == 0


def test_a_store_that_is_away_is_one_line_without_the_password() -> None:
    answer = run("redis://me:secret@127.0.0.1:1", "stream", "list")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: cannot reach the store at redis://127.0.0.1:1")
    assert answer.err.count("\n") == 1
    assert "secret" not in answer.err


@pytest.mark.parametrize("url", ["nonsense", "http://x", "redis://:sec/ret@host", "redis://h?x=1"])
def test_a_url_that_cannot_be_meant_is_one_line(url: str) -> None:
    answer = run(None, "stream", "list", "--store", url)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert "sec" not in answer.err


@pytest.mark.parametrize(
    "words", [(), ("stream",), ("stream", "wipe"), ("stream", "read"), ("--nothing",)]
)
def test_bad_usage_exits_with_2(words: tuple[str, ...]) -> None:
    assert run(None, *words).code == 2


@pytest.mark.cluster
def test_streams_of_a_cluster_are_all_listed(stores: Stores, name: str) -> None:
    url = stores.url("cluster")
    names = [f"{name}-{n}" for n in range(5)]
    for one in names:
        assert run(url, "stream", "write", one, "tag", "value").out == "1\n"
    assert set(names) <= {row["name"] for row in run(url, "stream", "list", "--json").rows}
