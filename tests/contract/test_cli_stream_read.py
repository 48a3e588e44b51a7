"""What ``headwater stream read`` and ``tail`` promise."""

from __future__ import annotations

import base64

import pytest

from tests.support.commands import StreamCommands, line_of, run, running


def test_messages_are_read_as_a_table(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("a", b"one"), ("b", b"two")])
    heading, _, *rows = hw_stream("read").out.splitlines()
    assert heading.split() == ["offset", "time", "tag", "value"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert [row.split()[2:] for row in rows] == [["a", "one"], ["b", "two"]]


def test_messages_are_read_as_json_lines(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
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


def test_a_read_begins_and_ends_where_it_is_told(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("tag", b"%d" % n) for n in range(1, 31)])

    def offsets(*words: str) -> list[int]:
        return [row["offset"] for row in hw_stream("read", "--json", *words).rows]

    assert offsets() == list(range(1, 11))
    assert offsets("--offset", "29") == [29, 30]
    assert offsets("-o", "5", "-c", "3") == [5, 6, 7]
    assert offsets("--count", "0") == []
    stream.evict(20)
    assert offsets("--count", "2") == [21, 22]


def test_long_reads_come_in_pages_but_in_one_table(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    for _ in range(3):
        stream.write_many([("tag", b"value")] * 8000)
    assert len(hw_stream("read", "--count", "24000", "--json").rows) == 24_000
    assert len(hw_stream("read", "--count", "24000").out.splitlines()) == 24_002


def test_what_is_gone_is_told_as_a_range(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
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


def test_a_read_beyond_the_end_says_what_the_stream_holds(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    answer = hw_stream("read", "--offset", "50", "--block-ms", "1")
    assert answer == (0, "", "nothing from offset 50 on; the stream holds 1\n")
    stream.evict(1)
    assert hw_stream("read").err == "nothing from offset 2 on; the stream holds nothing\n"


def test_a_read_may_be_a_members_read(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("tag", b"value")] * 5)
    taken = hw_stream("read", "--group", "g", "-c", "2", "--ack-ms", "60000", "--json")
    assert [(row["offset"], row["attempt"]) for row in taken.rows] == [(1, 1), (2, 1)]
    table = hw_stream("read", "--group", "g", "-c", "2", "--ack-ms", "60000")
    assert table.out.splitlines()[0].split() == ["offset", "time", "tag", "attempt", "value"]
    assert stream.group("g").info().pending == 4


def test_data_cannot_act_on_the_terminal(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
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
        ("--ack-ms", "5"),
        ("--group", "g", "--offset", "1"),
    ],
)
def test_options_of_read_that_cannot_be_meant_are_bad_usage(
    hw_stream: StreamCommands, words: tuple[str, ...]
) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    assert hw_stream("read", *words).code == 2


def test_the_tail_begins_so_many_back_and_stops_after_so_many(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("tag", b"%d" % n) for n in range(1, 31)])
    answer = hw_stream("tail", "-n", "5", "--count", "3", "--json")
    assert [row["offset"] for row in answer.rows] == [26, 27, 28]
    lines = hw_stream("tail", "--count", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == ["29", "30"], "the newest two"
    assert hw_stream("tail", "--count", "0").out == ""


def test_a_message_is_printed_as_a_form_says(hw_stream: StreamCommands) -> None:
    hw_stream.stream.write_many([("a", b"one"), ("b", b"\xff two")])
    answer = hw_stream("read", "--format", "{{{offset}}}\\t{tag}={value}")
    assert answer.out.splitlines()[0] == "{1}\ta=one"
    assert hw_stream("tail", "-c", "1", "--format", "{tag} {attempt}").out == "b 0\n"
    taken = hw_stream("read", "--group", "g", "--ack-ms", "9", "--format", "{offset}:{attempt}")
    assert taken.out == "1:1\n2:1\n"


def test_headers_are_shown_beside_the_value_when_a_message_has_some(
    hw_stream: StreamCommands,
) -> None:
    hw_stream.stream.write_many([("a", b"one"), ("b", b"two")])
    assert "headers" not in hw_stream("read").out
    hw_stream.stream.write("c", b"three", headers={"x-y": b"\xff\n", "b": "1"})
    heading, _, first, *_, last = hw_stream("read").out.splitlines()
    assert heading.split() == ["offset", "time", "tag", "headers", "value"]
    assert (first.split()[2:], last.split()[2:]) == (
        ["a", "-", "one"],
        ["c", "b=1", r"x-y=\xff\n", "three"],
    )
    lines = hw_stream("tail", "--count", "2").out.splitlines()
    assert [line.split()[2:] for line in lines] == [
        ["b", "two"],
        ["c", "b=1", r"x-y=\xff\n", "three"],
    ]
    taken = hw_stream("read", "--group", "g", "--ack-ms", "9").out.splitlines()[0]
    assert taken.split()[-3:] == ["attempt", "headers", "value"]
    form = "{offset}:{headers}|{header[b]}|{header[x-y]}|{header[z]}"
    assert hw_stream("read", "-o", "2", "-c", "1", "--format", form).out == "2:|||\n"
    answer = hw_stream("read", "-o", "3", "--format", "{headers}|{header[b]}|{header[z]}")
    assert answer.out.endswith("|1|\n")


@pytest.mark.parametrize(
    "form",
    ["{nothing}", "{}", "{tag", "tag}", "{tag}{", "{tag.real}", "{header}", "{header[]}"],
)
def test_a_form_that_cannot_be_meant_is_bad_usage(hw_stream: StreamCommands, form: str) -> None:
    hw_stream.stream.write("tag", b"value")
    answer = hw_stream("read", "--format", form)
    assert (answer.code, answer.out) == (2, "")


def test_a_name_that_is_mistyped_is_answered_with_the_one_that_is_meant(
    hw_stream: StreamCommands,
) -> None:
    name = hw_stream.stream.name
    hw_stream.stream.write("tag", b"value")
    answer = run(hw_stream.url, "stream", "read", name + "s")
    assert answer.code == 1
    assert f"did you mean '{name}'?" in answer.err


@pytest.mark.parametrize("more", [False, True])
def test_the_tail_ends_when_nobody_reads_it_any_more(hw_stream: StreamCommands, more: bool) -> None:
    hw_stream.stream.write("tag", b"value")
    with running(hw_stream.url, "stream", "tail", hw_stream.stream.name) as process:
        assert line_of(process)
        assert process.stdout is not None
        process.stdout.close()
        if more:
            hw_stream.stream.write("tag", b"value")
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
