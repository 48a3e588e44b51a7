"""What the command line says of mistakes: one line, with the cure, and no password."""

from __future__ import annotations

import re

import pytest

from tests.support.commands import StreamCommands, run
from tests.support.stores import Stores


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
        ("discard", ("g",)),
        ("remove-group", ("g",)),
        ("evict", ("1",)),
        ("retain", ("--max-count", "1")),
        ("compact", ()),
        ("seal", ()),
        ("delete", ("--yes",)),
    ],
)
def test_a_stream_that_was_never_written_is_taken_for_a_typing_error(
    hw_stream: StreamCommands, command: str, words: tuple[str, ...]
) -> None:
    stream = hw_stream.stream
    answer = hw_stream(command, *words)
    assert answer.code == 1
    assert answer.out == ""
    # A stream of another test may have a name that is like it.
    said = re.escape(f"error: there is no stream {stream.name!r}; ")
    assert re.fullmatch(
        said + r"(write to it first or check the name|did you mean '.*'\?)\n", answer.err
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ack", ("1",)),
        ("nack", ("1",)),
        ("seek", ("first",)),
        ("dead", ()),
        ("redrive", ()),
        ("discard", ()),
        ("remove-group", ()),
    ],
)
def test_a_group_that_never_read_is_said_to_be_unknown(
    hw_stream: StreamCommands, command: str, words: tuple[str, ...]
) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    answer = hw_stream(command, "nobody", *words)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"error: stream {stream.name!r} has no group 'nobody'")
    assert answer.err.count("\n") == 1


def test_a_name_that_is_refused_is_one_line(stores: Stores) -> None:
    answer = run(stores.url("embedded"), "stream", "write", "a name", "tag", "value")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: the name of a stream must not contain ' '")
    assert answer.err.count("\n") == 1


def test_an_option_that_is_missing_is_named_with_what_it_wants() -> None:
    answer = run(None, "queue", "work", "mail", "--", "cat")
    assert answer.code == 2
    assert "Write --exec CMD; see" in answer.err


def test_the_store_is_named_before_or_after_the_command(hw_stream: StreamCommands) -> None:
    stream, url = hw_stream.stream, hw_stream.url
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
