"""What ``headwater stream write`` promises."""

from __future__ import annotations

import os

import pytest

from tests.support.commands import StreamCommands


def test_one_message_is_written_and_its_offset_told(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    assert hw_stream("write", "tag", "käse") == (0, "1\n", "")
    assert hw_stream("write", "tag", "two", "--json").row == {"stream": stream.name, "offset": 2}
    (message,) = stream.read(1, 1)
    assert message is not None
    assert (message.tag, message.value) == ("tag", "käse".encode())


def test_a_value_may_be_any_bytes(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    word = os.fsdecode(b"a\xff")
    assert hw_stream("write", "tag", word).code == 0
    assert hw_stream("write", "--separator", word, stdin=b"tag a\xff value\n").code == 0
    assert [m and (m.tag, m.value) for m in stream.read(1, 9)] == [
        ("tag", b"a\xff"),
        ("tag ", b" value"),
    ]
    answer = hw_stream("write", word, "value")
    assert (answer.code, answer.err.count("\n")) == (1, 1)


def test_headers_are_written_with_every_message_and_shown_as_json(
    hw_stream: StreamCommands,
) -> None:
    stream, raw = hw_stream.stream, os.fsdecode(b"\xff=")
    assert hw_stream("write", "tag", "1", "--header", "a=x=y", "--header", f"b={raw}").code == 0
    assert hw_stream("write", "--header", "c=1", stdin=b"2\n3\n").code == 0
    assert hw_stream("write", "tag", "4").code == 0
    assert [m and dict(m.headers) for m in stream.read(1, 9)] == [
        {"a": b"x=y", "b": b"\xff="}, {"c": b"1"}, {"c": b"1"}, {}
    ]  # fmt: skip
    first, second, _, last = hw_stream("read", "--json").rows
    assert first["headers"] == {"a": "eD15", "b": "/z0="}
    assert first["headers_encoding"] == "base64"
    assert (second["headers"], "headers_encoding" in second) == ({"c": "1"}, False)
    assert "headers" not in last
    for words in (["a"], ["a=1", "--header", "a=2"], ["hw.a=1"]):
        assert hw_stream("write", "tag", "5", "--header", *words).code != 0
    assert stream.info().last == 4


def test_a_repeat_of_a_producers_write_is_written_once(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    words = ("write", "tag", "value", "--producer", "cron", "--sequence", "7")
    assert hw_stream(*words).out == "1\n"
    assert hw_stream(*words).out == "1\n"
    assert stream.info().length == 1


def test_each_line_of_stdin_is_a_message(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
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


def test_lines_may_share_a_tag_or_carry_their_own(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
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


def test_lines_are_written_in_batches(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    lines = "".join(f"{n}\n" for n in range(2500))
    assert hw_stream("write", "--batch", "300", "--json", stdin=lines).row["written"] == 2500
    assert [m and m.value for m in stream.read(1, 2500)] == [b"%d" % n for n in range(2500)]


def test_no_lines_are_no_messages(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    assert hw_stream("write", "--json", stdin="").row["written"] == 0
    assert not stream.info().exists


def test_a_line_without_the_separator_stops_the_writing_and_says_where(
    hw_stream: StreamCommands,
) -> None:
    stream = hw_stream.stream
    answer = hw_stream("write", "--separator", "=", "--batch", "2", stdin="a=1\nb=2\nc=3\nd\n")
    assert answer.code == 1
    assert "error: line 4 has no separator '='" in answer.err
    assert "written before that: 2 messages, from 1 to 2" in answer.err
    assert stream.info().last == 2


def test_a_line_longer_than_a_value_may_be_is_refused(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    answer = hw_stream("write", stdin=b"x" * (17 << 20))
    assert answer.code == 1
    assert "error: a line has more than the 16777216 bytes" in answer.err
    assert not stream.info().exists


def test_large_lines_are_divided_into_batches_that_fit(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    lines = b"\n".join(b"x" * (15 << 20) for _ in range(6))
    assert hw_stream("write", "--json", stdin=lines).row["written"] == 6
    assert stream.info().last == 6


def test_backlog_evicts_the_oldest(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
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
    hw_stream: StreamCommands, words: tuple[str, ...]
) -> None:
    stream = hw_stream.stream
    assert hw_stream("write", *words, stdin="line\n").code == 2
    assert not stream.info().exists
